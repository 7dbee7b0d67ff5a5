"""Adversarial Self-Attention (Wu et al., AAAI 2023, arXiv 2206.12608), Eq. 9 for tasks and Eq. 10 for MLM.

Two forwards, one backward; the adversary's part arrives reversed. Where paper and released program differ, ASAConfig
says what we do.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor

from asa.adversary import Adversaries, Adversary, ASAConfig
from asa.batch import Batch
from asa.engine import Engine
from asa.losses import divergence, kept_units, masked_share, penalty, task_loss
from asa.methods.base import At, Stateless
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
        adversary = engine.module.adversary
        assert adversary is not None, "ASA trains a TaskModel that was built with an ASAConfig"
        maps: dict[int, Map] = {}
        # Drawn here and not in the layers: one that activation checkpointing repeats would draw anew.
        noises = [cast(Adversary, maker).noise(batch.pad_BL) for maker in adversary]
        with engine.same_dropout() if self.config.dropout == "shared" else nullcontext():
            clean = engine.forward(batch)
            attacked = engine.forward(batch, Perturb(attend=attack(adversary, noises, maps)))
        kept = torch.stack([kept_units(m.keep, batch.pad_BL, self.config.penalty_rows) for m in maps.values()]).sum()
        terms = {
            "task": task_loss(clean, batch),
            **divergence(clean, attacked, batch, self.config),
            "penalty": penalty(kept, batch, self.config.tau),
        }
        share = torch.stack([masked_share(*m, batch.pad_BL) for m in maps.values()]) / batch.total_rows
        loss = torch.stack(list(terms.values())).sum()
        engine.backward(loss)
        return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}, "masked_share": share}


def attack(adversary: Adversaries, noises: Sequence[Tensor | None], maps: dict[int, Map]) -> Attend:
    """The adversaries as makers of keep maps, which are also put into `maps`, by layer."""

    def attend(site: Site) -> Tensor:
        keep: Tensor = adversary[site.layer](site.h_BLD, site.seen_BLL, noises[site.layer])
        maps.setdefault(site.layer, Map(keep, site.seen_BLL))
        return keep

    return attend
