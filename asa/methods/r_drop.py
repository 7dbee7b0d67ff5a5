"""R-Drop (Liang et al., NeurIPS 2021, arXiv 2106.14448): two passes that differ in their dropout masks alone.

The mean of both task losses + weight * (KL(a || b) + KL(b || a)) / 2, for a regression weight * (a - b)^2. With nothing
masked ASA's divergence is this one (for MLM its token term), which makes R-Drop its control. Without dropout in the
model the passes are equal and the term is zero. The paper adds both task losses where we take their mean, so that a
weight w here acts as an alpha of 2 w there.
"""

from torch import Tensor

from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.methods.base import At, Stateless, learn
from asa.methods.smoothness import Weight, learned


@config
class RDropConfig:
    """R-Drop."""

    weight: Weight = 1.0
    """Factor of the divergence: half the paper's alpha, which is 0.1 to 5."""


class RDrop(Stateless):
    """Two forwards, one backward."""

    def __init__(self, options: RDropConfig) -> None:
        self.options = options

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        one, other = engine.forward(batch), engine.forward(batch)
        first, second, distance = learned(one, other, batch)
        # Of a regression the distance is one squared difference, else the sum of two divergences.
        share = 1.0 if batch.kind == "regression" else 0.5
        return learn(engine, {"task": (first + second) / 2, "smooth": self.options.weight * share * distance})
