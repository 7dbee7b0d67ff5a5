"""Softmax attention on a CPU, for what torch's own does slowly there: dropout, and a mask that needs a gradient.

A few rows at a time pass through all of it in place while they are in the cache. Of a row only its weights are kept,
with a minus sign where they were dropped. A dropout mask costs a quarter of what torch's takes, which is more than a
product of matrices: 16 random bits decide on a weight, so `dropout` is rounded to a multiple of 2^-16.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asa.spare import DRAWS, spare
from asa.typed import Function

# B rows, H heads, K width of one head, L length (queries, then keys)

CACHED = 2**19  # weights of rows that are treated together, 2 MB
SMALL = 2**18  # below so many weights the calls cost more than the numbers
WIDE = (torch.float32, torch.float64)


def suits(q_BHLK: Tensor, k_BHLK: Tensor, mask_BHLL: Tensor | None, dropout: float) -> bool:
    """Whether torch's attention is the slower one, and this one computes the same."""
    large = q_BHLK.shape[:3].numel() * k_BHLK.shape[2] >= SMALL
    ours = large and q_BHLK.device.type == "cpu" and q_BHLK.dtype in WIDE and not torch.compiler.is_compiling()
    threshold, _ = spare(dropout)
    slow = threshold > 0 or (mask_BHLL is not None and mask_BHLL.requires_grad)
    return ours and slow and threshold < DRAWS


def context(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, mask_BHLL: Tensor | None, dropout: float, scaling: float
) -> Tensor:
    """Context BLHK. Args: mask as torch's attention takes it, bool (True: seen) or added to the scores."""
    mask, blind_BLH1 = _finite(mask_BHLL, q_BHLK.dtype)
    context_BLHK = attend(q_BHLK, k_BHLK, v_BHLK, mask, dropout, scaling)
    return context_BLHK if blind_BLH1 is None else context_BLHK.masked_fill(blind_BLH1, 0)


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
    return _Attend.apply(q_BHLK, k_BHLK, v_BHLK, mask_BHLL, dropout, scaling)


class _Attend(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scaling: float
    ) -> Tensor:
        weights_BHLL = q.new_empty(*q.shape[:3], k.shape[2])
        context_BHLK = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
        threshold, rescale = spare(dropout)
        for rows in _portions(weights_BHLL):
            weights = weights_BHLL[rows]
            torch.matmul(q[rows] * scaling, k[rows].transpose(2, 3), out=weights)
            if mask is not None:
                weights += mask[rows] if len(mask) > 1 else mask
            torch.softmax(weights, -1, out=weights)
            if threshold:
                torch.copysign(weights, _draws(weights, threshold), out=weights)
            context = weights.relu() if threshold else weights
            torch.mul(context @ v[rows], rescale, out=context_BHLK[rows])
        ctx.save_for_backward(q, k, v, weights_BHLL, context_BHLK)
        ctx.mask, ctx.rescale, ctx.scaling = None if mask is None else mask.shape, rescale, scaling
        return context_BHLK.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # the decorator's type
        q, k, v, weights_BHLL, context_BHLK = ctx.saved_tensors
        grad_BHLK = grads[0].transpose(1, 2)
        found_q, found_k, found_v = (torch.empty_like(x) for x in (q, k, v))
        masked = ctx.needs_input_grad[3]
        found_mask = q.new_zeros(ctx.mask) if masked else None
        for rows in _portions(weights_BHLL):
            grad = grad_BHLK[rows] * ctx.rescale
            kept = weights_BHLL[rows].relu()  # a dropped weight is negative
            found_v[rows] = kept.transpose(2, 3) @ grad
            means = (grad_BHLK[rows] * context_BHLK[rows]).sum(-1, keepdim=True)
            scores = (grad @ v[rows].transpose(2, 3)).mul_(kept)
            scores.addcmul_(torch.abs(weights_BHLL[rows], out=kept), means, value=-1)
            if found_mask is not None:
                part = found_mask[rows] if len(found_mask) > 1 else found_mask
                part += scores.sum_to_size(len(scores) if len(found_mask) > 1 else 1, *ctx.mask[1:])
            torch.mul(scores @ k[rows], ctx.scaling, out=found_q[rows])
            torch.mul(scores.transpose(2, 3) @ q[rows], ctx.scaling, out=found_k[rows])
        return found_q, found_k, found_v, found_mask, None, None


def _draws(like: Tensor, threshold: int) -> Tensor:
    """Negative with probability threshold / DRAWS, independently."""
    bits = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    # From -2^15 to 2^15 - 1; a half keeps what is at the threshold from being -0.
    return bits[: like.numel()].view(like.shape).to(like.dtype).add_(DRAWS // 2 - threshold + 0.5)


def _portions(weights_BHLL: Tensor) -> Iterator[slice]:
    """Rows that are treated together."""
    rows = len(weights_BHLL)
    step = max(1, CACHED // max(1, weights_BHLL[:1].numel()))
    return (slice(start, start + step) for start in range(0, rows, step))
