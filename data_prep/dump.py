"""Pages from MediaWiki dumps (pages-articles, .xml or .xml.bz2), from any range of a file's bytes, in flat memory.

A page belongs to the range in which its `<page>` begins, so ranges that cover a file give every page once. In .bz2
files a range means the compressed blocks that begin in it (blocks.py); whether the file is one stream or many, and
whether it has an index, makes no difference.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from asa.errors import WorkError
from data_prep import blocks
from data_prep.languages import SILENT

ENDINGS = (".xml", ".bz2")
# Namespaces whose links show a picture or sort the page: Media, File, Category.
_SILENT_KEYS = {"-2", "6", "14"}
_START, _END = b"<page>", b"</page>"
_CHUNK = 2**20
_HEADER_MOST = 16 * 2**20


class Page(NamedTuple):
    """One page as the dump has it."""

    id: str
    title: str
    namespace: int
    is_redirect: bool
    wikitext: str


class Span(NamedTuple):
    """The bytes [start, stop) of a file."""

    path: Path
    start: int
    stop: int


def silent_names(path: Path) -> frozenset[str]:
    """The lower-case link prefixes that show no text: Media, File and Category by every name, the wiki's own too.

    Raises: WorkError for a file that does not begin as a dump.
    """
    header = b""
    for chunk, _ in _chunks(Span(path, 0, path.stat().st_size)):
        header += chunk
        if b"</siteinfo>" in header or _START in header or len(header) > _HEADER_MOST:
            break
    end = header.find(b"</siteinfo>")
    if b"<mediawiki" not in header[:4096] or (end < 0 and _START not in header):
        raise WorkError(f"{path} is no MediaWiki dump, or truncated or damaged at its beginning; fetch it again")
    if end < 0:
        return SILENT
    try:
        root = ElementTree.fromstring(header[: end + len(b"</siteinfo>")] + b"</mediawiki>")
    except ElementTree.ParseError as error:
        raise _damaged(path, error) from None
    names = root.iterfind("{*}siteinfo/{*}namespaces/{*}namespace")
    return SILENT | {(name.text or "").lower() for name in names if name.get("key") in _SILENT_KEYS}


def check_whole(path: Path) -> None:
    """Raise WorkError, at once, for a dump whose end is missing."""
    size = path.stat().st_size
    # Two of the longest compressed blocks: one of them begins in it.
    ending = b"".join(chunk for chunk, _ in _chunks(Span(path, max(0, size - 2 * _CHUNK), size)))
    if not ending.rstrip().endswith(b"</mediawiki>"):
        raise _damaged(path, "its end is missing")


def pages(span: Span) -> Iterator[Page]:
    """The pages that begin in a range, in order. Raises WorkError for damage."""
    try:
        for text in _page_texts(_chunks(span)):
            yield _page(text, span.path)
    except (ElementTree.ParseError, ValueError) as error:
        raise _damaged(span.path, error) from None


def _damaged(path: Path, detail: object) -> WorkError:
    # The parts that are finished are of the damaged file, so the mended one is another input.
    advice = "fetch it again and give --overwrite true"
    return WorkError(f"{path} is truncated or damaged ({' '.join(str(detail).split())}); {advice}")


def _chunks(span: Span) -> Iterator[tuple[bytes, bool]]:
    """The XML from the start of a range to the end of the file, and whether a piece lies in the range.

    A .bz2 name is believed, so that a web page saved under it is reported as damaged.
    """
    if span.path.suffix == ".bz2":
        try:
            yield from blocks.unpacked(span.path, span.start, span.stop)
        except ValueError as error:
            raise _damaged(span.path, error) from None
        return
    with span.path.open("rb") as file:
        file.seek(span.start)
        while chunk := file.read(min(_CHUNK, span.stop - file.tell()) if file.tell() < span.stop else _CHUNK):
            yield chunk, file.tell() <= span.stop


def _page_texts(chunks: Iterator[tuple[bytes, bool]]) -> Iterator[bytes]:
    """`<page>...</page>` of every page that begins in the range."""
    buffer, limit = b"", -1
    for chunk, inside in chunks:
        if not inside and limit < 0:
            limit = len(buffer)
        buffer += chunk
        position = 0
        while (start := buffer.find(_START, position)) >= 0 and (limit < 0 or start < limit):
            end = buffer.find(_END, start)
            if end < 0:
                break
            position = end + len(_END)
            yield buffer[start:position]
        else:
            if limit >= 0:
                return
            # The tag itself may be cut in two.
            start = max(position, len(buffer) - len(_START) + 1)
        buffer, limit = buffer[start:], limit - start if limit >= 0 else -1
    if _START in buffer:
        raise ValueError("it ends within a page")


def _page(text: bytes, path: Path) -> Page:
    element = ElementTree.fromstring(text)
    if (namespace := element.findtext("ns")) is None:
        title = element.findtext("title", "")
        raise WorkError(f"{path}: page {title!r} has no <ns>, by which articles are told; give a dump of 2012 or later")
    texts = element.findall("revision/text")
    return Page(
        id=element.findtext("id", ""),
        title=element.findtext("title", ""),
        namespace=int(namespace),
        is_redirect=element.find("redirect") is not None,
        wikitext=(texts[-1].text if texts else None) or "",
    )
