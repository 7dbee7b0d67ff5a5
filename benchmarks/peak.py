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
from torch._subclasses.fake_tensor import FakeTensor

from asa import dist


class Peak(NamedTuple):
    """Bytes in use at most, and those that are still when the work is done."""

    most: int
    stays: int

    @property
    def added(self) -> int:
        """Bytes that came and went."""
        return self.most - self.stays


def peak_bytes(work: Callable[..., object], *args: Any, first: Callable[[], object] | None = None) -> Peak:
    """What `work` has in use: of a GPU if there is one, else of main memory, where `most` is what the process grew by
    and `stays` what its tensors hold.

    work: importable by name, as its arguments are sent to the other process; what it returns is what stays.
    first: what the process does before, and what does not count of main memory.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_measured, work, args, first).result()


def _measured(work: Callable[..., object], args: tuple[Any, ...], first: Callable[[], object] | None) -> Peak:
    if first is not None:
        first()
    before = psutil.Process().memory_info().rss
    kept = work(*args)
    unit = 1 if sys.platform == "darwin" else 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
    gc.collect()
    if torch.cuda.is_available():
        found = Peak(torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())
    else:
        found = Peak(most, _in_tensors())
    del kept
    dist.close()
    return found


def _in_tensors() -> int:
    """Bytes of all tensors that live. torch.compile leaves fake ones, which have a size and no memory."""
    kinds = [(one, type(one)) for one in gc.get_objects()]
    live = [one for one, kind in kinds if issubclass(kind, torch.Tensor) and not issubclass(kind, FakeTensor)]
    storages = [one.untyped_storage() for one in live]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
