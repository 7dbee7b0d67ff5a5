"""SIGTERM, SIGINT and SIGHUP ask the run to stop in order: a request to one rank is known to all after the step."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from asa import dist
from asa.stop_signals import handled


class Stop:
    """Whether a signal has come, to this rank or another."""

    def __init__(self) -> None:
        self.signal = 0  # this rank's own; 0 where none has come
        self._interrupts = 0

    @contextmanager
    def caught(self) -> Iterator["Stop"]:
        """Inside, a signal is only noted. A second SIGINT interrupts at once, as one who presses Ctrl-C again means."""

        def note(number: int, frame: object) -> None:
            self.signal = number
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                raise KeyboardInterrupt

        with handled(note):
            yield self

    def agreed(self) -> bool:
        """The answer that all ranks get; all of them must ask. A few bytes between hosts: no device waits for it."""
        return dist.any_(bool(self.signal))
