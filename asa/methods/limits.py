"""What cannot be worked with that is known before any model is built: one rule for every stage."""

import math
from collections.abc import Callable

from asa.engine import Precision
from asa.errors import RequestError
from asa.methods import Method

SLOWING = 1.01e-4  # Adam's eps / asa.reversal above which the adversary learns more slowly than with reversal 1
ROUNDED = (
    "note: in bf16 on a CPU torch rounds sums over the tokens of a micro-batch, so that gradients of LayerNorms and"
    " embeddings are too small and depend on micro_batch; take fp32 for figures that count"
)


def check_precision(precision: Precision, cuda: bool) -> None:
    """Raises RequestError for an arithmetic that the processor does not have; `cuda`: a GPU is there."""
    if precision == "fp16" and not cuda:
        raise RequestError("precision fp16 needs a GPU and none is present; set --precision fp32 (or bf16)")


def rounding(precision: Precision, cuda: bool) -> list[str]:
    """What a run in this arithmetic is to be told."""
    return [ROUNDED] if precision == "bf16" and not cuda else []


def slow_adversary(eps: float, reversal: float) -> str | None:
    """What is to be told of an optimizer whose `eps` is not small beside the adversary's gradients: Adam goes by their
    size then. None where it is small."""
    if reversal >= 1 or eps <= SLOWING * reversal:
        return None
    size = f"eps = {eps:g}" if eps < math.inf else "an optimizer that goes by the size of gradients"
    return f"{size} with asa.reversal = {reversal:g}, a factor of the adversary's gradients: it learns more slowly"


def check_depth(method: Method, layers: int) -> None:
    """Raises RequestError where the method's settings are of a model with other layers than these."""
    check: Callable[[int], None] | None = getattr(method, "check_depth", None)
    if callable(check):
        check(layers)
