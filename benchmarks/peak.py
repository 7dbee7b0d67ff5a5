"""Peak memory of a piece of work, in a process of its own that nothing else has grown."""

import gc
import multiprocessing
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import psutil
import torch

from asa import dist


class Peak(NamedTuple):
    """Bytes in use at most, and those that are still when the work is done."""

    most: int
    stays: int

    @property
    def added(self) -> int:
        """Bytes that came and went."""
        return self.most - self.stays


def peak_bytes(work: Callable[..., object], *args: Any) -> Peak:
    """What `work` has in use: of a GPU if there is one, else of main memory, where `most` is what the process grew by
    and `stays` what its tensors hold.

    work: importable by name, as its arguments are sent to the other process; what it returns is what stays.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_measured, work, args).result()


def _measured(work: Callable[..., object], args: tuple[Any, ...]) -> Peak:
    before = psutil.Process().memory_info().rss
    kept = work(*args)
    unit = 1 if sys.platform == "darwin" else 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
    gc.collect()
    found = Peak(most, _in_tensors())
    if torch.cuda.is_available():
        found = Peak(torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())
    del kept
    dist.close()
    return found


def _in_tensors() -> int:
    """Bytes of all tensors that live."""
    storages = [one.untyped_storage() for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
