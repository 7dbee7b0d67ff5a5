"""The data benchmarks measure what they say, on little."""

from pathlib import Path

import pytest

from asa import manifest
from benchmarks import reader, tokenize
from benchmarks.reader import ReaderConfig
from benchmarks.tokenize import TokenizeConfig
from data_prep.text import write_jsonl
from tests.data_prep.conftest import prose, save_tokenizer


def test_the_reader_on_a_few_rows(tmp_path: Path) -> None:
    request = ReaderConfig(rows=4, length=32, world=2, stored=64, steps=2, rounds=2)
    reader.make_shards(tmp_path, request.stored, request.length)
    rates = reader.measure(request, tmp_path)
    assert {kind: len(found) for kind, found in rates.items()} == {"token": 2, "word": 2, "span": 2}
    assert all(rate > 0 for found in rates.values() for rate in found)
    assert reader.report(request, rates).count("\n") == 3


@pytest.fixture
def request_(tmp_path: Path) -> TokenizeConfig:
    folder = tmp_path / "text"
    folder.mkdir()
    rows: list[dict[str, object]] = [{"id": str(n), "title": f"T{n}", "text": prose(n, 90)} for n in range(60)]
    write_jsonl(rows, folder / "documents-000000.jsonl")
    manifest.write(folder, "documents", {"documents": {"kept": 60, "dropped": {}}})
    return TokenizeConfig(documents=[folder], model=save_tokenizer(tmp_path / "model"), length=32, copies=2, parts=3)


def test_both_sides_tokenise_the_same_text(request_: TokenizeConfig, tmp_path: Path) -> None:
    documents = tokenize.spread(request_, tmp_path / "documents")
    ours = tokenize.by_build(request_, documents, tmp_path / "ours", workers=1)
    theirs = tokenize.by_maps(request_, documents, tmp_path / "map", workers=1)
    assert ours == 2 * 60 * 90, "every word is a token"
    assert 0.9 < theirs / ours < 1.1
