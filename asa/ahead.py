"""What the next step needs, made while the present one is at work."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """`make(step, *rest)` of one step after the other, each made on a thread while its caller works on the one before.

    What is asked for decides when something is made, never what.
    """

    def __init__(self, make: Callable[..., T]) -> None:
        """Args: make has no other callers, and gives the same for the same arguments."""
        self._make = make
        self._thread = ThreadPoolExecutor(1, "ahead")
        self._next: tuple[tuple[int, ...], Future[T]] | None = None

    def __call__(self, step: int, *rest: int) -> T:
        """What is made of a step. Raises whatever `make` does."""
        if self._next is None or self._next[0] != (step, *rest):
            self._begin(step, *rest)
        assert self._next is not None
        made = self._next[1].result()
        self._begin(step + 1, *rest)
        return made

    def _begin(self, *arguments: int) -> None:
        self._next = (arguments, self._thread.submit(self._make, *arguments))

    def close(self) -> None:
        """Nothing is asked for afterwards."""
        self._thread.shutdown(cancel_futures=True)
