"""Attacked rows behind the clean ones of the same pass: parted for two attentions, and put together without copies of
what the kernels make.

A split's gradient would be copied twice: into one tensor, and by the projections before attention into their layout.
"""

from typing import Any

import torch
from torch import Tensor

from asa.typed import Function, first_only

# B rows, H heads, K width of one head, L length


class Beside:
    """What the parts of one attention share. free: rows before the attacked ones."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.made: list[tuple[Tensor, Tensor]] = []  # of all rows, and of it the attacked ones', which are written

    def part(self, *all_BHLK: Tensor) -> tuple[Tensor, ...]:
        """Of each its free rows, then of each its attacked ones."""
        return _Part.apply(self, *all_BHLK)

    def room(self, like_BHLK: Tensor) -> Tensor:
        """For something of the shape of attacked rows; the free ones find theirs before it in memory."""
        rows, *rest = like_BHLK.shape
        all_BHLK = by_token((self.free + rows, *rest), like_BHLK)
        self.made.append((all_BHLK, all_BHLK[self.free :]))
        return self.made[-1][1]

    def whole(self, free_BHLK: Tensor, attacked_BHLK: Tensor) -> Tensor:
        """One tensor of both. What has a room is in it already; a gradient that somebody else made is not."""
        for all_BHLK, written_BHLK in self.made:
            if attacked_BHLK is written_BHLK:
                all_BHLK[: self.free].copy_(free_BHLK)
                return all_BHLK
        return torch.cat([free_BHLK.transpose(1, 2), attacked_BHLK.transpose(1, 2)]).transpose(1, 2)


def by_token(shape_BHLK: tuple[int, ...], like: Tensor) -> Tensor:
    """Uninitialised BHLK with heads side by side in memory, as the projections before and after attention want them."""
    rows, heads, length, width = shape_BHLK
    return like.new_empty(rows, length, heads, width).transpose(1, 2)


class _Part(Function):
    @staticmethod
    def forward(ctx: Any, beside: Beside, *all_BHLK: Tensor) -> tuple[Tensor, ...]:
        ctx.beside = beside
        return (*(x[: beside.free] for x in all_BHLK), *(x[beside.free :] for x in all_BHLK))

    @staticmethod
    @first_only("fused attention's gradients")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        beside: Beside = ctx.beside
        count = len(grads) // 2
        found = [beside.whole(*pair) for pair in zip(grads[:count], grads[count:], strict=True)]
        beside.made.clear()
        return None, *found
