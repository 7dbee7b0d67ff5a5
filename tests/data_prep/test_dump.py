"""Reading dumps, good and bad, whole and from any range of bytes."""

import bz2
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asa.errors import WorkError
from data_prep import blocks
from data_prep.dump import Page, Span, check_whole, pages, silent_names
from tests.data_prep.conftest import dump_xml, page_xml, prose


def all_pages(path: Path) -> list[Page]:
    return list(pages(Span(path, 0, path.stat().st_size)))


def many_pages(count: int, words: int = 400) -> bytes:
    """Pages of text that does not compress away, so that there are many blocks."""
    return dump_xml(*(page_xml(f"P{n}", f"{n} " * 5 + prose(n, words), n) for n in range(count))).encode()


def one_stream(xml: bytes) -> bytes:
    return bz2.compress(xml, 1)


def many_streams(xml: bytes) -> bytes:
    """Streams that end anywhere, within a tag too, as pbzip2 makes them."""
    return b"".join(bz2.compress(xml[start : start + 30_011], 1) for start in range(0, len(xml), 30_011))


def no_stream(xml: bytes) -> bytes:
    return xml


FORMS: dict[str, Callable[[bytes], bytes]] = {"w.xml": no_stream, "o.xml.bz2": one_stream, "m.xml.bz2": many_streams}


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, xml = tmp_path_factory.mktemp("dumps"), many_pages(300)
    for name, form in FORMS.items():
        (folder / name).write_bytes(form(xml))
    return {name: folder / name for name in FORMS}


def test_all_forms_give_the_same_pages(dumps: dict[str, Path]) -> None:
    found = [all_pages(path) for path in dumps.values()]
    assert found[0] == found[1] == found[2]
    assert [page.id for page in found[0]] == [str(n) for n in range(300)]


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=25)
@given(cuts=st.lists(st.floats(0, 1), max_size=6))
def test_ranges_that_cover_a_file_give_every_page_once(dumps: dict[str, Path], name: str, cuts: list[float]) -> None:
    path = dumps[name]
    size = path.stat().st_size
    edges = [0, *sorted(int(cut * size) for cut in cuts), size]
    found = [page for start, stop in pairwise(edges) for page in pages(Span(path, start, stop))]
    assert [page.id for page in found] == [str(n) for n in range(300)]


def test_the_smallest_ranges_in_the_middle_of_a_tag(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(dump_xml(page_xml("One", "a", 1), page_xml("Two", "b", 2)))
    size = path.stat().st_size
    assert [page.id for start in range(size) for page in pages(Span(path, start, start + 1))] == ["1", "2"]


def test_what_a_page_holds(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(dump_xml(page_xml("One", "first &amp; text", 1), page_xml("Two", "", 2, redirect=True)))
    first, second = all_pages(path)
    assert first == Page("1", "One", 0, False, "first &amp; text")
    assert second == Page("2", "Two", 0, True, "")


def test_of_several_revisions_the_last_is_the_page(tmp_path: Path) -> None:
    """As in dumps with the history."""
    revisions = "".join(f"<revision><id>{n}</id><text>state {n}</text></revision>" for n in (7, 8))
    path = tmp_path / "wiki.xml"
    path.write_text(dump_xml(f"<page><title>One</title><ns>0</ns><id>1</id>{revisions}</page>"))
    assert [page.wikitext for page in all_pages(path)] == ["state 8"]


def test_a_dump_that_does_not_tell_articles_from_talk_is_refused(tmp_path: Path) -> None:
    """Those of before 2012: their talk pages became articles."""
    path = tmp_path / "wiki.xml"
    path.write_text(dump_xml(page_xml("Talk:One", "I think so. --Bob", 1)).replace("<ns>0</ns>", ""))
    with pytest.raises(WorkError, match=r"page 'Talk:One' has no <ns>.*give a dump of 2012 or later"):
        all_pages(path)


def test_the_header_tells_the_names_of_files_and_categories(dumps: dict[str, Path]) -> None:
    for path in dumps.values():
        assert {"file", "datei", "kategorie"} <= silent_names(path)
        check_whole(path)


def test_a_sign_that_stands_within_a_block_by_chance(dumps: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    true_marks = list(blocks._marks(dumps["o.xml.bz2"], 0))
    false = [(bit + 1_000, True) for bit, is_block in true_marks[:3] if is_block]
    monkeypatch.setattr(blocks, "_marks", lambda path, start: iter(sorted([*true_marks, *false])))
    assert len(all_pages(dumps["o.xml.bz2"])) == 300


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("name", FORMS)
def test_a_truncated_dump_is_found_before_the_work(
    dumps: dict[str, Path], name: str, share: float, tmp_path: Path
) -> None:
    path = tmp_path / name
    content = dumps[name].read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(WorkError, match=r"is truncated or damaged.*fetch it again and give --overwrite true"):
        check_whole(path)


@pytest.mark.parametrize("last", [False, True])
def test_a_stream_whose_block_is_not_found_is_no_whole_dump(dumps: dict[str, Path], last: bool, tmp_path: Path) -> None:
    """The sign that its one block begins with is damaged: the next sign is another stream's. Streams end between pages,
    as in multistream dumps, so that no page is cut."""
    head, *pages_ = dumps["w.xml"].read_bytes().split(b"<page>")
    parts = [head, *(b"<page>" + b"<page>".join(pages_[start : start + 4]) for start in range(0, len(pages_), 4))]
    streams = [bz2.compress(part, 1) for part in parts]
    damaged = -1 if last else len(streams) // 2
    content = bytearray(b"".join(streams))
    content[sum(map(len, streams[:damaged])) + 5] ^= 1
    path = tmp_path / "m.xml.bz2"
    path.write_bytes(content)
    with pytest.raises(WorkError, match=r"truncated or damaged \(the bzip2 stream after byte [\d,]+ has no block"):
        all_pages(path)


@pytest.mark.parametrize("name", ["o.xml.bz2", "m.xml.bz2"])
def test_bytes_after_the_last_stream_are_left_out(dumps: dict[str, Path], name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(dumps[name].read_bytes() + bytes(512))
    assert len(all_pages(path)) == 300


@pytest.mark.parametrize("name", ["o.xml.bz2", "m.xml.bz2"])
def test_a_flipped_bit_is_found(dumps: dict[str, Path], name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content = bytearray(dumps[name].read_bytes())
    content[len(content) // 3] ^= 8
    path.write_bytes(content)
    with pytest.raises(WorkError, match="truncated or damaged"):
        all_pages(path)


@pytest.mark.parametrize(
    "content", ["", "no xml at all", "<html><body><p>404<br></body></html>", "<feed><entry /></feed>"]
)
@pytest.mark.parametrize("name", ["wiki.xml", "wiki.xml.bz2"])
def test_what_is_no_dump(tmp_path: Path, content: str, name: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(WorkError) as raised:
        check_whole(tmp_path / name)
    assert "\n" not in str(raised.value)
    with pytest.raises(WorkError, match=r"no MediaWiki dump|truncated or damaged"):
        silent_names(tmp_path / name)


def test_broken_xml_within(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(dump_xml(page_xml("A", "b"), "<page><title>x</ns></page>"))
    with pytest.raises(WorkError, match="mismatched tag"):
        all_pages(path)
    path.write_text(dump_xml(page_xml("A", "b"), "<page><title>x"))
    with pytest.raises(WorkError, match="ends within a page"):
        all_pages(path)


def test_memory_stays_flat(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(dump_xml(*(page_xml(f"P{n}", "text " * 20_000, n) for n in range(200))))
    tracemalloc.start()
    assert sum(1 for _ in pages(Span(path, 0, path.stat().st_size))) == 200
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 3
