"""Adversarial Self-Attention (Wu et al., AAAI 2023, arXiv 2206.12608), Eq. 9 for tasks and Eq. 10 for MLM.

Two forwards with independent dropout, one backward; the adversary's part arrives reversed. Where paper and released
program differ, ASAConfig says what we do.
"""

import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.attention import Perturb
from asa.batch import Batch
from asa.engine import Engine
from asa.losses import divergence, kept_units, masked_share, penalty, task_loss
from asa.methods.base import At, Stateless


class ASA(Stateless):
    """task + divergence(clean, attacked) + tau^2 * attended units / rows."""

    uses_adversary = True

    def __init__(self, config: ASAConfig) -> None:
        self.config = config

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        clean = engine.forward(batch)
        maps: dict[int, Tensor] = {}
        adversary = engine.module.adversary
        assert adversary is not None, "ASA trains a TaskModel that was built with an ASAConfig"

        def attend(layer: int, h_BLD: Tensor, pad_BL: Tensor) -> Tensor:
            maps[layer] = adversary[layer](h_BLD, pad_BL)
            return maps[layer]

        attacked = engine.forward(batch, Perturb(attend=attend))
        kept = torch.stack([kept_units(keep, batch.pad_BL, self.config.penalty_rows) for keep in maps.values()]).sum()
        terms = {
            "task": task_loss(clean, batch),
            **divergence(clean, attacked, batch, self.config),
            "penalty": penalty(kept, batch, self.config.tau),
        }
        loss = torch.stack(list(terms.values())).sum()
        engine.backward(loss)
        share = torch.stack([masked_share(keep, batch.pad_BL) for keep in maps.values()]) / batch.total_rows
        return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}, "masked_share": share}
