"""LayerNorm(dropout(x + bias) + residual) by the kernels, as one differentiable function. Imports Triton, so it is
itself imported on first use."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from asa.fused.launch import parts, run, seed_of

# Kernels have no types.
from asa.fused.normal import norm_gradient_kernel, norm_kernel, shares_kernel  # pyright: ignore[reportUnknownVariableType]
from asa.spare import spare
from asa.typed import Function, first_only

# N rows, W width

SHARES = 528  # four for each multiprocessor of an H200; not tuned
ONE_TILE = 2048  # numbers; not tuned


class Options(NamedTuple):
    """eps: added to the variance. dropout: probability."""

    eps: float
    dropout: float


class AddNorm(Function):
    """asa.fused.add_norm. Args: tensors contiguous and of one type. most_shares: of the rows in the backward pass, each
    of which one block of threads goes through."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NW: Tensor,
        residual_NW: Tensor,
        bias_W: Tensor,
        gain_W: Tensor,
        shift_W: Tensor,
        options: Options,
        most_shares: int = SHARES,
    ) -> Tensor:
        (rows, width), (eps, dropout) = x_NW.shape, options
        y_NW, seed = torch.empty_like(x_NW), seed_of(x_NW.device, dropout)
        means_N, scales_N = (torch.empty(rows, dtype=torch.float32, device=x_NW.device) for _ in range(2))
        settings = tile(width)
        run(
            norm_kernel, (parts(rows, settings["R"]),),
            x_NW, bias_W, residual_NW, gain_W, shift_W, y_NW, means_N, scales_N, seed, rows, width, eps,
            *spare(dropout), DROPOUT=dropout > 0, **settings,
        )  # fmt: skip
        ctx.save_for_backward(x_NW, bias_W, residual_NW, gain_W, means_N, scales_N, seed)
        ctx.dropout, ctx.most_shares = dropout, most_shares
        return y_NW

    @staticmethod
    @first_only("fused norms")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_NW, bias_W, residual_NW, gain_W, means_N, scales_N, seed = ctx.saved_tensors
        rows, width = x_NW.shape
        settings = tile(width)
        shares = min(ctx.most_shares, parts(rows, settings["R"]))
        of_shares = torch.empty(shares, 3, width, dtype=torch.float32, device=x_NW.device)
        d_residual_NW = torch.empty_like(residual_NW)
        dx_NW = torch.empty_like(x_NW) if ctx.dropout else d_residual_NW
        run(
            norm_gradient_kernel, (shares,),
            x_NW, bias_W, residual_NW, gain_W, grads[0].contiguous(), means_N, scales_N, dx_NW, d_residual_NW,
            of_shares, seed, rows, width, *spare(ctx.dropout), DROPOUT=ctx.dropout > 0, **settings,
        )  # fmt: skip
        total_3W = torch.empty(3, width, dtype=gain_W.dtype, device=x_NW.device)
        run(shares_kernel, (parts(3 * width, 64),), of_shares, total_3W, shares, 3 * width, S=32, C=64, num_warps=4)
        return dx_NW, d_residual_NW, total_3W[0], total_3W[1], total_3W[2], None, None


def tile(width: int) -> dict[str, int]:
    """Launch settings for rows of this width."""
    columns = max(8, 1 << (width - 1).bit_length())  # eight share a draw
    return {"R": max(1, ONE_TILE // columns), "D": columns, "num_warps": 4}
