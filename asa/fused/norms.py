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

# B, L rows by whatever sizes, N of them in all, D width

SHARES = 528  # four for each multiprocessor of an H200; not tuned
ONE_TILE = 2048  # numbers; not tuned
SUMS: dict[str, int] = {"S": 32, "C": 64, "num_warps": 4}  # shares and columns in one go; not tuned


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
        x_BLD: Tensor,
        residual_BLD: Tensor,
        bias_D: Tensor,
        gain_D: Tensor,
        shift_D: Tensor,
        options: Options,
        most_shares: int = SHARES,
    ) -> Tensor:
        (rows, width), (eps, dropout) = _sizes(x_BLD), options
        y_BLD, seed = torch.empty_like(x_BLD), seed_of(x_BLD.device, dropout)
        # Not parts of one, whose second would begin where rows have it: Triton compiles anew for other alignments.
        means_N, scales_N = (x_BLD.new_empty(rows, dtype=torch.float32) for _ in range(2))
        settings = tile(width)
        run(
            norm_kernel, (parts(rows, settings["R"]),),
            x_BLD, bias_D, residual_BLD, gain_D, shift_D, y_BLD, means_N, scales_N, seed, rows, width, eps,
            *spare(dropout), DROPOUT=dropout > 0, **settings,
        )  # fmt: skip
        ctx.save_for_backward(x_BLD, bias_D, residual_BLD, gain_D, means_N, scales_N, seed)
        ctx.dropout, ctx.most_shares = dropout, most_shares
        return y_BLD

    @staticmethod
    @first_only("fused norms", ", or call asa.fused.DEVICES.clear() first")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_BLD, bias_D, residual_BLD, gain_D, means_N, scales_N, seed = ctx.saved_tensors
        (rows, width), settings = _sizes(x_BLD), tile(x_BLD.shape[-1])
        shares = min(ctx.most_shares, parts(rows, settings["R"]))
        of_shares = torch.empty(shares, 3, width, dtype=torch.float32, device=x_BLD.device)
        d_residual_BLD = torch.empty_like(residual_BLD)
        # Without dropout one tensor for both: of such torch makes copies where it keeps them.
        dx_BLD = torch.empty_like(x_BLD) if ctx.dropout else d_residual_BLD
        run(
            norm_gradient_kernel, (shares,),
            x_BLD, bias_D, residual_BLD, gain_D, grads[0].contiguous(), means_N, scales_N, dx_BLD, d_residual_BLD,
            of_shares, seed, rows, width, *spare(ctx.dropout), DROPOUT=ctx.dropout > 0, **settings,
        )  # fmt: skip
        totals = [torch.empty_like(gain_D) for _ in range(3)]  # not parts of one, which would be saved with each
        run(shares_kernel, (parts(width, SUMS["C"]), 3), of_shares, *totals, shares, width, **SUMS)
        return dx_BLD, d_residual_BLD, *totals, None, None


def _sizes(x_BLD: Tensor) -> tuple[int, int]:
    """Rows and their width."""
    width = x_BLD.shape[-1]
    return x_BLD.numel() // width, width


def tile(width: int) -> dict[str, int]:
    """Launch settings for rows of this width."""
    columns = max(8, 1 << (width - 1).bit_length())  # eight share a draw
    return {"R": max(1, ONE_TILE // columns), "D": columns, "num_warps": 4}
