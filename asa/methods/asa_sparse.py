"""ASA on a cheaper schedule: the attacked pass every k-th step, on a share of the rows, or in some layers only.
Ours.

With every k and share s a step costs 1 + 1.08 s / k plain ones. A share of the rows is drawn anew for each micro-batch
and its terms are scaled up, so that their expectation is that of all rows; steps without an attack are plain, so every
k divides the attack's weight by k. Layers left alone have no map, no penalty and a masked share of 0.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from asa.adversary import ASAConfig
from asa.attention import depth
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.errors import RequestError
from asa.losses import task_loss
from asa.methods.asa import Maps, costs, ready, shares
from asa.methods.ball import dropout
from asa.methods.base import At, Counting, learn
from asa.methods.subset import Subset, choose, of
from asa.methods.vanilla import Vanilla
from asa.signal import Perturb


@config
class ASASparseConfig:
    """When and where ASA attacks; how it does is said by the settings of method asa."""

    every: Annotated[int, Field(ge=1)] = 2
    """Optimizer steps from one attacked step to the next; the first is step number `every`."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a micro-batch's examples that the attacked pass sees, at least one."""
    layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Layers that are attacked, from the bottom, from 0; null: all."""


class ASASparse(Counting):
    """Its state is the number of updates made."""

    uses_adversary = True

    def __init__(self, asa: ASAConfig, options: ASASparseConfig) -> None:
        if asa.dropout == "shared" and options.share < 1:
            raise RequestError(
                "asa.dropout shared gives equal masks to equal batches only; set --asa_sparse.share 1 or"
                " --asa.dropout independent"
            )
        self.asa = asa
        self.options = options

    def check_depth(self, layers: int) -> None:
        """Raises RequestError where a model of so many layers lacks one that is to be attacked."""
        if max(self.options.layers or [0]) >= layers:
            raise RequestError(f"the model has layers 0 to {layers - 1}; set --asa_sparse.layers to some of them")

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        layers = depth(engine.module.model)
        self.check_depth(layers)
        if (self.updates + 1) % self.options.every:
            return Vanilla().backward(engine, batch, at)
        subset = self._subset(batch)
        part = batch if subset is None else subset.batch
        attend, maps = ready(engine, part, self.asa, self.options.layers)
        with dropout(engine, self.asa.dropout, masks=True, taps=False):
            clean, attacked = engine.forward(batch), engine.forward(part, Perturb(attend=attend))
        compared = clean if subset is None else of(clean, subset)
        scale = len(batch.inputs["input_ids"]) / len(part.inputs["input_ids"])
        terms = {name: scale * term for name, term in costs(compared, attacked, part, maps, self.asa).items()}
        # Sequences, fillers of a choice left out, are what shares are of.
        share = _shares(maps, part, layers) * (_sequences(batch) / _sequences(part))
        return {**learn(engine, {"task": task_loss(clean, batch), **terms}), "masked_share": share}

    def _subset(self, batch: Batch) -> Subset | None:
        """The rows that are attacked; None: all."""
        examples = len(batch.inputs["input_ids"])
        wanted = max(1, round(self.options.share * examples))
        if wanted == examples:
            return None
        return choose(batch, torch.randperm(examples, device=batch.labels.device)[:wanted])


def _sequences(batch: Batch) -> Tensor:
    return (~batch.pad_BL).any(1).sum()


def _shares(maps: Maps, batch: Batch, layers: int) -> Tensor:
    found = dict(zip(maps, shares(batch, maps), strict=True))
    none = batch.pad_BL.new_zeros((), dtype=torch.float32)
    return torch.stack([found.get(layer, none) for layer in range(layers)])
