"""Columns of a row -> what the encoder reads and its label as the file has it."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from asa.errors import RequestError
from finetune.tasks.answers import answers, right
from finetune.tasks.cells import canonical, cell, check_utf8, flag, has, missing, null, string, words, wrong
from finetune.tasks.files import Row
from finetune.tasks.spec import TaskConfig
from finetune.tasks.task import Choices, Text

FIELD = r"\{([^{}]+)\}"  # a column's place in a form


class Raw(NamedTuple):
    """Rows whose classes have no index yet. labels: None where the files have none. subsets: the column of that name.
    dropped: rows left out for want of a label or of columns. joined: rows that stood on several lines. numbers: of each
    row among all of its files, from 0, those left out counted."""

    rows: list[Row]
    texts: list[Any]
    labels: list[Any] | None
    subsets: list[str]
    dropped: int
    joined: int
    numbers: list[int]


def read(task: TaskConfig, found: Iterable[Row], labelled: bool | None) -> Raw:
    """Args: labelled, None: whether the first row has the column. Raises: RequestError for a row that does not fit."""
    rows, texts, labels, subsets, numbers = [], [], [], [], []
    dropped, textless, joined, seen = 0, 0, 0, set()
    row, asked = None, labelled
    for number, row in enumerate(found):
        joined += row.lines > 1
        if row.lines == 0:
            dropped += 1
            continue
        labelled = has(row, task.label) if labelled is None else labelled
        if asked is None and not labelled:
            _check_blind(task, row)
        if labelled and _unlabelled(task, row):
            if task.broken == "refuse":
                raise wrong(row, f"no label in column {task.label!r}", flag(task, "broken") + " mend")
            dropped += 1
            continue
        empty = [column for column in _read(task) if null(row, column)]
        if labelled and task.broken == "mend" and empty:
            dropped, textless = dropped + 1, textless + 1
            continue
        if task.first_of:
            key = str(cell(task, row, task.first_of, "first_of"))
            if key in seen:
                continue
            seen.add(key)
        if empty:
            mend = flag(task, "broken") + " mend" if labelled else flag(task, "form" if task.form else "text")
            raise wrong(row, f"no text in column {empty[0]!r}", mend)
        text, label = _row(task, row, labelled)
        _check_row(task, row, text, label)
        # The columns are done with; kept, they would be most of the memory of a large set.
        rows.append(Row(row.path, row.number, {}))
        numbers.append(number)
        texts.append(text)
        labels.append(label)
        subsets += [_subset(task, row)] if task.subsets and _has_group(task, row) else []
    if not rows:
        what, key = ("text", "text") if textless else (f"label in column {task.label!r}", "label")
        where = f"no row of {row.path} has a {what}" if row else "a split has no rows"
        raise RequestError(f"{where}; give others, or set {flag(task, key)}")
    return Raw(rows, texts, labels if labelled else None, subsets, dropped, joined, numbers)


def _check_blind(task: TaskConfig, row: Row) -> None:
    """Raises RequestError for a label in a split whose first row has none: it would not be scored."""
    if has(row, task.label) and not missing(cell(task, row, task.label, "label")):
        raise wrong(row, f"a label in column {task.label!r}, which the first row has not", flag(task, "label"))


def _read(task: TaskConfig) -> list[str]:
    """The columns whose texts the encoder reads, but for answers."""
    if not task.form:
        return list(_context(task) if task.kind == "choice" else task.text)
    fields = [name for form in task.form for name in re.findall(FIELD, form)]
    return [name for name in fields if name != "answer" or task.kind != "choice"]


def _unlabelled(task: TaskConfig, row: Row) -> bool:
    """Whether the row has no label, or one of its words has none. JSON's writers leave out a key that is null."""
    if not has(row, task.label) and task.broken == "mend":
        return True
    if missing(cell(task, row, task.label, "label")):
        return True
    return task.kind == "token" and any(map(missing, words(task, row, task.label, "label")))


def _has_group(task: TaskConfig, row: Row) -> bool:
    """Whether the row has the column, or, of an inner key, the one that holds it."""
    return task.subsets in row.values or task.subsets.partition(".")[0] in row.values


def _subset(task: TaskConfig, row: Row) -> str:
    """Whose part of the rows it is in; a number is a name as in csv."""
    value = cell(task, row, task.subsets, "subsets")
    return canonical(value) if isinstance(value, int | float) else string(task, row, task.subsets, "subsets")


def _row(task: TaskConfig, row: Row, labelled: bool) -> tuple[Text | Choices, Any]:
    if task.kind == "token":
        found = words(task, row, task.text[0], "text")
        labels = words(task, row, task.label, "label") if labelled else []
        if labelled and len(labels) != len(found):
            raise wrong(row, f"{len(found)} words, {len(labels)} labels", flag(task, "label"))
        for place, word in enumerate(found):
            if type(word) not in (str, int):
                what = "null" if word is None else f"{word!r:.60}, which is no text"
                raise wrong(row, f"word {place} (from 0) of column {task.text[0]!r} is {what}", flag(task, "text"))
        return tuple(map(str, found)), labels
    if task.kind == "choice":
        texts, keys = answers(task, row)
        read = tuple(_segments(task, row, answer) for answer in texts)
        return read, right(task, row, texts, keys) if labelled else None
    return _segments(task, row), cell(task, row, task.label, "label") if labelled else None


def _check_row(task: TaskConfig, row: Row, text: Any, label: Any) -> None:
    """Raises: RequestError for half of a character, which JSON can write and no tokenizer reads, and for a label that
    is itself a list, an object or bytes."""
    for part in text if task.kind == "choice" else (text,):
        check_utf8(row, " ".join(part), "a text", flag(task, "text"))
    for part in label or () if task.kind == "token" else (label,):
        if isinstance(part, dict | list | bytes):
            raise wrong(row, f"label {part!r:.60}, allowed: a name or a number", flag(task, "label"))
        check_utf8(row, str(part), "a label", flag(task, "label"))


def _segments(task: TaskConfig, row: Row, answer: str = "") -> Text:
    if task.form:
        return tuple(_filled(task, row, form, answer) for form in task.form)
    if task.kind != "choice":
        return tuple(string(task, row, column, "text") for column in task.text)
    first, *others = [string(task, row, column, "text") for column in _context(task)]
    return first, " ".join([*others, answer])


def _filled(task: TaskConfig, row: Row, form: str, answer: str) -> str:
    def value(match: re.Match[str]) -> str:
        return answer if match[1] == "answer" and task.kind == "choice" else string(task, row, match[1], "form")

    return re.sub(FIELD, value, form)


def _context(task: TaskConfig) -> Sequence[str]:
    return task.text if task.choices else task.text[:1]
