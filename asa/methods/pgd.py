"""PGD adversarial training (Madry et al., ICLR 2018) on word embeddings, Eq. 1 and 2 of the FreeLB paper.

K ascents whose passes leave the weights alone, then one pass at the last perturbation that trains them. The loss of the
clean batch is no part of it.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.losses import task_loss
from asa.methods.ball import BallConfig, Dropout, begin, climb, dropout, inside, room
from asa.methods.base import At, Stateless
from asa.signal import Perturb


@config
class PGDConfig(BallConfig):
    """PGD."""

    ascents: Annotated[int, Field(ge=1, le=10_000)] = 2
    """Ascent steps; each costs a forward and a backward in the embeddings."""
    dropout: Dropout = "shared"
    """All passes have the same dropout masks, or each its own."""


class PGD(Stateless):
    """The task loss at the perturbation that maximises it; term `task` is that loss, no clean one."""

    def __init__(self, options: PGDConfig) -> None:
        self.options = inside(options)

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        options, where = self.options, room(engine, batch)
        delta_RLD = begin(where, options)
        with dropout(engine, options.dropout, taps=False):
            for _ in range(options.ascents):
                reached = task_loss(engine.probe(batch, Perturb(embed_BLD=delta_RLD)), batch)
                (gradient_RLD,) = engine.ascend(reached, (delta_RLD,))
                delta_RLD = climb(delta_RLD, gradient_RLD, where, options)
            loss = task_loss(engine.forward(batch, Perturb(embed_BLD=delta_RLD.detach())), batch)
        engine.backward(loss)
        return {"loss": loss.detach(), "task": loss.detach()}
