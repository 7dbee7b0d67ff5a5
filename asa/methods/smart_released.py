"""SMART as released in MT-DNN, for parity and as a control; `smart` is the method of the paper.

The gradient as it comes, times step_size, is added to the noise, and the sum is divided by its largest entry, token by
token. At the start of fine-tuning the step is 1e4 times smaller than the noise, so the perturbation is random noise
whose largest entry is nearly 1, whatever its start. What is climbed is no KL: 2 sum p (o(p) - o(q)) with log odds o
taken for constants, summed over the rows. No Bregman term. Each side of the divergence is a fixed target for the other.
What differs here: padding is not perturbed.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from asa import perturb
from asa.batch import IGNORE, Batch
from asa.config import config
from asa.engine import Engine
from asa.losses import task_loss
from asa.methods.ball import Size, room
from asa.methods.base import At, Stateless, learn
from asa.methods.smoothness import Weight, apart, towards
from asa.signal import Perturb

GUARD = 1e-6

# D width of the word embeddings, L length, R sequences


@config
class SMARTReleasedConfig:
    """MT-DNN's SMART."""

    weight: Weight = 1.0
    """Factor of the divergence between clean and perturbed prediction."""
    noise: Size = 1e-5
    """Standard deviation of the Gaussian start."""
    step_size: Size = 1e-3
    """Factor of the gradient of the divergence, which is summed over rows."""
    ascents: Annotated[int, Field(ge=0, le=100)] = 1
    """Ascent steps; each costs a forward and a backward in the embeddings."""


class SMARTReleased(Stateless):
    """task + weight * (KL(clean || perturbed) + KL(perturbed || clean)); squared error for a regression."""

    def __init__(self, options: SMARTReleasedConfig) -> None:
        self.options = options

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        out = engine.forward(batch)
        task, clean = task_loss(out, batch), out.logits
        delta_RLD = perturb.gaussian(room(engine, batch), self.options.noise).requires_grad_()
        for _ in range(self.options.ascents):
            reached = engine.probe(batch, Perturb(embed_BLD=delta_RLD)).logits
            (gradient_RLD,) = engine.ascend(_climbed(clean.detach(), reached, batch), (delta_RLD,))
            # As in the other methods: a token whose gradient has overflowed in FP16 takes no step.
            usable_RL1 = gradient_RLD.isfinite().all(-1, keepdim=True)
            moved_RLD = delta_RLD.detach() + self.options.step_size * torch.where(usable_RL1, gradient_RLD, 0)
            delta_RLD = (moved_RLD / (moved_RLD.abs().amax(-1, keepdim=True) + GUARD)).requires_grad_()
        other = engine.forward(batch, Perturb(embed_BLD=delta_RLD.detach())).logits
        smooth = self.options.weight * _both_ways(clean, other, batch)
        return learn(engine, {"task": task, "smooth": smooth})


def _both_ways(clean: Tensor, other: Tensor, batch: Batch) -> Tensor:
    if batch.kind == "regression":
        return apart(clean, other, batch)
    return towards(clean.detach(), other, batch) + towards(other.detach(), clean, batch)


def _climbed(clean: Tensor, reached: Tensor, batch: Batch) -> Tensor:
    """What the ascent maximises: a sum over units."""
    if batch.kind == "regression":
        return F.mse_loss(reached.float(), clean.float(), reduction="sum")
    p, q = reached.float().softmax(-1), clean.float().softmax(-1)
    per_unit = 2 * (p * (_log_odds(p) - _log_odds(q)).detach()).sum(-1)
    if batch.kind == "token":
        per_unit = per_unit * (batch.labels != IGNORE)
    return per_unit.sum()


def _log_odds(p: Tensor) -> Tensor:
    return -torch.log(1 / (p + GUARD) - 1 + GUARD)
