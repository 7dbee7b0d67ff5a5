"""Frames -> tables of text, the same for HTML and Markdown."""

import math
from typing import Any, NamedTuple

import pandas as pd

from finetune.report.collect import STAGES, Run, unfinished
from finetune.report.frames import GROUP, SCORES, summarise


class Table(NamedTuple):
    """Cells as text; the first `names` columns name the row, the rest are figures."""

    columns: list[str]
    rows: list[list[str]]
    names: int


def results(frame: pd.DataFrame) -> Table:
    """Mean and standard deviation per model x method of one task and one set of settings."""
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in summarise(frame, GROUP, SCORES).to_dict("records"):
        groups.setdefault((row["model"], row["method"]), {})[row["metric"]] = {str(key): row[key] for key in row}
    rows = []
    for (model, method), by_metric in groups.items():
        scores = [spread(by_metric[name], 100, 2) for name in SCORES[:3]]
        gain, seconds = spread(by_metric["gain"], 100, 2, "+"), spread(by_metric["seconds"], 1, 1)
        rows.append([model, method, str(by_metric["test_accuracy"]["n"]), *scores, gain, seconds])
    figures = ["n", "Test accuracy, %", "Test macro F1, %", "Dev accuracy, %", "vs vanilla, points", "Seconds per run"]
    return Table(["Model", "Method", *figures], rows, 2)


def every_run(frame: pd.DataFrame) -> Table:
    """One row per finished fine-tuning run."""
    rows = [
        [
            row["run"],
            row["task"],
            *[number(row[name] * 100, 2) for name in SCORES[:3]],
            number(row["best_epoch"], 2),
            number(row["steps"], 0),
            number(row["seconds"], 1),
        ]
        for row in frame.to_dict("records")
    ]
    scores = ["Test accuracy, %", "Test macro F1, %", "Dev accuracy, %", "Best epoch", "Steps", "Seconds"]
    return Table(["Run", "Task", *scores], rows, 2)


def pretraining(frame: pd.DataFrame) -> Table:
    """One row per finished pre-training run."""

    def change(row: dict, metric: str, scale: float, digits: int) -> str:
        return " → ".join(number(row[f"{metric}_{when}"] * scale, digits) for when in ("before", "after"))

    rows = [
        [
            *[row[name] for name in ("run", "model", "method")],
            str(row["seed"]),
            number(row["steps"], 0),
            change(row, "heldout_loss", 1, 3),
            change(row, "heldout_accuracy", 100, 2),
            number(row["tokens_per_s"], 0),
            number(row["seconds"], 1),
        ]
        for row in frame.to_dict("records")
    ]
    figures = ["Seed", "Steps", "Held-out loss", "Held-out accuracy, %", "Tokens/s", "Seconds"]
    return Table(["Run", "From", "Method", *figures], rows, 3)


def left_out(runs: list[Run]) -> Table:
    """The runs that no average holds, and why."""
    rows = []
    for run in unfinished(runs):
        known = run.stage in STAGES
        why = "unfinished" if known else "no start line of a known stage"
        names = [str(run.facts.get(key, "n/a")) for key in ("stage", "model", "method", "seed")]
        rows.append([run.name, why, *names, f"{run.last_step:,}"])
    return Table(["Run", "Why", "Stage", "Model", "Method", "Seed", "Last step"], rows, 6)


def spread(statistics: dict[str, Any], scale: float, digits: int, sign: str = "") -> str:
    """`mean ± sd`; `n/a` for the deviation of a single run, a hyphen where there is no value at all."""
    mean, sd = statistics["mean"] * scale, statistics["sd"] * scale
    return "-" if math.isnan(mean) else f"{mean:{sign},.{digits}f} ± {number(sd, digits)}"


def number(value: float, digits: int) -> str:
    return "n/a" if math.isnan(value) else f"{value:,.{digits}f}"
