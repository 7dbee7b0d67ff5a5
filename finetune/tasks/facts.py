"""What is told of a loaded task: counts, rows that stand in two splits, hashes."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.metrics import OUTSIDE
from finetune.tasks.batches import Encoded
from finetune.tasks.split import repeated
from finetune.tasks.task import Choices, Kind, Label, Split, Task, Text, scored

Counts = dict[str, int]
PAIRS = 3  # of classes in a note; a column may have thousands
FEW = 20  # rows; one of them is five points of accuracy
NOTES = {
    "repeated": "also among the training rows",
    "chosen": "scored and also among the rows that choose the epoch",
    "dropped": "left out, without a label, a text or a part of their columns",
    "blank": "without any text",
    "joined": "joined, of several lines each",
    "unasked": "left out, in no question with one right answer among several",
    "seen": "left out of the added rows, as they choose or are scored",
}


def task_line(task: Task) -> str:
    """A line that says how many rows each split has, and what a user must know of them."""
    rows = ", ".join(f"{name} {count:,}" for name, count in task.facts.get("rows", {}).items())
    notes = []
    for fact, what in NOTES.items():
        counts = [f"{count:,} of {name}" for name, count in task.facts.get(fact, {}).items()]
        notes += [f"{what}: {', '.join(counts)}"] if counts else []
    trained = task.facts.get("classes", {}).get("train", {})
    if untrained := [name for name, count in trained.items() if not count]:
        notes.append(f"labels of no training row: {', '.join(untrained)}")
    notes += [*_blind(task), *_contradicted(task)]
    if alike := [f"{first} and {other}" for first, other in _alike(task.labels)]:
        more = f" and {len(alike) - PAIRS} more" if len(alike) > PAIRS else ""
        notes.append(f"classes that look like spellings of one (--task.spellings): {', '.join(alike[:PAIRS])}{more}")
    if task.facts.get("compat"):
        notes.append("test chooses the epoch too, as in the papers (--paper_compat)")
    if task.facts.get("partial"):
        notes.append(f"not the whole published set: {task.facts['partial']}")
    if task.kind == "token" and task.metrics[0] == "accuracy":
        notes.append("its labels are scored by accuracy, word by word")
    return "; ".join([f"{task.name}: {rows}", *notes, *_few(task)])


def _blind(task: Task) -> Iterator[str]:
    """What is told where the score that chooses is 0 whatever is learnt: no epoch or run is better."""
    if "train" not in task.splits or task.kind == "choice":
        return
    for name, split in task.splits.items():
        if name != "train" and (labels := split.labels) and (one := _only(labels, task)):
            rows = "the rows that choose" if name == "dev" else f"the rows of {name}"
            yield f"{rows} are all of {one}, by which {task.metrics[0]} is 0 whatever is learnt"


def _only(labels: list[Label], task: Task) -> str | None:
    """What all these labels are, where the score that chooses is 0 for it."""
    if task.kind == "regression":
        return f"the label {labels[0]:g}" if all(label == labels[0] for label in labels) else None
    found = _found(labels)
    metric, names = task.metrics[0], [task.labels[index] for index in found]
    positive = task.labels[-1]  # of f1, which is of two classes
    same = (
        (metric == "f1" and positive not in names)
        or (metric == "matthews" and len(names) == 1)
        or (metric == "entity_f1" and names == [OUTSIDE])
    )
    return f"class {names[0]}" if same else None


def _contradicted(task: Task) -> Iterator[str]:
    """Annotators who disagree, say: no row of such a text can be learnt without another being wrong."""
    train = task.splits.get("train")
    if train is None or not train.labels or task.kind == "choice":
        return
    first: dict[Any, Any] = {}
    pairs = zip(train.texts, train.labels, strict=True)
    if wrong := {text for text, label in pairs if first.setdefault(text, label) != label}:
        rows = sum(text in wrong for text in train.texts)
        yield f"training rows whose text has another label in another row: {rows:,}, of {len(wrong):,} texts"


def _few(task: Task) -> Iterator[str]:
    """Splits that choose or are scored and are too small for it."""
    if "train" not in task.splits:
        return
    sizes = {name: len(split) for name, split in task.splits.items() if name in ("dev", "test") and split.labels}
    if few := [name for name, size in sizes.items() if size < FEW]:
        yield f"fewer than {FEW} rows of {' and of '.join(few)}, whose scores tell little"


def _alike(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of classes that differ in case alone, or are one whole number."""
    seen: dict[str, str] = {}
    for name in names:
        form = str(int(name)) if re.fullmatch(r"[-+]?\d{1,100}", name) else name.casefold()
        if (first := seen.setdefault(form, name)) != name:
            yield first, name


def of_words(task: str, model: str, length: int, splits: Mapping[str, Encoded]) -> tuple[Counts, Counts, list[str]]:
    """By split, the words for which `length` (tokens of the model's tokenizer) leaves no place, and those of which the
    tokenizer leaves nothing, without splits that have none; and a line on each."""
    cut = {name: split.cut for name, split in splits.items() if split.cut}
    lost = {name: split.unread for name, split in splits.items() if split.unread}
    untrained = "not trained on and " if "train" in cut else ""
    whats = {f"beyond --length {length}, {untrained}scored as O": cut, "without a token, read as unknown": lost}
    told = [(what, ", ".join(f"{n:,} of {name}" for name, n in counts.items())) for what, counts in whats.items()]
    return cut, lost, [f"{task}: words {what} ({model}): {counted}" for what, counted in told if counted]


def facts_of(
    splits: dict[str, Split], names: list[str], hashes: dict[str, str], dropped: dict[str, int]
) -> dict[str, Any]:
    """Counts of the rows by split and class, of rows that stand in train or dev as well, and what was read."""
    counts = {name: _counted(split, names) for name, split in splits.items() if names and split.labels is not None}
    train = splits.get("train")
    others = (
        {} if train is None else {name: repeated(split, train) for name, split in splits.items() if name != "train"}
    )
    return {
        "rows": {name: len(split) for name, split in splits.items()},
        "classes": counts,
        "repeated": {name: count for name, count in others.items() if count},
        "chosen": _chosen(splits),
        "compat": "dev" in splits and splits["dev"] is splits.get("test"),
        "dropped": {name: count for name, count in dropped.items() if count},
        "blank": {name: count for name, split in splits.items() if (count := sum(map(_blank, split.texts)))},
        "files": hashes,
    }


def _chosen(splits: dict[str, Split]) -> dict[str, int]:
    """By scored split, the rows that choose the epoch too; none of a test that is to choose, as in the papers."""
    dev = splits.get("dev")
    if dev is None or dev is splits["test"]:
        return {}
    labelled = [name for name in scored(splits) if splits[name].labels is not None]
    counts = {name: repeated(splits[name], dev) for name in labelled}
    return {name: count for name, count in counts.items() if count}


def _blank(text: Text | Choices) -> bool:
    return all(_blank(part) if isinstance(part, tuple) else not part.strip() for part in text)


def _counted(split: Split, names: list[str]) -> dict[str, int]:
    """Rows of each class, words of kind token."""
    found = _found(split.labels or [])
    return {name: found[index] for index, name in enumerate(names)}


def _found(labels: list[Label]) -> Counter[Any]:
    return Counter(index for label in labels for index in (label if isinstance(label, list) else [label]))


def content_sha256(
    kind: Kind, names: list[str], metrics: tuple[str, ...], splits: dict[str, Split], hashes: dict[str, str]
) -> str:
    """Of every byte that was read, in the files' order, and of all that was made of it."""
    digest = hashlib.sha256(json.dumps([kind, names, metrics, list(hashes.values())]).encode())
    for name, split in splits.items():
        digest.update(json.dumps([name, split.ids, split.texts, split.labels]).encode())
    return digest.hexdigest()


def rows_sha256(split: Split) -> str:
    """Of which rows of its files these are, and of what is read of them."""
    return hashlib.sha256(json.dumps([split.ids, split.texts]).encode()).hexdigest()
