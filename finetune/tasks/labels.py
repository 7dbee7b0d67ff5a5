"""Labels as files have them -> class indices or numbers."""

import math
import re
from typing import Any

from asa.errors import RequestError
from finetune.tasks.cells import canonical, flag, wrong
from finetune.tasks.files import Row
from finetune.tasks.rows import Raw
from finetune.tasks.spec import TaskConfig
from finetune.tasks.task import Label

LARGEST = 1e15  # fp32 holds ten million times its square: losses, and norms of gradients, are sums of such
DIGITS = 100  # of a class that is a number; Python refuses some thousand
SHOWN = 20  # names in a message; a column of numbers has thousands
WIDE = 60  # characters of a name in a message


def classes(task: TaskConfig, raw: Raw) -> list[str]:
    """The classes' names: the task's, or those of the rows; of kind token "O" comes first."""
    if task.labels or task.kind in ("regression", "choice"):
        return list(task.labels)
    if raw.labels is None:
        raise RequestError(
            f"no file of task {task.name!r} has labels; give --task.train, or the classes by --task.labels"
        )
    values = raw.labels if task.kind != "token" else (label for labels in raw.labels for label in labels)
    spelt = _spelt(task)
    names = {spelt.get(name, name) for name in map(canonical, values)}
    numbers = all(name.isdecimal() and len(name) <= DIGITS for name in names)
    found = sorted(names, key=lambda name: (int(name) if numbers else 0, name != "O", name))
    if task.kind == "classification" and (number := _amount(found)) is not None:
        raise RequestError(
            f"{raw.rows[0].path}: column {task.label!r} has {len(found)} numbers such as {number} for classes;"
            " set --task.kind regression, or name the classes by --task.labels"
        )
    if len(found) < 2:
        named = f"{flag(task, 'label')}, or name the classes by {flag(task, 'labels')}"
        raise wrong(raw.rows[0], f"column {task.label!r} has one class only, {found[0]!r}", named)
    return found


def _spelt(task: TaskConfig) -> dict[str, str]:
    """The class that each further spelling stands for."""
    return {canonical(spelling): canonical(name) for spelling, name in task.spellings.items()}


def _amount(names: list[str]) -> str | None:
    """One that is no whole number, where all are numbers: amounts, it seems, and not classes."""
    if not all(map(_is_number, names)):
        return None
    return next((name for name in names if "." in name or "e-" in name.lower()), None)


def _is_number(name: str) -> bool:
    return re.fullmatch(r"[-+]?\d*\.?\d+([eE][-+]?\d+)?", name.strip()) is not None


def indexed(task: TaskConfig, raw: Raw, names: list[str]) -> list[Label] | None:
    """The labels as the loss takes them. Raises RequestError for one that is no class, or no number."""
    if raw.labels is None or task.kind == "choice":
        return raw.labels
    if task.kind == "regression":
        return [_number(task, row, value) for row, value in zip(raw.rows, raw.labels, strict=True)]
    known = {canonical(name): index for index, name in enumerate(names)}
    # Classes that come from the rows have no order a file could mean by a number; beside a class 1.5, 1 is no place.
    if task.labels and not any(map(_is_number, names)):
        known |= {str(index): index for index in range(len(names))}
    known |= {spelling: known[name] for spelling, name in _spelt(task).items() if name in known}
    found: list[Label] = []
    for row, value in zip(raw.rows, raw.labels, strict=True):
        wanted = [known.get(canonical(part)) for part in (value if task.kind == "token" else [value])]
        if None in wanted:
            part = value[wanted.index(None)] if task.kind == "token" else value
            many = len(names) > SHOWN
            shown = ", ".join(f"{name[:WIDE]}…" if many and len(name) > WIDE else name for name in names[:SHOWN])
            swapped = "; are label and text swapped?" if many and 2 * len(names) > len(raw.rows) else ""
            rest = f" and {len(names) - SHOWN} more{swapped}" if many else ""
            raise wrong(row, f"label {part!r:.60}, allowed: {shown}{rest}", flag(task, "labels"))
        found.append(wanted if task.kind == "token" else wanted[0])  # type: ignore[arg-type]  # none of them is None
    return found


def _number(task: TaskConfig, row: Row, value: Any) -> float:
    try:
        # Python reads 1_01 as 101 and true as 1.
        number = math.nan if "_" in str(value) or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    except OverflowError:  # a whole number of JSON
        number = math.inf
    if not abs(number) <= LARGEST:
        allowed = f", allowed: -{LARGEST:.0e} to {LARGEST:.0e}, whose squared errors fp32 holds"
        raise wrong(
            row, f"label {value!r:.60}{' is no number' if math.isnan(number) else allowed}", flag(task, "label")
        )
    return number
