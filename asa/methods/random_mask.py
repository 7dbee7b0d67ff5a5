"""Naive masking, the control for ASA (Wu et al. 2023, "VS. Naive Masking", Table 3): the same two passes, divergence
and bias on every layer, but no adversary chooses what is masked."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor

from asa import record
from asa.adversary import ASAConfig
from asa.attention import depth
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.errors import RequestError
from asa.losses import divergence, masked_share, task_loss
from asa.methods.base import At, Counting, learn
from asa.signal import Perturb, Site

# B rows, L length (queries, then keys), N layers

SHARE = 0.1


@config
class RandomMaskConfig:
    """Masks that no adversary learns."""

    strategy: Literal["bernoulli", "scheduled", "magnitude"] = "bernoulli"
    """bernoulli: each pair with one probability. scheduled: with the probability that an ASA run had learned for this
    step and layer. magnitude: the pairs of each row's map with the largest attention weights, heads averaged."""
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of pairs that is masked (bernoulli, magnitude); null means 0.1. The paper tries 0.05 and 0.1 with
    bernoulli and names none for magnitude."""
    schedule: Path | None = None
    """metrics.jsonl of the ASA run to follow (scheduled)."""

    @model_validator(mode="after")
    def _fits(self) -> "RandomMaskConfig":
        scheduled = self.strategy == "scheduled"
        if scheduled and self.schedule is None:
            raise ValueError("strategy scheduled follows an ASA run; set --random_mask.schedule to its metrics.jsonl")
        if scheduled and self.share is not None:
            raise ValueError("strategy scheduled takes its shares from the schedule; leave --random_mask.share out")
        if not scheduled and self.schedule is not None:
            raise ValueError(f"strategy {self.strategy} follows no schedule; leave --random_mask.schedule out")
        return self


class RandomMask(Counting):
    """task + divergence(clean, masked), ASA's default divergence. Its state is the number of updates made."""

    def __init__(self, options: RandomMaskConfig) -> None:
        self.options = options
        self.schedule = read_schedule(options.schedule) if options.schedule else None

    def check_depth(self, layers: int) -> None:
        """Raises RequestError where the schedule is of a model with another number of layers."""
        if self.schedule is not None and (known := self.schedule[1].shape[1]) != layers:
            raise RequestError(
                f"{self.options.schedule} is of a model with {known} layers, this one has {layers};"
                " set --random_mask.schedule"
            )

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        shares: dict[int, Tensor] = {}
        layers = depth(engine.module.model)
        self.check_depth(layers)
        # Drawn here and not in the layers: one that activation checkpointing repeats would draw anew.
        maker = heaviest(self._share(0), batch.pad_BL) if self.options.strategy == "magnitude" else None
        keeps = [] if maker else [bernoulli(self._share(n), batch.pad_BL) for n in range(layers)]

        def attend(site: Site) -> Tensor:
            keep_BLL = maker(site) if maker else keeps[site.layer].to(site.h_BLD.dtype)
            shares.setdefault(site.layer, masked_share(keep_BLL, site.seen_BLL, batch.pad_BL))
            return keep_BLL

        clean, masked = engine.forward(batch), engine.forward(batch, Perturb(attend=attend))
        terms = {"task": task_loss(clean, batch), **divergence(clean, masked, batch, ASAConfig())}
        share = torch.stack(list(shares.values())) / batch.total_rows
        return {**learn(engine, terms), "masked_share": share}

    def _share(self, layer: int) -> float:
        """Share to mask in a layer at this step."""
        if self.schedule is None:
            return SHARE if self.options.share is None else self.options.share
        steps, shares_SN = self.schedule
        # The shares logged last before this update, the first ones until then.
        place = int(torch.searchsorted(steps, self.updates + 1, right=True)) - 1
        return float(shares_SN[max(place, 0), layer])


def bernoulli(share: float, pad_BL: Tensor) -> Tensor:
    """Each pair masked with probability `share`; True is kept."""
    rows, length = pad_BL.shape
    return torch.rand(rows, length, length, device=pad_BL.device) >= share


def heaviest(share: float, pad_BL: Tensor) -> Callable[[Site], Tensor]:
    """A maker of maps that mask round(share * pairs) of each row's pairs, those with the largest attention weights."""

    def keep(site: Site) -> Tensor:
        weights_BLL = site.weights().mean(1)
        pairs_BLL = (site.seen_BLL & ~pad_BL[:, :, None]).expand_as(weights_BLL)
        order_BP = weights_BLL.masked_fill(~pairs_BLL, -1).flatten(1).argsort(dim=1, descending=True, stable=True)
        wanted_B1 = (share * pairs_BLL.sum((1, 2), dtype=torch.float32)).round()[:, None]
        chosen_BP = torch.arange(order_BP.shape[1], device=order_BP.device) < wanted_B1
        masked_BP = torch.zeros_like(chosen_BP).scatter(1, order_BP, chosen_BP)
        return (~masked_BP).to(weights_BLL.dtype).view_as(weights_BLL)

    return keep


def read_schedule(path: Path) -> tuple[Tensor, Tensor]:
    """Steps and masked shares (one row a step, one column a layer) that an ASA run logged. Raises RequestError."""
    lines = [event for event in record.parsed(path) if event.get("event") == "train" and "masked_share" in event]
    if not lines:
        raise RequestError(f"{path} records no masked share; set --random_mask.schedule to an ASA run's metrics.jsonl")
    if wrong := [line for line in lines if not _is_scheduled(line)]:
        raise RequestError(
            f"{path} has step {wrong[0].get('step')!r:.20} and masked_share {wrong[0]['masked_share']!r:.60}, allowed:"
            " a whole number, and a number from 0 to 1 for each layer; mend that or set another --random_mask.schedule"
        )
    if len({len(line["masked_share"]) for line in lines}) > 1:
        raise RequestError(f"{path} records different numbers of layers; set --random_mask.schedule to one run's file")
    return torch.tensor([line["step"] for line in lines]), torch.tensor([line["masked_share"] for line in lines])


def _is_scheduled(line: dict[str, Any]) -> bool:
    step, shares = line.get("step"), line["masked_share"]
    if not isinstance(shares, list) or not shares or type(step) is not int or not 0 <= step < 2**63:
        return False
    return all(type(share) in (int, float) and 0 <= share <= 1 for share in cast("list[Any]", shares))
