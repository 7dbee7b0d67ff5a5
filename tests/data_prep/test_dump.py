"""Reading dumps, good and bad."""

import bz2
import tracemalloc
from pathlib import Path

import pytest

from asa.errors import RequestError, WorkError
from data_prep.dump import pages
from tests.data_prep.conftest import dump_xml, page_xml


def test_plain_and_multistream_dumps_give_the_same_pages(tmp_path: Path) -> None:
    xml = dump_xml(page_xml("One", "first &amp; text", 1), page_xml("Two", "", 2, redirect=True)).encode()
    plain, packed = tmp_path / "wiki.xml", tmp_path / "wiki.xml.bz2"
    plain.write_bytes(xml)
    packed.write_bytes(bz2.compress(xml[:200]) + bz2.compress(xml[200:]))
    found = list(pages(plain))
    assert found == list(pages(packed))
    assert [(p.id, p.title, p.namespace, p.is_redirect) for p in found] == [
        ("1", "One", 0, False),
        ("2", "Two", 0, True),
    ]
    assert found[0].wikitext == "first &amp; text"
    assert {"file", "datei", "kategorie"} <= found[0].silent


def test_missing_dump_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none\.xml.*--dumps"):
        list(pages(tmp_path / "none.xml"))


@pytest.mark.parametrize("name", ["notes.txt", "wiki.xml.gz", "wiki.7z"])
def test_other_endings_are_a_wrong_request(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("text")
    with pytest.raises(RequestError, match="must end in"):
        list(pages(tmp_path / name))


def test_a_folder_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no dump"):
        list(pages(tmp_path))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated_bz2(dump: Path, share: float) -> None:
    content = dump.read_bytes()
    dump.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(WorkError, match=r"wiki\.xml\.bz2 is truncated or damaged.*fetch it again"):
        list(pages(dump))


def test_missing_second_stream(tmp_path: Path) -> None:
    xml = dump_xml(page_xml("One", "text"), page_xml("Two", "text")).encode()
    path = tmp_path / "wiki.xml.bz2"
    path.write_bytes(bz2.compress(xml[:-50]))
    with pytest.raises(WorkError, match="truncated"):
        list(pages(path))


@pytest.mark.parametrize(
    "content", ["", "no xml at all", "<html><body><p>404<br></body></html>", dump_xml(page_xml("A", "b"))[:-20]]
)
def test_text_that_is_no_whole_xml(tmp_path: Path, content: str) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(content)
    with pytest.raises(WorkError, match=r"wiki\.xml is truncated or damaged") as raised:
        list(pages(path))
    assert "\n" not in str(raised.value)


def test_xml_named_bz2(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml.bz2"
    path.write_text(dump_xml(page_xml("A", "b")))
    with pytest.raises(WorkError, match="truncated or damaged"):
        list(pages(path))


@pytest.mark.parametrize("xml", [dump_xml(), "<feed><entry /></feed>"])
def test_xml_without_pages(tmp_path: Path, xml: str) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(xml)
    with pytest.raises(WorkError, match="no pages"):
        list(pages(path))


def test_memory_stays_flat(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(dump_xml(*(page_xml(f"P{n}", "text " * 20_000, n) for n in range(60))))
    tracemalloc.start()
    assert sum(1 for _ in pages(path)) == 60
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4
