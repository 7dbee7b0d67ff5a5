"""How far apart two passes over a batch predict, and the perturbation that drives them apart: what the methods share
that need no label for their adversary (SMART as published and as released, ALUM, VAT, R3F, R-Drop)."""

from typing import Annotated

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from asa import perturb
from asa.batch import IGNORE, Batch
from asa.compared import Compared, compare
from asa.config import config
from asa.engine import Engine
from asa.losses import task_loss
from asa.methods.ball import Dropout, Size, room
from asa.model import Output
from asa.signal import Perturb

# C classes, D width of the word embeddings, L length, N units (rows, tokens or masked positions), R sequences

Weight = Annotated[float, Field(ge=0, le=1e4)]


@config
class SmoothConfig:
    """A perturbation of the word embeddings that drives the prediction from the clean one, inside an linf ball."""

    weight: Weight = 1.0
    """Factor of the divergence between clean and perturbed prediction; 0 leaves the term and its passes out."""
    radius: Size = 1e-5
    """Largest entry of the perturbation, in units of the embeddings."""
    noise: Size = 1e-5
    """Standard deviation of the Gaussian start: at 0 the divergence has no gradient to climb."""
    step_size: Size = 1e-3
    """Largest entry of one ascent step."""
    ascents: Annotated[int, Field(ge=1, le=100)] = 1
    """Ascent steps; each costs a forward and a backward in the embeddings."""
    dropout: Dropout = "shared"
    """Clean and perturbed passes have the same dropout masks, or each its own, which then is most of the divergence."""

    @model_validator(mode="after")
    def _climbs(self) -> "SmoothConfig":
        if self.weight and not self.noise and self.dropout == "shared":
            raise ValueError("with noise 0 and dropout shared the divergence has no gradient; set noise above 0")
        return self


def apart(one: Tensor, other: Tensor, batch: Batch) -> Tensor:
    """KL(one || other) + KL(other || one) of two passes' logits, for a regression their squared difference: the sum
    over units / Batch.total_compared, of tokens over the labelled ones."""
    if batch.kind == "regression":
        return _squared(one, other, batch)
    return _mean(_both(compare(one.flatten(0, -2), other.flatten(0, -2))), batch)


def towards(target: Tensor, learner: Tensor, batch: Batch) -> Tensor:
    """KL(target || learner) of two passes' logits, for a regression their squared difference; summed like `apart`."""
    if batch.kind == "regression":
        return _squared(target, learner, batch)
    return _mean(compare(target.flatten(0, -2), learner.flatten(0, -2)).forth_N, batch)


def learned(one: Output, other: Output, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Both passes' task losses, and how far they are `apart`: at once, since over a vocabulary each costs."""
    if batch.kind == "regression":
        return task_loss(one, batch), task_loss(other, batch), _squared(one.logits, other.logits, batch)
    found = compare(one.logits.flatten(0, -2), other.logits.flatten(0, -2), batch.labels.flatten())
    first, second = (one_N.sum() / batch.total_labels for one_N in (found.entropy_p_N, found.entropy_q_N))
    return first, second, _mean(_both(found), batch)


def _both(found: Compared) -> Tensor:
    return found.forth_N + found.back_N


def _squared(one: Tensor, other: Tensor, batch: Batch) -> Tensor:
    return F.mse_loss(one.float(), other.float(), reduction="sum") / batch.total_compared


def _mean(per_unit_N: Tensor, batch: Batch) -> Tensor:
    if batch.kind == "token":
        per_unit_N = per_unit_N * (batch.labels.flatten() != IGNORE)
    return per_unit_N.sum() / batch.total_compared


def noise(engine: Engine, batch: Batch, options: SmoothConfig) -> Tensor:
    """The Gaussian start of a perturbation, RLD. To be drawn before passes that share dropout: they put the random
    state back, so that what is drawn between them comes again in the masks of the next micro-batch."""
    return perturb.gaussian(room(engine, batch), options.noise)


def worst(engine: Engine, batch: Batch, clean: Output, start_RLD: Tensor, options: SmoothConfig) -> Tensor:
    """The perturbation RLD that projected ascent finds to drive the prediction furthest from `clean`; a constant."""
    where, delta_RLD = room(engine, batch), start_RLD.requires_grad_()
    for _ in range(options.ascents):
        reached = engine.probe(batch, Perturb(embed_BLD=delta_RLD)).logits
        (gradient_RLD,) = engine.ascend(apart(clean.logits.detach(), reached, batch), (delta_RLD,))
        delta_RLD = perturb.ascended(delta_RLD, gradient_RLD, where, "linf", options.step_size, options.radius)
        delta_RLD.requires_grad_()
    return delta_RLD.detach()


def smooth(
    engine: Engine, batch: Batch, clean: Output, start_RLD: Tensor | None, options: SmoothConfig
) -> dict[str, Tensor]:
    """The task's loss of a pass and, where there is a start, SMART's R_s times its weight: both predictions carry
    gradient, the perturbation does not."""
    if start_RLD is None:
        return {"task": task_loss(clean, batch)}
    delta_RLD = worst(engine, batch, clean, start_RLD, options)
    task, _, distance = learned(clean, engine.forward(batch, Perturb(embed_BLD=delta_RLD)), batch)
    return {"task": task, "smooth": options.weight * distance}
