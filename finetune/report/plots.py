"""The figures of the report, each with its alternative text and a caption that says what is seen."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from finetune.report.collect import Run
from finetune.report.labels import grouped, ordered, words
from finetune.report.rows import Row, before_after
from finetune.report.svg import DASHES, PALETTE, Picture, draw
from finetune.report.tables import number, percent

WIDTH = 9.0  # inches, of every figure
COLUMNS = 3  # panels side by side at most
LOSSES = {"mlm": ("MLM", "nats per masked token"), "rtd": ("Replaced-token", "nats per token")}
LEGEND = 5  # entries of a legend side by side


class Plot(NamedTuple):
    """alt: for those who do not see it; caption: below it, after the title."""

    title: str
    picture: Picture
    alt: str
    caption: str


def scores(rows: list[Row], name: str) -> Plot | None:
    """The main score on test per model x method: a point per seed, the mean as a bar; None where no run has one."""
    rows = [row for row in rows if not math.isnan(row.score)]
    if not rows:
        return None
    metric, methods = words(rows[0].metric), ordered(row.method for row in rows)
    groups = grouped(rows, lambda row: (row.model, row.method))
    cells = {key: np.array([row.score for row in same]) for key, same in groups.items()}
    several = len({model for model, _ in cells}) > 1

    def paint(figure: Figure) -> None:
        ax = figure.subplots()
        for place, ((_, method), values) in enumerate(cells.items()):
            hue = colour(methods.index(method))
            ax.plot(100 * values, [place] * len(values), "o", color=hue, alpha=0.75, markersize=6)
            ax.plot([100 * values.mean()] * 2, [place - 0.35, place + 0.35], color=hue, linewidth=3)
        ax.set_yticks(range(len(cells)), [f"{model}, {method}" if several else method for model, method in cells])
        ax.set_ylim(len(cells) - 0.5, -0.5)
        ax.set_xlabel(f"test {metric}, %")

    seen = "; ".join(f"{a} with {b} {percent(values.mean())}" for (a, b), values in cells.items())
    alt = f"Test {metric} by model and method. Means: {seen}."
    picture = draw(name, WIDTH, 0.8 + 0.22 * max(3, len(cells)), paint)
    return Plot(f"Test {metric}", picture, alt, "Points: one seed each. Upright bars: means.")


def dev_curves(rows: list[Row], name: str) -> Plot | None:
    """The main score on dev over batches, each of which may be several updates, one panel per model; None where no run
    has evaluations."""
    metric, methods = rows[0].metric, ordered(row.method for row in rows)
    shown = [(row, *row.run.series(metric, "evals")) for row in rows if row.run.series(metric, "evals")[0]]
    if not shown:
        return None
    models = list(dict.fromkeys(row.model for row in rows))

    def paint(figure: Figure) -> None:
        axes = dict(zip(models, panels(figure, len(models)), strict=True))
        for row, steps, values in shown:
            style = {**line(methods.index(row.method)), **point(steps), "alpha": 0.3}
            axes[row.model].plot(steps, 100 * np.asarray(values), **style)
        for (model, method), same in groups.items():
            axes[model].plot(*_mean_curve(same), marker="o", markersize=3.5, **line(methods.index(method)))
        for model, ax in axes.items():
            ax.set_title(model)
            ax.set_xlabel("batch")
        figure.axes[0].set_ylabel(f"dev {words(metric)}, %")
        legend(figure, methods)

    groups = grouped(shown, lambda one: (one[0].model, one[0].method))
    ends = [f"{a} with {b} {_last(*_mean_curve(same))}" for (a, b), same in groups.items()]
    means = f"Means at the last step that all their runs have: {'; '.join(ends)}."
    alt = f"Dev {words(metric)} over batches, a panel per model. {means}"
    caption = (
        "Pale: one line per run; the weights of its highest point are the ones scored on test. Full: mean over seeds."
    )
    return Plot(f"Dev {words(metric)} during training", draw(name, WIDTH, height(len(models)), paint), alt, caption)


def _last(steps: list[int], values: list[float]) -> str:
    return f"{values[-1]:.2f}% after {steps[-1]:,}" if steps else "n/a"


def _mean_curve(runs: list[tuple[Row, list[int], list[float]]]) -> tuple[list[int], list[float]]:
    """Steps that all runs have, and the mean of their values there, in percent."""
    values = [dict(zip(steps, found, strict=True)) for _, steps, found in runs]
    common = [step for step in values[0] if all(step in one for one in values)]
    return common, [100 * float(np.mean([one[step] for one in values])) for step in common]


def pretraining_losses(runs: list[Run], name: str) -> Plot | None:
    """Training and held-out loss of every pre-training run of one objective; None where no run has either."""
    runs = [run for run in runs if run.series("task")[0] or run.series("heldout_loss", "evals")[0]]
    if not runs:
        return None
    labels = short_labels(runs)
    what, unit = LOSSES.get(runs[0].task, (runs[0].task, "nats"))

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for index, run in enumerate(runs):
            steps, values = run.series("task")
            smooth = _running_mean(np.asarray(values), max(1, len(values) // 15))
            left.plot(steps, values, alpha=0.3, linewidth=1, **line(index))
            left.plot(steps, smooth, **line(index), **point(steps))
            right.plot(*run.series("heldout_loss", "evals"), marker="o", markersize=4, **line(index))
        for ax, title in ((left, "training rows"), (right, "held-out rows, clean model")):
            ax.set_title(title)
            ax.set_xlabel("optimizer step")
        left.set_ylabel(f"{what} loss, {unit}")
        legend(figure, labels)

    held = [[number(value, 3) for value in before_after(run, "heldout_loss").values()] for run in runs]
    seen = "; ".join(f"{label} {' to '.join(ends)}" for label, ends in zip(labels, held, strict=True))
    alt = f"{what} loss over steps, on training rows and on held-out rows. Held-out loss: {seen}."
    caption = "Left: the task loss of the log lines (pale) and its running mean. Right: loss on rows never trained on."
    return Plot("Loss during pre-training", draw(name, WIDTH, 3.4, paint), alt, caption)


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Of each value and those before it, `window` in all where there are as many."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(sums))
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def short_labels(runs: list[Run]) -> list[str]:
    """The method where that tells the runs apart, the folder otherwise."""
    methods = [run.method for run in runs]
    return methods if len(set(methods)) == len(methods) else [run.name for run in runs]


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def line(index: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number: another pair for each of the first 32."""
    return {"color": colour(index), "linestyle": DASHES[index // len(PALETTE) % len(DASHES)]}


def point(steps: Sequence[int]) -> dict[str, Any]:
    """The mark of a series of one, of which a line shows nothing."""
    return {"marker": "o", "markersize": 4} if len(steps) == 1 else {}


def panels(figure: Figure, count: int) -> list[Axes]:
    """Axes of one row of COLUMNS, or of as many rows as it takes."""
    columns = min(count, COLUMNS)
    grid = figure.subplots(-(-count // columns), columns, sharey=True, squeeze=False)
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.remove()
    return axes[:count]


def height(count: int) -> float:
    """Inches for a figure of `count` panels."""
    return 0.6 + 2.6 * -(-count // COLUMNS)


def legend(figure: Figure, labels: Sequence[str]) -> None:
    lines = [Line2D([], [], **line(index)) for index in range(len(labels))]
    figure.legend(lines, labels, loc="outside upper center", ncols=LEGEND)
