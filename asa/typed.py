"""What torch gives no types, or types in part, with the types that it has: strict checking asks for them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asa.errors import RequestError

_torch: Any = torch

manual_seed: Callable[[int], torch.Generator] = _torch.manual_seed
fork_rng: Callable[..., AbstractContextManager[None]] = _torch.random.fork_rng
vector_norm: Callable[..., Tensor] = _torch.linalg.vector_norm


def deterministic() -> None:
    """Kernels that give the same bits every time. Memory that nobody has written is not filled, which torch does beside
    it to find bugs: all outputs of kernels would be written twice."""
    torch.use_deterministic_algorithms(True)
    _torch.utils.deterministic.fill_uninitialized_memory = False


class Function(torch.autograd.Function):
    """torch's, whose `apply` gives what `forward` returns."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: Any, **kwargs: Any) -> Any: ...


def first_only(what: str, otherwise: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a Function's backward that has no derivative. Raises RequestError with create_graph, of which torch's own
    once_differentiable says nothing where what arrives needs no gradient: at a loss it is a number. otherwise: what
    else there is to do than to leave it out."""

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(backward)
        def checked(ctx: Any, *grads: Tensor) -> Any:
            if torch.is_grad_enabled():
                raise RequestError(f"{what} have no second derivative; leave create_graph out{otherwise}")
            return backward(ctx, *grads)

        return checked

    return decorate
