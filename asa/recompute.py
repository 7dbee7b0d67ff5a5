"""Activation checkpointing of an attached model: what is run again in the backward pass is perturbed as it was."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from asa.errors import RequestError
from asa.signal import Signal


@dataclass(frozen=True)
class Recalling:
    """A checkpointing function under which what is recomputed is perturbed as it was."""

    function: Callable[..., Any]
    signal: Signal

    def __call__(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        now = self.signal.now

        def perturbed_forward(*args: Any, **kwargs: Any) -> Any:
            with self.signal.during(now):
                return forward(*args, **kwargs)

        return self.function(perturbed_forward, *args, **kwargs)


def recall(blocks: Iterable[nn.Module], signal: Signal) -> None:
    """Make what is checkpointed in these blocks follow the signal. At each pass: any of the models that a block is part
    of may have switched checkpointing on since the last, or have taken it for its own.

    Raises: RequestError for reentrant checkpointing, in which a map used outside its layer gets no gradient.
    """
    for module in _checkpointed(blocks):
        function = module._gradient_checkpointing_func
        if isinstance(function, Recalling):
            if function.signal is signal:
                continue
            function = function.function  # accepted before
        elif getattr(function, "keywords", {}).get("use_reentrant") is not False:
            raise RequestError("activation checkpointing that is reentrant loses gradients; set use_reentrant=False")
        module._gradient_checkpointing_func = Recalling(function, signal)


def forget(module: nn.Module, signal: Signal) -> None:
    """Undo `recall`, where it was for this signal."""
    function = _function(module)
    if isinstance(function, Recalling) and function.signal is signal:
        vars(module)["_gradient_checkpointing_func"] = function.function


def _checkpointed(blocks: Iterable[nn.Module]) -> list[Any]:
    """Hugging Face's code checkpoints blocks, which may lie in somebody's wrapping."""
    found: list[Any] = []
    for block in blocks:
        inner: Iterable[nn.Module] = [block] if hasattr(type(block), "gradient_checkpointing") else block.modules()
        found += [one for one in inner if vars(one).get("gradient_checkpointing") and _function(one) is not None]
    return found


def _function(module: nn.Module) -> Any:
    return vars(module).get("_gradient_checkpointing_func")
