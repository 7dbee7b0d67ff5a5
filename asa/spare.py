"""Dropout by 16 random bits each: in asa.cpu_attention, asa.dropout (a CPU's too) and asa.fused (a GPU's)."""

import torch
from torch import Tensor

DRAWS = 2**16  # that 16 bits can be: a probability is rounded to a multiple of 2^-16
WIDE = (torch.float32, torch.float64)  # types in which a CPU draws so


def spare(dropout: float) -> tuple[int, float]:
    """(How many of the draws drop a weight, the factor of the others), for a probability."""
    threshold = round(dropout * DRAWS)
    return threshold, DRAWS / (DRAWS - threshold) if threshold < DRAWS else 0.0


def bits(like: Tensor) -> Tensor:
    """int16 of the shape of `like`, from -2^15 to 2^15 - 1, each as probable, on a CPU: drawn by 64 bits, since torch
    takes as long for any number."""
    drawn = torch.empty((like.numel() + 3) // 4, dtype=torch.int64, device=like.device).random_(-(2**63), None)
    return drawn.view(torch.int16)[: like.numel()].view(like.shape)
