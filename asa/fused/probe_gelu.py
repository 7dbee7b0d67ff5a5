"""Whether GELU's kernel computes on a device what it is to: a few rows, against torch's formulas in fp64."""

import torch
import torch.nn.functional as F

from asa.fused.activations import Gelu
from asa.fused.probe import size
from asa.fused.probe_norms import LIMITS

# N rows, W width

ROWS = 37  # of several tiles a share, the last of which is not full
SHARES = 2
SPREAD = 3  # of the numbers: GELU bends within some two of 0, and is a line beyond


def fault(device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """What the kernel gets wrong for rows of this width, None where nothing."""
    draw = torch.Generator().manual_seed(0)
    x_NW, arriving_NW = (torch.randn(ROWS, width, generator=draw) for _ in range(2))
    x_NW, arriving_NW = (x_NW * SPREAD).to(dtype), arriving_NW.to(dtype)
    given = [x_NW.to(device).requires_grad_(), torch.zeros(width, device=device, dtype=dtype, requires_grad=True)]
    found = torch.autograd.grad(Gelu.apply(*given, SHARES), given, arriving_NW.to(device))
    # On the CPU: the device is what is tried.
    wide_NW = x_NW.double().requires_grad_()
    (slope_NW,) = torch.autograd.grad(F.gelu(wide_NW), wide_NW, arriving_NW.double())
    wanted = slope_NW, slope_NW.sum(0)
    for name, one, other in zip(("what it is of", "the bias before it"), found, wanted, strict=True):
        error = size(one.cpu().double() - other) / size(other)
        if not error <= LIMITS[dtype]:
            return f"GELU's gradient to {name} is off by {error:.2g} of its size"
    return None
