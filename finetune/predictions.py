"""A model's outputs on a split, and the file that keeps them with all that is needed to score them again."""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch

from asa.batch import IGNORE
from asa.errors import RequestError, WorkError, of_system
from asa.losses import task_loss
from asa.model import TaskModel
from asa.places import atomic_write
from finetune.tasks.batches import Encoded, evaluation_batches
from finetune.tasks.task import Kind, Label, Task

# B rows, C classes or choices, W words of a row

FOLDER = "predictions"  # below a run's folder, SPLIT.npz each
SAME = 1e-6  # a score from predictions and the record's: correlations are rounded otherwise by a library and by sums
STAGES = ("finetune", "score", "ensemble")  # whose runs keep them


class Predictions(NamedTuple):
    """logits: per row C numbers (1 for regression; choice: -inf at answers that a row does not have), or WC for the
    words of kind token that were not cut off. loss: mean over labelled units, None without labels."""

    kind: Kind
    logits: list[np.ndarray]
    loss: float | None

    @property
    def labels(self) -> list[Label]:
        """What is predicted, row by row; words that were cut off are left out."""
        if self.kind == "regression":
            return [float(row[0]) for row in self.logits]
        if self.kind == "token":
            return [row.argmax(-1).tolist() for row in self.logits]
        return [int(row.argmax(-1)) for row in self.logits]

    @property
    def finite(self) -> bool:
        """Whether all numbers are; -inf stands for an answer that a row does not have."""
        numbers = np.concatenate([row.ravel() for row in self.logits])
        absent = np.isneginf(numbers) & (self.kind == "choice")
        return bool((np.isfinite(numbers) | absent).all())

    def check(self, why: str = "a prediction is not finite; lower --optim.lr") -> None:
        """Raises WorkError, why, where a number is not finite."""
        if not self.finite:
            raise WorkError(why)


# What zipfile, its decompressors and numpy raise of a damaged file: RuntimeError of an unknown version and of a bit
# that says encrypted, TypeError of an array alone; and what is made of parts that do not fit.
DAMAGED = (OSError, ValueError, LookupError, EOFError, TypeError, AttributeError, RuntimeError, OverflowError)
DAMAGED += (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, SyntaxError, MemoryError, WorkError)


@dataclass(frozen=True)
class Stored:
    """Predictions as they are read back. gold: None where the rows have no labels. labels, metrics: the task's."""

    predictions: Predictions
    ids: list[str]
    gold: list[Label] | None
    labels: list[str]
    metrics: tuple[str, ...]


@torch.no_grad()
def predict(module: TaskModel, data: Encoded, size: int, device: torch.device) -> Predictions:
    """Run the model over a split; predictions come in the split's order."""
    module.eval()
    logits: list[np.ndarray] = [np.empty(0)] * len(data)
    losses, units = [], []
    for rows, batch in evaluation_batches(data, size):
        moved = batch.to(device)
        out = module(moved)
        if data.gold is not None:
            losses.append(task_loss(out, moved))
            units.append(batch.total_labels)
        values_BC = out.logits.float().cpu().numpy()
        marks = batch.labels.numpy() != IGNORE
        for place, row in enumerate(rows):
            logits[row] = values_BC[place][marks[place]] if data.kind == "token" else values_BC[place]
    if data.kind == "choice":
        logits = as_wide([row[:number] for row, number in zip(logits, data.answers, strict=True)])
    loss = float(np.average(torch.stack(losses).double().cpu(), weights=units)) if losses else None
    return Predictions(data.kind, logits, loss)


def as_wide(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Rows of answers, each as wide as the longest: what a row has not is impossible."""
    most = max(map(len, rows), default=0)
    return [np.pad(row, (0, most - len(row)), constant_values=-np.inf) for row in rows]


def stored(found: Predictions, task: Task, split: str) -> Stored:
    """Predictions with what the task says of their rows."""
    rows = task.splits[split]
    return Stored(found, list(rows.ids), rows.labels, task.labels, task.metrics)


def save_predictions(path: Path, these: Stored) -> None:
    """A compressed .npz, read again by load_predictions or numpy alone.

    logits: all rows' numbers one after the other, as rows of equal width; words: how many each row has. gold: the
    labels of all rows one after the other, where there are any; gold_words: how many each row has. Beside them ids,
    kind, labels (names of the classes) and metrics. Raises: WorkError where the system refuses.
    """
    rows = [row.reshape(-1, row.shape[-1]) for row in these.predictions.logits]
    arrays = {"logits": np.concatenate(rows), "words": np.array([len(row) for row in rows])}
    if these.gold is not None:
        gold = [np.atleast_1d(np.asarray(label)) for label in these.gold]
        arrays |= {"gold": np.concatenate(gold), "gold_words": np.array([len(row) for row in gold])}
    facts = {"ids": these.ids, "kind": these.predictions.kind, "labels": these.labels, "metrics": list(these.metrics)}
    texts = {name: np.array(value, dtype=np.str_) for name, value in facts.items()}
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays, **texts)


def load_predictions(path: Path) -> Stored:
    """What save_predictions wrote, without a loss. Raises: RequestError for no file, WorkError for a damaged one."""
    if not path.is_file():
        raise RequestError(f"no file {path}; it is written at the end of a run: give the folder of a finished one")
    try:
        return _read(path)
    except DAMAGED as error:
        if of_system(error):
            why = getattr(error, "strerror", None) or error
            raise WorkError(f"{path} cannot be read ({why}); mend that and repeat it") from None
        raise WorkError(f"{path} is damaged; restore it, or remove the run's folder and make the run again") from None


def _read(path: Path) -> Stored:
    """Raises: what a damaged file has np.load and zipfile raise; ValueError, WorkError for parts that do not fit."""
    with np.load(path) as file:
        kind: Kind = file["kind"].item()
        logits = by_row(file["logits"], file["words"])
        gold = by_row(file["gold"], file["gold_words"]) if "gold" in file else None
        ids, labels, metrics = (file[name].tolist() for name in ("ids", "labels", "metrics"))
    sizes = [len(row) for row in logits]
    words = sizes if gold is None else [len(row) for row in gold]
    whole = kind == "token" or {*sizes, *words} == {1}
    if (
        not ids
        or not whole
        or not len(ids) == len(sizes) == len(words)
        or any(n > m for n, m in zip(sizes, words, strict=True))
        or not _of_kind(kind, logits[0].shape[-1], gold, labels)
    ):
        raise ValueError
    found = Predictions(kind, logits if kind == "token" else [row[0] for row in logits], None)
    found.check()
    named = None if gold is None else [row.tolist() if kind == "token" else row[0].item() for row in gold]
    return Stored(found, ids, named, labels, tuple(metrics))


def _of_kind(kind: str, width: int, gold: list[np.ndarray] | None, labels: list[str]) -> bool:
    """Whether rows of so many logits and their labels are of a task of this kind with these classes."""
    if kind == "regression":
        return width == 1
    classes = width if kind == "choice" else len(labels)
    found = np.concatenate(gold) if gold else np.empty(0, dtype=int)
    return kind in get_args(Kind) and width == classes and not np.setdiff1d(found, np.arange(classes)).size


def by_row(values: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Values that stand one after the other, by row. Raises: ValueError where the sizes are those of others."""
    ends: list[int] = sizes.cumsum().tolist()
    rows = [values[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]
    if sizes.sum() != len(values) or [len(row) for row in rows] != sizes.tolist():
        raise ValueError
    return rows
