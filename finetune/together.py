"""What one rank alone fails at, told to the others where that can be: then the run ends and not the sweep."""

from collections.abc import Callable
from typing import TypeVar

import torch

from asa import dist
from asa.errors import Apart, WorkError

T = TypeVar("T")
FULL = "the GPU's memory is full; set --micro_batch (below --batch) or lower --eval_batch"


class Alone(Apart):
    """A failure of this rank, or of a lost one, that others wait for and cannot be told of: the sweep is over."""


def told_to_all(work: Callable[[], T]) -> T:
    """What `work` gives, in which no rank waits for another. Where it fails on one rank, it fails on all of them.

    Raises: RequestError or WorkError, full memory as such; a bug as itself where it is, and as Alone on the others.
    """

    def told() -> T:
        try:
            return work()
        except torch.OutOfMemoryError:
            raise WorkError(FULL) from None

    try:
        return dist.agreed(told)
    except Apart as error:
        raise Alone(str(error)) from None


def with_waiting(work: Callable[[], T]) -> T:
    """What `work` gives, in which ranks wait for each other, so that one without memory cannot tell them. Raises: Alone
    for that one, and where a rank that this one waits for is gone."""
    try:
        with dist.loss_told():
            return work()
    except torch.OutOfMemoryError:
        raise Alone(f"rank {dist.rank()}: {FULL}") if dist.world() > 1 else WorkError(FULL) from None
    except dist.RankLost as error:
        raise Alone(str(error)) from None
