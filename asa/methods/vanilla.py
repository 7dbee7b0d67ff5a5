"""Plain training: the task loss alone. In pre-training the paper's control, MLM for the same number of steps."""

from torch import Tensor

from asa.batch import Batch
from asa.engine import Engine
from asa.losses import task_loss
from asa.methods.base import At, Stateless


class Vanilla(Stateless):
    """One forward, one backward."""

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        loss = task_loss(engine.forward(batch), batch)
        engine.backward(loss)
        return {"loss": loss.detach(), "task": loss.detach()}
