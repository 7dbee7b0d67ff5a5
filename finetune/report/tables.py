"""Rows -> tables of text, the same for HTML and Markdown: one task, single runs, pre-training, what is left out."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from finetune.report import collect
from finetune.report.collect import STAGES, Run
from finetune.report.labels import grouped, words
from finetune.report.rows import NAN, SEPARATION, Row, figures_of, spread, where

OTHER_SEEDS = "†"
NAMED = 6  # runs in a note
NOTHING = 1e-10  # a mean of gains that cancel is some 1e-17, in points 1e-15

# Figure, heading, factor and digits of what a run costs.
COSTS = (
    ("seconds", "Seconds per run", 1, 1),
    ("step_seconds", "ms per step", 1e3, 1),
    ("peak_memory_bytes", "Peak memory, MB", 1e-6, 0),
    ("peak_resident_bytes", "Peak resident memory, MB", 1e-6, 0),
)


class Table(NamedTuple):
    """Cells as text; the first `names` columns name the row, the rest are figures. note: below it."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    names: int
    note: str = ""


def results(rows: list[Row]) -> Table:
    """Mean and standard deviation per model x method of one task and one set of settings."""
    found = list(dict.fromkeys(key for row in rows for key in row.run.scores))
    values = {name: {row.run.name: row.values.get(name, NAN) for row in rows} for name in found}
    costs = [cost for cost in COSTS if figures_of(rows, cost[0])]
    cells = []
    for (model, method), same in grouped(rows, lambda row: (row.model, row.method)).items():
        means = [_counted(same, name, mark(same, rows, values[name])) for name in found]
        spent = [mean_sd(figures_of(same, key), factor, digits) for key, _, factor, digits in costs]
        cells.append([model, method, str(len(same)), *means, _counted(same, "gain", sign="+"), *spent])
    figures = ["n", *[f"{score_name(name)}, %" for name in found], "vs vanilla, points", *[cost[1] for cost in costs]]
    return told(Table(f"{rows[0].lettered}: every score", ["Model", "Method", *figures], cells, 2, _notes(rows)))


def _counted(same: list[Row], key: str, marked: str = "", sign: str = "") -> str:
    return counted(figures_of(same, key), len(same), 2, marked, sign)


def counted(values: Iterable[float], of: int, digits: int, marked: str = "", sign: str = "") -> str:
    """Fractions in percent, with the number of runs that have one where that is not all of them, or has a mark."""
    known = [value for value in values if not math.isnan(value)]
    return among(mean_sd(known, 100, digits, sign), len(known), of, marked)


def among(text: str, known: int, of: int, marked: str = "") -> str:
    """A figure with the number of runs that it is of, where that is not all of them, or has a mark."""
    return f"{text} ({known}{marked})" if known and (marked or known < of) else text


def mark(same: list[Row], rows: list[Row], values: dict[str, float]) -> str:
    """Whether runs of one cell have other seeds than the vanilla runs of its model, task and settings, if any. Args:
    values, the cell's figure by the name of the run."""
    if not same:
        return ""
    model, task, settings = same[0].model, same[0].task, same[0].settings
    beside = [row for row in rows if (row.model, row.task, row.settings) == (model, task, settings)]
    vanilla = [row for row in beside if row.run.method == "vanilla"]
    own, theirs = ({row.run.seed for row in some if not math.isnan(values[row.run.name])} for some in (same, vanilla))
    return OTHER_SEEDS if own and theirs and own != theirs else ""


def told(table: Table) -> Table:
    """With what the mark stands for in its note, where a cell has it."""
    if not any(OTHER_SEEDS in cell for cells in table.rows for cell in cells):
        return table
    what = f"{OTHER_SEEDS} Over other seeds than vanilla's, so not to be held against it."
    return table._replace(note=f"{table.note} {what}".strip())


def _notes(rows: list[Row]) -> str:
    """What the table of one task leaves open."""
    notes = [caveats(rows)]
    if all(math.isnan(row.score) for row in rows):
        notes.append("The task has no labelled test rows, so no run has a gain over vanilla or a test of it.")
    if len({where(row.run) for row in rows}) > 1:
        notes.append("The costs of its runs were not all taken alike (device, processes, threads, version).")
    if several := [name for name in ("asa-pretrain", "torch") if len(_versions(rows, name)) > 1]:
        notes.append(f"Its runs are of several versions ({', '.join(several)}), which gains hold as well.")
    if alike := [row.run.name for row in rows if row.run.alike]:
        more = f" and {len(alike) - NAMED} more" if len(alike) > NAMED else ""
        notes.append(f"All test rows get one answer from {', '.join(alike[:NAMED])}{more}.")
    return " ".join(filter(None, notes))


def _versions(rows: list[Row], package: str) -> set[Any]:
    """Those that runs say they were made with."""
    return {row.run.facts.get("environment", {}).get(package) for row in rows} - {None}


def caveats(rows: list[Row]) -> str:
    """Sentences that name the tasks whose scores are not what they seem; empty for none."""
    chosen = ", ".join(dict.fromkeys(row.lettered for row in rows if row.chosen_by_test))
    parts = dict.fromkeys((row.lettered, row.partial) for row in rows if row.partial)
    notes = [f"{chosen}: the scored rows chose the epoch as well (paper_compat)."] if chosen else []
    if trained := ", ".join(row.run.name for row in rows if row.trained_by):
        notes.append(f"A file of the scored rows has trained {trained}.")
    for task, same in grouped(rows, lambda row: row.lettered).items():
        trained_here = [row.run for row in same if row.run.stage == "finetune" and "steps" in row.run.figures]
        if len(steps := sorted({int(run.figures["steps"]) for run in trained_here})) > 1:
            patient = any(run.facts.get("config", {}).get("patience") for run in trained_here)
            why = ", as patience ended them" if patient else ""
            notes.append(f"{task}: its runs took {steps[0]:,} to {steps[-1]:,} batches{why}.")
    notes += _updates(rows)
    return " ".join([*notes, *(f"{task} is not the whole published set: {what}." for task, what in parts)])


def _updates(rows: list[Row]) -> list[str]:
    """What is said of methods whose runs made several updates with a batch, where the others' made one."""
    found: dict[str, set[str]] = {}
    for row in rows:
        steps, updates = row.run.figures.get("steps", NAN), row.run.figures.get("updates", NAN)
        if updates > steps:
            found.setdefault(row.method, set()).add(number(updates / steps, 0))
    return [f"{method}: {' or '.join(sorted(counts))} updates with each batch." for method, counts in found.items()]


def score_name(key: str) -> str:
    """`test_macro_f1` as a heading: Test macro F1."""
    text = words(key)
    return text[:1].upper() + text[1:]


def every_run(rows: list[Row]) -> Table:
    """One row per finished fine-tuning run or scored model."""
    cells = []
    for row in rows:
        end = row.run.figures
        dev = row.values.get(f"dev_{row.metric}", NAN)
        rest = [number(end.get(key, NAN), digits) for key, digits in (("best_epoch", 2), ("steps", 0), ("seconds", 1))]
        cells.append(
            [row.run.name, row.task, words(row.metric), number(row.score * 100, 2), number(dev * 100, 2), *rest]
        )
    figures = ["Test, %", "Dev, %", "Best epoch", "Steps", "Seconds"]
    return Table("One row per finished run", ["Run", "Task", "Metric", *figures], cells, 3)


def pretraining(rows: list[Row]) -> Table:
    """One row per finished pre-training run of one objective."""
    further = SEPARATION.get(rows[0].task, ())

    def change(row: Row, metric: str, scale: float, digits: int) -> str:
        return " → ".join(number(row.values[f"{metric}_{when}"] * scale, digits) for when in ("before", "after"))

    cells = [
        [
            row.run.name,
            row.model,
            row.method,
            str(row.run.seed),
            number(row.run.last_step, 0),
            change(row, "heldout_loss", 1, 3),
            change(row, "heldout_accuracy", 100, 2),
            *(change(row, key, 1, 3) for key in further),
            number(row.values["tokens_per_s"], 0),
            number(row.values["seconds"], 1),
        ]
        for row in rows
    ]
    names = ["Held-out loss", "Held-out accuracy, %", *(f"Held-out {words(key.partition('_')[2])}" for key in further)]
    figures = ["Seed", "Steps", *names, "Tokens/s", "Seconds"]
    return Table("Pre-training runs", ["Run", "From", "Method", *figures], cells, 3)


def left_out(runs: list[Run]) -> Table:
    """The runs that no average holds, and why."""
    cells = []
    for run in collect.left_out(runs):
        why = f"the same run as {run.twin}" if run.twin else "unfinished"
        if run.failed:
            why = f"failed at step {run.failed.get('step', 'n/a')}: {run.failed.get('error', 'n/a')}"
        if run.stage not in STAGES:
            why = f"unknown stage {run.stage}" if run.facts else "no start line"
        names = [str(run.facts.get(key, "n/a")) for key in ("stage", "model", "method", "seed")]
        cells.append([run.name, why, *names, f"{run.last_step:,}"])
    return Table("Runs without a result", ["Run", "Why", "Stage", "Model", "Method", "Seed", "Last step"], cells, 6)


def mean_sd(values: Iterable[float], scale: float, digits: int, sign: str = "") -> str:
    """`mean ± sd`; `n/a` for the deviation of a single value, a hyphen where there is none."""
    found = spread(values)
    return f"{number(found.mean * scale, digits, sign)} ± {number(found.sd * scale, digits)}" if found.n else "-"


def number(value: float, digits: int, sign: str = "") -> str:
    """A hair below 0 keeps its minus, as -0.00; what is below it by no more than rounding is 0."""
    return "n/a" if math.isnan(value) else f"{value if abs(value) > NOTHING else 0.0:{sign},.{digits}f}"


def percent(fraction: float, digits: int = 2) -> str:
    return "n/a" if math.isnan(fraction) else f"{fraction:.{digits}%}"
