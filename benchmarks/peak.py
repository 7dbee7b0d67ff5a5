"""Peak memory of a piece of work, in a process of its own that nothing else has grown."""

import multiprocessing
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import psutil
import torch


def peak_bytes(work: Callable[..., None], *args: Any) -> int:
    """Bytes that `work` has in use at most: of a GPU if there is one, else of main memory beyond what the imports took.

    work: importable by name, as its arguments are sent to the other process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_measured, work, args).result()


def _measured(work: Callable[..., None], args: tuple[Any, ...]) -> int:
    before = psutil.Process().memory_info().rss
    work(*args)
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
