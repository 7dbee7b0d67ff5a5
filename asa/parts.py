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


def parts(base: nn.Module, words: nn.Module, found: Family) -> list[Part]:
    """All that have hooks, and the place behind the last block, where none is to be. words: the word embeddings."""
    named = cast(Iterable[tuple[str, nn.Module]], base.named_modules())
    # A model's own way to words may lie outside of its encoder.
    known = [Part(WORDS, path, "", part) for path, part in named if part is words]
    blocks = list(base.get_submodule(found.layers).children())
    for n, block in enumerate(blocks):
        path = f"{found.layers}.{n}"
        known.append(Part(BLOCK, path, "", block))
        known.append(Part(ATTENTION, path, f".{found.attention}", block.get_submodule(found.attention)))
    end = f"{found.layers}.{len(blocks)}"
    return [*known, Part(BLOCK, end, "", None), Part(ATTENTION, end, "", None)]


def tail(base: nn.Module, found: Family) -> Part:
    """What follows the last block's attention."""
    path = f"{found.layers}.{len(_places(base, found.layers)) - 1}"
    return Part(BLOCK, path, f".{found.tail}", base.get_submodule(f"{path}.{found.tail}"))


def ends(base: nn.Module, last: Part) -> bool:
    """Whether the blocks end where they did, with that tail, and each stands there once: one that stood twice would
    leave tokens out of another's input."""
    layers, _, number = last.path.rpartition(".")
    blocks = _places(base, layers)
    return len(set(blocks)) == len(blocks) == int(number) + 1 and _stands(base, last)


def _places(base: nn.Module, layers: str) -> list[nn.Module | None]:
    """What stands at each place of a list of blocks, the same one perhaps at several."""
    blocks: Any = base.get_submodule(layers)
    return list(blocks._modules.values())


def check_parts(base: nn.Module, asked: list[Part]) -> None:
    """Raises RequestError for a part that is not where it was: what has no hooks a pass would leave alone without a
    word."""
    for part in asked:
        if not _stands(base, part):
            raise RequestError(
                f"{part.path}{part.inside} was added, replaced or removed after asa.attach, which does not know it;"
                " attach again"
            )


def _stands(base: nn.Module, known: Part) -> bool:
    """Whether a part is where it was, perhaps in another's wrapping."""
    _, path, inside, part = known
    if _at_path(base, path + inside) is part:
        return True
    there = _at_path(base, path) or base
    return part is not None and any(module is part for module in there.modules())


def _at_path(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None
