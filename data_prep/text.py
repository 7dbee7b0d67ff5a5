"""Pages -> documents: which pages are kept, the rest counted by reason, markup stripped on several processes."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mwparserfromhell.parser import ParserError
from tqdm import tqdm

from asa import manifest
from asa.errors import WorkError
from data_prep import wikitext
from data_prep.dump import Page
from data_prep.parallel import batches, ordered_map

NAME = "documents.jsonl"
IN_TASK = "in the task's dev or test split"
_PAGES_PER_CALL = 16


class Document(NamedTuple):
    """A piece of plain text and where it comes from."""

    id: str
    title: str
    text: str


def title_key(title: str) -> str:
    """The form in which two titles of one article are equal: case and underscores aside."""
    return " ".join(title.replace("_", " ").casefold().split())


def documents(
    pages: Iterable[Page],
    dropped: Counter[str],
    *,
    min_chars: int,
    workers: int = 1,
    kept_out: frozenset[str] = frozenset(),
) -> Iterator[Document]:
    """The kept pages as documents, in page order for any number of workers.

    Args: dropped is counted up by reason; kept_out holds the title_key of pages that must not come through.
    """
    articles = _articles(tqdm(pages, unit=" pages", delay=5, disable=None), dropped, kept_out)
    convert = partial(_convert_batch, min_chars=min_chars)
    for results in ordered_map(convert, batches(articles, _PAGES_PER_CALL), workers):
        for result in results:
            if isinstance(result, Document):
                yield result
            else:
                dropped[result] += 1


def convert(page: Page, min_chars: int) -> Document | str:
    """One article as a document, or the reason why it is dropped."""
    if wikitext.is_disambiguation(page.title, page.wikitext):
        return "disambiguation"
    try:
        text = wikitext.plain_text(page.wikitext, page.silent)
    except (ParserError, RecursionError):
        return "markup cannot be parsed"
    return Document(page.id, page.title, text) if len(text) >= min_chars else "too short"


def _convert_batch(pages: list[Page], min_chars: int) -> list[Document | str]:
    return [convert(page, min_chars) for page in pages]


def _articles(pages: Iterable[Page], dropped: Counter[str], kept_out: frozenset[str]) -> Iterator[Page]:
    for page in pages:
        if page.namespace != 0:
            dropped["not in the main namespace"] += 1
        elif page.is_redirect or page.wikitext[:9].lower() == "#redirect":
            dropped["redirect"] += 1
        elif title_key(page.title) in kept_out:
            dropped[IN_TASK] += 1
        else:
            yield page


def write_jsonl(rows: Iterable[dict[str, object]], path: Path) -> int:
    """One JSON object per line; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_documents(folder: Path, flag: str) -> Iterator[Document]:
    """The documents of a folder made by `python -m data_prep text`.

    Raises: RequestError for a folder that is none; WorkError for damage.
    """
    manifest.verify(folder, "documents", flag)
    with (folder / NAME).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Document(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise WorkError(f"{folder / NAME}, line {number}, is no document ({error}); make it anew") from None
