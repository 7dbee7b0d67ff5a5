"""A method that fails at its third pass on one rank, by `outside`: rank, and what (memory, work, bug), or nan, and the
rank's next predictions are not finite, or disk, and the rank does not get to read its model."""

import errno
from typing import Any

import torch

from asa import dist
from asa.batch import Batch
from asa.engine import Engine
from asa.errors import WorkError
from asa.methods import At, MethodsConfig
from asa.methods.vanilla import Vanilla
from finetune import loop
from finetune.model import HEADS
from finetune.predictions import Predictions

ERRORS: dict[str, Any] = {
    "memory": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "work": lambda: WorkError("something is damaged"),
    "bug": lambda: KeyError("a bug"),
}


predict = loop.predict


def spoiled(*given: Any) -> Predictions:
    """Once."""
    loop.predict = predict
    found = predict(*given)
    return found._replace(logits=[row * float("nan") for row in found.logits])


class Unread:
    """In place of a class of Hugging Face's, once."""

    real = HEADS["classification"]

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> None:
        HEADS["classification"] = cls.real
        raise OSError(errno.EIO, "Input/output error")


class Failing(Vanilla):
    def __init__(self, settings: MethodsConfig) -> None:
        self.rank, self.what = settings.outside["rank"], str(settings.outside["what"])
        self.passes_made = 0
        if self.what == "disk" and dist.rank() == self.rank and HEADS["classification"] is not Unread:
            HEADS["classification"] = Unread

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, torch.Tensor]:
        self.passes_made += 1
        if self.passes_made == 3 and dist.rank() == self.rank:
            if self.what != "nan":
                raise ERRORS[self.what]()
            loop.predict = spoiled
        return super().backward(engine, batch, at)
