"""CreAT (Wu et al., ICLR 2023, arXiv 2305.04557): an attack on the encoder's states, not on the prediction alone.

The perturbation climbs task loss - temperature * cosine(perturbed states, clean states); the weights are trained by
the mean of the clean and the perturbed task loss. As released, the cosine is that of each token's final states, summed
over a sequence, every pass has dropout masks of its own, and the ascents are one less than the release's steps. What
differs: padding is not perturbed, perturbations do not add up over ascents, as they do in the release by an oversight,
and the norm of a multiple choice is taken over all answers of a question, as FreeLB has it.
"""

from typing import Annotated

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from asa import perturb
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine, Precision
from asa.errors import RequestError
from asa.losses import task_loss
from asa.methods.ball import BallConfig, Dropout, Size, climb, dropout, inside, room
from asa.methods.base import At, Stateless
from asa.methods.smoothness import Weight
from asa.signal import Perturb, Tap

# D width, L length, R sequences


@config
class CreATConfig(BallConfig):
    """CreAT; `start` is the standard deviation of Gaussian noise, which is brought into the ball."""

    radius: Size | None = 0.1
    """Largest norm, of the start as well, in units of the embeddings; null: no bound."""
    start: Size = 1e-5
    """Standard deviation of each entry of the Gaussian start, `radius` at most; what lies outside the ball is brought
    back. With dropout shared the cosine has no gradient without noise."""
    ascents: Annotated[int, Field(ge=1, le=100)] = 1
    """Ascent steps; each costs a forward and a backward in the embeddings."""
    temperature: Weight = 1.0
    """Factor of the cosine in what the perturbation climbs."""
    dropout: Dropout = "independent"
    """Each pass has its own dropout masks, as released, which then is most of what the cosine sees; or all the same."""

    @model_validator(mode="after")
    def _climbs(self) -> "CreATConfig":
        if self.temperature and not self.start and self.dropout == "shared":
            raise ValueError("with start 0 and dropout shared the cosine has no gradient; set start above 0")
        return self


class CreAT(Stateless):
    """Half the clean and half the perturbed task loss."""

    passes = 2

    def __init__(self, options: CreATConfig) -> None:
        self.options = inside(options)

    def check_run(self, precision: Precision, zero: int) -> None:
        """Raises RequestError for a cosine that half precision leaves nothing of."""
        options = self.options
        if precision != "fp32" and options.temperature and options.dropout == "shared":
            raise RequestError(
                f"creat.dropout = shared leaves its cosine to the rounding of {precision}; set --creat.dropout"
                " independent, leave the cosine out (--creat.temperature 0), or train in fp32 (--precision fp32)"
            )

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        options, where = self.options, room(engine, batch)
        noise_RLD = perturb.gaussian(where, options.start)
        delta_RLD = perturb.project(noise_RLD, where, options.ball, options.radius).requires_grad_()
        with dropout(engine, options.dropout):
            states: list[Tensor] = []
            task = task_loss(engine.forward(batch, tap=_collect(states)), batch)
            clean_RLD = states[-1].detach()  # before the backward, in which checkpointing may call the tap again
            engine.backward(task / 2)
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
    """Cosine of each token's two states: the sum over all sequences' tokens / Batch.total_rows."""
    cosine_RL = F.cosine_similarity(one_RLD.float(), other_RLD.float(), dim=-1)
    return (cosine_RL * ~batch.pad_BL).sum() / batch.total_rows
