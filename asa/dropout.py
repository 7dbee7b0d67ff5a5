"""Dropout of an attached model's hidden states on a CPU: torch's draws 64 bits for each number, in one thread.

Its probability is rounded to a multiple of 2^-16.
"""

import torch
from torch import Tensor, nn

from asa.signal import Signal
from asa.spare import DRAWS, WIDE, bits, spare

SMALL = 2**14  # below so many numbers the calls cost more than they


def dropout(module: nn.Dropout, signal: Signal, x: Tensor) -> Tensor:
    """What `module` does in our passes; in others it is the one it was, to the bit."""
    ours = signal.now is not None and module.training and not module.inplace and _suits(x, module.p)
    return x * _factors(x, module.p) if ours else module.__class__.forward(module, x)


def _suits(x: Tensor, p: float) -> bool:
    large = x.numel() >= SMALL and x.device.type == "cpu" and x.dtype in WIDE
    return large and 0 < spare(p)[0] < DRAWS and not torch.compiler.is_compiling()


def _factors(like: Tensor, p: float) -> Tensor:
    """1 / (1 - p), or with probability p 0, independently."""
    threshold, rescale = spare(p)
    return torch.ge(bits(like), threshold - DRAWS // 2, out=torch.empty_like(like)).mul_(rescale)
