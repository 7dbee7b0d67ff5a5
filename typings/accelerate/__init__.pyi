"""What this project uses of accelerate, which has no types."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor

class Accelerator:
    device: torch.device
    distributed_type: DistributedType
    mixed_precision: str
    optimizer_step_was_skipped: bool
    scaler: torch.amp.GradScaler | None
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def autocast(self) -> AbstractContextManager[None]: ...
    def backward(self, loss: Tensor) -> None: ...
