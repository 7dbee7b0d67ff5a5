"""What one rank alone fails at, told to the others where that can be: then the run ends and not the sweep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from asa import dist
from asa.errors import Apart, RequestError, WorkError
from asa.record import Record

T = TypeVar("T")
FULL = "the GPU's memory is full; set --micro_batch (below --batch) or lower --eval_batch"


class Alone(Apart):
    """A failure of this rank, or of a lost one, that others wait for and cannot be told of: the sweep is over."""


def agreed(work: Callable[[], T]) -> T:
    """What `work` gives, in which no rank waits for another. Where it fails on one rank, it fails on all of them.

    Raises: RequestError or WorkError, full memory as such; a bug as itself where it is, and as Alone on the others.
    """
    done: list[T] = []
    error: Exception | None = None
    try:
        done.append(work())
    except Exception as found:
        error = _told(found)
    if dist.any_(error is not None):
        deliberate = isinstance(error, RequestError | WorkError)
        _raise(error, dist.gather(None if error is None else (deliberate, str(error) if deliberate else repr(error))))
    return done[0]


def _raise(error: Exception | None, told: list[Any]) -> None:
    """Args: told, of each rank None or whether it failed on purpose, and how."""
    bugs = [f"rank {rank} failed: {found[1]}" for rank, found in enumerate(told) if found and not found[0]]
    if error is None or (bugs and isinstance(error, RequestError | WorkError)):
        first = next(f"rank {rank}: {found[1]}" for rank, found in enumerate(told) if found)
        error = Alone(bugs[0]) if bugs else WorkError(first)
    raise error


def alone(work: Callable[[], T]) -> T:
    """What `work` gives, in which ranks wait for each other, so that one without memory cannot tell them. Raises: Alone
    for that one, and where a rank that this one waits for is gone."""
    try:
        with dist.loss_told():
            return work()
    except torch.OutOfMemoryError as error:
        found = _told(error)
        raise Alone(f"rank {dist.rank()}: {found}") if dist.world() > 1 else found from None
    except dist.RankLost as error:
        raise Alone(str(error)) from None


def _told(error: Exception) -> Exception:
    return WorkError(FULL) if isinstance(error, torch.OutOfMemoryError) else error


def record_of(folder: Path, facts: dict[str, Any], resume: int | None) -> Record:
    """Rank 0's record of a run, an idle one elsewhere. Raises WorkError, on every rank, where it cannot be written."""
    made: list[Record] = []
    dist.on_main(lambda: made.append(Record(folder, facts, True, resume)))
    return made[0] if made else Record(folder, facts, active=False)
