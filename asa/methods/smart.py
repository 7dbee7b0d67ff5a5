"""SMART (Jiang et al., ACL 2020, arXiv 1911.03437): task + lambda_s R_s + mu D_Breg.

R_s is the smoothness regulariser, climbed as in the paper: the gradient is brought to a largest entry of 1, then a
step, then the projection into the linf ball (the released program normalises noise and step together, see
smart_released). D_Breg is the Bregman proximal term with momentum: the distance to the prediction of a teacher whose
weights are a moving average of the model's. No public program has it; here the teacher is a copy in fp32 without
dropout, which costs 4 bytes per parameter on every process and a forward per micro-batch, and lies in the checkpoint.
"""

from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from asa.batch import Batch
from asa.config import config
from asa.engine import Engine, Precision
from asa.errors import RequestError
from asa.methods.ball import check_sizes, dropout
from asa.methods.base import At, Counting, learn
from asa.methods.smoothness import SmoothConfig, Weight, apart, noise, smooth
from asa.model import TaskModel

Beta = Annotated[float, Field(ge=0, le=1)]


@config
class SMARTConfig(SmoothConfig):
    """SMART."""

    proximal: Weight = 1.0
    """Factor mu of the divergence from the teacher's prediction; 0 leaves the term and the teacher out."""
    beta_early: Beta = 0.99
    """Share of the teacher that an update leaves, for the first tenth of the updates."""
    beta_late: Beta = 0.999
    """The same after the first tenth."""


class SMART(Counting):
    """Its state is the number of updates made and the teacher's parameters, by name."""

    def __init__(self, options: SMARTConfig) -> None:
        self.options = options
        self._teacher: TaskModel | None = None
        self._restored: dict[str, Tensor] | None = None

    def check_run(self, precision: Precision, zero: int) -> None:
        """Raises RequestError for a perturbation that half precision rounds away."""
        options = self.options
        if options.weight:
            check_sizes({"smart.radius": options.radius, "smart.noise": options.noise}, precision)

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        options = self.options
        guide = self._guide(engine, batch) if options.proximal else None
        start_RLD = noise(engine, batch, options) if options.weight else None
        with dropout(engine, options.dropout, taps=False):
            out = engine.forward(batch)
            terms = smooth(engine, batch, out, start_RLD, options)
        if guide is not None:
            terms["proximal"] = options.proximal * apart(guide, out.logits, batch)
        return learn(engine, terms)

    def _guide(self, engine: Engine, batch: Batch) -> Tensor:
        """The teacher's logits; the teacher begins as the model that the first batch meets."""
        if self._teacher is None:
            start = _masters(engine) if self._restored is None else self._restored.items()
            teacher = _twin(engine.module).to(batch.labels.device)
            _refuse(_follow(teacher, start, beta=0.0))
            self._teacher, self._restored = teacher, None
        with torch.no_grad(), engine.types():
            return self._teacher(batch).logits

    def after_step(self, engine: Engine) -> None:
        super().after_step(engine)
        if self._teacher is None:
            return
        beta = self.options.beta_early if 10 * self.updates <= engine.steps else self.options.beta_late
        _follow(self._teacher, _masters(engine), beta)

    def state_dict(self) -> dict[str, Tensor]:
        teacher = self._restored or {}
        if self._teacher is not None:
            teacher = {name: p.detach() for name, p in self._teacher.named_parameters()}
        return {**super().state_dict(), **teacher}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._teacher = None
        self._restored = {name: value for name, value in state.items() if name != "updates"} or None


def _twin(module: TaskModel) -> TaskModel:
    # Running averages, as a BatchNorm's, are the model's own and no weights.
    kept = module.model.state_dict().keys()
    _refuse([name for name, value in module.model.named_buffers() if name in kept and value.is_floating_point()])
    try:
        return module.twin()
    except (TypeError, RequestError) as error:  # of a class of one's own, which takes more or has other parts
        _refuse([" ".join(str(error).split())])
        raise


def _refuse(strange: list[str]) -> None:
    """Raises RequestError where something of the model is not the teacher's."""
    if strange:
        raise RequestError(
            f"smart's teacher is made by the model's config, which does not describe this model ({strange[0]});"
            " set smart.proximal to 0"
        )


def _masters(engine: Engine) -> Iterable[tuple[str, Tensor]]:
    """The weights in fp32 by name, one at a time; in half precision those behind the model's, which round small updates
    away."""
    plain = not engine.partitioned and all(p.dtype == torch.float32 for p in engine.module.parameters())
    return engine.weights().items() if plain else engine.parts("weights")


@torch.no_grad()
def _follow(teacher: TaskModel, weights: Iterable[tuple[str, Tensor]], beta: float) -> list[str]:
    """Move every parameter of the teacher to beta * itself + (1 - beta) * the weight; returns the names of those that
    one of the two models lacks, or has in another shape."""
    mine = dict(teacher.named_parameters())
    strange = dict.fromkeys(mine)
    for name, weight in weights:
        if name in mine and mine[name].shape == weight.shape:
            mine[name].lerp_(weight.to(mine[name].device, torch.float32), 1 - beta)
            del strange[name]
        elif name.startswith("model."):  # not the adversary's, nor those of a replaced-token model's generator
            strange[name] = None
    return list(strange)
