"""What a run is: one cell of the sweep, and the settings that are its own."""

from pathlib import Path
from typing import NamedTuple

from finetune.config import FinetuneConfig


class Run(NamedTuple):
    """One cell of the sweep. trial: which of the settings that `finetune tune` tries, None elsewhere."""

    task: str
    model: str
    method: str
    seed: int
    trial: int | None = None

    @property
    def name(self) -> str:
        """Its folder below OUT."""
        trial = "" if self.trial is None else f"trial-{self.trial}/"
        return f"{trial}{self.task}/{self.model}-{self.method}-{self.seed}"


class Cell(NamedTuple):
    """A run with the settings that are its own."""

    run: Run
    config: FinetuneConfig

    @property
    def folder(self) -> Path:
        return self.config.out / self.run.name
