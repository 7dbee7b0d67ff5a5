"""A keep map inside attention on a CPU (asa.cpu_attention), a few rows at a time, while they are in the cache.

Laid out by asa.adversary and asa.biased the same takes some thirty passes over memory, forwards and backwards.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asa.adversary import MASKED

# B rows, D width, L length (queries, then keys)


class KeepMap(NamedTuple):
    """1[q k^T + bias > 0] at the keys seen. reversal, temperature: ASAConfig's."""

    q_BLD: Tensor
    k_BLD: Tensor
    bias_BL: Tensor | None
    seen_BL: Tensor
    reversal: float
    temperature: float


def products(given: KeepMap) -> Tensor:
    """q k^T + bias, BLL: the map's scores times sqrt(D)."""
    factors = (given.q_BLD, given.k_BLD.transpose(1, 2))
    if given.bias_BL is None:
        return torch.bmm(*factors)
    return torch.baddbmm(given.bias_BL.unsqueeze(-1), *factors)


def lowered(given: KeepMap, rows: slice, x_BLL: Tensor, kept_BL: Tensor) -> Tensor:
    """What attention adds to its scores in some rows, B1LL, as asa.biased's fill_empty_rows and bias say, of the
    products there; `kept_BL` receives the keys that each query keeps."""
    seen_B1L = given.seen_BL[rows].unsqueeze(1).to(x_BLL.dtype)
    keep_BLL = torch.gt(x_BLL, 0, out=torch.empty_like(x_BLL)).mul_(seen_B1L)
    torch.sum(keep_BLL, -1, out=kept_BL)
    bias_BLL = keep_BLL.sub_(1).mul_(-MASKED * _attacked(kept_BL))
    return bias_BLL.add_((1 - seen_B1L) * (torch.finfo(x_BLL.dtype).min / 2)).unsqueeze(1)


def slopes(
    given: KeepMap, rows: slice, x_BLL: Tensor, kept_BL: Tensor, d_bias_BLL: Tensor, d_kept_BL: Tensor
) -> Tensor:
    """The gradient to q k^T + bias in some rows, of those to what `lowered` gave (overwritten) and to kept_BL."""
    d_keep_BLL = d_bias_BLL.mul_(-MASKED * _attacked(kept_BL)).add_(d_kept_BL.unsqueeze(-1))
    scale = given.q_BLD.shape[-1] ** -0.5 / given.temperature
    soft_BLL = torch.mul(x_BLL, scale).sigmoid_()
    slope_BLL = torch.ops.aten.sigmoid_backward(d_keep_BLL, soft_BLL)
    return slope_BLL.mul_(given.seen_BL[rows].unsqueeze(1) * (-given.reversal * scale))


def gradients(given: KeepMap, slope_BLL: Tensor, needed: Sequence[bool]) -> list[Tensor | None]:
    """Those to q, k and bias that are needed, of the gradient to q k^T + bias."""
    makers = (
        lambda: slope_BLL @ given.k_BLD,
        lambda: slope_BLL.transpose(1, 2) @ given.q_BLD,
        lambda: slope_BLL.sum(-1),
    )
    return [maker() if need else None for maker, need in zip(makers, needed, strict=True)]


def _attacked(kept_BL: Tensor) -> Tensor:
    """1 for the queries that keep a key, BL1: the others attend as if unmasked."""
    return (kept_BL > 0).to(kept_BL.dtype).unsqueeze(-1)
