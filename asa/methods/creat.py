"""CreAT (Wu et al., ICLR 2023, arXiv 2305.04557): an attack on the encoder's states, not on the prediction alone.

The perturbation climbs task loss - temperature * cosine(perturbed states, clean states); the weights are trained by
the mean of the clean and the perturbed task loss. As released, the cosine is that of each token's final states, and
the ascents are one less than the release's steps. What differs: padding is neither perturbed nor compared, and
perturbations do not add up over ascents, as they do in the release by an oversight.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from asa import perturb
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.losses import task_loss
from asa.methods.ball import BallConfig, Dropout, Size, climb, dropout, inside, room
from asa.methods.base import At, Stateless
from asa.methods.smoothness import Weight
from asa.signal import Perturb, Tap

# D width, L length, R sequences


@config
class CreATConfig(BallConfig):
    """CreAT; `start` is the standard deviation of Gaussian noise."""

    start: Size = 1e-5
    """Standard deviation of the Gaussian start, `radius` at most: without noise the cosine has no gradient."""
    ascents: Annotated[int, Field(ge=1, le=100)] = 1
    """Ascent steps; each costs a forward and a backward in the embeddings."""
    temperature: Weight = 1.0
    """Factor of the cosine in what the perturbation climbs."""
    dropout: Dropout = "shared"
    """All passes have the same dropout masks, or each its own."""


class CreAT(Stateless):
    """Half the clean and half the perturbed task loss."""

    passes = 2

    def __init__(self, options: CreATConfig) -> None:
        self.options = inside(options)

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        options, where = self.options, room(engine, batch)
        delta_RLD = perturb.gaussian(where, options.start).requires_grad_()
        with dropout(engine, options.dropout):
            states: list[Tensor] = []
            task = task_loss(engine.forward(batch, tap=_collect(states)), batch)
            engine.backward(task / 2)
            clean_RLD = states[-1].detach()
            for _ in range(options.ascents):
                out = engine.probe(batch, Perturb(embed_BLD=delta_RLD), _collect(states))
                reached = task_loss(out, batch) - options.temperature * likeness(states[-1], clean_RLD, batch)
                (gradient_RLD,) = engine.ascend(reached, (delta_RLD,))
                delta_RLD = climb(delta_RLD, gradient_RLD, where, options)
            attacked = task_loss(engine.forward(batch, Perturb(embed_BLD=delta_RLD.detach())), batch)
        engine.backward(attacked / 2)
        task, attacked = task.detach(), attacked.detach()
        return {"loss": (task + attacked) / 2, "task": task, "attacked": attacked}


def _collect(states: list[Tensor]) -> Tap:
    """A tap that leaves the final states at the end of `states`."""
    return lambda block, h_RLD: states.append(h_RLD)


def likeness(one_RLD: Tensor, other_RLD: Tensor, batch: Batch) -> Tensor:
    """Cosine of each token's two states: the mean over a sequence's tokens, summed / Batch.total_rows."""
    real_RL = ~batch.pad_BL
    cosine_RL = F.cosine_similarity(one_RLD.float(), other_RLD.float(), dim=-1) * real_RL
    return (cosine_RL.sum(1) / real_RL.sum(1).clamp_min(1)).sum() / batch.total_rows
