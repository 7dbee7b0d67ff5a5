"""Kind choice: the answers of a row, and which of them is right."""

from typing import Any

from finetune.tasks.cells import canonical, cell, flag, listed, missing, string, wrong
from finetune.tasks.files import Row
from finetune.tasks.spec import TaskConfig


def answers(task: TaskConfig, row: Row) -> tuple[list[str], list[str]]:
    """The answers' texts, and their own names where they have any.

    Raises: RequestError for what is no list of answers, and for a blank cell before a filled one: the label's numbers
        would be those of others. Blank cells at the end are no answers, as rows may differ in their number.
    """
    columns = list(task.choices or task.text[1:])
    if len(columns) > 1:
        return _cells(task, row, columns), []
    value = cell(task, row, columns[0], "choices")
    try:
        texts, names = _listed(listed(value) if isinstance(value, str) else value)
    except (ValueError, TypeError, KeyError, AttributeError):
        texts, names = [], []
    if len(texts) < 2:
        what = f"column {columns[0]!r} holds {value!r:.60}, wanted: a list of two texts or more"
        raise wrong(row, what, flag(task, "choices"))
    return texts, names


def _cells(task: TaskConfig, row: Row, columns: list[str]) -> list[str]:
    """The answers of columns of their own."""
    blank = [missing(cell(task, row, column, "choices")) for column in columns]
    while blank and blank[-1]:
        blank.pop()
    filled = columns[: len(blank)]
    if any(blank):
        what = f"column {columns[blank.index(True)]!r} is blank, but {filled[-1]!r} behind it holds an answer"
        raise wrong(row, what, flag(task, "choices"))
    if len(filled) < 2:
        what = f"columns {', '.join(map(repr, columns))} hold {len(filled)} answers, wanted: two or more"
        raise wrong(row, what, flag(task, "choices"))
    return [string(task, row, column, "choices") for column in filled]


def _listed(value: Any) -> tuple[list[str], list[str]]:
    """A list of texts, a list of {text, label} or, as on the hub, {text: list, label: list}."""
    if isinstance(value, dict):
        value = [{"text": text, "label": name} for text, name in zip(value["text"], value["label"], strict=True)]
    if value and isinstance(value[0], dict):
        return [answer["text"].strip() for answer in value], [canonical(answer["label"]) for answer in value]
    return [answer.strip() for answer in value], []


def right(task: TaskConfig, row: Row, texts: list[str], names: list[str]) -> int:
    """Index of the right answer, which the label gives by its own name, its number, its letter or its text.

    Raises: RequestError for another label, and for one that is the text of one answer and the number of another.
    """
    value = cell(task, row, task.label, "label")
    name, last = canonical(value), len(texts) - 1
    if names.count(name) > 1:
        raise wrong(row, f"label {value!r:.60} is the name of two answers", flag(task, "choices"))
    if name in names:
        return names.index(name)
    letters = [chr(ord("A") + at) for at in range(len(texts))]
    ways = {"number": list(map(str, range(len(texts)))), "letter": letters, "text": texts}
    said = {"number": name, "letter": name.upper(), "text": str(value).strip()}
    found = {way: ways[way].index(said[way]) for way in _ways(task, value) if said[way] in ways[way]}
    if not found:
        allowed = f"0 to {last}, A to {letters[-1]} or the text of an answer"
        raise wrong(row, f"label {value!r:.60}, allowed: {allowed}", flag(task, "label"))
    if len({texts[at] for at in found.values()}) > 1:
        both = " and the ".join(f"{way} of answer {at}" for way, at in found.items())
        what = f"label {value!r:.60} is the {both} (from 0); say it another way, such as a number of JSON"
        raise wrong(row, what, flag(task, "label"))
    return next(iter(found.values()))


def _ways(task: TaskConfig, value: Any) -> tuple[str, ...]:
    """What a label may be. A number of JSON is no text, and RACE and DREAM say what theirs are."""
    if type(value) in (int, float):
        return ("number",)
    return {"race": ("letter",), "dream": ("text",)}.get(task.format, ("number", "letter", "text"))
