"""FreeAT (Shafahi et al., NeurIPS 2019) as compared in FreeLB, section 3.2: every ascent goes with an update.

Each window of micro-batches is replayed K times; each replay is an optimizer step and takes the perturbation one
ascent further. It lives for the K replays of its window, since the next batch has other tokens (the original, for
images, keeps it from batch to batch). Checkpoints are made between windows, so it is no part of them. Replays are
steps of their own and draw their own dropout masks.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.errors import RequestError
from asa.losses import task_loss
from asa.methods.ball import BallConfig, begin, climb, inside, room
from asa.methods.base import At, Stateless
from asa.signal import Perturb


@config
class FreeATConfig(BallConfig):
    """FreeAT."""

    replays: Annotated[int, Field(ge=1, le=100)] = 2
    """Optimizer steps on the same micro-batches, with an ascent after each."""


class FreeAT(Stateless):
    """The task loss at a perturbation that is one ascent, and one update, old; that is its term `task` too."""

    def __init__(self, options: FreeATConfig) -> None:
        self.options = inside(options)
        self.replays = options.replays
        self._deltas: dict[int, Tensor] = {}  # by micro-batch of the window

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        where = room(engine, batch)
        delta_RLD = begin(where, self.options) if at.replay == 0 else self._before(at)
        loss = task_loss(engine.forward(batch, Perturb(embed_BLD=delta_RLD)), batch)
        engine.backward(loss)
        if at.replay + 1 < self.replays:
            self._deltas[at.slot] = climb(delta_RLD, delta_RLD.grad, where, self.options)
        return {"loss": loss.detach(), "task": loss.detach()}

    def _before(self, at: At) -> Tensor:
        """The perturbation that the replay before left."""
        if at.slot not in self._deltas:
            raise RequestError(
                f"method freeat has made no replay {at.replay - 1} of micro-batch {at.slot}; count from 0"
            )
        return self._deltas.pop(at.slot)
