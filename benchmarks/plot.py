"""The cost of training methods as a picture: bars relative to the first method's, a colour per length."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Measured = dict[int, tuple[dict[str, float], dict[str, int]]]  # by length: seconds and peak bytes, each by method
COLOURS = ("#9ecae1", "#4292c6", "#08519c", "#08306b")


def draw(found: Measured, path: Path) -> None:
    """One panel for time and, where it was measured, one for memory."""
    lengths = list(found)
    names = list(found[lengths[0]][0])
    panels = [("time of a batch", 0)] + [("peak memory", 1)] * bool(found[lengths[0]][1])
    figure = Figure(figsize=(4.5 * len(panels) + 1, 0.36 * len(names) + 1.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (title, part) in zip(axes, panels, strict=True):
        for place, length in enumerate(lengths):
            values = found[length][part]
            _bars(axis, place, len(lengths), f"{length} tokens", [values[n] / values[names[0]] for n in names])
        axis.axvline(1, color="0.3", linewidth=0.8)
        axis.set_title(f"{title}, {names[0]} = 1", fontsize=10)
        axis.set_yticks(range(len(names)), names)
        axis.grid(axis="x", linewidth=0.4)
    axes[0].invert_yaxis()
    axes[-1].legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _bars(axis: Axes, place: int, count: int, label: str, ratios: list[float]) -> None:
    height = 0.8 / count
    middles = [row + (place - (count - 1) / 2) * height for row in range(len(ratios))]
    axis.barh(middles, ratios, height, label=label, color=COLOURS[place % len(COLOURS)])
