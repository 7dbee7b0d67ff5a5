"""Scores of predictions, by scipy, scikit-learn and seqeval; higher is better."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # loads scipy.stats when it is asked for

from asa.errors import RequestError, WorkError
from finetune.predictions import SAME, Predictions, Stored, load_predictions
from finetune.tasks.task import Kind, Label, Task

OUTSIDE = "O"  # the label of a word that belongs to no entity
ROUNDED = 8 * float(np.finfo(np.float32).eps)  # collapsed BERT-tinys' differ by 2 to 8 eps; by 26 they may rank texts


def score(predictions: Predictions, gold: Sequence[Label], task: Task | Stored) -> dict[str, float]:
    """The task's scores and, where there is one, the loss. Raises WorkError for numbers that are not finite."""
    predictions.check()
    found = predictions.labels
    scores = {name: METRICS[name](gold, found, task.labels) for name in task.metrics}
    return scores if predictions.loss is None else {**scores, "loss": predictions.loss}


def check_own(folder: Path, end: Mapping[str, Any]) -> list[str]:
    """The splits whose rows are all answered alike. Splits without scores, as a test server's, are not read.

    Raises WorkError where the predictions in a folder have other scores than the end line of the record beside it: they
    are not that run's; or where their file is damaged.
    """
    alike = []
    for path in sorted(folder.glob("*.npz")):
        known = {name: end.get(f"{path.stem}_{name}") for name in METRICS}
        if all(told is None for told in known.values()):
            continue
        these = load_predictions(path)
        alike += [path.stem] if _alike(these) else []
        for name, told in known.items():
            if these.gold is None or told is None or not math.isfinite(told):
                continue
            check_fits(path, these, name)
            found = METRICS[name](these.gold, these.predictions.labels, these.labels)
            if not abs(found - told) <= SAME:
                rounded = name in ("pearson", "spearman") and path.stem in alike
                way = "restore the file that the run has written, or remove the run's folder and make the run again"
                if rounded:
                    way = "an earlier version scored the rounding of equal answers: remove its folder and make it again"
                raise WorkError(f"{path} gives {name} {found:.6f}, the record beside it has {told:.6f}; {way}")
    return alike


def _alike(these: Stored) -> bool:
    """Whether several rows get one answer; of kind choice every row has answers of its own."""
    kind, found = these.predictions.kind, these.predictions.labels
    if kind == "choice" or len(found) < 2:
        return False
    if kind == "regression":
        return these.gold is not None and np.ptp(apart(these.gold, found)) == 0
    words = chain.from_iterable(label if isinstance(label, list) else [label] for label in found)
    return len(set(words)) == 1


def check_fits(path: Path, these: Stored, name: str) -> None:
    """Raises WorkError where predictions, of the file `path`, are of a kind of task that has no such metric."""
    if name not in FITTING[kind := these.predictions.kind]:
        raise WorkError(f"{path} is of kind {kind}, which has no {name}; restore the file")


def usual(kind: Kind, labels: Sequence[str]) -> tuple[str, ...]:
    """The metrics of a task that names none: USUAL, but accuracy for words whose labels mark no entities."""
    return ("accuracy",) if kind == "token" and not _marks_entities(labels) else USUAL[kind]


def check_metrics(metrics: Sequence[str], kind: Kind, labels: Sequence[str]) -> None:
    """Raises RequestError for a metric that is not known, or not for such a task."""
    for name in metrics:
        if name not in FITTING[kind]:
            allowed = ", ".join(FITTING[kind])
            raise RequestError(f"metrics: {name!r}, allowed for kind {kind}: {allowed}; set --task.metrics")
        if name == "f1" and len(labels) != 2:
            raise RequestError(f"metrics: 'f1' is of two classes, there are {len(labels)}; set --task.metrics macro_f1")
        if name == "entity_f1" and not _marks_entities(labels):
            labels_wanted = "labels O, B-..., I-... (E-..., S-...)"
            raise RequestError(f"metrics: 'entity_f1' wants {labels_wanted}; set --task.metrics accuracy")


def _marks_entities(labels: Sequence[str]) -> bool:
    """Whether all are O or of the forms that seqeval knows: B, I, E or S, alone or with a type behind a hyphen."""
    return len(labels) > 1 and all(name == OUTSIDE or re.fullmatch("[BIES](-.+)?", name) for name in labels)


def _sklearn() -> Any:
    """scikit-learn's metrics. They take a second to load, which a command that only reads its request need not wait."""
    from sklearn import metrics

    return metrics


def _accuracy(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> float:
    if gold and isinstance(gold[0], list):
        names, guesses = _words(gold, found, labels)
        return float(_sklearn().accuracy_score(list(chain.from_iterable(names)), list(chain.from_iterable(guesses))))
    return float(_sklearn().accuracy_score(gold, found))


def _f1(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> float:
    return float(_sklearn().f1_score(gold, found, pos_label=1, zero_division=0))


def _macro_f1(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> float:
    return float(_sklearn().f1_score(gold, found, average="macro", zero_division=0))


def _matthews(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> float:
    """0 where all are of one class, gold and predicted."""
    return float(_sklearn().matthews_corrcoef(gold, found)) if len(np.unique([*gold, *found])) > 1 else 0.0


def _pearson(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> float:
    return _correlation(scipy.stats.pearsonr, gold, found)


def _spearman(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> float:
    return _correlation(scipy.stats.spearmanr, gold, found)


def apart(gold: Sequence[Label], found: Sequence[Label]) -> np.ndarray:
    """Predicted numbers N; zeros where they differ by no more than fp32 rounds. Those of a model that answers every
    text alike do, since rows are computed in batches of several sizes and lengths, which sum in other orders.

    The rounding is relative to the largest of them, or to the range of the labels where that is larger: a number near 0
    is a difference of others.
    """
    numbers = np.asarray(found, dtype=float)
    size = max(np.abs(numbers).max(), np.ptp(np.asarray(gold, dtype=float)))
    return np.zeros_like(numbers) if np.ptp(numbers) <= ROUNDED * size else numbers


def _correlation(function: Callable, gold: Sequence[Label], found: Sequence[Label]) -> float:
    """0 where either side is constant and no correlation exists."""
    numbers = apart(gold, found)
    if np.ptp(np.asarray(gold)) == 0 or np.ptp(numbers) == 0:
        return 0.0
    return float(function(gold, numbers).statistic)


def _words(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Label names of every word; a word that was cut off is predicted as outside any entity."""
    names, guesses = [], []
    for right, guess in zip(gold, found, strict=True):
        assert isinstance(right, list)
        assert isinstance(guess, list)
        names.append([labels[index] for index in right])
        guesses.append([labels[index] for index in guess] + [OUTSIDE] * (len(right) - len(guess)))
    return names, guesses


def _entity_f1(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> float:
    from seqeval.metrics import f1_score  # and with it scikit-learn

    names, guesses = _words(gold, found, labels)
    return float(f1_score(names, guesses, zero_division=0))  # type: ignore[arg-type]  # it says str, and takes 0


def _token_f1(gold: Sequence[Label], found: Sequence[Label], labels: list[str]) -> float:
    names, guesses = (list(chain.from_iterable(rows)) for rows in _words(gold, found, labels))
    inside = [name for name in labels if name != OUTSIDE]
    return float(_sklearn().f1_score(names, guesses, labels=inside, average="micro", zero_division=0))


Metric = Callable[[Sequence[Label], Sequence[Label], list[str]], float]
METRICS: dict[str, Metric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
    "entity_f1": _entity_f1,
    "token_f1": _token_f1,
}
"""Scores by name, of gold labels and predicted ones in row order. accuracy: of rows, or of all words together. f1: of
the second class. macro_f1: mean over the classes that are in gold or predicted. entity_f1: whole entities, by seqeval.
token_f1: words, all classes but O pooled. A word that was cut off is predicted as O."""

USUAL: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "token": ("entity_f1", "token_f1"),
    "choice": ("accuracy",),
}

FITTING: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "f1", "macro_f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "token": ("accuracy", "entity_f1", "token_f1"),
    "choice": ("accuracy",),
}
"""The metrics that a task of a kind may have."""
