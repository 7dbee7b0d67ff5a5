"""Each method against vanilla training of the same model on the same task: gains and how far they could be chance."""

from typing import NamedTuple

import numpy as np
from scipy.stats import permutation_test

from finetune.report.examples import RESAMPLES, parts, resampled
from finetune.report.labels import grouped
from finetune.report.rows import Row, of

PREDICTIONS = "predictions/test.npz"  # in a run's folder


class Comparison(NamedTuple):
    """A method against vanilla over the seeds both have. Fractions; nan where a figure cannot be had.

    p_seeds: sign-flip permutation test of the mean gain over seeds. low, high, p_examples: 95 % interval of the mean
    gain, and its test against 0, by a paired bootstrap over the test examples.
    """

    task: str
    settings: str
    model: str
    method: str
    metric: str
    gains: tuple[float, ...]
    p_seeds: float
    low: float
    high: float
    p_examples: float


def comparisons(rows: list[Row]) -> list[Comparison]:
    """One per task, settings, model and method that has a vanilla partner, in the rows' order."""
    pairs = [row for row in rows if "gain" in row.values]
    found = []
    for task in grouped(pairs, lambda row: (row.run.stage, row.task, row.settings)).values():
        scores = _scores(task)
        for same in grouped(task, lambda row: (row.model, row.method)).values():
            found.append(_comparison(same, scores))
    return found


def _comparison(rows: list[Row], scores: dict[str, np.ndarray]) -> Comparison:
    gains = of(rows, "gain")
    pairs = [(row.run.name, row.partner.name) for row in rows if row.partner]
    known = all(name in scores for pair in pairs for name in pair)
    chance = np.mean([scores[run] - scores[vanilla] for run, vanilla in pairs], axis=0) if known else None
    first = rows[0]
    names = first.task, first.settings, first.model, first.method, first.metric
    return Comparison(*names, tuple(gains), by_seeds(np.asarray(gains)), *by_examples(chance))


def _scores(pairs: list[Row]) -> dict[str, np.ndarray]:
    """Scores on resampled test sets, by run, of those runs that kept predictions on the same examples as the first."""
    runs = {run.name: run for row in pairs for run in (row.run, row.partner) if run}
    metric = pairs[0].metric
    tables = {name: parts(run.folder / PREDICTIONS, metric) for name, run in runs.items()}
    known = {name: table for name, table in tables.items() if table is not None}
    same = {name: table for name, table in known.items() if len(table) == len(next(iter(known.values())))}
    return dict(zip(same, resampled(list(same.values()), metric).T, strict=True)) if same else {}


def by_seeds(gains: np.ndarray) -> float:
    """Two-sided p of the mean gain under flips of sign; exact up to 13 seeds, nan for one. At least 2 ** (1 - n)."""
    if len(gains) < 2:
        return float("nan")
    test = permutation_test(
        (gains, np.zeros(len(gains))),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=9_999,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def by_examples(chance: np.ndarray | None) -> tuple[float, float, float]:
    """95 % interval and two-sided p of a gain from its values on resampled test sets; nan without them."""
    if chance is None:
        return float("nan"), float("nan"), float("nan")
    low, high = np.quantile(chance, (0.025, 0.975))
    tail = min((chance <= 0).sum(), (chance >= 0).sum())
    return float(low), float(high), min(1.0, 2 * (int(tail) + 1) / (RESAMPLES + 1))


def holm(values: list[float]) -> list[float]:
    """p values corrected for their number (Holm 1979); nan stays and is not counted."""
    counted = sorted((p, index) for index, p in enumerate(values) if p == p)
    found, least = [float("nan")] * len(values), 0.0
    for rank, (p, index) in enumerate(counted):
        least = max(least, min(1.0, p * (len(counted) - rank)))
        found[index] = least
    return found
