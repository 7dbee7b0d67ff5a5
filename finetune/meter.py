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

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()
        self._lr = 0.0

    @property
    def empty(self) -> bool:
        return not self._counts

    def add(self, terms: dict[str, Tensor], stats: StepStats) -> None:
        """Terms of an update: this rank's share of them."""
        found = {**terms, "grad_norm": torch.as_tensor(stats.grad_norm)}
        add(self._sums, found)
        self._counts.update(found.keys())
        self._lr = stats.lr

    def drain(self) -> dict[str, Value]:
        """The means, the same on every rank; the next line begins. All ranks must call it."""
        for name, value in self._sums.items():
            if name != "grad_norm":  # known to every rank as a whole
                self._sums[name] = dist.sum_(value.clone())
        means = numbers({name: value / self._counts[name] for name, value in self._sums.items()})
        self._sums, self._counts = {}, Counter()
        return {**means, "lr": self._lr}
