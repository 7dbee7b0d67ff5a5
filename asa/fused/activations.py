"""GELU whose backward pass is one kernel with the sum for the bias before it. Imports Triton, so it is itself imported
on first use."""

from typing import Any

import torch
from torch import Tensor

from asa.fused import GELU
from asa.fused.gelu import gelu_gradient_kernel  # pyright: ignore[reportUnknownVariableType]  # kernels have no types
from asa.fused.launch import parts, run
from asa.typed import Function, first_only

# B, L rows by whatever sizes, W width

SHARES = 132  # one for each multiprocessor of an H200, by each strip of columns; not tuned
TILE: dict[str, int] = {"R": 4, "C": 256, "num_warps": 4}  # by the compiler's count of instructions; not tuned


class Gelu(Function):
    """asa.fused.biased_gelu. most_shares: of the rows in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x_BLW: Tensor, bias_W: Tensor, most_shares: int = SHARES) -> Tensor:
        ctx.save_for_backward(x_BLW)
        ctx.most_shares = most_shares
        return GELU(x_BLW)

    @staticmethod
    @first_only("fused activations", ", or call asa.fused.DEVICES.clear() first")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x_BLW,) = ctx.saved_tensors
        width = x_BLW.shape[-1]
        rows = x_BLW.numel() // width
        shares = min(ctx.most_shares, parts(rows, TILE["R"]))
        dx_BLW = torch.empty_like(x_BLW)
        of_shares = torch.empty(shares, width, dtype=torch.float32, device=x_BLW.device)
        grid = parts(width, TILE["C"]), shares
        run(gelu_gradient_kernel, grid, x_BLW, grads[0].contiguous(), dx_BLW, of_shares, rows, width, **TILE)
        return dx_BLW, of_shares.sum(0).to(x_BLW.dtype), None
