"""Whether a model is what Hugging Face's code makes of its config: then it is known which final states are read."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import nn

from asa.families import FAMILIES


def stock(model: "transformers.PreTrainedModel") -> bool:
    """Whether class and parts are Hugging Face's, with nobody's forward or hook among them. Costs milliseconds.

    What somebody has added may read any token: a layer before the pooler, an adapter, a hook that returns other states.
    """
    if not type(model).__module__.startswith("transformers."):
        return False
    if any(altered(part) for _, part in _parts(model)):
        return False
    with torch.device("meta"):
        plain = type(model)(copy.deepcopy(model.config))
    return _types(model) == _types(plain)


def altered(part: nn.Module) -> bool:
    """By a forward or a hook that is neither ours nor of Hugging Face's own activation checkpointing."""
    own = vars(part)
    hooks = [*own["_forward_hooks"].values(), *own["_forward_pre_hooks"].values()]
    return "forward" in own or not all(_known(hook) for hook in hooks)


def _known(hook: Any) -> bool:
    # Ours are partials.
    return getattr(getattr(hook, "func", hook), "__module__", "").startswith(("transformers.", "asa."))


def _types(model: nn.Module) -> list[tuple[str, type]]:
    return [(name, type(part)) for name, part in _parts(model)]


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield from model.named_modules()  # pyright: ignore[reportUnknownMemberType]  # has types in part


def around(model: "transformers.PreTrainedModel") -> list[type]:
    """The classes of what is not among a known family's blocks, by which a head that was replaced is seen."""
    base, blocks = model.base_model, FAMILIES[model.config.model_type].layers.partition(".")[0]
    parts = [part for part in model.children() if part is not base]
    parts += [part for name, part in base.named_children() if name != blocks]
    return [type(inner) for part in parts for _, inner in _parts(part)]
