"""The means that a log line of training shows."""

from collections import Counter

import torch
from torch import Tensor

from asa import dist
from asa.engine import StepStats
from asa.methods.base import add
from asa.record import Value, numbers


class Meter:
    """Means of the training terms since the last log line, each over the steps that had it; nothing waits for the
    device before `drain`."""

    def __init__(self, dynamic_scale: bool = False) -> None:
        """Args: dynamic_scale tells that updates may be left out and the loss scale lowered, as in FP16."""
        self._dynamic = dynamic_scale
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()
        self._lr, self._scale, self._skipped = 0.0, 1.0, 0

    @property
    def empty(self) -> bool:
        return not (self._counts or self._skipped)

    def add(self, terms: dict[str, Tensor], stats: StepStats) -> None:
        """Terms of an update: this rank's share of them."""
        found = {**terms, "grad_norm": torch.as_tensor(stats.grad_norm)}
        add(self._sums, found)
        self._counts.update(found.keys())
        self._lr, self._scale = stats.lr, stats.loss_scale

    def skip(self, stats: StepStats) -> None:
        """An update was not made."""
        self._skipped += 1
        self._lr, self._scale = stats.lr, stats.loss_scale

    def drain(self) -> dict[str, Value]:
        """The means, the same on every rank; the next line begins. All ranks must call it."""
        for name, value in self._sums.items():
            if name != "grad_norm":  # known to every rank as a whole
                self._sums[name] = dist.all_reduce_(value.clone())
        means = numbers({name: value / self._counts[name] for name, value in self._sums.items()})
        scale = {"loss_scale": self._scale, "skipped": self._skipped} if self._dynamic else {}
        self._sums, self._counts, self._skipped = {}, Counter(), 0
        return {**means, "lr": self._lr, **scale}
