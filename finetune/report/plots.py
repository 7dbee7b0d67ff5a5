"""The figures of the report, each with its alternative text and a caption that says what is seen."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from finetune.report.collect import Run, model_label
from finetune.report.frames import before_after, method_key
from finetune.report.svg import DASHES, PALETTE, draw

WIDTH = 9.0  # inches, of every figure
COLUMNS = 3  # panels side by side at most


class Plot(NamedTuple):
    """svg: inline element; alt: for those who do not see it; caption: below it, after the title."""

    title: str
    svg: str
    alt: str
    caption: str


def scores(frame: pd.DataFrame, name: str) -> Plot:
    """Test accuracy per model x method: every seed as a point, the mean as a bar."""
    models, methods = list(dict.fromkeys(frame["model"])), ordered_methods(frame["method"])
    step = 0.8 / len(methods)
    pairs = list(dict.fromkeys(zip(frame["model"], frame["method"], strict=True)))
    cells = {(a, b): np.asarray(frame.loc[(frame.model == a) & (frame.method == b), "test_accuracy"]) for a, b in pairs}

    def paint(figure: Figure) -> None:
        ax = figure.subplots()
        for index, method in enumerate(methods):
            for row, model in enumerate(models):
                values = 100 * cells.get((model, method), np.empty(0))
                if not len(values):
                    continue
                place = row - 0.4 + step * (index + 0.5)
                ax.plot(values, [place] * len(values), "o", color=colour(index), alpha=0.75, markersize=6)
                ax.plot([values.mean()] * 2, [place - step / 3, place + step / 3], color=colour(index), linewidth=3)
        ax.set_yticks(range(len(models)), models)
        ax.set_ylim(len(models) - 0.5, -0.5)
        ax.set_xlabel("test accuracy, %")
        _legend(figure, methods)

    seen = "; ".join(f"{a} with {b} {values.mean():.2%}" for (a, b), values in cells.items())
    svg = draw(name, WIDTH, 0.9 + 0.32 * len(models) * max(2, len(methods)), paint)
    alt = f"Test accuracy by model and method. Means: {seen}."
    return Plot("Test accuracy", svg, alt, "Points: one seed each. Upright bars: means.")


def dev_curves(runs: list[Run], name: str) -> Plot:
    """Dev accuracy over optimizer steps, one panel per model."""
    panels = by_model(runs)
    methods = ordered_methods(run.method for run in runs)

    def paint(figure: Figure) -> None:
        for ax, (model, members) in zip(_panels(figure, len(panels)), panels.items(), strict=True):
            for run in members:
                steps, values = run.series("accuracy", "evals")
                style = {"color": colour(methods.index(run.method)), "alpha": 0.85, "linewidth": 1.4}
                ax.plot(steps, 100 * np.asarray(values), "o-", markersize=3.5, **style)
            ax.set_title(model)
            ax.set_xlabel("optimizer step")
        figure.axes[0].set_ylabel("dev accuracy, %")
        _legend(figure, methods)

    ends = [f"{run.name} {run.series('accuracy', 'evals')[1][-1]:.2%}" for run in runs if run.evals]
    alt = f"Dev accuracy over steps, a panel per model. At the last step: {'; '.join(ends)}."
    svg = draw(name, WIDTH, _height(len(panels)), paint)
    caption = "One line per run. The weights of a run's highest point are the ones scored on test."
    return Plot("Dev accuracy during training", svg, alt, caption)


def masked_share(runs: list[Run], name: str) -> Plot | None:
    """Share of token pairs the adversary masks, per layer over steps, one panel per model; None where none is known."""
    attacked = [run for run in runs if run.series("masked_share")[0]]
    if not attacked:
        return None
    panels = by_model(attacked)
    layers = max(len(run.series("masked_share")[1][-1]) for run in attacked)

    def paint(figure: Figure) -> None:
        for ax, (model, members) in zip(_panels(figure, len(panels)), panels.items(), strict=True):
            for run in members:
                steps, shares = run.series("masked_share")
                for layer, values in enumerate(100 * np.asarray(shares).T):
                    ax.plot(steps, values, DASHES[layer % 4], color=layer_colour(layer, layers), alpha=0.85)
            ax.set_title(model)
            ax.set_xlabel("optimizer step")
            ax.set_ylim(bottom=0)
        figure.axes[0].set_ylabel("masked share, %")
        lines = [
            Line2D([], [], color=layer_colour(layer, layers), linestyle=DASHES[layer % 4]) for layer in range(layers)
        ]
        figure.legend(lines, [f"layer {layer + 1}" for layer in range(layers)], loc="outside upper center", ncols=6)

    ends = [f"{run.name} {_percents(run.series('masked_share')[1])}" for run in attacked]
    alt = f"Masked share per layer over steps. First and last values, bottom layer first: {'; '.join(ends)}."
    caption = "Share of real token pairs the adversary masks; one line per layer and run, layer 1 at the bottom."
    return Plot("Masked share per layer", draw(name, WIDTH, _height(len(panels)), paint), alt, caption)


def pretraining_losses(runs: list[Run], name: str) -> Plot:
    """Training and held-out MLM loss of every pre-training run."""
    labels = short_labels(runs)

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for index, run in enumerate(runs):
            steps, values = run.series("task")
            smooth = pd.Series(values, dtype=float).rolling(max(1, len(values) // 15), min_periods=1).mean()
            left.plot(steps, values, color=colour(index), alpha=0.3, linewidth=1)
            left.plot(steps, smooth, DASHES[index % 4], color=colour(index))
            right.plot(*run.series("heldout_loss", "evals"), "o" + DASHES[index % 4], color=colour(index), markersize=4)
        for ax, title in ((left, "training rows"), (right, "held-out rows, clean model")):
            ax.set_title(title)
            ax.set_xlabel("optimizer step")
        left.set_ylabel("MLM loss, nats per masked token")
        _legend(figure, labels)

    held = [(label, before_after(run, "heldout_loss")) for label, run in zip(labels, runs, strict=True)]
    seen = "; ".join(f"{label} {v['heldout_loss_before']:.3f} to {v['heldout_loss_after']:.3f}" for label, v in held)
    alt = f"MLM loss over steps, on training rows and on held-out rows. Held-out loss: {seen}."
    caption = "Left: the task loss of the log lines (pale) and its running mean. Right: loss on rows never trained on."
    return Plot("Loss during pre-training", draw(name, WIDTH, 3.4, paint), alt, caption)


def short_labels(runs: list[Run]) -> list[str]:
    """The method where that tells the runs apart, the folder otherwise."""
    methods = [run.method for run in runs]
    return methods if len(set(methods)) == len(methods) else [run.name for run in runs]


def by_model(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs per model label; a pre-training run is labelled by what tells it apart."""
    labels = short_labels(runs) if runs[0].stage == "pretrain" else [model_label(run, runs) for run in runs]
    groups: dict[str, list[Run]] = {}
    for label, run in sorted(zip(labels, runs, strict=True), key=lambda pair: pair[0]):
        groups.setdefault(label, []).append(run)
    return groups


def ordered_methods(methods: Any) -> list[str]:
    return sorted(set(methods), key=method_key)


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def layer_colour(layer: int, layers: int) -> Any:
    """Separate hues for few layers, one scale for many."""
    if layers <= len(PALETTE):
        return colour(layer + 2)  # the first two colours stand for methods in the neighbouring figures
    return matplotlib.colormaps["viridis"](0.2 + 0.6 * layer / (layers - 1))


def _panels(figure: Figure, count: int) -> list[Axes]:
    columns = min(count, COLUMNS)
    grid = figure.subplots(-(-count // columns), columns, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for spare in panels[count:]:
        spare.remove()
    return panels[:count]


def _height(panels: int) -> float:
    return 0.6 + 2.6 * -(-panels // COLUMNS)


def _legend(figure: Figure, labels: Sequence[str]) -> None:
    lines = [Line2D([], [], color=colour(index), linewidth=3) for index in range(len(labels))]
    figure.legend(lines, labels, loc="outside upper center", ncols=6)


def _percents(shares: list[list[float]]) -> str:
    return " / ".join(f"{first:.1%} to {last:.1%}" for first, last in zip(shares[0], shares[-1], strict=True))
