"""Pre-training as `python -m pretrain run` does it, with a fault put in: started by tests in its place.

The environment variable FAULT is nan:STEP, hang:STEP; a hang and a NaN happen in rank 1.
"""

import os
import sys
import time
from typing import Any, cast

from asa import dist
from asa.methods import vanilla
from pretrain.data import Batches
from pretrain.process import run


def main() -> None:
    kind, _, step = os.environ["FAULT"].partition(":")
    if kind == "hang":
        hang_at(int(step))
    elif kind == "nan":
        nan_at(int(step))
    run(sys.argv[2:])


def hang_at(step: int) -> None:
    """Reading the rows of a step (from 1) never ends on rank 1."""
    real = Batches.step

    def reading(batches: Batches, number: int, slots: int) -> Any:
        while number + 1 == step and dist.rank() == 1:
            time.sleep(0.1)
        return real(batches, number, slots)

    cast(Any, Batches).step = reading


def nan_at(step: int) -> None:
    """The loss of a step's only micro-batch is NaN on rank 1."""
    real, calls = vanilla.task_loss, 0

    def task_loss(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*args) * (float("nan") if calls == step and dist.rank() == 1 else 1.0)

    vanilla.task_loss = task_loss


if __name__ == "__main__":
    main()
