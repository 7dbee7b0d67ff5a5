"""What a document is, and which pages become one."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from data_prep import languages
from data_prep.dump import Page
from data_prep.wikitext import plain_text

IN_TASK = "in the task's dev or test split"


class Document(NamedTuple):
    """A piece of plain text and where it comes from."""

    id: str
    title: str
    text: str


def title_key(title: str) -> str:
    """The form in which two titles of one article are equal: case and underscores aside."""
    return " ".join(title.replace("_", " ").casefold().split())


def sound(text: str) -> str:
    """The text without lone surrogates, which JSON can spell but no file can hold."""
    return text.encode("utf-8", "ignore").decode()


def convert(page: Page, silent: frozenset[str], min_chars: int) -> Document | str:
    """One page as a document, or the reason why it is dropped. Args: silent as in wikitext.plain_text."""
    if page.namespace != 0:
        return "not in the main namespace"
    if page.is_redirect or page.wikitext[:9].lower() == "#redirect":
        return "redirect"
    if languages.is_disambiguation(page.title, page.wikitext):
        return "disambiguation"
    return long_enough(Document(page.id, page.title, plain_text(page.wikitext, silent)), min_chars)


def long_enough(document: Document, min_chars: int) -> Document | str:
    """The document, or the reason why it is dropped."""
    return document if len(document.text) >= min_chars else "too short"


def write_jsonl(rows: Iterable[dict[str, object]], path: Path) -> int:
    """One JSON object per line; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count
