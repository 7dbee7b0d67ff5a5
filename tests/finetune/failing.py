"""A method that fails at its third pass on one rank, by `outside`: rank, and what (memory, work, bug)."""

from typing import Any

import torch

from asa import dist
from asa.batch import Batch
from asa.engine import Engine
from asa.errors import WorkError
from asa.methods import At, MethodsConfig
from asa.methods.vanilla import Vanilla

ERRORS: dict[str, Any] = {
    "memory": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "work": lambda: WorkError("something is damaged"),
    "bug": lambda: KeyError("a bug"),
}


class Failing(Vanilla):
    def __init__(self, settings: MethodsConfig) -> None:
        self.rank, self.what = settings.outside["rank"], str(settings.outside["what"])
        self.passes_made = 0

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, torch.Tensor]:
        self.passes_made += 1
        if self.passes_made == 3 and dist.rank() == self.rank:
            raise ERRORS[self.what]()
        return super().backward(engine, batch, at)
