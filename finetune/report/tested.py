"""Tables of tests, and of what stands beside the fine-tuning runs: attacked models and ensembles."""

import math

from finetune.report.collect import Run, finished
from finetune.report.compare import Comparison, holm, least_p
from finetune.report.examples import RESAMPLES
from finetune.report.labels import grouped, words
from finetune.report.rows import NAN, Row, evaluated_rows
from finetune.report.tables import Table, mean_sd, number, score_name


def tests(found: list[Comparison], caption: str) -> Table:
    """One row per comparison, p values as they are and corrected for the number of rows."""
    seeds, examples = holm([one.p_seeds for one in found]), holm([one.p_examples for one in found])
    rivals = any(one.against != "vanilla" for one in found)
    cells = []
    for one, p_seeds, p_examples in zip(found, seeds, examples, strict=True):
        interval = "n/a" if math.isnan(one.low) else f"{one.low * 100:+.2f} to {one.high * 100:+.2f}"
        gain = [str(len(one.gains)), mean_sd(one.gains, 100, 2, "+")]
        by_examples = [interval, p_value(one.p_examples), p_value(p_examples)]
        names = [one.row.lettered, one.row.model, *([one.against] if rivals else []), one.row.method]
        cells.append([*names, words(one.row.metric), *gain, p_value(one.p_seeds), p_value(p_seeds), *by_examples])
    heads = ["Task", "Model", *(["Against"] if rivals else []), "Method", "Metric"]
    figures = ["n", "Gain, points", "p over seeds", "Holm", "95 % over examples", "p over examples", "Holm"]
    return Table(caption, [*heads, *figures], cells, len(heads))


def p_value(p: float) -> str:
    return "n/a" if math.isnan(p) else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def how_tested(found: list[Comparison]) -> str:
    """What the p values mean, how many there are, and how small they can get."""
    sizes = sorted({len(one.gains) for one in found})
    least = ", ".join(f"{least_p(n):.3g} with {n} seeds" for n in sizes if n > 1)
    return (
        f"{len(found)} comparison{'s' if len(found) > 1 else ''}. p over seeds: would runs with other seeds show the"
        " gain? Sign-flip permutation test of the mean gain, two-sided"
        + (f"; it cannot fall below {least}" if least else "; it needs two seeds")
        + ". p over examples: would other test examples show the gain of these very runs? Paired bootstrap,"
        f" {RESAMPLES:,} resampled test sets; 95 %: its interval of the mean gain. Holm: the p value to its left,"
        " corrected for all rows that have one."
    )


def loss_increase(runs: list[Run]) -> Table | None:
    """FreeLB's Table 5: the largest increase of the loss within a ball, per model; None where it was not measured."""
    measured = [row for row in evaluated_rows(runs) if row.run.stage == "robustness"]
    cells = []
    for row in sorted(measured, key=lambda row: (row.task, row.settings, _reference(row), row.run.name)):
        end = {key: value for key, value in (row.run.end or {}).items() if isinstance(value, int | float)}
        low, high = (number(end.get(key, NAN), 4) for key in ("q25", "q75"))
        rest = [number(end.get(key, NAN), 4) for key in ("mean", "sd", "clean_loss_median")]
        sizes = [number(end.get("n", NAN), 0), number(end.get("radius_median", NAN), 4)]
        names = [row.lettered, row.model, _reference(row)]
        cells.append([*names, *sizes, number(end.get("median", NAN), 4), f"{low} to {high}", *rest])
    figures = ["n", "Median radius", "Median increase", "Middle half", "Mean", "Sd", "Median loss without attack"]
    caption = "Largest increase of the loss within the ball, nats"
    letters = sorted({f"{row.settings}: {row.difference}." for row in measured if row.settings})
    note = f"{' '.join(letters)} Attacks with other settings are not comparable." if letters else ""
    return Table(caption, ["Task", "Model", "Radii from", *figures], cells, 3, note) if cells else None


def ensembles(runs: list[Run]) -> Table | None:
    """Their members and scores; None where there are none."""
    cells = []
    for run in finished(runs, "ensemble"):
        members = grouped(run.facts.get("members", []), lambda one: f"{one.get('model')} {one.get('method')}")
        told = ", ".join(f"{len(same)} x {name}" for name, same in members.items())
        shown = "; ".join(f"{score_name(key)} {number(100 * value, 2)}" for key, value in run.scores.items())
        cells.append([run.name, run.task, told, shown or "-"])
    return Table("Ensembles", ["Ensemble", "Task", "Members", "Scores, %"], cells, 3) if cells else None


def _reference(row: Row) -> str:
    return str(row.run.facts.get("reference", "n/a"))
