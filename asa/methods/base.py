"""What a training method is: one micro-batch in, accumulated gradients out."""

from inspect import get_annotations
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from asa.attention import depth
from asa.batch import Batch
from asa.engine import Engine
from asa.errors import RequestError


class At(NamedTuple):
    """Where in the optimizer step a method is called. slot: micro-batch in the window; replay: pass over the window."""

    slot: int
    replay: int = 0


class Method(Protocol):
    """Turns one micro-batch into accumulated gradients through Engine.forward, probe, ascend and backward.

    It never updates weights or clears gradients: the loop does. The returned terms are sums over units divided by the
    step's totals, detached; added over micro-batches and ranks they are the step's means.

    One may also have check_run(precision, zero), which raises RequestError before anything is trained in an arithmetic
    or at a ZeRO stage that its settings cannot work with, and check_depth(layers) for models of so many.
    """

    replays: int
    """Optimizer steps per window."""
    passes: int
    """Backward passes per micro-batch."""
    uses_adversary: bool
    """Whether the TaskModel must be built with adversaries."""

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]: ...

    def after_step(self, engine: Engine) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


def learn(engine: Engine, terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """One backward of the sum of the terms; what a method returns: that sum as `loss`, and the terms."""
    loss = torch.stack(list(terms.values())).sum()
    engine.backward(loss)
    return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}}


def add(sums: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Add terms to those of the same name in `sums`."""
    for name, term in more.items():
        sums[name] = sums[name] + term if name in sums else term


class Stateless:
    """The parts of the protocol that most methods share: one backward pass, no adversary, no state."""

    replays = 1
    passes = 1
    uses_adversary = False

    def after_step(self, engine: Engine) -> None:
        """Nothing to keep up to date."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Nothing to restore."""
        if state:
            raise ValueError(f"a stateless method was given state: {sorted(state)}")


class Counting(Stateless):
    """A method whose state is the number of updates made, if nothing more."""

    updates = 0

    def after_step(self, engine: Engine) -> None:
        self.updates += 1

    def state_dict(self) -> dict[str, Tensor]:
        return {"updates": torch.tensor(self.updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Raises ValueError for a state that does not tell how many updates were made."""
        if "updates" not in state:
            raise ValueError(f"the state of a method that counts updates holds no updates, only {sorted(state)}")
        self.updates = int(state["updates"])


_PROTOCOL = {*get_annotations(Method), "backward", "after_step", "state_dict", "load_state_dict"}


class Outside:
    """A method from outside the package, held to its `passes`: with no backward pass it would train nothing, and be
    taken for a method that does not help.

    Raises: RequestError where it lacks a part of the protocol; from backward for another number of backward passes,
        for no loss, for terms that are no tensors and for other masked_share than one number a layer.
    """

    def __init__(self, name: str, method: Method) -> None:
        self._name, self._method = name, method
        if lacks := sorted(part for part in _PROTOCOL if not hasattr(method, part)):
            raise RequestError(f"method {name} has no {', '.join(lacks)}; derive it from asa.methods.base.Stateless")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copying asks of an object that has nothing yet
            raise AttributeError(name)
        return getattr(self._method, name)

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        counted = _Counted(engine)
        terms: Any = self._method.backward(cast(Engine, counted), batch, at)
        if not isinstance(terms, dict) or "loss" not in terms:
            had = f"{list(cast('dict[str, Tensor]', terms))}" if isinstance(terms, dict) else type(terms).__name__
            raise RequestError(f"method {self._name} returned {had}; return a dict of its terms, 'loss' among them")
        for term, value in cast("dict[str, Any]", terms).items():
            if not isinstance(value, Tensor):
                had = type(value).__name__
                raise RequestError(f"method {self._name} returned {term} as {had}; return its terms as tensors")
        found = cast("dict[str, Tensor]", terms)
        if "masked_share" in found:
            self._check_shares(found["masked_share"], engine)
        if counted.backwards != self._method.passes:
            raise RequestError(
                f"method {self._name} called engine.backward {counted.backwards} times for a micro-batch and says"
                f" passes = {self._method.passes}; call it that often, or set its passes"
            )
        return found

    def _check_shares(self, shares: Tensor, engine: Engine) -> None:
        layers = depth(engine.module.model)
        if shares.shape != (layers,):
            raise RequestError(
                f"method {self._name} returned masked_share of shape {list(shares.shape)}; return one number for each"
                f" of the {layers} layers"
            )


class _Counted:
    """An engine that counts its backward passes."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.backwards = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def backward(self, loss: Tensor) -> None:
        self.backwards += 1
        self._engine.backward(loss)
