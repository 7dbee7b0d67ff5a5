"""Adversarial Self-Attention (Wu et al., AAAI 2023, arXiv 2206.12608), Eq. 9 for tasks and Eq. 10 for MLM.

A clean and an attacked forward, made as one, and one backward; the adversary's part arrives reversed. Where paper and
released program differ, ASAConfig says what we do.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from asa.adversary import OF_MODEL, Adversaries, Adversary, ASAConfig
from asa.batch import Batch
from asa.engine import Engine
from asa.errors import RequestError
from asa.fused.products import Keys, Products
from asa.losses import compared, counted_share, counted_units, divergence, kept_keys, pairs, penalty
from asa.methods.base import At, Stateless, learn
from asa.model import Output, joined
from asa.signal import Attend, Perturb, Site


class Map(NamedTuple):
    """A layer's keep map, BLL or BHLL, and which pairs its layer sees at all."""

    keep: Tensor
    seen_BLL: Tensor

    def kept(self) -> Tensor:
        return kept_keys(self.keep)

    def pairs(self) -> tuple[Tensor, Tensor]:
        return pairs(self.keep, self.seen_BLL)


class Counted(NamedTuple):
    """The same where attention made the map itself: keys that each query keeps, at least in fp32, and those it sees."""

    kept_BL: Tensor
    keys: Keys

    def kept(self) -> Tensor:
        return self.kept_BL

    def pairs(self) -> tuple[Tensor, Tensor]:
        return self.kept_BL, self.keys.seen_B1.expand_as(self.kept_BL)


Maps = dict[int, Map | Counted]


class ASA(Stateless):
    """task + divergence(clean, attacked) + tau^2 * attended units / rows."""

    uses_adversary = True

    def __init__(self, config: ASAConfig) -> None:
        self.config = config

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        attend, maps = ready(engine, batch, self.config)
        terms = compared(both(engine, batch, attend, self.config), batch, self.config)
        terms |= price(batch, maps, self.config)
        return {**learn(engine, terms), "masked_share": shares(batch, maps)}


def ready(
    engine: Engine,
    batch: Batch,
    config: ASAConfig,
    layers: Collection[int] | None = None,
    dropout: str = "independent",
) -> tuple[Attend, Maps]:
    """What attacks a pass over `batch`, and where its maps will be, by layer.

    Args: layers not named attend freely. dropout: "shared" where another pass is to draw the same.
    Raises: RequestError for a model without adversaries, and for one whose part of the settings is not the method's.
    """
    adversary = engine.module.adversary
    if adversary is None:
        raise RequestError(
            "the model has no adversary for this method to train; build TaskModel(model, kind, ASAConfig())"
        )
    for name in OF_MODEL:
        if (theirs := getattr(adversary.config, name)) != (ours := getattr(config, name)):
            raise RequestError(
                f"asa.{name} is {theirs} in the TaskModel and {ours} in the method's settings; give both one ASAConfig"
            )
    adversary.config = config  # which is saved beside them
    maps: Maps = {}
    # Drawn here and not in the layers: one that activation checkpointing repeats would draw anew.
    ids_BL = batch.ids.flatten(0, -2)
    noises = [cast(Adversary, maker).noise(ids_BL) for maker in adversary]
    # An attention that makes its map may draw dropout otherwise than the clean pass, and knows no mask of pairs.
    mask = batch.inputs.get("attention_mask")
    fused = "shared" not in (dropout, adversary.config.dropout) and (mask is None or mask.dim() < 4)
    return attack(adversary, noises, maps, layers, fused), maps


def both(engine: Engine, batch: Batch, attend: Attend, config: ASAConfig) -> Output:
    """A clean and an attacked pass over `batch` one after the other; if they draw their own dropout masks, as one."""
    if config.dropout == "shared":
        with engine.same_dropout(taps=False):
            return joined(engine.forward(batch), engine.forward(batch, Perturb(attend=attend)))
    return engine.forward(batch.twice(), Perturb(attend=attend, last=len(batch.pad_BL)))


def costs(clean: Output, attacked: Output, batch: Batch, maps: Maps, config: ASAConfig) -> dict[str, Tensor]:
    """The terms of the attack by name: divergence and penalty."""
    return {**divergence(clean, attacked, batch, config), **price(batch, maps, config)}


def price(batch: Batch, maps: Maps, config: ASAConfig) -> dict[str, Tensor]:
    """The penalty by its name."""
    # Of all layers at once: a GPU is given some operations, and not some for each layer.
    kept_NBL = torch.stack([found.kept() for found in maps.values()])
    kept = counted_units(kept_NBL, batch.pad_BL, config.penalty_rows).sum()
    return {"penalty": penalty(kept, batch, config.tau)}


def shares(batch: Batch, maps: Maps) -> Tensor:
    """The share of pairs that each map masks, in the maps' order; no gradient."""
    with torch.no_grad():
        kept_NBL, pairs_NBL = map(torch.stack, zip(*(found.pairs() for found in maps.values()), strict=True))
    return counted_share(kept_NBL, pairs_NBL, batch.pad_BL) / batch.total_rows


def attack(
    adversary: Adversaries,
    noises: Sequence[Tensor | None],
    maps: dict[int, Any],
    layers: Collection[int] | None = None,
    fused: bool = False,
) -> Attend:
    """The adversaries as makers of keep maps, which are also put into `maps`, by layer: Map, or if `fused` allows the
    layers that can to make their map themselves, Counted: only where every query sees the same keys."""

    def attend(site: Site) -> Tensor | Products | None:
        if layers is not None and site.layer not in layers:
            return None
        if fused and (dtype := site.fused(adversary.config)) is not None:
            return _products(cast(Adversary, adversary[site.layer]), site, dtype, maps)
        keep: Tensor = adversary[site.layer](site.h_BLD, site.seen_BLL, noises[site.layer])
        maps.setdefault(site.layer, Map(keep, site.seen_BLL))
        return keep

    return attend


def _products(maker: Adversary, site: Site, dtype: torch.dtype, maps: dict[int, Map | Counted]) -> Products:
    """What attention makes its map of."""

    def counted(kept_BL: Tensor) -> None:
        maps.setdefault(site.layer, Counted(kept_BL, site.keys))

    return Products(*maker.products(site.h_BLD, dtype), site.keys, counted, maker.config)
