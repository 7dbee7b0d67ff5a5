"""Packing and what is stored."""

import json
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features, List, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from asa import manifest
from asa.errors import WorkError
from data_prep import shards
from data_prep.merge_shards import merge_shards
from data_prep.shards import Packing, Recipe, Rows, total, write_part
from tests.data_prep.conftest import WORDS

PAD, CLS, SEP = 0, 1, 2


def recipe(length: int, packing: Packing = "packed", tokenizer: Path = Path(), heldout: float = 0.0) -> Recipe:
    schema = Features({shards.COLUMN: List(Value("uint16"), length=length)}).arrow_schema.serialize().to_pybytes()
    return Recipe(tokenizer, schema, PAD, CLS, SEP, length, packing, heldout, frozenset(), frozenset())


def read(path: Path, length: int) -> np.ndarray:
    """The rows of a file, not copied from its memory map."""
    column = Dataset.from_file(str(path)).data.table.column(shards.COLUMN)
    return np.concatenate([chunk.flatten().to_numpy(zero_copy_only=True) for chunk in column.chunks]).reshape(
        -1, length
    )


def pack(folder: Path, lists: list[list[int]], length: int, packing: Packing = "packed") -> list[list[int]]:
    path = folder / "rows.arrow"
    path.unlink(missing_ok=True)
    rows = Rows(path, recipe(length, packing))
    for ids in lists:
        rows.add(np.array(ids, np.uint16))
    rows.close()
    assert path.exists() == (rows.rows > 0)
    found = read(path, length).tolist() if rows.rows else []
    assert len(found) == rows.rows
    return found


def test_a_document_is_cut_and_continues(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[10, 11, 12, 13, 14, 15, 16], [20, 21]], 8)
    assert rows == [[1, 10, 11, 12, 13, 14, 15, 2], [1, 16, 2, 20, 21, 2, 0, 0]]


def test_a_single_place_left_is_padding(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[10, 11, 12, 13, 14], [20]], 8)
    assert rows == [[1, 10, 11, 12, 13, 14, 2, 0], [1, 20, 2, 0, 0, 0, 0, 0]]


def test_single_documents_are_cut_or_padded(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[10, 11, 12, 13, 14, 15, 16], [20, 21]], 8, "single")
    assert rows == [[1, 10, 11, 12, 13, 14, 15, 2], [1, 20, 21, 2, 0, 0, 0, 0]]


DOCUMENTS = st.lists(st.lists(st.integers(10, 99), min_size=1, max_size=40), max_size=12)


@settings(max_examples=100)
@given(lists=DOCUMENTS, length=st.integers(8, 20), block=st.integers(1, 5))
def test_every_token_is_there_in_order(
    lists: list[list[int]], length: int, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_ROWS_PER_BLOCK", block)
        rows = pack(tmp_path_factory.getbasetemp(), lists, length)
    assert all(row[0] == CLS for row in rows)
    assert [i for row in rows for i in row if i >= 10] == list(chain.from_iterable(lists))
    for row in rows:
        body = [i for i in row if i != PAD]
        assert body[-1] == SEP
        assert row[len(body) :] == [PAD] * (length - len(body))
        assert not any(a == b == SEP for a, b in pairwise(body))
    assert all(row[-2] != PAD for row in rows[:-1])
    ends = sum(row.count(SEP) for row in rows)
    assert len(lists) <= ends <= len(lists) + len(rows)


@settings(max_examples=50)
@given(lists=DOCUMENTS, length=st.integers(8, 20))
def test_a_row_a_document(lists: list[list[int]], length: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = pack(tmp_path_factory.getbasetemp(), lists, length, "single")
    kept = [ids[: length - 2] for ids in lists]
    assert rows == [[CLS, *ids, SEP, *[PAD] * (length - 2 - len(ids))] for ids in kept]


def write(folder: Path, model: Path, texts: dict[str, str], kept_out: frozenset[str] = frozenset()) -> dict:
    lines = [json.dumps({"id": title, "title": title, "text": text}) for title, text in texts.items()]
    (folder / "documents.jsonl").write_text("".join(line + "\n" for line in lines))
    made = recipe(16, tokenizer=model / "tokenizer.json", heldout=0.3)._replace(cls=2, sep=3, kept_out=kept_out)
    return write_part(made, ("00007", folder / "documents.jsonl", None), folder)


def test_stored_rows_agree_with_the_counts(tmp_path: Path, model: Path) -> None:
    texts = {f"T{n}": f"{WORDS[n % len(WORDS)]} the river" for n in range(100)}
    counts = write(tmp_path, model, {**texts, "Empty": " ", "Task": "the river"}, frozenset({"task"}))
    for split in shards.SPLITS:
        ids = read(tmp_path / f"{split}-00007.arrow", 16)
        assert ids.dtype == np.uint16
        assert len(ids) == counts["rows"][split] > 0
        assert int((ids > 4).sum()) == counts["tokens"][split]
    documents = counts["documents"]
    assert documents["kept"] == 100
    assert 10 < documents["heldout"] < 60
    assert documents["dropped"] == {"no tokens": 1, "in the task's dev or test split": 1}
    assert documents["lengths"] == {"2": 100}


def test_documents_of_one_title_are_held_out_together_whatever_their_ids(tmp_path: Path, model: Path) -> None:
    """As an article and its lead."""
    titles = [f"T{n}" for n in range(40)]
    pairs = [(kind, title) for title in titles for kind in ("article", "lead")]
    rows = [json.dumps({"id": f"{kind}:{title}", "title": title, "text": "the river"}) for kind, title in pairs]
    (tmp_path / "documents.jsonl").write_text("".join(row + "\n" for row in rows))
    made = recipe(16, tokenizer=model / "tokenizer.json", heldout=0.3)
    counts = write_part(made, ("00007", tmp_path / "documents.jsonl", None), tmp_path)
    assert counts["documents"]["heldout"] == 2 * sum(shards.is_heldout(title, 0.3) for title in titles) > 0


def test_a_line_that_is_no_document_is_named(tmp_path: Path, model: Path) -> None:
    (tmp_path / "documents.jsonl").write_text('{"id": "1", "title": "T", "text": "the"}\n{"id": "2"}\n')
    with pytest.raises(WorkError, match="line 2"):
        write_part(recipe(16, tokenizer=model / "tokenizer.json"), ("0", tmp_path / "documents.jsonl", None), tmp_path)


def test_counts_add_up_whatever_keys_they_have() -> None:
    assert total([{"a": 1, "b": {"x": 2}}, {"b": {"x": 1, "y": 5}}]) == {"a": 1, "b": {"x": 3, "y": 5}}


def test_parts_without_a_row_are_joined_to_nothing(tmp_path: Path) -> None:
    parts = [tmp_path / str(index) for index in range(2)]
    for index, part in enumerate(parts):
        (part / "shards").mkdir(parents=True)
        manifest.write(part / "shards", shards.PART, {**shards.NOTHING, "shard": f"{index}/2"})
    with pytest.raises(WorkError, match="no part has a row to train on"):
        merge_shards(parts, tmp_path / "out", overwrite=False)
    assert not (tmp_path / "out").exists()


def test_heldout_follows_the_title_not_its_case() -> None:
    titles = [f"Title {n}" for n in range(2_000)]
    chosen = [shards.is_heldout(title, 0.05) for title in titles]
    assert chosen == [shards.is_heldout(title.upper(), 0.05) for title in titles]
    assert 60 < sum(chosen) < 140
