"""Virtual adversarial training (Miyato et al., TPAMI 2018, arXiv 1704.03976), Eq. 5 to 8, on word embeddings.

task + weight * KL(clean || perturbed), the clean prediction a fixed target. The direction of steepest divergence is
found by power iteration from a random one: the gradient at a small distance replaces it, and its length is then the
radius. The text version (Miyato et al. 2017) normalises the embeddings first; we leave them as they are.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from asa import perturb
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine, Precision
from asa.losses import task_loss
from asa.methods.ball import Dropout, Size, check_sizes, dropout, room
from asa.methods.base import At, Stateless, learn
from asa.methods.smoothness import Weight, towards
from asa.signal import Perturb

# D width of the word embeddings, L length, R sequences


@config
class VATConfig:
    """Virtual adversarial training."""

    weight: Weight = 1.0
    """Factor alpha of the divergence; the paper keeps 1 and tunes the radius."""
    radius: Size = 0.1
    """L2 norm of an example's perturbation, in units of the embeddings."""
    distance: Annotated[float, Field(gt=0, le=1e4)] = 1e-3
    """L2 norm at which the gradient is taken; the paper's 1e-6 drowns in the rounding of fp32."""
    iterations: Annotated[int, Field(ge=1, le=100)] = 1
    """Power iterations; each costs a forward and a backward in the embeddings."""
    dropout: Dropout = "shared"
    """All passes have the same dropout masks, or each its own."""


class VAT(Stateless):
    """Its perturbation needs no label."""

    def __init__(self, options: VATConfig) -> None:
        self.options = options

    def check_run(self, precision: Precision, zero: int) -> None:
        """Raises RequestError for a perturbation that half precision rounds away."""
        options = self.options
        if options.weight:
            check_sizes({"vat.radius": options.radius, "vat.distance": options.distance}, precision)

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        where = room(engine, batch)
        unit_RLD = perturb.direction(perturb.gaussian(where, 1.0), where, "l2")
        with dropout(engine, self.options.dropout, taps=False):
            out = engine.forward(batch)
            target = out.logits.detach()
            delta_RLD = self._steepest(engine, batch, target, unit_RLD) * self.options.radius
            attacked = engine.forward(batch, Perturb(embed_BLD=delta_RLD)).logits
        task = task_loss(out, batch)
        smooth = self.options.weight * towards(target, attacked, batch)
        return learn(engine, {"task": task, "smooth": smooth})

    def _steepest(self, engine: Engine, batch: Batch, target: Tensor, unit_RLD: Tensor) -> Tensor:
        """The direction RLD, of norm 1 per example, in which the prediction leaves `target` fastest."""
        where = room(engine, batch)
        for _ in range(self.options.iterations):
            delta_RLD = (unit_RLD * self.options.distance).requires_grad_()
            reached = engine.probe(batch, Perturb(embed_BLD=delta_RLD)).logits
            (gradient_RLD,) = engine.ascend(towards(target, reached, batch), (delta_RLD,))
            unit_RLD = _turned(unit_RLD, perturb.direction(gradient_RLD, where, "l2"), where)
        return unit_RLD


def _turned(unit_RLD: Tensor, found_RLD: Tensor, where: perturb.Room) -> Tensor:
    """The directions found; an example's old one where there is none, its gradient being zero or not finite."""
    old_EN, new_EN = (d_RLD.reshape(where.examples, -1) for d_RLD in (unit_RLD, found_RLD))
    return torch.where(new_EN.any(1, keepdim=True), new_EN, old_EN).reshape(unit_RLD.shape)
