"""Stream pages from MediaWiki dumps (pages-articles XML, plain or bzip2, multistream too) in flat memory."""

import bz2
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple
from xml.etree import ElementTree

from asa.errors import RequestError, WorkError

# Namespaces whose links show a picture or sort the page: Media, File, Category.
_SILENT_KEYS = {"-2", "6", "14"}
_SILENT = frozenset({"media", "file", "image", "category"})


class Page(NamedTuple):
    """One page as the dump has it; `silent` are the lower-case link prefixes that show no text (File, Category)."""

    id: str
    title: str
    namespace: int
    is_redirect: bool
    wikitext: str
    silent: frozenset[str] = _SILENT


def check_paths(paths: list[Path], flag: str) -> None:
    """Raise RequestError for the first path that is no file or has not a dump's ending."""
    for path in paths:
        if not path.is_file():
            raise RequestError(f"no dump {path}; give existing files with {flag}")
        if not path.name.endswith((".xml", ".bz2")):
            raise RequestError(f"{path} is no dump: its name must end in .xml or .xml.bz2; set {flag}")


def pages(path: Path) -> Iterator[Page]:
    """The pages of one dump in order.

    Raises: RequestError for a missing file or a wrong ending; WorkError for a truncated or damaged file and for one
        with no pages.
    """
    check_paths([path], "--dumps")
    found = False
    with path.open("rb") as raw:
        try:
            for page in _parse(_unpacked(raw, path)):
                found = True
                yield page
        except (EOFError, OSError, ValueError, ElementTree.ParseError) as error:
            detail = " ".join(str(error).split())
            raise WorkError(f"{path} is truncated or damaged ({detail}); fetch it again") from None
    if not found:
        raise WorkError(f"{path} holds no pages; give a pages-articles dump")


def _unpacked(raw: IO[bytes], path: Path) -> IO[bytes]:
    """The XML bytes; a .bz2 name is believed, so that a web page saved under it is reported as damaged."""
    return bz2.open(raw) if path.suffix == ".bz2" else raw


def _parse(stream: IO[bytes]) -> Iterator[Page]:
    silent = _SILENT
    events = ElementTree.iterparse(stream, events=("start", "end"))
    _, root = next(events)
    for event, element in events:
        if event == "start":
            continue
        tag = element.tag.rpartition("}")[2]
        if tag == "siteinfo":
            silent = _SILENT | _local_names(element)
        elif tag == "page":
            yield _page(element, silent)
            # The root keeps every child it has seen: emptying it is what holds memory flat.
            root.clear()


def _local_names(siteinfo: ElementTree.Element) -> set[str]:
    names = siteinfo.iterfind("{*}namespaces/{*}namespace")
    return {(name.text or "").lower() for name in names if name.get("key") in _SILENT_KEYS}


def _page(element: ElementTree.Element, silent: frozenset[str]) -> Page:
    texts = element.findall("{*}revision/{*}text")
    return Page(
        id=element.findtext("{*}id", ""),
        title=element.findtext("{*}title", ""),
        namespace=int(element.findtext("{*}ns", "0")),
        is_redirect=element.find("{*}redirect") is not None,
        wikitext=(texts[-1].text if texts else None) or "",
        silent=silent,
    )
