"""Whether a model is what Hugging Face's code makes of its config: then it is known which final states are read."""

import copy
import inspect
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


def head_types(model: "transformers.PreTrainedModel") -> list[type]:
    """The classes of what lies beside the base model."""
    return [type(part) for part in _head(model)]


def stock_masked_lm_head(model: "transformers.PreTrainedModel") -> bool:
    """Whether a masked LM's head is Hugging Face's, which reads each token by itself, whatever its encoder is.
    Costs milliseconds."""
    kind: Any = transformers.MODEL_FOR_MASKED_LM_MAPPING.get(type(model.config), None)
    if kind is None or not isinstance(model, kind) or type(model).forward is not kind.forward:
        return False
    if any(altered(part) for part in (model, *_head(model))):
        return False
    with torch.device("meta"):
        return head_types(model) == head_types(kind(copy.deepcopy(model.config)))


def _head(model: "transformers.PreTrainedModel") -> list[nn.Module]:
    beside = [part for part in model.children() if part is not model.base_model]
    return [inner for part in beside for _, inner in _parts(part)]


def altered(part: nn.Module) -> bool:
    """By a forward or a hook that is neither ours nor of Hugging Face's own activation checkpointing and accelerate."""
    own = vars(part)
    hooks = [*own["_forward_hooks"].values(), *own["_forward_pre_hooks"].values()]
    forward = "forward" in own and not (_known(own["forward"]) or _autocast(part))
    return forward or not all(_known(hook) for hook in hooks)


def _autocast(part: nn.Module) -> bool:
    """Whether its own forward is the class's under accelerate's autocast, which leaves that behind."""
    own, usual = vars(part)["forward"], type(part).forward
    theirs = getattr(own, "__module__", "").startswith("accelerate.")
    return theirs and inspect.unwrap(own, stop=lambda one: one is usual) is usual


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
