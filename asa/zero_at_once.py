"""What DeepSpeed's ZeRO 2 does in half precision for one parameter after another, done for all at once.

BERT-base has two hundred of them, and DeepSpeed makes some twenty launches of each in an update: a GPU then
works 38 of a step's 99 ms (LAB.md, 2026-11-27). Gradients stay until a pass ends, and are joined then, some at a time.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asa import dist
from asa.optim import norm_of

PIECE = 2**24  # numbers, or those of one parameter, that are copied at a time


class Layout(NamedTuple):
    """What lies side by side in the sums of a group of parameters: how many numbers, and whose; nobody's are zeros.

    pieces: parts that are joined at a time. kind: what DeepSpeed keeps the sums in, made of a list of tensors and of
    what these are parts of.
    """

    pieces: list[list[tuple[int, nn.Parameter | None]]]
    kind: Callable[[list[Tensor], Tensor], Any]


def at_once(optimizer: Any) -> None:
    """Change DeepSpeed's optimizer of stage 2, in half precision and without offload: one norm of all gradients, which
    also tells whether they are finite; and where this process is the only one, one sum per group of parameters after
    each backward pass. Gradients of several processes stay DeepSpeed's to reduce. fp32 stays DeepSpeed's altogether."""
    optimizer.check_overflow = _left_to_the_norm
    optimizer.scaled_global_norm = partial(_norm, optimizer)
    if dist.world() == 1:
        for hook in optimizer._grad_acc_hooks:
            hook.remove()
        optimizer._grad_acc_hooks.clear()
        layouts = [_layout(optimizer, group) for group in range(len(optimizer.bit16_groups))]
        optimizer.independent_gradient_partition_epilogue = partial(_collect, optimizer, layouts)


def _left_to_the_norm(partition_gradients: bool = True) -> None:
    """DeepSpeed refuses a norm that is not finite, which it is of gradients that are not."""


def _norm(optimizer: Any) -> Tensor:
    """Of the gradients of all ranks, on the host: what DeepSpeed asks of it afterwards waits for no device."""
    norms = [norm_of([sums.flat_partition]) for sums in optimizer.averaged_gradients.values()]
    square = torch.stack(norms).double().square().sum()
    return dist.sum_(square).sqrt().float().cpu()


def _layout(optimizer: Any, group: int) -> Layout:
    parameters = iter(optimizer.params_in_partition[group])
    made = optimizer._build_compact_grad_partition_buffer(group)
    parts = [(part.numel(), None if getattr(part, "_zero_padding", False) else next(parameters)) for part in made]
    pieces: list[list[tuple[int, nn.Parameter | None]]] = []
    for part in parts:
        if not pieces or sum(size for size, _ in pieces[-1]) + part[0] > PIECE:
            pieces.append([])
        pieces[-1].append(part)
    return Layout(pieces, type(made))


def _collect(optimizer: Any, layouts: Sequence[Layout]) -> None:
    """After a backward pass: add the model's gradients to the fp32 sums, and let go of them."""
    for group, layout in enumerate(layouts):
        sizes = [sum(size for size, _ in piece) for piece in layout.pieces]
        sums = optimizer.averaged_gradients.get(group)
        if first := sums is None:
            dtype = optimizer.gradient_accumulation_dtype
            whole = torch.empty(sum(sizes), dtype=dtype, device=optimizer.device)
            sums = layout.kind([whole], whole)
        for place, piece in zip(sums.flat_partition.split(sizes), layout.pieces, strict=True):
            new = torch.cat([_gradient(size, p, optimizer) for size, p in piece])
            place.copy_(new) if first else place.add_(new)
        optimizer.averaged_gradients[group] = sums  # now that it is whole: memory may end before
    optimizer._clear_param_grad_only()
    optimizer._epilogue_ran_this_backward = True


def _gradient(size: int, p: nn.Parameter | None, optimizer: Any) -> Tensor:
    """In a row; zeros of what has none."""
    if p is None or p.grad is None:
        return torch.zeros(size, dtype=optimizer.dtype, device=optimizer.device)
    return p.grad.flatten()
