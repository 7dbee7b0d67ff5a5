"""What training steps cost as a picture: bars relative to the first step's, a colour per length."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asa.errors import RequestError, WorkError
from asa.places import check_file, refusal_told

PICTURES = (".png", ".svg", ".pdf")
COLOURS = ("#9ecae1", "#4292c6", "#08519c", "#08306b")


def check_picture(path: Path | None) -> None:
    """Raises RequestError for a picture of a kind that is not drawn, and where there can be no file."""
    if path is None:
        return
    if path.suffix not in PICTURES:
        raise RequestError(f"plot = {path}: allowed: a name that ends in {', '.join(PICTURES)}; set --plot")
    check_file(path, "--plot")


def draw(found: Mapping[str, Mapping[str, float]], what: str, path: Path) -> None:
    """Args: found, by the name of a size (a colour each) what each step took; what, the measure's name. A step that one
    size lacks is in none."""
    names = [name for name in next(iter(found.values())) if all(name in values for values in found.values())]
    if not names:
        raise WorkError(f"no picture: no step was measured at every size; --plot {path} is not drawn")
    figure = Figure(figsize=(5.5, 0.36 * len(names) + 1.4), layout="constrained")
    axis = figure.subplots()
    for place, (label, values) in enumerate(found.items()):
        _bars(axis, place, len(found), label, [values[name] / values[names[0]] for name in names])
    axis.axvline(1, color="0.3", linewidth=0.8)
    axis.set_title(f"{what}, {names[0]} = 1", fontsize=10)
    axis.set_yticks(range(len(names)), names)
    axis.grid(axis="x", linewidth=0.4)
    axis.invert_yaxis()
    axis.legend(fontsize=8, loc="best")
    with refusal_told(path, "set --plot"):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)


def _bars(axis: Axes, place: int, count: int, label: str, ratios: list[float]) -> None:
    height = 0.8 / count
    middles = [row + (place - (count - 1) / 2) * height for row in range(len(ratios))]
    axis.barh(middles, ratios, height, label=label, color=COLOURS[place % len(COLOURS)])
