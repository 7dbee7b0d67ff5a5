"""A method's passes over Hugging Face's accelerate, and the means of the terms it reports."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from asa.batch import Batch
from asa.engine import Passes
from asa.methods.base import add
from asa.model import Output, TaskModel
from asa.optim import OptimConfig
from asa.record import numbers
from asa.signal import Perturb, Tap

try:
    from accelerate import Accelerator
except ModuleNotFoundError as error:
    if error.name != "accelerate":
        raise
    raise ModuleNotFoundError(
        "AdversarialTrainer needs accelerate; pip install '.[trainer]'", name=error.name
    ) from None


class AcceleratedPasses(Passes):
    """What a method may use of an Engine; the Trainer updates, schedules and saves. `steps`: updates of the whole run.

    Autocast is in the model's own forward, where accelerate put it.
    """

    def __init__(self, module: TaskModel, steps: int, accelerator: Accelerator) -> None:
        # Rates are the Trainer's, so that no setting of ours is read.
        super().__init__(module, OptimConfig(), steps, accelerator.device)
        self._accelerator = accelerator

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        return self.probe(batch, perturb, tap)

    def types(self) -> AbstractContextManager[Any]:
        return self._accelerator.autocast()

    def backward(self, loss: Tensor) -> None:
        with self._own_types():
            self._accelerator.backward(loss)

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        """Gradients in `wrt`; on their way through an fp16 model they are scaled, or small ones would vanish."""
        scaler = self._accelerator.scaler
        if scaler is None or scaled:
            return super().ascend(loss, wrt)
        scale = scaler.scale(torch.ones((), device=loss.device))
        return tuple(gradient / scale for gradient in super().ascend(loss * scale, wrt))


class Means:
    """Means of what a method reports, each over the optimizer steps that had it; nothing waits for the device before
    `drain`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._had: set[str] = set()
        self._steps: Counter[str] = Counter()

    def add(self, terms: dict[str, Tensor]) -> None:
        """One micro-batch's shares of its step's terms."""
        add(self._sums, terms)
        self._had.update(terms)

    def step(self) -> None:
        """The step of the micro-batches so far is made."""
        self._steps.update(self._had)
        self._had.clear()

    def drain(self) -> dict[str, float]:
        """Each term's mean since the last drain; of a term per layer, the mean over the layers too.

        Raises: RequestError for masked_share of more than 1.
        """
        found = {name: value / max(1, self._steps[name]) for name, value in self._sums.items()}
        numbers({name: value.flatten() for name, value in found.items() if name == "masked_share"})  # refused beyond 1
        means = {name: value.mean().item() for name, value in found.items()}
        self._sums, self._steps = {}, Counter()
        return means
