"""Attention maps of a sentence as `finetune maps` leaves them in a file, drawn and told in words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from asa.errors import WorkError
from asa.places import atomic_write
from finetune.report.plots import WIDTH, Plot
from finetune.report.svg import draw
from finetune.report.tables import Table

# L tokens (queries, then keys)

ENDING = ".maps.json"
KEPT = "kept by the adversary"
MARKED = 3  # diversions that are framed in a panel


class Layer(NamedTuple):
    """One layer's weights without attack, keep map and weights under attack; masked: share of seen pairs it masks.

    beside_LL: weights, without attack, of the model it is compared with.
    """

    clean_LL: np.ndarray
    keep_LL: np.ndarray
    attacked_LL: np.ndarray
    masked: float
    beside_LL: np.ndarray | None = None

    def diverted(self) -> list[tuple[int, int]]:
        """(query, key) of the weights that the attack changes most, the largest change first; none that it does not."""
        change_LL = np.abs(self.attacked_LL - self.clean_LL)
        order = np.argsort(-change_LL, axis=None, kind="stable")[: min(MARKED, int((change_LL > 0).sum()))]
        return [(int(query), int(key)) for query, key in zip(*np.unravel_index(order, change_LL.shape), strict=True)]

    def avoided(self, tokens: list[str]) -> str:
        """The key that most queries may not attend to, and the share of them."""
        masked_L = 1 - self.keep_LL.mean(0)
        return f"{tokens[masked_L.argmax()]} from {masked_L.max():.0%} of the tokens" if masked_L.any() else "none"


class Maps(NamedTuple):
    """model, beside: names; which: whose weights, `mean over heads` or `head 2`; layers by number, 0 at the bottom."""

    model: str
    text: str
    which: str
    beside: str | None
    tokens: list[str]
    layers: dict[int, Layer]


def save(found: Maps, path: Path) -> None:
    """Write maps for the report: four decimals, all a picture shows. Raises: WorkError where the system refuses."""
    layers = {
        str(number): [None if part is None else np.round(part, 4).tolist() for part in layer]
        for number, layer in found.layers.items()
    }
    with atomic_write(path) as partial:
        partial.write_text(json.dumps({**found._asdict(), "layers": layers}) + "\n")


def load(path: Path) -> Maps:
    """What save wrote. Raises WorkError for a damaged file."""
    try:
        return _read(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WorkError(f"{path} is damaged; draw it again with finetune maps, or remove it") from None


def _read(values: dict[str, Any]) -> Maps:
    layers = {
        int(number): Layer(
            np.asarray(clean), np.asarray(keep), np.asarray(attacked), masked, beside and np.asarray(beside)
        )
        for number, (clean, keep, attacked, masked, beside) in values.pop("layers").items()
    }
    found = Maps(**values, layers=layers)
    size = (len(found.tokens),) * 2
    parts = [part for layer in layers.values() for part in layer if isinstance(part, np.ndarray)]
    if not parts or any(part.shape != size for part in parts):
        raise ValueError("no layers, or others than of its tokens")
    return found


def paint(figure: Figure, found: Maps) -> None:
    """A row of panels per layer; rows of a panel are queries, columns keys; what is diverted most is framed."""
    titles = list(_panels(found, next(iter(found.layers.values()))))
    grid = figure.subplots(len(found.layers), len(titles), squeeze=False)
    for axes, (number, layer) in zip(grid, found.layers.items(), strict=True):
        shown = _panels(found, layer)
        most = max(values_LL.max() for title, values_LL in shown.items() if title != KEPT)
        for ax, (title, values_LL) in zip(axes, shown.items(), strict=True):
            _heat(ax, values_LL, found.tokens, 1.0 if title == KEPT else most, "Greys" if title == KEPT else "viridis")
            ax.set_title(f"layer {number}: {title}", fontsize=8)
        for query, key in layer.diverted():
            for ax in (axes[0], axes[2]):
                ax.add_patch(Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, edgecolor="#e0402a", linewidth=1.2))


def _panels(found: Maps, layer: Layer) -> dict[str, np.ndarray]:
    panels = {"attention": layer.clean_LL, KEPT: layer.keep_LL, "under attack": layer.attacked_LL}
    return panels if layer.beside_LL is None else {**panels, f"attention of {found.beside}": layer.beside_LL}


def _heat(ax: Axes, values_LL: np.ndarray, tokens: list[str], most: float, colours: str) -> None:
    ax.imshow(values_LL, vmin=0, vmax=most, cmap=colours, interpolation="none")
    ax.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
    ax.set_yticks(range(len(tokens)), tokens, fontsize=6)
    ax.grid(False)


def size(found: Maps) -> tuple[float, float]:
    """Inches of the picture."""
    panels = len(_panels(found, next(iter(found.layers.values()))))
    side = max(2.6, 0.19 * len(found.tokens))
    return panels * side, len(found.layers) * side


def told(found: Maps) -> Iterator[str]:
    """One line per layer: how much is masked, which token most, where the attack moves attention."""
    for number, layer in found.layers.items():
        masked = f"{layer.masked:.1%} of the pairs masked, most {layer.avoided(found.tokens)}"
        yield f"layer {number}: {masked}; diverted most {', '.join(_moves(found, layer)) or 'nothing'}"


def _moves(found: Maps, layer: Layer) -> list[str]:
    return [
        f"{found.tokens[i]} to {found.tokens[j]} {layer.clean_LL[i, j]:.2f} → {layer.attacked_LL[i, j]:.2f}"
        for i, j in layer.diverted()
    ]


def table(several: list[Maps]) -> Table:
    """One row per sentence and layer."""
    rows = []
    for found in several:
        for number, layer in found.layers.items():
            cells = [f"{layer.masked:.1%}", layer.avoided(found.tokens), "; ".join(_moves(found, layer)) or "nothing"]
            rows.append([found.text, found.model, found.which, str(number), *cells])
    figures = ["Pairs masked", "Token masked most", "Attention diverted most"]
    return Table("Attention under attack", ["Sentence", "Model", "Heads", "Layer", *figures], rows, 4)


def plot(found: Maps, name: str) -> Plot:
    width, tall = size(found)
    picture = draw(name, WIDTH, WIDTH * tall / width, lambda figure: paint(figure, found))
    alt = f"Attention of {found.model} in “{found.text}”. {' '.join(f'{line}.' for line in told(found))}"
    caption = "Rows: queries, columns: keys; black is kept. The weights of a layer share a scale; framed: changed most."
    return Plot(f"“{found.text}”, {found.model}, {found.which}", picture, alt, caption)
