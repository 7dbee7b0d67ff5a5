"""Parts of a base model that have hooks, and whether they still stand where they did.

A block or a module inside it that somebody has added, replaced or removed since `attach` has no hooks: a pass would
leave it alone without a word.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from torch import nn

from asa.errors import RequestError
from asa.families import Family

WORDS, ATTENTION, BLOCK = range(3)  # kinds of parts


class Part(NamedTuple):
    """Of a base model, what has hooks; `inside`: the rest of its path. part: None where none is to be."""

    kind: int
    path: str
    inside: str
    part: nn.Module | None


class Tail(NamedTuple):
    """The last block and all that is in it."""

    path: str
    modules: list[nn.Module]


def parts(base: nn.Module, words: nn.Module, found: Family) -> list[Part]:
    """All that have hooks, and the place behind the last block, where none is to be. words: the word embeddings.
    Raises: RequestError for a block that has no attention where its family has it."""
    named = cast(Iterable[tuple[str, nn.Module]], base.named_modules())
    # A model's own way to words may lie outside of its encoder.
    known = [Part(WORDS, path, "", part) for path, part in named if part is words]
    blocks = _places(base, found.layers)
    for n, block in enumerate(blocks):
        path = f"{found.layers}.{n}"
        attention = None if block is None else _at_path(block, found.attention)
        if attention is None:
            raise RequestError(f"{path} has no {found.attention}; call asa.attach before a block is wrapped")
        known.append(Part(BLOCK, path, "", block))
        known.append(Part(ATTENTION, path, f".{found.attention}", attention))
    end = f"{found.layers}.{len(blocks)}"
    return [*known, Part(BLOCK, end, "", None), Part(ATTENTION, end, "", None)]


def blocks_of(base: nn.Module, layers: str) -> list[nn.Module]:
    return [block for block in _places(base, layers) if block is not None]


def tail(base: nn.Module, found: Family) -> Tail:
    path = f"{found.layers}.{len(_places(base, found.layers)) - 1}"
    return Tail(path, _inside(base.get_submodule(path)))


def ends(base: nn.Module, last: Tail) -> bool:
    """Whether the blocks end where they did, with that last one as it was, and each stands there once: one that stood
    twice would leave tokens out of another's input."""
    layers, _, number = last.path.rpartition(".")
    blocks = _places(base, layers)
    if not len(set(blocks)) == len(blocks) == int(number) + 1:
        return False
    # What wraps the block, or was put into it, may read any token.
    return blocks[-1] is not None and _inside(blocks[-1]) == last.modules


def _inside(block: nn.Module) -> list[nn.Module]:
    return list(cast(Iterable[nn.Module], block.modules()))


def _places(base: nn.Module, layers: str) -> list[nn.Module | None]:
    """What stands at each place of a list of blocks, the same one perhaps at several."""
    blocks: Any = base.get_submodule(layers)
    return list(blocks._modules.values())


def check_parts(base: nn.Module, asked: list[Part]) -> None:
    """Raises RequestError for a part that is not where it was, since what has no hooks a pass would leave alone without
    a word; and for one that stands twice, since its places cannot be told apart."""
    first: dict[tuple[int, nn.Module], str] = {}
    for known in asked:
        name = known.path + known.inside
        if not _stands(base, known):
            raise RequestError(
                f"{name} was added, replaced or removed after asa.attach, which does not know it; attach again"
            )
        if known.part is not None and first.setdefault((known.kind, known.part), name) != name:
            once = first[known.kind, known.part]
            raise RequestError(f"{name} is {once} once more, and blocks are attacked one by one; put a copy there")


def _stands(base: nn.Module, known: Part) -> bool:
    """Whether a part is where it was, perhaps in another's wrapping."""
    _, path, inside, part = known
    if _at_path(base, path + inside) is part:
        return True
    there = _at_path(base, path) or base
    return part is not None and any(module is part for module in there.modules())


def refuse_peft(model: Any, more: str = "") -> None:
    """Raises RequestError for PEFT's wrapper of a model; `more`: what there is to do beside."""
    name = type(model).__name__
    if not hasattr(model, "get_base_model"):
        if type(model).__module__.split(".")[0] == "peft":  # PeftMixedModel, and what adapts inside of PEFT's models
            raise RequestError(f"{name} is PEFT's; give the model inside of it, its base_model.model or model{more}")
        return
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise RequestError(f"{name} learns prompts, which its base model has not and nothing here trains; take LoRA")
    raise RequestError(f"{name} is PEFT's; give what its get_base_model() returns{more}")


def bare(part: Any) -> Any:
    """The layer inside PEFT's wrappers of it: of LoRA and its kin, or of one that is trained whole."""
    for name in ("base_layer", "original_module"):
        if isinstance(inner := getattr(part, name, None), nn.Module):
            return bare(inner)
    return part


def _at_path(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None
