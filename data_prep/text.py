"""What a document is, and which pages become one."""

import hashlib
import json
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from data_prep import languages
from data_prep.dump import Page
from data_prep.wikitext import plain_text, without_asides

IN_TASK = "in the task's dev or test split"


class Document(NamedTuple):
    """A piece of plain text and where it comes from."""

    id: str
    title: str
    text: str


def title_key(title: str) -> str:
    """The form in which two titles of one article are equal: case, underscores and how accents are spelt aside."""
    return " ".join(unicodedata.normalize("NFC", title.replace("_", " ").casefold()).split())


def text_hash(text: str) -> int:
    """64 bits of the text's hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def text_key(text: str) -> int:
    """Equal for two texts that differ in white space alone."""
    return text_hash(" ".join(text.split()))


def sound(text: str) -> str:
    """The text without lone surrogates, which JSON can spell but no file can hold."""
    return text.encode("utf-8", "ignore").decode()


def convert(page: Page, silent: frozenset[str], min_chars: int) -> Document | str:
    """One page as a document, or the reason why it is dropped. Args: silent as in wikitext.plain_text."""
    if page.namespace != 0:
        return "not in the main namespace"
    if page.is_redirect or page.wikitext[:9].lower() == "#redirect":
        return "redirect"
    # A template in a comment is none; to take comments out of every page would cost more than to look twice.
    if languages.is_disambiguation(page.title, page.wikitext) and languages.is_disambiguation(
        page.title, without_asides(page.wikitext)
    ):
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
