"""Each method against vanilla, and each model against another: gains and how far they could be chance."""

import json
import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.stats import permutation_test

from finetune.predictions import FOLDER, SAME
from finetune.report.collect import Run, reader, weights
from finetune.report.examples import RESAMPLES, Sums, parts, resampled
from finetune.report.labels import grouped
from finetune.report.rows import Row

PREDICTIONS = f"{FOLDER}/test.npz"  # in a run's folder
FLIPS = 2**16  # flips of sign: all of them up to 16 seeds, else as many at random
DIGITS = 12  # of a gain: equal ones differ by their rounding, some 1e-17, and would be no ties


class Pair(NamedTuple):
    """A run and the one of the same task, settings and seed that it is held against.

    against: that one's model; None for the vanilla run of the same model, which may be called anything.
    """

    row: Row
    partner: Run
    against: str | None

    @property
    def gain(self) -> float:
        return self.row.score - self.partner.scores[f"test_{self.row.metric}"]


class Comparison(NamedTuple):
    """A method against vanilla, or a model against another, over the seeds both have. Fractions; nan where a figure
    cannot be had.

    p_seeds: sign-flip permutation test of the mean gain over seeds. low, high, p_examples: 95 % interval of the mean
    gain, and its test against 0, by a paired bootstrap over the test examples.
    """

    row: Row  # the first of its runs: names and settings
    against: str | None  # as of its pairs
    gains: tuple[float, ...]
    p_seeds: float
    low: float
    high: float
    p_examples: float
    bare: tuple[str, ...]  # of its runs, those without predictions of the examples that most have


class Tested(NamedTuple):
    """The two families of comparisons; each is corrected for its own number."""

    methods: list[Comparison]
    models: list[Comparison]


def comparisons(rows: list[Row]) -> Tested:
    """Methods against vanilla of the same model, and models against each other with the same method."""
    methods = [Pair(row, row.partner, None) for row in rows if row.partner and "gain" in row.values]
    models = between_models([row for row in rows if not math.isnan(row.score)])
    scores: dict[str, np.ndarray] = {}
    examples: dict[str, int] = {}
    for task in grouped(methods + models, lambda pair: (pair.row.run.stage, pair.row.task, pair.row.settings)).values():
        tables = _tables(task)
        examples |= {name: hash(table.ids) for name, table in tables.items()}
        scores |= _scores(tables, task[0].row.metric)
    return Tested(*(_tested(pairs, scores, examples) for pairs in (methods, models)))


def between_models(rows: list[Row]) -> list[Pair]:
    """Every model against each before it in the request's order; with more than three, against the first alone."""
    found = []
    for same in grouped(rows, lambda row: (row.run.stage, row.task, row.settings, _recipe(row))).values():
        models = _in_order(same)
        pairs = combinations(models, 2) if len(models) <= 3 else ((models[0], other) for other in models[1:])
        for first, second in pairs:
            for row in (row for row in same if row.model == second):
                seeded = [other for other in same if other.model == first and other.run.seed == row.run.seed]
                partners = [other for other in seeded if not _one(other.run, row.run)]
                alike = [other for other in partners if other.method == row.method] or partners
                found += [Pair(row, other.run, first) for other in alike[:1]]
    return found


def _one(first: Run, second: Run) -> bool:
    """Whether two models are one by two names."""
    readers = {reader(first), reader(second)} - {""}
    return first.own == second.own and weights(first) == weights(second) != "" and len(readers) < 2


def _recipe(row: Row) -> str:
    """The method and its settings; whether its adversary came with the weights is a trait of those."""
    own = {key: value for key, value in row.run.own.items() if key != "adversary"}
    return repr((row.run.method, sorted(own.items())))


def _in_order(rows: list[Row]) -> list[str]:
    """Their models, as the requests name them; by the alphabet where those do not."""
    requests = (row.run.facts.get("models") or row.run.facts.get("request", {}).get("models", {}) for row in rows)
    asked = list(dict.fromkeys(name for models in requests for name in models))
    place = {row.model: asked.index(row.run.model) if row.run.model in asked else len(asked) for row in rows}
    return sorted(place, key=lambda model: (place[model], model))


def _tested(pairs: list[Pair], scores: dict[str, np.ndarray], examples: dict[str, int]) -> list[Comparison]:
    """One per task, settings, model, method and what it is held against, in the pairs' order.

    Without those of models that were scored on the rows of their own runs once more, where the runs' own is there, nor
    those of a model by a second name: the same comparison twice would be two, for which Holm corrects. Args: examples,
    of which a run has predictions, hashed.
    """

    def what(pair: Pair) -> tuple:
        row = pair.row
        return row.run.stage, row.task, row.settings, row.model, row.method, pair.against

    runs = grouped([pair for pair in pairs if pair.row.run.stage == "finetune"], lambda pair: _trained(pair, examples))

    def again(pair: Pair) -> bool:
        if not (_own_task(pair.row.run) and {pair.row.run.name, pair.partner.name} <= examples.keys()):
            return False
        known = runs.get(_trained(pair, examples), [])
        return any(abs(pair.row.score - run.row.score) <= SAME and abs(pair.gain - run.gain) <= SAME for run in known)

    groups = [same for same in grouped(pairs, what).values() if not all(map(again, same))]
    first: dict[frozenset[tuple], list[Pair]] = {}
    for same in groups:
        first.setdefault(frozenset(map(_named, same)), same)
    return [_comparison(same, scores) for same in first.values()]


def _named(pair: Pair) -> tuple:
    """What tells a pair apart, whatever its models are called where their weights are known."""
    runs = (pair.row.run, pair.partner)
    made = ("" if weights(run) else run.model for run in runs)
    return pair.row.run.stage, pair.row.task, pair.row.settings, *made, *map(_training, runs), pair.row.score, pair.gain


def _own_task(run: Run) -> bool:
    """Whether a model was scored on the task that trained it, by name or content: rows of others may have the same
    numbers."""
    inputs = run.facts.get("inputs", {})
    same = run.facts.get("task") == run.facts.get("trained_on")
    return run.stage == "score" and (same or inputs.get("task_sha256") == inputs.get("trained_sha256"))


def _trained(pair: Pair, examples: dict[str, int]) -> tuple:
    """What a pair of scored models and that of their runs have in common: training and examples."""
    return pair.against, *((_training(run), examples.get(run.name)) for run in (pair.row.run, pair.partner))


def _training(run: Run) -> str:
    """All that made a model, of its run and of a record of its scores alike."""
    inputs = run.facts.get("inputs", {})
    data = inputs.get("trained_sha256" if run.stage == "score" else "task_sha256")
    of_scores = ("task_sha256", "trained_sha256", "merge", "length")  # which the examples and their score tell
    known = ((key, value) for key, value in run.shared.items() if key not in of_scores)
    settings = {key: value for key, value in known if not key.startswith("map.")}
    return json.dumps([data, settings, weights(run), run.method, run.own, run.seed], sort_keys=True)


def _comparison(pairs: list[Pair], scores: dict[str, np.ndarray]) -> Comparison:
    gains = tuple(pair.gain for pair in pairs)
    names = [(pair.row.run.name, pair.partner.name) for pair in pairs]
    bare = tuple(dict.fromkeys(name for pair in names for name in pair if name not in scores))
    chance = None if bare else np.mean([scores[run] - scores[other] for run, other in names], axis=0)
    return Comparison(pairs[0].row, pairs[0].against, gains, by_seeds(np.asarray(gains)), *by_examples(chance), bare)


def _tables(pairs: list[Pair]) -> dict[str, Sums]:
    """By run, of those that kept predictions."""
    runs = {run.name: run for pair in pairs for run in (pair.row.run, pair.partner)}
    tables = {name: parts(run.folder / PREDICTIONS, pairs[0].row.metric) for name, run in runs.items()}
    return {name: table for name, table in tables.items() if table is not None}


def _scores(tables: dict[str, Sums], metric: str) -> dict[str, np.ndarray]:
    """Scores on resampled test sets, by run, of those runs that kept predictions on the examples that most have."""
    if not tables:
        return {}
    same = max(grouped(list(tables.items()), lambda one: one[1].ids).values(), key=len)
    values = resampled([table.sums_NK for _, table in same], metric)
    return dict(zip((name for name, _ in same), values.T, strict=True))


def by_seeds(gains: np.ndarray) -> float:
    """Two-sided p of the mean gain under flips of sign; exact up to 16 seeds, nan for one. At least least_p."""
    if len(gains) < 2:
        return float("nan")
    test = permutation_test(
        (gains, np.zeros(len(gains))),
        lambda a, b, axis: np.round(np.mean(a - b, axis=axis), DIGITS),
        permutation_type="samples",
        vectorized=True,
        n_resamples=FLIPS,
        batch=2**12,
        rng=np.random.default_rng(0),
    )
    return float(test.pvalue)


def least_p(seeds: int) -> float:
    """The smallest p that by_seeds can give."""
    return max(2.0 ** (1 - seeds), 2 / (FLIPS + 1))


def by_examples(chance: np.ndarray | None) -> tuple[float, float, float]:
    """95 % interval and two-sided p of a gain from its values on resampled test sets; nan without them."""
    if chance is None:
        return float("nan"), float("nan"), float("nan")
    chance = np.round(chance, DIGITS) + 0.0  # no minus zero
    low, high = np.quantile(chance, (0.025, 0.975))
    tail = min((chance <= 0).sum(), (chance >= 0).sum())
    return float(low), float(high), min(1.0, 2 * (int(tail) + 1) / (RESAMPLES + 1))


def holm(values: list[float]) -> list[float]:
    """p values corrected for their number (Holm 1979); nan stays and is not counted."""
    counted = sorted((p, index) for index, p in enumerate(values) if not math.isnan(p))
    found, least = [float("nan")] * len(values), 0.0
    for rank, (p, index) in enumerate(counted):
        least = max(least, min(1.0, p * (len(counted) - rank)))
        found[index] = least
    return found
