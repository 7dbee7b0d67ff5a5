"""Dropout of an attached model on a CPU but for what asa.cpu_attention drops: torch draws it in one thread.

Its probability is rounded to a multiple of 2^-16.
"""

import torch
from torch import Tensor, nn

from asa.signal import Signal
from asa.spare import DRAWS, WIDE, bits, spare
from asa.stock import written_by

FORWARD = nn.Dropout.forward if written_by(nn.Dropout.forward, "torch.") else None  # by others it may be another
SMALL = 2**14  # below so many numbers the calls cost more than they


def dropout(module: nn.Dropout, signal: Signal, input: Tensor) -> Tensor:  # torch's name of it
    """What `module` does in our passes; in others it is the one it was, to the bit."""
    theirs = module.__class__.forward
    ours = signal.now is not None and theirs is FORWARD and module.training and not module.inplace
    return input * _factors(input, module.p) if ours and _suits(input, module.p) else theirs(module, input)


def _suits(x: Tensor, p: float) -> bool:
    # First: a compiler would compile anew for either side of the size.
    ours = not torch.compiler.is_compiling() and x.device.type == "cpu" and x.dtype in WIDE
    return ours and x.numel() >= SMALL and 0 < spare(p)[0] < DRAWS


def _factors(like: Tensor, p: float) -> Tensor:
    """1 / (1 - p), or with probability p 0, independently."""
    threshold, rescale = spare(p)
    return torch.ge(bits(like), threshold - DRAWS // 2, out=torch.empty_like(like)).mul_(rescale)
