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
    if any(altered(part) or not _as_written(part) for _, part in _parts(model)):
        return False
    with torch.device("meta"):
        plain = type(model)(copy.deepcopy(model.config))
    return _types(model) == _types(plain)


def _as_written(part: nn.Module) -> bool:
    """Whether nobody has put a forward into its class, as notebooks and makers of kernels do."""
    return written_by(type(part).forward, "transformers.", "torch.")


def head_types(model: "transformers.PreTrainedModel") -> list[type]:
    """The classes of what lies beside the base model."""
    return [type(part) for part in _head(model)]


def stock_masked_lm_head(model: "transformers.PreTrainedModel") -> bool:
    """Whether a masked LM's head is Hugging Face's, which reads each token by itself, whatever its encoder is.
    Costs milliseconds."""
    kind: Any = transformers.MODEL_FOR_MASKED_LM_MAPPING.get(type(model.config), None)
    if kind is None or not isinstance(model, kind) or type(model).forward is not kind.forward:
        return False
    if head_altered(model) or not all(_as_written(part) for part in (model, *_head(model))):
        return False
    with torch.device("meta"):
        return head_types(model) == head_types(kind(copy.deepcopy(model.config)))


def _head(model: "transformers.PreTrainedModel") -> list[nn.Module]:
    beside = [part for part in model.children() if part is not model.base_model]
    return [inner for part in beside for _, inner in _parts(part)]


def altered(part: nn.Module) -> bool:
    """By a forward or a hook that is neither ours nor an engine's, of Hugging Face's own activation checkpointing or
    accelerate's autocast."""
    own = vars(part)
    if not own["_forward_hooks"] and not own["_forward_pre_hooks"] and "forward" not in own:
        return False  # as most are, in each pass
    hooks = [*own["_forward_hooks"].values(), *own["_forward_pre_hooks"].values()]
    forward = "forward" in own and not (_ours(own["forward"]) or _autocast(part))
    return forward or not all(_known(hook) for hook in hooks)


def written_by(function: Any, *libraries: str) -> bool:
    """Whether a function and all that it wraps stand in modules that begin so. Not by the modules they name, which
    functools.wraps takes over from what it wraps."""
    return all(place.startswith(libraries) for _, place in _written(function))


def _written(function: Any) -> Iterator[tuple[Any, str]]:
    """A function and those it wraps, each with the module it is written in."""
    while function is not None:
        function = getattr(function, "__func__", function)
        own = getattr(function, "__globals__", None)
        # Not as a default above: torch 2.11's compiler fails at the module of a function's type.
        yield function, type(function).__module__ if own is None else own.get("__name__", "")
        function = getattr(function, "__wrapped__", None)


def _autocast(part: nn.Module) -> bool:
    """Whether its own forward is the class's under accelerate's autocast, which leaves that behind."""
    found = list(_within(vars(part)["forward"], type(part).forward))
    whole = bool(found) and found[-1][0] is type(part).forward
    return whole and all(place.startswith(("accelerate.", "torch.")) for _, place in found[:-1])


def _within(function: Any, end: Any) -> Iterator[tuple[Any, str]]:
    """What a function wraps, down to `end`."""
    for one, place in _written(function):
        yield one, place
        if one is end:
            return


def _ours(forward: Any) -> bool:
    return getattr(getattr(forward, "func", None), "__module__", "").startswith("asa.")  # partials


def _known(hook: Any) -> bool:
    # Ours are partials. DeepSpeed's gather and count, some of them wrapped by torch.compiler.disable.
    places = [place for _, place in _written(getattr(hook, "func", hook))]
    known = ("transformers.", "asa.", "deepspeed.")
    return (
        bool(places) and places[-1].startswith(known) and all(place.startswith((*known, "torch.")) for place in places)
    )


def _types(model: nn.Module) -> list[tuple[str, type]]:
    return [(name, type(part)) for name, part in _parts(model)]


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield from model.named_modules()  # pyright: ignore[reportUnknownMemberType]  # has types in part


def around(model: "transformers.PreTrainedModel") -> list[type]:
    """The classes of what is not among a known family's blocks, by which a head that was replaced is seen."""
    return [type(part) for part in _around(model)]


def _around(model: "transformers.PreTrainedModel") -> list[nn.Module]:
    base, blocks = model.base_model, FAMILIES[model.config.model_type].layers.partition(".")[0]
    parts = [part for part in model.children() if part is not base]
    parts += [part for name, part in base.named_children() if name != blocks]
    return [inner for part in parts for _, inner in _parts(part)]


def end_altered(model: "transformers.PreTrainedModel") -> bool:
    """Whether anything that sees final states is altered: the model, what is around its blocks or holds them, the last
    of them."""
    layers = FAMILIES[model.config.model_type].layers.split(".")
    above = [model.base_model.get_submodule(".".join(layers[:depth])) for depth in range(len(layers) + 1)]
    *_, last = above[-1].children()
    return any(altered(part) for part in (model, *above, *_around(model), *last.modules()))


def head_altered(model: "transformers.PreTrainedModel") -> bool:
    """Whether the model, its base or a part of its head is."""
    return any(altered(part) for part in (model, model.base_model, *_head(model)))
