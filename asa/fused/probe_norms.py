"""Whether the norms' kernels compute on a device what they are to: a few rows, against torch's formulas in fp64."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asa.fused.norms import AddNorm, Options
from asa.fused.probe import DROPOUTS, LIMIT_OF_SHARE, kept_state, size
from asa.spare import spare

# N rows, W width

MOST_NUMBERS = 2**16  # of a problem
SHARES = 2  # of which each has several tiles
EPS = 1e-5
LIMIT_OF_ZEROS = 1e-3  # a gradient that is spared may happen to be 0
# Largest relative error, in the Euclidean norm; some times what rounding gives.
LIMITS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2.4e-2}
NAMES = ("norm", *(f"gradient to the norm's {name}" for name in ("x", "residual", "bias", "gain", "shift")))


def fault(device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """What the kernels get wrong for rows of this width, None where nothing. Torch's generators stay as they are."""
    operands, arriving_NW = _problem(dtype, width)
    with kept_state(device):
        for dropout in DROPOUTS:
            given = [x.to(device).requires_grad_() for x in operands]
            y_NW = AddNorm.apply(*given, Options(EPS, dropout), SHARES)
            grads = torch.autograd.grad(y_NW, given, arriving_NW.to(device))
            # What is dropped has no gradient; what is not has that of the residual, which is not 0.
            spared_NW = (grads[0] != 0).cpu()
            share = spared_NW.double().mean().item()
            if abs(share - (1 - dropout)) > LIMIT_OF_SHARE * (dropout > 0) + LIMIT_OF_ZEROS:
                return f"dropout {dropout} spares {share:.2g} of the numbers"
            wanted = _formulas(operands, spared_NW * spare(dropout)[1], arriving_NW)
            for name, one, other in zip(NAMES, (y_NW.detach(), *grads), wanted, strict=True):
                error = size(one.cpu().double() - other) / size(other)
                if not error <= LIMITS[dtype]:
                    return f"{name} is off by {error:.2g} of its size with dropout {dropout}"
    return None


def _problem(dtype: torch.dtype, width: int) -> tuple[list[Tensor], Tensor]:
    """x and residual NW, bias, gain and shift W; what arrives at the norm, NW."""
    draw, rows = torch.Generator().manual_seed(0), max(7, MOST_NUMBERS // width | 1)  # the last tile is not full
    shapes = [(rows, width)] * 2 + [(width,)] * 3 + [(rows, width)]
    *operands, arriving_NW = (torch.randn(shape, generator=draw).to(dtype) for shape in shapes)
    return operands, 16 * arriving_NW  # or in fp16, once in 600 trials, a gradient that is spared is rounded to 0


def _formulas(operands: list[Tensor], factors_NW: Tensor, arriving_NW: Tensor) -> tuple[Tensor, ...]:
    """The norm and its gradients, on the CPU: the device is what is tried."""
    given = [one.double().requires_grad_() for one in operands]
    x_NW, residual_NW, bias_W, gain_W, shift_W = given
    y_NW = F.layer_norm((x_NW + bias_W) * factors_NW + residual_NW, bias_W.shape, gain_W, shift_W, EPS)
    return y_NW.detach(), *torch.autograd.grad(y_NW, given, arriving_NW.double())
