"""Packing and what is stored."""

from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from asa.errors import RequestError, WorkError
from data_prep import shards
from data_prep.shards import Packer
from data_prep.text import Document
from data_prep.tokenizer import Encoder, Special
from tests.data_prep.conftest import WORDS, save_tokenizer

SPECIAL = Special(pad=0, cls=1, sep=2, mask=3)


def pack(lists: list[list[int]], length: int) -> list[list[int]]:
    packer = Packer(length, SPECIAL)
    return [*chain.from_iterable(packer.add(ids) for ids in lists), *packer.last()]


def test_a_document_is_cut_and_continues() -> None:
    rows = pack([[10, 11, 12, 13, 14, 15, 16], [20, 21]], 8)
    assert rows == [[1, 10, 11, 12, 13, 14, 15, 2], [1, 16, 2, 20, 21, 2, 0, 0]]


def test_a_single_place_left_is_padding() -> None:
    assert pack([[10, 11, 12, 13, 14], [20]], 8) == [[1, 10, 11, 12, 13, 14, 2, 0], [1, 20, 2, 0, 0, 0, 0, 0]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(10, 99), min_size=1, max_size=40), max_size=12), st.integers(8, 20))
def test_every_token_is_there_in_order(lists: list[list[int]], length: int) -> None:
    rows = pack(lists, length)
    assert all(len(row) == length and row[0] == SPECIAL.cls for row in rows)
    assert [i for row in rows for i in row if i >= 10] == list(chain.from_iterable(lists))
    for row in rows:
        body = [i for i in row if i != SPECIAL.pad]
        assert body[-1] == SPECIAL.sep
        assert row[len(body) :] == [SPECIAL.pad] * (length - len(body))
        assert not any(a == b == SPECIAL.sep for a, b in pairwise(body))
    assert all(row[-2] != SPECIAL.pad for row in rows[:-1])
    ends = sum(row.count(SPECIAL.sep) for row in rows)
    assert len(lists) <= ends <= len(lists) + len(rows)


def texts(count: int) -> list[Document]:
    return [Document(str(n), f"T{n}", f"{WORDS[n % len(WORDS)]} the river") for n in range(count)]


def write(folder: Path, model: Path, documents: list[Document], heldout: float = 0.3) -> dict:
    folder.mkdir()
    return shards.write(documents, Encoder(model, 16), folder, length=16, heldout=heldout, dropped=Counter())


def read(folder: Path, split: str) -> np.ndarray:
    column = Dataset.from_file(str(folder / shards.file_name(split))).data.table.column(shards.COLUMN)
    return np.concatenate([chunk.flatten().to_numpy(zero_copy_only=True) for chunk in column.chunks]).reshape(-1, 16)


def test_stored_rows_map_zero_copy_and_agree_with_the_facts(tmp_path: Path, model: Path) -> None:
    facts = write(tmp_path / "s", model, texts(100))
    for split in shards.SPLITS:
        ids = read(tmp_path / "s", split)
        assert ids.dtype == np.uint16
        assert len(ids) == facts["rows"][split] > 0
        assert int((ids > 4).sum()) == facts["tokens"][split]
    assert facts["documents"]["kept"] == 100
    assert 10 < facts["documents"]["heldout"] < 60
    assert facts["special_ids"] == {"pad": 0, "cls": 2, "sep": 3, "mask": 4}


def test_many_rows_span_several_writes(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_ROWS_PER_WRITE", 3)
    facts = write(tmp_path / "s", model, texts(100), heldout=0.0)
    assert len(read(tmp_path / "s", "train")) == facts["rows"]["train"] > 9
    assert facts["rows"]["heldout"] == 0


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    assert Encoder(save_tokenizer(tmp_path, extra_words=66_000), 16).dtype == np.uint32


def test_special_tokens_written_in_a_text_stay_text(model: Path) -> None:
    encoder = Encoder(model, 16)
    (ids,) = encoder.encode(["the [MASK] river [SEP]"])
    assert not set(ids) & set(encoder.special)


def test_the_tokenizers_own_truncation_is_off(model: Path) -> None:
    assert len(Encoder(model, 16).encode(["river " * 50])[0]) == 50


def test_nothing_to_train_on(tmp_path: Path, model: Path) -> None:
    with pytest.raises(WorkError, match="no document was left"):
        write(tmp_path / "s", model, [])


def test_rows_longer_than_the_model_takes(model: Path) -> None:
    with pytest.raises(RequestError, match=r"length = 1024.*512.*--length"):
        Encoder(model, 1024)


def test_heldout_follows_the_title_not_its_case() -> None:
    titles = [f"Title {n}" for n in range(2_000)]
    chosen = [shards.is_heldout(title, 0.05) for title in titles]
    assert chosen == [shards.is_heldout(title.upper(), 0.05) for title in titles]
    assert 60 < sum(chosen) < 140
