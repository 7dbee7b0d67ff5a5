"""Training rows of other standard tasks, added to a task's own."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from asa.errors import RequestError
from finetune.config import FinetuneConfig
from finetune.tasks.cells import flag
from finetune.tasks.checks import check_keys
from finetune.tasks.labels import classes, indexed
from finetune.tasks.places import settled, supply, training_files
from finetune.tasks.rows import Raw, read
from finetune.tasks.spec import TaskConfig, named
from finetune.tasks.task import Split


class Added(NamedTuple):
    """Rows of the task `name`, and the files they come from. partial: what these are of a published set that has more;
    seen: rows left out as another split has their text."""

    name: str
    raw: Raw
    split: Split
    files: list[Path]
    partial: str = ""
    seen: int = 0


def added(other: str, task: TaskConfig, names: list[str], config: FinetuneConfig) -> Added:
    """The training rows of another standard task. Raises: RequestError where it is of another kind, or has none."""
    spec = settled(named(other), config)
    check_keys(spec, standard=True)
    rows = supply(spec, config, standard=True)
    if (spec.kind, _width(spec)) != (task.kind, _width(task)):
        what = f"of kind {spec.kind} with {_width(spec)} segments, {task.name!r} of {task.kind} with {_width(task)}"
        raise RequestError(f"task {other!r} is {what}; mend {flag(task, 'also')}")
    if "train" not in rows:
        raise RequestError(f"task {other!r} has no training rows to add; mend {flag(task, 'also')}")
    raw = read(spec, rows["train"], True)
    theirs = classes(spec, raw)
    if theirs != names:
        what = f"classes {', '.join(theirs)}, {task.name!r} {', '.join(names)}"
        raise RequestError(f"task {other!r} has the {what}; mend {flag(task, 'also')}")
    partial = f"{other}: {spec.partial}" if spec.partial else ""
    return Added(other, raw, split_of(spec, raw, names), training_files(spec, config), partial)


def split_of(task: TaskConfig, raw: Raw, names: list[str]) -> Split:
    return Split([str(number) for number in raw.numbers], raw.texts, indexed(task, raw, names))


def unseen(rows: Sequence[Added], others: Iterable[Split]) -> list[Added]:
    """The added rows without those whose text is in one of the other splits, which choose or are scored."""
    texts = {text for split in others for text in split.texts}
    return [_without(one, texts) for one in rows]


def _without(one: Added, texts: set) -> Added:
    kept = [at for at, text in enumerate(one.split.texts) if text not in texts]
    return one._replace(split=one.split.picked(kept), seen=len(one.split) - len(kept))


def _width(task: TaskConfig) -> int:
    """Segments that the encoder reads: of a row, or of each answer."""
    return len(task.form) or (2 if task.kind == "choice" else len(task.text))
