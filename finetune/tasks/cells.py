"""Single cells of a row, each mistake told with its line and the flag that mends it."""

import ast
import json
import math
import re
import unicodedata
from functools import lru_cache
from typing import Any

from asa.errors import RequestError
from finetune.tasks.files import SEMICOLONS, Row
from finetune.tasks.spec import TaskConfig

_NOTHING: Any = object()


def flag(task: TaskConfig, key: str) -> str:
    """What a message names: standard tasks are not described by flags."""
    return "--data" if task.sources else f"--task.{key}"


def wrong(row: Row, what: str, named: str) -> RequestError:
    return RequestError(f"{row.path}:{row.number}: {what}; mend it or set {named}")


def check_utf8(row: Row, text: str, what: str, named: str) -> None:
    """Raises: RequestError for a text with a lone surrogate."""
    if half := half_character(text):
        raise wrong(row, f"{what} holds {half}, half of a character, which UTF-8 cannot encode", named)


def half_character(text: str) -> str | None:
    """The first lone surrogate, as JSON escapes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(text[error.start]):04x}"
    return None


def missing(value: Any) -> bool:
    """Null, NaN or blank."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or not str(value).strip()


def null(row: Row, column: str) -> bool:
    """Whether a writer has left the cell empty in a format that tells so; NaN stands for it where it was pandas'."""
    value: Any = row.values
    for part in [column] if column in row.values else column.split("."):
        value = value.get(part, "") if isinstance(value, dict) else value
    return value is None or (isinstance(value, float) and math.isnan(value))


def has(row: Row, column: str) -> bool:
    return column in row.values or _inner(row.values, column) is not _NOTHING


def _inner(found: Any, column: str) -> Any:
    """What stands behind the dots of a name."""
    for part in column.split("."):
        if not isinstance(found, dict) or part not in found:
            return _NOTHING
        found = found[part]
    return found


def cell(task: TaskConfig, row: Row, column: str, key: str) -> Any:
    """Raises RequestError, which names the columns there are."""
    found = row.values[column] if column in row.values else _inner(row.values, column)
    if found is _NOTHING:
        there = f"only {', '.join(map(repr, row.values))}" if row.values else "the row has none"
        if len(row.values) == 1 and ";" in next(iter(row.values)):
            there += SEMICOLONS
        raise wrong(row, f"no column {column!r}, {there}", flag(task, key))
    return found


def string(task: TaskConfig, row: Row, column: str, key: str) -> str:
    value = cell(task, row, column, key)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = " ".join(value)  # the turns of a dialogue
    if not isinstance(value, str):
        raise wrong(row, f"column {column!r} holds {value!r:.60}, which is no text", flag(task, key))
    if task.literals and value[:2] in ("b'", 'b"'):
        value = _literal(task, row, value)
    return value.strip()


def _literal(task: TaskConfig, row: Row, value: str) -> str:
    try:
        return ast.literal_eval(value).decode()
    except (ValueError, SyntaxError):
        raise wrong(row, f"{value!r:.60} is no Python bytes literal", flag(task, "literals") + " false") from None


def words(task: TaskConfig, row: Row, column: str, key: str) -> list[Any]:
    value = cell(task, row, column, key)
    words = _pieces(value.strip(), key) if isinstance(value, str) else value
    if not isinstance(words, list) or not words:
        what = f"column {column!r} holds {value!r:.60}, wanted: a list, or words between spaces"
        raise wrong(row, what, flag(task, key))
    return words


def _pieces(text: str, key: str) -> Any:
    """The words of a cell; None where it begins as a list of JSON does and is none. Only in a text may [ be a word, and
    there `[ 1 ]` is three of them and no list."""
    if not text.startswith("["):
        return text.split()
    try:
        found = listed(text)
    except ValueError:
        found = None
    bracket = key == "text" and text.split()[0] == "["
    return text.split() if bracket and not any(isinstance(word, str) for word in found or [None]) else found


def listed(text: str) -> Any:
    """JSON. Raises ValueError where it is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def composed(name: str) -> str:
    """In Unicode's form C: names that look the same may be spelt with marks of their own, by another system."""
    return unicodedata.normalize("NFC", name)


def canonical(value: Any) -> str:
    """A class's name: whole numbers without their .0, nought without a sign, accents composed."""
    return _canonical(str(value).strip())


@lru_cache(maxsize=100_000)
def _canonical(name: str) -> str:
    """Cached: of kind token every word of a file has one of few labels."""
    name = re.sub(r"^(-?\d+)\.0+$", r"\1", composed(name))
    return "0" if name == "-0" else name
