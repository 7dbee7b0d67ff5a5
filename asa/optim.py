"""AdamW, its parameter groups and the learning-rate schedule: the same objects for every engine."""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from asa.config import config


@config
class OptimConfig:
    """AdamW with linear warm-up and linear decay to zero, one optimizer for the model and its adversaries."""

    lr: Annotated[float, Field(gt=0, le=1)] = 2e-5
    """Peak learning rate."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.06
    """Share of the optimizer steps spent warming up."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Decoupled weight decay; biases and LayerNorm weights have none."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the second moment."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest global gradient norm of one step; 0 turns clipping off."""


def build_optimizer(module: nn.Module, optim: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters in two groups, matrices with decay and vectors without."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps)


def learning_rate(optim: OptimConfig, step: int, steps: int) -> float:
    """The rate of update number `step` (from 0) of `steps`; FP16 skips do not advance it."""
    warmup = round(optim.warmup * steps)
    if step < warmup:
        return optim.lr * (step + 1) / warmup
    return optim.lr * max(0.0, (steps - step) / max(1, steps - warmup))
