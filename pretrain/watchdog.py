"""A run that makes no progress ends with the name of the rank that keeps the others waiting, instead of never.

A thread of each rank publishes how far its main thread is. When a rank has made no progress for the timeout it reads
what the others have published: a stopped or lost process publishes nothing, one that hangs by itself is behind the
ranks that wait for it.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple, cast

from torch._C._distributed_c10d import Store

from asa import dist

ANSWER = 5.0  # seconds that the store may take to answer
LOST = 3  # publications in a row that a rank may miss before it counts as stopped


class Seen(NamedTuple):
    """What a rank has published last, and when that was noticed here: clocks of other machines are not asked."""

    state: dict[str, Any]
    at: float


class Watchdog:
    """Progress of this rank's main thread, and the threads that watch it. Needs no rank but its own to end."""

    def __init__(self, timeout: float, store: Store | None) -> None:
        self.timeout = timeout
        self.interval = min(5.0, timeout / 10)
        self.beats = 0
        self.seen: dict[int, Seen] = {}
        self._store = store
        self._since = time.monotonic()
        self._main = threading.main_thread().ident or 0
        self._end = threading.Event()

    def beat(self) -> None:
        """The main thread has got one piece of work further."""
        self.beats += 1
        self._since = time.monotonic()

    @contextmanager
    def watching(self) -> Iterator["Watchdog"]:
        """Inside, a hung run ends the process with exit code 1; a timeout of 0 watches nothing."""
        if not self.timeout:
            yield self
            return
        self.beat()
        # Two threads, since the store lives in rank 0: where that is stopped, who asks it waits for ever.
        threads = [
            threading.Thread(target=work, name="watchdog", daemon=True) for work in (self._exchange, self._watch)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._end.set()
            # One that comes back from the store while the interpreter ends would abort the process, its work all done.
            for thread in threads:
                thread.join(2 * ANSWER)

    def _exchange(self) -> None:
        """Publish how far this rank is and note what the others have published, until the store is gone."""
        published = 0
        with suppress(RuntimeError):
            while not self._end.wait(self.interval):
                published += 1
                self._note(dist.rank(), {"number": published, "beats": self.beats, "at": self._place()})

    def _note(self, mine: int, state: dict[str, Any]) -> None:
        self.seen[mine] = Seen(state, time.monotonic())
        if self._store is None:
            return
        self._store.set(f"watchdog/{mine}", json.dumps(state))
        for rank in range(dist.world()):
            if rank != mine and self._store.check([f"watchdog/{rank}"]):
                theirs = json.loads(self._store.get(f"watchdog/{rank}"))
                if rank not in self.seen or theirs != self.seen[rank].state:
                    self.seen[rank] = Seen(theirs, time.monotonic())

    def _watch(self) -> None:
        while not self._end.wait(self.interval):
            idle = time.monotonic() - self._since
            if idle > self.timeout:
                since = time.monotonic() - LOST * self.interval
                states = {rank: self.seen.get(rank) for rank in range(dist.world())}
                print(f"error: {verdict(idle, states, since)}", file=sys.stderr, flush=True)
                traceback.print_stack(sys._current_frames().get(self._main), file=sys.stderr)
                if dist.is_main():
                    time.sleep(2 * self.interval)  # until the others have read the store as well
                os._exit(1)  # the main thread cannot be reached

    def _place(self) -> str:
        """The project's own code that the main thread is in, innermost."""
        frame: FrameType | None = sys._current_frames().get(self._main)
        while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] not in ("asa", "pretrain"):
            frame = frame.f_back
        return "an unknown place" if frame is None else f"{frame.f_globals['__name__']}:{frame.f_lineno}"


def verdict(idle: float, states: dict[int, Seen | None], since: float) -> str:
    """One line that names the ranks at fault. Args: states by rank; since, the time after which every rank that lives
    has published something."""
    said = {rank: seen.state for rank, seen in states.items() if seen is not None and seen.at >= since}
    silent = [rank for rank in states if rank not in said]
    if 0 in silent:
        silent = [0]  # it holds the store: of the others nothing is known then
    text = f"no progress for {idle:.0f} s (--hang_timeout): "
    if silent:
        return text + f"{_ranks(silent)} gave no sign of life, stopped or lost"
    least = min(state["beats"] for state in said.values())
    behind = [rank for rank, state in said.items() if state["beats"] == least]
    places = ", ".join(f"rank {rank} at {said[rank]['at']}" for rank in behind)
    return text + (
        f"{_ranks(behind)} behind the others: {places}" if len(behind) < len(said) else f"all wait: {places}"
    )


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def shared_store() -> Store | None:
    """A connection of the watchdog's own to the process group's store; None for a single process."""
    if dist.world() == 1:
        return None
    store = cast(Any, dist.store()).clone()
    store.set_timeout(timedelta(seconds=ANSWER))
    return store
