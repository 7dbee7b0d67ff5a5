"""FGM (Miyato et al., ICLR 2017, arXiv 1605.07725): one step of fixed length up the gradient.

loss(clean) + weight * loss(words + radius * g / ||g||), where g comes from the clean pass, which also trains the
weights. The norm is that of an example's gradient. The paper normalises the embeddings first; we leave them as they
are.
"""

from torch import Tensor

from asa import perturb
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.losses import task_loss
from asa.methods.ball import Dropout, Size, dropout, room
from asa.methods.base import At, Stateless
from asa.methods.smoothness import Weight
from asa.perturb import Ball
from asa.signal import Perturb


@config
class FGMConfig:
    """FGM; with ball linf the step is the gradient divided by its largest entry."""

    ball: Ball = "l2"
    """Norm of the perturbation: l2 or linf."""
    radius: Size = 1.0
    """Norm of an example's perturbation, in units of the embeddings."""
    weight: Weight = 1.0
    """Factor of the loss at the perturbation."""
    dropout: Dropout = "shared"
    """Both passes have the same dropout masks, or each its own."""


class FGM(Stateless):
    """Two forwards, two backwards, both for the weights."""

    passes = 2

    def __init__(self, options: FGMConfig) -> None:
        self.options = options

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        options, where = self.options, room(engine, batch)
        start_RLD = perturb.zeros(where).requires_grad_()
        with dropout(engine, options.dropout, taps=False):
            task = task_loss(engine.forward(batch, Perturb(embed_BLD=start_RLD)), batch)
            engine.backward(task)
            assert start_RLD.grad is not None
            delta_RLD = perturb.direction(start_RLD.grad, where, options.ball) * options.radius
            attacked = options.weight * task_loss(engine.forward(batch, Perturb(embed_BLD=delta_RLD)), batch)
        engine.backward(attacked)
        task, attacked = task.detach(), attacked.detach()
        return {"loss": task + attacked, "task": task, "attacked": attacked}
