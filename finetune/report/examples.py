"""Test scores as functions of sums over examples, so that thousands of resampled test sets are one matrix product."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csc_array
from scipy.stats import rankdata
from seqeval.metrics.sequence_labeling import get_entities

from finetune.metrics import OUTSIDE, apart, check_fits
from finetune.predictions import load_predictions

# N examples, K sums that a metric needs, R resampled test sets

RESAMPLES = 10_000
_CHUNK = 4_000_000  # draws held at a time
_EXACT = 1e-12  # n times a sum of squares less the sum's square, as a share of the former: less than it is rounding

Parts = Callable[[Sequence, Sequence, list[str]], np.ndarray]
Whole = Callable[[np.ndarray], np.ndarray]


class Sums(NamedTuple):
    """sums_NK: what each example adds to the sums of a metric; ids: of the examples."""

    ids: tuple[str, ...]
    sums_NK: np.ndarray


def parts(predictions: Path, metric: str) -> Sums | None:
    """Of a predictions file; None where there is none or it has no gold labels.

    Spearman's ranks are those within the whole test set, also for resampled ones. Raises: WorkError for a damaged file,
    or one of another kind of task.
    """
    if not predictions.is_file():
        return None
    these = load_predictions(predictions)
    if these.gold is None:
        return None
    check_fits(predictions, these, metric)
    return Sums(tuple(these.ids), PARTS[metric](these.gold, these.predictions.labels, these.labels))


def resampled(tables: list[np.ndarray], metric: str) -> np.ndarray:
    """R x len(tables): scores of runs on RESAMPLES test sets drawn with replacement, each the same for every run.

    Args: tables, NK arrays of `parts` over the same N examples.
    """
    rng = np.random.default_rng(0)
    examples, sums = len(tables[0]), np.concatenate(tables, axis=1)
    # Of 150 classes, of which an example has to do with two, a sparse product takes a fifth of the time.
    sums = csc_array(sums) if np.count_nonzero(sums) < sums.size / 50 else sums
    rows = max(1, _CHUNK // examples)
    found = []
    for start in range(0, RESAMPLES, rows):
        count = min(rows, RESAMPLES - start)
        drawn = rng.integers(examples, size=(count, examples)) + examples * np.arange(count)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * examples).reshape(count, examples)
        totals = (times.astype(float) @ sums).reshape(count, len(tables), -1)
        found.append(WHOLE[metric](totals))
    return np.concatenate(found)


def _accuracy(gold: Sequence, found: Sequence, labels: list[str]) -> np.ndarray:
    """N2: right rows, rows; or right words, words."""
    if isinstance(gold[0], list):
        pairs = [_same_length(*pair, labels) for pair in zip(gold, found, strict=True)]
        return np.array([((right == guess).sum(), len(right)) for right, guess in pairs], dtype=float)
    right = np.asarray(gold) == np.asarray(found)
    return np.stack([right, np.ones(len(right))], axis=1)


def _same_length(right: list[int], guess: list[int], labels: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Of a row's words; those that were cut off are guessed to be outside any entity."""
    outside = labels.index(OUTSIDE) if OUTSIDE in labels else -1
    return np.asarray(right, dtype=int), np.asarray(guess + [outside] * (len(right) - len(guess)), dtype=int)


def _of_class(gold: Sequence, found: Sequence, index: int) -> np.ndarray:
    """N3: right guesses of a class, its guesses, its examples."""
    is_gold, is_found = np.asarray(gold) == index, np.asarray(found) == index
    return np.stack([is_gold & is_found, is_found, is_gold], axis=1).astype(float)


def _classes(gold: Sequence, found: Sequence, labels: list[str]) -> np.ndarray:
    """N, 3C: _of_class for every class."""
    return np.concatenate([_of_class(gold, found, index) for index in range(len(labels))], axis=1)


def _moments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = (np.zeros(len(v)) if np.ptp(v) == 0 else v - v.mean() for v in (x, y))
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def _pearson(gold: Sequence, found: Sequence, labels: list[str]) -> np.ndarray:
    return _moments(np.asarray(gold, dtype=float), apart(gold, found))


def _spearman(gold: Sequence, found: Sequence, labels: list[str]) -> np.ndarray:
    return _moments(rankdata(gold), rankdata(apart(gold, found)))


def _entities(gold: Sequence, found: Sequence, labels: list[str]) -> np.ndarray:
    """N3: right entities, guessed ones, true ones."""
    rows = []
    labels = [*labels, OUTSIDE]  # -1: cut off, where there is no class O
    for pair in zip(gold, found, strict=True):
        there, guessed = (_named(tuple(labels[index] for index in part)) for part in _same_length(*pair, labels))
        rows.append((len(there & guessed), len(guessed), len(there)))
    return np.array(rows, dtype=float)


@functools.lru_cache(maxsize=100_000)
def _named(words: tuple[str, ...]) -> frozenset[tuple]:
    """The entities of a row. Cached: the same rows come with every run."""
    return frozenset(get_entities(list(words)))


def _words(gold: Sequence, found: Sequence, labels: list[str]) -> np.ndarray:
    """N3: right words of entities, guessed ones, true ones."""
    inside = np.array([name != OUTSIDE for name in labels])
    pairs = [_same_length(*pair, labels) for pair in zip(gold, found, strict=True)]
    guessed = [(inside[guess] & (guess >= 0)).sum() for _, guess in pairs]  # -1: cut off, where there is no class O
    rows = [
        ((right == guess)[inside[right]].sum(), number, inside[right].sum())
        for (right, guess), number in zip(pairs, guessed, strict=True)
    ]
    return np.array(rows, dtype=float)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """0 where there is nothing to divide by."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=below > 0)


def _f1(sums: np.ndarray) -> np.ndarray:
    return _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    """Over the classes that are in gold or predicted."""
    classes = sums.reshape(*sums.shape[:-1], -1, 3)
    return _ratio(_f1(classes).sum(-1), (classes[..., 1] + classes[..., 2] > 0).sum(-1))


def _matthews(sums: np.ndarray) -> np.ndarray:
    right, found, gold = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 3), -1, 0)
    total = gold.sum(-1)
    spread = (total**2 - (found**2).sum(-1)) * (total**2 - (gold**2).sum(-1))
    return _ratio(right.sum(-1) * total - (found * gold).sum(-1), np.sqrt(spread))


def _correlation(sums: np.ndarray) -> np.ndarray:
    """0 where either side is constant, as labels are in many resampled test sets where all but few have the same."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    return _ratio(n * xy - x * y, np.sqrt(_spread(n, x, xx) * _spread(n, y, yy)))


def _spread(n: np.ndarray, x: np.ndarray, xx: np.ndarray) -> np.ndarray:
    """0 where it is no more than rounding, which would make some 1e-8 of no correlation: no tie of two runs then."""
    found = n * xx - x**2
    return np.where(found > _EXACT * n * xx, found, 0.0)


PARTS: dict[str, Parts] = {
    "accuracy": _accuracy,
    "f1": lambda gold, found, labels: _of_class(gold, found, 1),
    "macro_f1": _classes,
    "matthews": _classes,
    "pearson": _pearson,
    "spearman": _spearman,
    "entity_f1": _entities,
    "token_f1": _words,
}
WHOLE: dict[str, Whole] = {
    "accuracy": lambda sums: sums[..., 0] / sums[..., 1],
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
    "pearson": _correlation,
    "spearman": _correlation,
    "entity_f1": _f1,
    "token_f1": _f1,
}
