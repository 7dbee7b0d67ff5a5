"""Matplotlib figures -> inline SVG that takes the page's text colour, and PNG; the same bytes for the same data."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

_INK = "#0a0b0c"  # stands for the page's text colour until the SVG is text
STYLE: Any = {
    "svg.hashsalt": "report",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
# Readable on white and on near-black alike.
PALETTE = ("#2f7fd6", "#dd6b20", "#12946a", "#a95fd0", "#d1495b", "#8a8f2a", "#4d8f9c", "#9c6b4d")
DOTS = 150  # per inch, of a PNG
DASHES = ("-", "--", "-.", ":")


class Picture(NamedTuple):
    """svg: an element without a size; png: the same in black on white, for a document of one's own."""

    name: str
    svg: str
    png: bytes


@contextmanager
def drawn_alike(style: Any) -> Iterator[None]:
    """Inside, figures have `style` on top of matplotlib's defaults, whatever a matplotlibrc of the user says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        # Names and tokens as they stand: $$ would be read as a formula, and may be a wrong one.
        matplotlib.rcParams.update({"text.parse_math": False, **style})
        yield


def draw(name: str, width: float, height: float, paint: Callable[[Figure], None]) -> Picture:
    """A figure of `width` x `height` inches that `paint` fills; `name` makes its ids and its file unique."""
    with drawn_alike(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        buffer, dots = io.StringIO(), io.BytesIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
        figure.savefig(dots, format="png", dpi=DOTS, facecolor="white", metadata={"Software": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r' (xmlns(:xlink)?|width|height)="[^"]*"', "", text, count=4)
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", text)
    return Picture(name, _each_once(text), dots.getvalue())


def _each_once(text: str) -> str:
    """Every id once: matplotlib makes them of contents, which two panels may share. What is referred to is alike."""
    seen = Counter[str]()

    def numbered(found: re.Match[str]) -> str:
        seen[found[1]] += 1
        return found[0] if seen[found[1]] == 1 else f'id="{found[1]}-{seen[found[1]]}"'

    return re.sub(r'\bid="([^"]*)"', numbered, text)
