"""Steps with the kernels of asa/fused and without them: they are chosen by themselves wherever they can run."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedConfig

from asa import dispatch, fused
from asa.batch import Batch
from asa.engine import Precision
from asa.errors import RequestError
from asa.families import family
from benchmarks.steps import OPTIONS, PEERS, method_of
from benchmarks.updates import HALVES, Train


@contextmanager
def kernels(devices: set[str]) -> Iterator[None]:
    """Inside, the kernels may be chosen on these kinds of device alone."""
    before = set(fused.DEVICES)
    fused.DEVICES.clear()
    fused.DEVICES.update(devices)
    try:
        yield
    finally:
        fused.DEVICES.clear()
        fused.DEVICES.update(before)


def without_kernels(train: Train) -> Train:
    """The same steps by torch's own operations."""

    def run(batch: Batch) -> bool:
        with kernels(set()):
            return train(batch)

    return run


def fusible(name: str) -> bool:
    """Whether kernels may do anything of the step `name`: the losses of every step of ours, norms and activations of
    large ones."""
    return name not in PEERS


def attacks(name: str) -> bool:
    """Whether the step `name` attacks attention, and so that the kernels may do it: not where passes share dropout."""
    if not fusible(name):
        return False
    method = method_of(name)
    return method.uses_adversary and all(getattr(one, "dropout", None) != "shared" for one in vars(method).values())


def large_due(name: str, shape: PreTrainedConfig, tokens: int, zero: int | None) -> set[str]:
    """Of norms and activations, the kernels that the step `name` of a batch of so many tokens is to come to: none where
    ZeRO 3 gathers by hooks."""
    found, width = family(shape.model_type), shape.hidden_size
    passes = 1 + attacks(name)  # of what is attacked clean rows and attacked ones are one tensor
    if not fusible(name) or zero == 3 or passes * tokens * width < fused.FEWEST_NUMBERS:
        return set()
    parts = {
        "norms": bool(found.outputs) and width <= fused.WIDEST_ROW,
        "activations": bool(found.intermediate) and shape.hidden_act == "gelu",
    }
    return {part for part, due in parts.items() if due}


def large_taken(due: Iterable[str], shape: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> set[str]:
    """Of what is due, the kernels that pass their trial here."""
    some = torch.empty(0, shape.hidden_size, dtype=dtype, device=device)
    takes = {
        "norms": lambda: fused.norms_supported(some),
        "activations": lambda: fused.gelu_supported(shape.intermediate_size, some),
    }
    return {part for part in due if takes[part]()}


def launches(name: str, shape: PreTrainedConfig, large: Iterable[str]) -> dict[str, int]:
    """How often at least the step `name` is to come to each kind of kernel, `large` of norms and activations: in every
    layer, but for the last one's that are cut down to the tokens of the loss."""
    blocks = shape.num_hidden_layers
    found = {"losses": 1} | ({"attention": blocks} if attacks(name) else {})
    per_block = {"norms": len(family(shape.model_type).outputs), "activations": 1}
    return found | {part: max(1, blocks - 1) * per_block[part] for part in large}


def with_kernels(train: Train, device: torch.device, steps: int, due: Mapping[str, int]) -> Train:
    """Steps by the kernels. Raises RequestError in that one of `steps` by which they have not come as often as is due
    to those of losses, attention, norms or activations."""
    missing, left = dict(due), steps
    places = [("losses", fused, "compare"), ("losses", fused, "cross_entropies")]
    places += [("attention", dispatch, "fused_attention")]
    places += [("norms", fused, "add_norm"), ("activations", fused, "biased_gelu")]

    def noting(part: str, begin: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            missing[part] = missing.get(part, 0) - 1
            return begin(*args, **kwargs)

        return noted

    def run(batch: Batch) -> bool:
        nonlocal left
        with kernels({device.type}), ExitStack() as stack:
            if left <= 0:
                return train(batch)
            for part, module, word in places:
                stack.enter_context(patch.object(module, word, noting(part, getattr(module, word))))
            applied = train(batch)
        left -= 1
        lacking = sorted(part for part, count in missing.items() if count > 0)
        if lacking and left <= 0:
            told = " and ".join(lacking)
            raise RequestError(f"the kernels of {told} take no step of this kind; leave fused out of --attention")
        return applied

    return run


def attention(
    names: Sequence[str],
    shape: PreTrainedConfig,
    rows: int,
    length: int,
    precision: Precision,
    stages: Collection[int | None] = (None,),
) -> str:
    """The attention of steps that are left to themselves, in a table's words. Args: shape with sdpa; stages of ZeRO
    that the table has."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    heads, dtype = shape.num_attention_heads, HALVES.get(precision, torch.float32)
    taken = fused.supported(OPTIONS.asa, device, dtype, (rows, heads, length, shape.hidden_size // heads))
    mine = [f"{name} under attack" for name in dict.fromkeys(names) if attacks(name)] if taken else []
    some = torch.empty(0, shape.hidden_size, dtype=dtype, device=device)
    if any(map(fusible, names)) and fused.losses_supported(some):
        mine.append("our losses")
    due = set().union(*(large_due(name, shape, rows * length, zero) for name in names for zero in stages))
    if large := large_taken(due, shape, dtype, device):
        but = " but for ZeRO 3's" if 3 in stages else ""
        mine.append(f"our {' and '.join(sorted(large, reverse=True))} of the largest tensors{but}")
    return f"sdpa (fused: {', '.join(mine)})" if mine else "sdpa"


def check_kernels() -> None:
    """Raises RequestError where nothing can run them."""
    if not torch.cuda.is_available():
        raise RequestError("attention fused needs a GPU and none is present; set --attention sdpa")
    if find_spec("triton") is None:
        raise RequestError("attention fused needs Triton: pip install triton, or leave fused out of --attention")
