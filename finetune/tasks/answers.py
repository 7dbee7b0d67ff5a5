"""Kind choice: the answers of a row, and which of them is right."""

import json
from typing import Any

from finetune.tasks.cells import canonical, cell, flag, string, wrong
from finetune.tasks.files import Row
from finetune.tasks.spec import TaskConfig


def answers(task: TaskConfig, row: Row) -> tuple[list[str], list[str]]:
    """The answers' texts, and their own names where they have any."""
    columns = list(task.choices or task.text[1:])
    if len(columns) > 1:
        return [string(task, row, column, "choices") for column in columns], []
    value = cell(task, row, columns[0], "choices")
    try:
        texts, names = _listed(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, TypeError, KeyError, AttributeError):
        texts, names = [], []
    if len(texts) < 2:
        what = f"column {columns[0]!r} holds {value!r:.60}, wanted: a list of two answers or more"
        raise wrong(row, what, flag(task, "choices"))
    return texts, names


def _listed(value: Any) -> tuple[list[str], list[str]]:
    """A list of texts, a list of {text, label} or, as on the hub, {text: list, label: list}."""
    if isinstance(value, dict):
        value = [{"text": text, "label": name} for text, name in zip(value["text"], value["label"], strict=True)]
    if value and isinstance(value[0], dict):
        return [answer["text"].strip() for answer in value], [str(answer["label"]) for answer in value]
    return [answer.strip() for answer in value], []


def right(task: TaskConfig, row: Row, texts: list[str], names: list[str]) -> int:
    """Index of the right answer, which the label gives by its own name, its number, its text or its letter."""
    value = cell(task, row, task.label, "label")
    name, last = canonical(value), len(texts) - 1
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) <= last:
        return int(name)
    if name in texts:
        return texts.index(name)
    if len(name) == 1 and 0 <= ord(name.upper()) - ord("A") <= last:
        return ord(name.upper()) - ord("A")
    allowed = f"0 to {last}, A to {chr(ord('A') + last)} or the text of an answer"
    raise wrong(row, f"label {value!r:.60}, allowed: {allowed}", flag(task, "label"))
