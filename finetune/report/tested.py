"""Tables of tests, and of what stands beside the fine-tuning runs: attacked models and ensembles."""

import math

from finetune.report.collect import NO_SEED, Run, finished
from finetune.report.compare import Comparison, holm, least_p
from finetune.report.examples import RESAMPLES
from finetune.report.labels import grouped, words
from finetune.report.rows import NAN, Row, evaluated_rows
from finetune.report.tables import Table, caveats, mean_sd, number, score_name

# Of an attack's end line, where records have them: figure, heading, factor and digits.
FURTHER = (("resisted", "Still right, %", 100, 1), ("start_spread", "Spread over starts", 1, 4))
MEANT = {
    "resisted": "Still right: rows classified right at every point that was looked at.",
    "start_spread": "Spread over starts: the largest minus the smallest loss that a start reached, median over rows.",
}


def tests(found: list[Comparison], caption: str) -> Table:
    """One row per comparison, p values as they are and corrected for the number of rows."""
    seeds, examples = holm([one.p_seeds for one in found]), holm([one.p_examples for one in found])
    rivals = any(one.against is not None for one in found)
    cells = []
    for one, p_seeds, p_examples in zip(found, seeds, examples, strict=True):
        interval = "n/a" if math.isnan(one.low) else f"{one.low * 100:+.2f} to {one.high * 100:+.2f}"
        gain = [str(len(one.gains)), mean_sd(one.gains, 100, 2, "+")]
        by_examples = [interval, p_value(one.p_examples), p_value(p_examples)]
        names = [one.row.lettered, one.row.model, *([one.against] if one.against is not None else []), one.row.method]
        cells.append([*names, words(one.row.metric), *gain, p_value(one.p_seeds), p_value(p_seeds), *by_examples])
    heads = ["Task", "Model", *(["Against"] if rivals else []), "Method", "Metric"]
    figures = ["n", "Gain, points", "p over seeds", "Holm", "95 % over examples", "p over examples", "Holm"]
    return Table(caption, [*heads, *figures], cells, len(heads))


def p_value(p: float) -> str:
    return "n/a" if math.isnan(p) else f"{p:.1g}" if p < 0.0001 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


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
        " corrected for all rows that have one." + _bare(found)
    )


def _bare(found: list[Comparison]) -> str:
    """Which runs have kept a row from its test over examples."""
    names = sorted({name for one in found for name in one.bare})
    if not names:
        return ""
    return f" None over examples where a run has no predictions beside it, or of other examples: {', '.join(names)}."


def loss_increase(runs: list[Run]) -> Table | None:
    """FreeLB's Table 5: the largest increase of the loss within a ball, per model; None where it was not measured."""
    measured = [row for row in evaluated_rows(runs) if row.run.stage == "robustness"]
    shown = [one for one in FURTHER if any(not math.isnan(_figure(row, one[0])) for row in measured)]
    cells = []
    for row in sorted(measured, key=lambda row: (row.task, row.settings, _reference(row), row.run.name)):
        low, high = (number(_figure(row, key), 4) for key in ("q25", "q75"))
        rest = [number(_figure(row, key), 4) for key in ("mean", "sd", "clean_loss_median")]
        rest += [number(_figure(row, key) * factor, digits) for key, _, factor, digits in shown]
        sizes = [number(_figure(row, "n"), 0), number(_figure(row, "radius_median"), 4)]
        seed = "-" if row.run.seed == NO_SEED else str(row.run.seed)
        names = [row.lettered, row.model, str(row.run.facts.get("method") or "-"), seed, _reference(row)]
        cells.append([*names, *sizes, number(_figure(row, "median"), 4), f"{low} to {high}", *rest])
    figures = ["n", "Median radius", "Median increase", "Middle half", "Mean", "Sd", "Median loss without attack"]
    heads = ["Task", "Model", "Method", "Seed", "Radii from", *figures, *[one[1] for one in shown]]
    note = " ".join(filter(None, [*(MEANT[one[0]] for one in shown), *_attacks(measured), caveats(measured)]))
    caption = "Largest increase of the loss within the ball, nats"
    return Table(caption, heads, cells, 5, note) if cells else None


def _figure(row: Row, key: str) -> float:
    """Of the end line; nan where it is not known."""
    return row.run.figures.get(key, NAN)


def _attacks(measured: list[Row]) -> list[str]:
    """What the letters stand for, and that attacks under several are not comparable."""
    letters = sorted({f"{row.settings}: {row.difference}." for row in measured if row.settings})
    if any("models_sha256" in letter for letter in letters):
        letters.append("models_sha256: of the models compared, since the rows are attacked that all of them get right.")
    if any("attacked_sha256" in letter for letter in letters):
        letters.append("attacked_sha256: of the rows that were attacked.")
    return [*letters, "Attacks with other settings are not comparable."] if letters else []


def ensembles(runs: list[Run]) -> Table | None:
    """Their members and scores; None where there are none."""
    cells = []
    for run in finished(runs, "ensemble"):
        members = grouped(run.facts.get("members", []), lambda one: f"{one.get('model')} {one.get('method')}")
        told = ", ".join(f"{len(same)} x {name}" for name, same in members.items())
        shown = "; ".join(f"{score_name(key)} {number(100 * value, 2)}" for key, value in run.scores.items())
        cells.append([run.name, run.task, told, shown or "-"])
    note = caveats([row for row in evaluated_rows(runs) if row.run.stage == "ensemble"])
    return Table("Ensembles", ["Ensemble", "Task", "Members", "Scores, %"], cells, 3, note) if cells else None


def _reference(row: Row) -> str:
    return str(row.run.facts.get("reference", "n/a"))
