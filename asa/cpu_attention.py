"""Softmax attention on a CPU, for what torch's own does slowly there: dropout, and a mask that needs a gradient.

A few rows at a time pass through all of it in place while they are in the cache. Of a row only its weights are kept,
with a minus sign where they were dropped, and if it is attacked the products of its keep map. A dropout mask costs a
quarter of what torch's takes, which is more than a product of matrices: 16 random bits decide on a weight, so `dropout`
is rounded to a multiple of 2^-16.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.cpu_map import KeepMap, gradients, lowered, products, slopes
from asa.spare import DRAWS, WIDE, bits, spare
from asa.typed import Function, first_only

# B rows, A attacked ones, H heads, K width of one head, L length (queries, then keys)

CACHED = 2**19  # weights of rows that are treated together, 2 MB
SMALL = 2**18  # below so many weights the calls cost more than the numbers


def suits(q_BHLK: Tensor, k_BHLK: Tensor, mask_BHLL: Tensor | None, dropout: float) -> bool:
    """Whether torch's attention is the slower one, and this one computes the same."""
    threshold, _ = spare(dropout)
    slow = threshold > 0 or (mask_BHLL is not None and mask_BHLL.requires_grad)
    shape = (*q_BHLK.shape[:3], k_BHLK.shape[2])
    return slow and threshold < DRAWS and _ours(q_BHLK.device, q_BHLK.dtype, shape)


def makes_map(config: ASAConfig, device: torch.device, dtype: torch.dtype, shape: Sequence[int]) -> bool:
    """Whether `attacked` makes the map that `config` asks for, and pays. Args: dtype and shape BHLK of the queries."""
    return config.in_attention and _ours(device, dtype, (*shape[:3], shape[2]))


def _ours(device: torch.device, dtype: torch.dtype, shape: Sequence[int]) -> bool:
    """Args: shape of the weights."""
    # First: a compiler would compile anew for either side of the size.
    return not torch.compiler.is_compiling() and device.type == "cpu" and dtype in WIDE and prod(shape) >= SMALL


def context(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, mask_BHLL: Tensor | None, dropout: float, scaling: float
) -> Tensor:
    """Context BLHK. Args: mask as torch's attention takes it, bool (True: seen) or added to the scores."""
    mask, blind_BLH1 = _finite(mask_BHLL, q_BHLK.dtype)
    context_BLHK = attend(q_BHLK, k_BHLK, v_BHLK, mask, dropout, scaling)
    return context_BLHK if blind_BLH1 is None else context_BLHK.masked_fill(blind_BLH1, 0)


def attacked(
    q_BHLK: Tensor,
    k_BHLK: Tensor,
    v_BHLK: Tensor,
    mask_B1LL: Tensor | None,
    dropout: float,
    scaling: float,
    keep: KeepMap,
) -> tuple[Tensor, Tensor]:
    """Context BLHK and the keys that each query keeps, both with gradients.

    Args: keep attacks the last rows, as many as it has; mask is the others', for every query of a row the same.
    """
    free = len(q_BHLK) - len(keep.q_BLD)
    mask = None if mask_B1LL is None else _finite(mask_B1LL[:free, :, :1], q_BHLK.dtype)[0]
    return _Attend.apply(q_BHLK, k_BHLK, v_BHLK, mask, dropout, scaling, *keep)


def _finite(mask_BHLL: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """The mask as finite numbers to add, and the queries that see no key, to which torch's attention gives zeros (None
    where the mask learns, which is finite as it is)."""
    if mask_BHLL is None or mask_BHLL.requires_grad:
        return mask_BHLL, None
    if mask_BHLL.dtype == torch.bool:
        mask_BHLL = torch.zeros_like(mask_BHLL, dtype=dtype).masked_fill_(~mask_BHLL, -torch.inf)
    blind_BHL = mask_BHLL.amax(-1) == -torch.inf
    return mask_BHLL.clamp_min(torch.finfo(dtype).min), blind_BHL.transpose(1, 2).unsqueeze(-1)


def attend(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, mask_BHLL: Tensor | None, dropout: float, scaling: float
) -> Tensor:
    """Context BLHK. Args: mask is added to the scores; its sizes of 1 stand for all."""
    return _Attend.apply(q_BHLK, k_BHLK, v_BHLK, mask_BHLL, dropout, scaling, *[None] * len(KeepMap._fields))[0]


class _Attend(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scaling: float, *made: Any
    ) -> tuple[Tensor, Tensor | None]:
        weights_BHLL = q.new_empty(*q.shape[:3], k.shape[2])
        context_BHLK = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
        keep = None if made[0] is None else KeepMap(*made)
        x_ALL = q.new_empty(0) if keep is None else products(keep)
        kept_AL = x_ALL.new_empty(x_ALL.shape[:2])
        threshold, rescale = spare(dropout)
        for rows, attacked in _portions(weights_BHLL, len(q) - len(x_ALL)):
            weights = weights_BHLL[rows]
            torch.matmul(q[rows] * scaling, k[rows].transpose(2, 3), out=weights)
            if attacked is not None and keep is not None:
                weights += lowered(keep, attacked, x_ALL[attacked], kept_AL[attacked])
            elif mask is not None:
                weights += mask[rows] if len(mask) > 1 else mask
            torch.softmax(weights, -1, out=weights)
            if threshold:
                torch.copysign(weights, _draws(weights, threshold), out=weights)
            context = weights.relu() if threshold else weights
            torch.mul(context @ v[rows], rescale, out=context_BHLK[rows])
        ctx.save_for_backward(q, k, v, weights_BHLL, context_BHLK, x_ALL, kept_AL, *made[:4])
        ctx.mask, ctx.rescale, ctx.scaling = None if mask is None else mask.shape, rescale, scaling
        ctx.slope = made[4:]
        if keep is not None and not any(ctx.needs_input_grad[6:9]):
            ctx.mark_non_differentiable(kept_AL)
        return context_BHLK.transpose(1, 2), None if keep is None else kept_AL

    @staticmethod
    @first_only("attention's gradients on a CPU")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights_BHLL, context_BHLK, x_ALL, kept_AL, *made = ctx.saved_tensors
        grad_BHLK = grads[0].transpose(1, 2)
        found_q, found_k, found_v = (torch.empty_like(x) for x in (q, k, v))
        found_mask = q.new_zeros(ctx.mask) if ctx.needs_input_grad[3] else None
        needed = ctx.needs_input_grad[6:9]
        keep, slope_ALL = KeepMap(*made, *ctx.slope) if any(needed) else None, torch.empty_like(x_ALL)
        for rows, attacked in _portions(weights_BHLL, len(q) - len(x_ALL)):
            grad = grad_BHLK[rows] * ctx.rescale
            kept = weights_BHLL[rows].relu()  # a dropped weight is negative
            found_v[rows] = kept.transpose(2, 3) @ grad
            means = (grad_BHLK[rows] * context_BHLK[rows]).sum(-1, keepdim=True)
            d_scores = (grad @ v[rows].transpose(2, 3)).mul_(kept)
            d_scores.addcmul_(torch.abs(weights_BHLL[rows], out=kept), means, value=-1)
            if attacked is not None and keep is not None:
                parts = (x_ALL[attacked], kept_AL[attacked], d_scores.sum(1), grads[1][attacked])
                slope_ALL[attacked] = slopes(keep, attacked, *parts)
            elif attacked is None and found_mask is not None:
                part = found_mask[rows] if len(found_mask) > 1 else found_mask
                part += d_scores.sum_to_size(len(d_scores) if len(found_mask) > 1 else 1, *ctx.mask[1:])
            torch.mul(d_scores @ k[rows], ctx.scaling, out=found_q[rows])
            torch.mul(d_scores.transpose(2, 3) @ q[rows], ctx.scaling, out=found_k[rows])
        found_map = [None] * 3 if keep is None else gradients(keep, slope_ALL, needed)
        return found_q, found_k, found_v, found_mask, None, None, *found_map, None, None, None


def _draws(like: Tensor, threshold: int) -> Tensor:
    """Negative with probability threshold / DRAWS, independently."""
    # A half keeps what is at the threshold from being -0.
    return bits(like).to(like.dtype).add_(DRAWS // 2 - threshold + 0.5)


def _portions(weights_BHLL: Tensor, free: int) -> Iterator[tuple[slice, slice | None]]:
    """Rows that are treated together, and which they are of the attacked ones, which follow the first `free`."""
    rows = len(weights_BHLL)
    step = max(1, CACHED // max(1, weights_BHLL[:1].numel()))
    for start in range(0, free, step):
        yield slice(start, min(start + step, free)), None
    for start in range(free, rows, step):
        stop = min(start + step, rows)
        yield slice(start, stop), slice(start - free, stop - free)
