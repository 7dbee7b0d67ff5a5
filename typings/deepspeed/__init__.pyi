"""What asa/zero.py uses of DeepSpeed, which has no types."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

ops: Any

def initialize(*, model: nn.Module, optimizer: Optimizer, config: dict[str, Any]) -> tuple[Any, Any, None, None]: ...
