"""What DeepSpeed's ZeRO 2 does in half precision for one parameter after another, done for all at once.

BERT-base has two hundred of them, and DeepSpeed makes some twenty launches of each in an update: a GPU then
works 38 of a step's 99 ms (LAB.md, 2026-11-27). Gradients stay until a pass ends, and are joined then, some at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asa import dist
from asa.optim import norm_of

PIECE = 2**24  # numbers that are joined, and sent to the ranks that sum them, at a time


class Part(NamedTuple):
    """Numbers of one parameter in a row, from `start` on, or zeros where it is nobody's."""

    size: int
    owner: nn.Parameter | None = None
    start: int = 0


class Piece(NamedTuple):
    """size: how many numbers of the sums of this rank. parts: as many of each rank's, one rank's after another's."""

    size: int
    parts: list[Part]


class Layout(NamedTuple):
    """What lies side by side in the sums of a group of parameters, of which every rank has an equal share.

    kind: what DeepSpeed keeps the sums in, made of a list of tensors and of what these are parts of.
    """

    pieces: list[Piece]
    kind: Callable[[list[Tensor], Tensor], Any]


def at_once(optimizer: Any) -> None:
    """Change DeepSpeed's optimizer of stage 2, in half precision and without offload: one norm of all gradients, which
    also tells whether they are finite; and one sum per group of parameters after each backward pass, over the ranks in
    pieces that are alike on all of them, in whichever order gradients came. fp32 stays DeepSpeed's altogether."""
    optimizer.check_overflow = _left_to_the_norm
    optimizer.scaled_global_norm = partial(_norm, optimizer)
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
    return dist.all_reduce_(square).sqrt().float().cpu()


def _layout(optimizer: Any, group: int) -> Layout:
    share, step = int(optimizer.partition_size[group]), max(1, PIECE // dist.world())
    places, owners = optimizer.round_robin_bit16_offsets[group], optimizer.round_robin_bit16_groups[group]
    row = list(zip(places, owners, strict=True))
    pieces = list[Piece]()
    for begin in range(0, share, step):
        size = min(step, share - begin)
        starts = (rank * share + begin for rank in range(dist.world()))
        pieces.append(Piece(size, [part for start in starts for part in _between(row, start, start + size)]))
    return Layout(pieces, type(optimizer._build_compact_grad_partition_buffer(group)))


def _between(row: Sequence[tuple[int, nn.Parameter]], start: int, stop: int) -> Iterator[Part]:
    """What lies there of parameters, each with its place in the row of all."""
    for place, owner in row:
        first, last = max(place, start), min(place + owner.numel(), stop)
        if first < last:
            if start < first:
                yield Part(first - start)
            yield Part(last - first, owner, first - place)
            start = last
    if start < stop:
        yield Part(stop - start)


def _collect(optimizer: Any, layouts: Sequence[Layout]) -> None:
    """After a backward pass: add the model's gradients to the fp32 sums, and let go of them."""
    for group, layout in enumerate(layouts):
        sizes = [piece.size for piece in layout.pieces]
        sums = optimizer.averaged_gradients.get(group)
        if first := sums is None:
            dtype = optimizer.gradient_accumulation_dtype
            whole = torch.empty(sum(sizes), dtype=dtype, device=optimizer.device)
            sums = layout.kind([whole], whole)
        for place, piece in zip(sums.flat_partition.split(sizes), layout.pieces, strict=True):
            new = _over_ranks(torch.cat([_gradient(part, optimizer) for part in piece.parts]))
            place.copy_(new) if first else place.add_(new)
        optimizer.averaged_gradients[group] = sums  # now that it is whole: memory may end before
    optimizer._clear_param_grad_only()
    optimizer._epilogue_ran_this_backward = True


def _gradient(part: Part, optimizer: Any) -> Tensor:
    """In a row; zeros of what has none."""
    if part.owner is None or part.owner.grad is None:
        return torch.zeros(part.size, dtype=optimizer.dtype, device=optimizer.device)
    return part.owner.grad.flatten()[part.start : part.start + part.size]


def _over_ranks(gradients: Tensor) -> Tensor:
    """This rank's share of their mean over ranks, in fp32: in half precision each rank's would be rounded against all
    before it. Of a single process itself."""
    if dist.world() == 1:
        return gradients
    return dist.reduce_scatter(gradients.float().div_(dist.world()))
