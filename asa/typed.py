"""What torch gives no types, or types in part, with the types that it has: strict checking asks for them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

_torch: Any = torch

manual_seed: Callable[[int], torch.Generator] = _torch.manual_seed
fork_rng: Callable[..., AbstractContextManager[None]] = _torch.random.fork_rng
vector_norm: Callable[..., Tensor] = _torch.linalg.vector_norm


class Function(torch.autograd.Function):
    """torch's, whose `apply` gives what `forward` returns."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: Any, **kwargs: Any) -> Any: ...
