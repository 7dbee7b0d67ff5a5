"""report.csv: every figure of the report, unrounded."""

import csv
import io
import math
from typing import Any

from finetune.report.compare import Comparison, Tested, holm
from finetune.report.labels import grouped
from finetune.report.rows import Row, figures_of, spread

GROUP = ("stage", "task", "model", "method", "settings")


def table_csv(rows: list[Row], tested: Tested) -> str:
    """The whole of report.csv; scores, gains and shares are fractions, times seconds, memory bytes, losses nats."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*GROUP, "metric", "n", "mean", "sd"])
    for group, same in grouped(rows, _group).items():
        for key in dict.fromkeys(key for row in same for key in row.values):
            if (found := spread(figures_of(same, key))).n:
                sd = "n/a" if found.n == 1 else found.sd
                writer.writerow([*group, key, found.n, found.mean, sd])
    for family in tested:
        _write_tests(writer, family)
    return text.getvalue()


def _write_tests(writer: Any, family: list[Comparison]) -> None:
    """`FIGURE against vanilla`, or `FIGURE against model NAME`; those that cannot be had are left out."""
    seeds, examples = holm([one.p_seeds for one in family]), holm([one.p_examples for one in family])
    for one, p_seeds, p_examples in zip(family, seeds, examples, strict=True):
        gain = spread(one.gains)
        figures = {"p_seeds": one.p_seeds, "p_seeds_holm": p_seeds, "low": one.low, "high": one.high}
        figures |= {"p_examples": one.p_examples, "p_examples_holm": p_examples}
        sd = "n/a" if gain.n == 1 else gain.sd
        other = "vanilla" if one.against is None else f"model {one.against}"
        if one.against is not None:  # over vanilla the gain is among the rows' own figures
            writer.writerow([*_group(one.row), f"gain against {other}", gain.n, gain.mean, sd])
        for name, value in figures.items():
            if not math.isnan(value):
                writer.writerow([*_group(one.row), f"{name} against {other}", gain.n, value, "n/a"])


def _group(row: Row) -> tuple[str, ...]:
    return str(row.run.stage), row.task, row.model, row.method, row.settings
