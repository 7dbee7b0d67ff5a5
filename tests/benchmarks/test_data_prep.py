"""The data-preparation benchmark on a tiny dump, as it is run."""

import sys
from pathlib import Path

import pytest

from asa.errors import RequestError
from benchmarks.data_prep import DataPrepConfig, data_prep, leftovers, repeat, stages
from tests.data_prep.conftest import dump_xml, page_xml, prose


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "small.xml"
    path.write_text(dump_xml(*(page_xml(f"A{n}", prose(n, 500), n) for n in range(20))))
    return path


def test_a_dump_of_the_asked_size(dump: Path, tmp_path: Path) -> None:
    made = repeat(dump, 300_000, tmp_path / "large.xml")
    assert 300_000 <= made.stat().st_size < 400_000
    assert made.read_text().endswith("</mediawiki>\n")
    (tmp_path / "none.xml").write_text("<mediawiki></mediawiki>")
    with pytest.raises(RequestError, match="no pages"):
        repeat(tmp_path / "none.xml", 1, tmp_path / "x.xml")


def test_documents_with_markup_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "[[not]]"}\n')
    assert leftovers("text", tmp_path).endswith("2 documents, 1 with leftover markup (50.00%)")


def test_every_stage_beside_a_stand_in(dump: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("import pathlib, sys\npathlib.Path(sys.argv[sys.argv.index('--output') + 1]).mkdir()\n")
    command = f"{sys.executable} {other}"
    data_prep([str(dump), "--megabytes", "1", "--rounds", "1", "--wikiextractor", command, "--results", "null"])
    said = capsys.readouterr().out
    for line in ("text                   2", "wikiextractor          1", "dedup                  2"):
        assert line in said
    assert "text against wikiextractor, 2 processes:" in said


def test_wikiextractor_is_no_dependency(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [stage.name for stage in stages(DataPrepConfig(input=dump, wikiextractor="no-such"))] == ["text", "dedup"]
    assert "pip install wikiextractor" in capsys.readouterr().out
