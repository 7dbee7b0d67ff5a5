"""Runs -> rows of figures, and their mean, standard deviation and number per group."""

import math
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from finetune.lineage import caveats
from finetune.report.collect import COMPARED, Run, finished, weights
from finetune.report.labels import differences, letters, method_key, method_labels, model_labels

NAN = float("nan")
# Held-out figures of one objective alone: most tokens of a replaced row are originals, so accuracy flatters.
SEPARATION = {"rtd": ("heldout_separation",)}
TOGETHER = {"mnli": "mm"}  # beside other tasks its score is, as in the papers and on GLUE, the mean of test and this


class Row(NamedTuple):
    """A finished run. method: with what tells its settings apart; settings: letter of those that methods share, and
    difference: what the letter stands for, both empty where the task has one set.

    values: figures by name, those that are known. Of a run on a task: its scores SPLIT_METRIC, seconds, step_seconds
    (one step), peak_memory_bytes (tensors on a GPU) or peak_resident_bytes (the process), masked_share_layer_N after
    training and, where there is a vanilla run (`partner`) with the same task, weights, settings and seed: gain (of the
    main score on test), slowdown and memory (multiples of its time per step and peak memory on a GPU, where both ran on
    the same kind of device, as many processes and, on a CPU, threads). Of MNLI also overall_METRIC, the mean of its two
    files, and overall_gain.
    """

    run: Run
    task: str
    model: str
    method: str
    settings: str
    values: dict[str, float]
    partner: Run | None = None
    difference: str = ""

    @property
    def metric(self) -> str:
        return self.run.metrics[0]

    @property
    def lettered(self) -> str:
        """The task with the letter of its settings."""
        return f"{self.task} {self.settings}".rstrip()

    @property
    def chosen_by_test(self) -> bool:
        """Whether the scored rows have chosen the epoch."""
        return "chosen_by_test" in caveats(self.run.facts)

    @property
    def partial(self) -> str:
        """What the scored rows are of a published set that has more."""
        return caveats(self.run.facts).get("partial", "")

    @property
    def trained_by(self) -> bool:
        """Whether a file of the scored rows has trained the model, in its own run or before."""
        return "scored_rows_trained" in caveats(self.run.facts)

    @property
    def score(self) -> float:
        """The main score on test, nan where there is none."""
        return self.values.get(f"test_{self.metric}", NAN)

    @property
    def in_two_files(self) -> bool:
        return f"overall_{self.metric}" in self.values

    @property
    def overall(self) -> float:
        """What stands for the task beside others: the main score on test, MNLI's the mean of its two files."""
        return self.values.get(f"overall_{self.metric}", self.score)


class Spread(NamedTuple):
    """sd: sample standard deviation, nan for n = 1. All nan for n = 0."""

    n: int
    mean: float
    sd: float


def spread(values: Iterable[float]) -> Spread:
    known = [value for value in values if not math.isnan(value)]
    mean = statistics.fmean(known) if known else NAN
    return Spread(len(known), mean, statistics.stdev(known) if len(known) > 1 else NAN)


def figures_of(rows: Iterable[Row], key: str) -> list[float]:
    """The figure in every row that has it."""
    return [row.values[key] for row in rows if key in row.values]


def tuned_rows(runs: list[Run], repeated: bool = False) -> list[Row]:
    """Every finished fine-tuning run and scored model, sorted, vanilla before other methods. Args: see model_labels."""
    done = finished(runs, *COMPARED)
    models, methods, apart = model_labels(done, repeated), method_labels(done), differences(done)
    settings = letters(apart)

    def cell(run: Run) -> tuple:
        return run.stage, run.task, run.model, weights(run), run.settings, run.facts.get("seed")

    vanilla = {cell(run): run for run in done if run.method == "vanilla"}
    rows = []
    for run in done:
        partner = vanilla.get(cell(run)) if run.method != "vanilla" else None
        values = {**_figures(run), **(_against(run, partner) if partner else {})}
        names = run.task, models[run.name], methods[run.name], settings[run.name]
        rows.append(Row(run, *names, values, partner, apart[run.name]))
    return _ordered(_alike(rows))


def _alike(rows: list[Row]) -> list[Row]:
    """The mean of two files goes where a run of the same column has but one of them."""
    halves = {_column(row) for row in rows if not row.in_two_files}
    for row in rows:
        if _column(row) in halves:
            for key in (f"overall_{row.metric}", "overall_gain"):
                row.values.pop(key, None)
    return rows


def _column(row: Row) -> tuple[str | None, str, str]:
    return row.run.stage, row.task, row.settings


def _figures(run: Run) -> dict[str, float]:
    found = dict(run.scores)
    if other := TOGETHER.get(str(run.facts.get("task"))):  # of a scored model run.task tells the training task too
        keys = [f"{split}_{run.metrics[0]}" for split in ("test", other)]
        if all(key in found for key in keys):
            found[f"overall_{run.metrics[0]}"] = statistics.fmean(found[key] for key in keys)
    known = ("seconds", "peak_memory_bytes", "peak_resident_bytes")
    found |= {key: run.figures[key] for key in known if key in run.figures}
    for layer, share in enumerate(masked_shares(run)):
        found[f"masked_share_layer_{layer}"] = share
    spent, steps = run.figures.get("train_seconds", run.figures.get("seconds")), run.figures.get("steps")
    return found | ({"step_seconds": spent / steps} if spent is not None and steps else {})


def masked_shares(run: Run) -> list[float]:
    """Of the last log line that has them, bottom layer first; none for a run that does not mask."""
    shares = run.series("masked_share")[1]
    return [NAN if share is None else share for share in shares[-1]] if shares else []


def _against(run: Run, vanilla: Run) -> dict[str, float]:
    mine, theirs = _figures(run), _figures(vanilla)
    found: dict[str, float] = {}
    for gain, scored in (("gain", "test"), ("overall_gain", "overall")):
        key = f"{scored}_{run.metrics[0]}"
        if key in mine and key in theirs:
            found[gain] = mine[key] - theirs[key]
    if where(run) != where(vanilla):
        return found
    for name, cost in (("slowdown", "step_seconds"), ("memory", "peak_memory_bytes")):
        if mine.get(cost) and theirs.get(cost):
            found[name] = mine[cost] / theirs[cost]
    return found


def where(run: Run) -> tuple[Any, ...]:
    """Costs are compared between runs that agree in it; engine and precision are among the shared settings."""
    names = ("processes",) if "peak_memory_bytes" in (run.end or {}) else ("processes", "threads")  # a GPU's has none
    places = (run.facts.get(name) for name in names)
    return run.facts.get("environment", {}).get("device"), *places, "train_seconds" in (run.end or {})


def evaluated_rows(runs: list[Run]) -> list[Row]:
    """Every finished ensemble with its scores, and every attacked model with its loss_increase_STATISTIC (nats)."""
    done = finished(runs, "ensemble", "robustness")
    apart = differences(done)
    settings = letters(apart)
    rows = []
    for run in done:
        # No two ensembles have a mean: what their members were trained with may differ in anything.
        values, model = (run.scores, run.name) if run.stage == "ensemble" else (_increase(run), run.model)
        rows.append(Row(run, run.task, model, run.method, settings[run.name], values, difference=apart[run.name]))
    return _ordered(rows)


def _increase(run: Run) -> dict[str, float]:
    """The reference is part of the name: increases within the radii of another one are not comparable."""
    radii = run.facts.get("reference", "n/a")
    return {f"loss_increase_{key}_radii_from_{radii}": value for key, value in run.figures.items() if key != "seconds"}


def pretrain_rows(runs: list[Run]) -> list[Row]:
    """Every finished pre-training run, with its held-out figures and its speed."""
    done = finished(runs, "pretrain")
    models, methods, settings = model_labels(done), method_labels(done), letters(differences(done))
    return _ordered(
        [
            Row(run, run.task, models[run.name], methods[run.name], settings[run.name], _pretrain_figures(run))
            for run in done
        ]
    )


def _pretrain_figures(run: Run) -> dict[str, float]:
    """before: at step 0; tokens_per_s: median of the log lines."""
    rates = run.series("tokens_per_s")[1]
    found: dict[str, float] = {}
    for key in ("heldout_loss", "heldout_accuracy", *SEPARATION.get(run.task, ())):
        found |= before_after(run, key)
    found["tokens_per_s"] = statistics.median(rates) if rates else NAN
    return found | {"seconds": run.figures.get("seconds", NAN)}


def before_after(run: Run, key: str) -> dict[str, float]:
    """A held-out metric at step 0 (nan where it was not taken) and at the last evaluation."""
    steps, values = run.series(key, "evals")
    before = values[0] if steps and steps[0] == 0 else NAN
    return {f"{key}_before": before, f"{key}_after": values[-1] if values else NAN}


def _ordered(rows: list[Row]) -> list[Row]:
    """Sorted by group and seed, vanilla before the other methods."""

    def key(row: Row) -> tuple[Any, ...]:
        return (row.run.stage, row.task, row.settings, row.model, method_key(row.method), row.run.seed, row.run.name)

    return sorted(rows, key=key)
