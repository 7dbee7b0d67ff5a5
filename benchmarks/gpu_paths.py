"""A GPU's ways through a step on any machine: on tensors without contents, whose operations are counted and not run."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asa import cpu_attention, dropout, fused
from asa.fused.beside import by_token
from asa.typed import Function
from benchmarks.fused import kernels

# B rows, H heads, K width of one head, L length

# Of an operation: its name, the bytes it moves, and the FLOPs of its matrix products.
Note = Callable[[str, int, int], None]
OURS = "our "  # before the names of our kernels


@contextmanager
def as_on_a_gpu(note: Note) -> Iterator[None]:
    """Inside, tensors without contents take a GPU's ways: our kernels and torch's attention are noted, dropout is one
    operation, and what we compute otherwise on a CPU is left out. Needs Triton."""
    from asa.fused import activations, launch, losses, norms

    def run(kernel: Any, grid: tuple[int, ...], *args: Any, **settings: Any) -> None:
        name = kernel.fn.__name__.removesuffix("_kernel")
        note(OURS + name, bytes_of(args), kernel_flops(name, args))

    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **_: Any) -> Tensor:
        return _Attention.apply(query, key, value, attn_mask, note)

    with kernels({"cpu"}), ExitStack() as stack:
        for module, name, instead in (
            (fused, "_works", lambda *_: True),
            (fused, "losses_supported", lambda *_: True),
            (fused, "norms_supported", lambda *_: True),
            (fused, "gelu_supported", lambda *_: True),
            (cpu_attention, "_ours", lambda *_: False),
            (dropout, "_suits", lambda *_: False),
            (launch, "run", run),
            (losses, "run", run),
            (norms, "run", run),
            (activations, "run", run),
            (F, "scaled_dot_product_attention", attend),
            (F, "dropout", _dropout),
            (nn.Module, "_apply", _convert),
        ):
            stack.enter_context(patch.object(module, name, instead))
        yield


def bytes_of(items: Iterable[Any]) -> int:
    """The tensors among these, each once: of one that is expanded, what is there in memory."""
    found = {id(one): one for one in items if isinstance(one, Tensor)}
    return sum(min(one.numel() * one.element_size(), one.untyped_storage().nbytes()) for one in found.values())


def kernel_flops(name: str, args: tuple[Any, ...]) -> int:
    """FLOPs of the matrix products in a launch of one of asa.fused's kernels; what is computed again counts again."""
    if name == "pack":
        rows, length, width = args[0].shape
        return 2 * rows * length**2 * width
    # Of attention's by the products of L x L weights with one head: scores; and of queries' and keys' gradients, the
    # scores and the weights' gradients again.
    counts = {"forward": 2, "query": 3, "key": 4, "slope": 2}
    if name not in counts:
        return 0
    found = counts[name] * _one_product(args[0])
    # The scores of the map are made again for the slope.
    return found + (kernel_flops("pack", args[10:]) if name == "slope" else 0)


def _one_product(q_BHLK: Tensor) -> int:
    rows, heads, length, width = q_BHLK.shape
    return 2 * rows * heads * length**2 * width


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """On a GPU it is one operation, on a CPU three."""
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def _convert(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """What a module's to() and float() do, which torch cannot with tensors without contents; what is tied stays so."""
    made: dict[int, nn.Parameter] = {}
    for module in self.modules():
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
            new = made.setdefault(id(p), nn.Parameter(fn(p.detach()), p.requires_grad))
            module.register_parameter(name, new)
    return self


class _Attention(Function):
    """torch's attention as flash attention does it: nothing that is L x L is laid out but a mask that is given."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, note: Note) -> Tensor:
        out_BHLK, lse_BHL = by_token(tuple(q.shape), q), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, mask, out_BHLK, lse_BHL)
        ctx.note = note
        note("torch's attention", bytes_of([q, k, v, mask, out_BHLK, lse_BHL]), 2 * _one_product(q))
        return out_BHLK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, *_ = ctx.saved_tensors
        made = [by_token(tuple(one.shape), one) for one in (q, k, v)]
        d_mask = torch.empty_like(mask) if ctx.needs_input_grad[3] else None
        moved = bytes_of([*ctx.saved_tensors, *grads, *made, d_mask])
        ctx.note("torch's attention, backwards", moved, 5 * _one_product(q))
        return *made, d_mask, None
