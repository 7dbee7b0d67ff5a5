"""Adversarial Self-Attention (Wu et al., AAAI 2023, arXiv 2206.12608), Eq. 9 for tasks and Eq. 10 for MLM.

Two forwards, one backward; the adversary's part arrives reversed. Where paper and released program differ, ASAConfig
says what we do.
"""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor

from asa.adversary import Adversaries, Adversary, ASAConfig
from asa.batch import Batch
from asa.engine import Engine
from asa.losses import divergence, kept_units, masked_share, penalty, task_loss
from asa.methods.base import At, Stateless
from asa.model import Output
from asa.signal import Attend, Perturb, Site


class Map(NamedTuple):
    """A layer's keep map, BLL or BHLL, and which pairs its layer sees at all."""

    keep: Tensor
    seen_BLL: Tensor


class ASA(Stateless):
    """task + divergence(clean, attacked) + tau^2 * attended units / rows."""

    uses_adversary = True

    def __init__(self, config: ASAConfig) -> None:
        self.config = config

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        attend, maps = ready(engine, batch)
        with engine.same_dropout() if self.config.dropout == "shared" else nullcontext():
            clean = engine.forward(batch)
            attacked = engine.forward(batch, Perturb(attend=attend))
        terms = {"task": task_loss(clean, batch), **costs(clean, attacked, batch, maps, self.config)}
        loss = torch.stack(list(terms.values())).sum()
        engine.backward(loss)
        share = torch.stack([masked_share(*m, batch.pad_BL) for m in maps.values()]) / batch.total_rows
        return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}, "masked_share": share}


def ready(engine: Engine, batch: Batch, layers: Collection[int] | None = None) -> tuple[Attend, dict[int, Map]]:
    """What attacks a pass over `batch`, and where its maps will be, by layer. Args: layers not named attend freely."""
    adversary = engine.module.adversary
    assert adversary is not None, "ASA trains a TaskModel that was built with an ASAConfig"
    maps: dict[int, Map] = {}
    # Drawn here and not in the layers: one that activation checkpointing repeats would draw anew.
    noises = [cast(Adversary, maker).noise(batch.pad_BL) for maker in adversary]
    return attack(adversary, noises, maps, layers), maps


def costs(clean: Output, attacked: Output, batch: Batch, maps: dict[int, Map], config: ASAConfig) -> dict[str, Tensor]:
    """The terms of the attack by name: divergence and penalty."""
    kept = torch.stack([kept_units(m.keep, batch.pad_BL, config.penalty_rows) for m in maps.values()]).sum()
    return {**divergence(clean, attacked, batch, config), "penalty": penalty(kept, batch, config.tau)}


def attack(
    adversary: Adversaries,
    noises: Sequence[Tensor | None],
    maps: dict[int, Map],
    layers: Collection[int] | None = None,
) -> Attend:
    """The adversaries as makers of keep maps, which are also put into `maps`, by layer."""

    def attend(site: Site) -> Tensor | None:
        if layers is not None and site.layer not in layers:
            return None
        keep: Tensor = adversary[site.layer](site.h_BLD, site.seen_BLL, noises[site.layer])
        maps.setdefault(site.layer, Map(keep, site.seen_BLL))
        return keep

    return attend
