"""Ordered work on several processes with bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from asa.errors import WorkError

T = TypeVar("T")
R = TypeVar("R")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items in order, the last one shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def ordered_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """`map` over `workers` processes, results in input order; one worker means this process.

    Raises: WorkError when a worker process dies.
    """
    if workers == 1:
        yield from map(function, items)
        return
    # Spawned, because forking a process that runs tokenizer or Arrow threads can deadlock.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield from _windowed(pool, function, items, 4 * workers)
        except BrokenProcessPool:
            raise WorkError(f"a worker process died (often: out of memory); set --workers below {workers}") from None


def _windowed(pool: ProcessPoolExecutor, function: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """A window of unfinished calls: Executor.map would read the whole dump into memory first."""
    window = deque()
    for item in items:
        window.append(pool.submit(function, item))
        if len(window) >= ahead:
            yield window.popleft().result()
    while window:
        yield window.popleft().result()
