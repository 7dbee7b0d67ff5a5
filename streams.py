"""Output that outlives its reader: what is told of a run must not end it."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import BufferedWriter, RawIOBase, TextIOWrapper
from typing import Any, TextIO, TypeVar, cast

from asa.places import FULL

T = TypeVar("T")


class Lasting:
    """A text stream that writes nowhere from when its reader has gone: a pipe whose other end Ctrl-C has ended as well,
    a terminal that was closed. So it does on a full disk, which it notes: what was written there is cut off.

    by_line: it is written out at the ends of lines, and not piece by piece."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = self._under = stream
        self.full = self.by_line = False

    def collect(self) -> None:
        """Write out lines where pieces would be: by a buffer, without which one may be written in part, unnoticed."""
        raw: object = self._stream.buffer
        if isinstance(raw, RawIOBase):
            self.by_line = True
            self._stream = TextIOWrapper(BufferedWriter(raw), self._stream.encoding, self._stream.errors)

    def release(self) -> None:
        """Undo `collect`, after a flush. Handlers of logs, say, still hold this and go on with what was under it."""
        if self.by_line:
            buffered, self._stream, self.by_line = self._stream, self._under, False
            cast(BufferedWriter, cast(TextIOWrapper, buffered).detach()).detach()

    def write(self, text: str) -> int:
        count = self._or_lose(lambda: self._stream.write(text), len(text))
        if self.by_line and text.endswith("\n"):
            self.flush()
        return count

    def flush(self) -> None:
        self._or_lose(self._stream.flush, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _or_lose(self, work: Callable[[], T], instead: T) -> T:
        try:
            return work()
        except OSError as error:
            self.full |= error.errno in FULL
            # The descriptor itself, which C++ libraries and children share; what is buffered goes there as well.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            return instead


@contextmanager
def lasting_output() -> Generator[list[Lasting]]:
    """Inside, stdout and stderr last, what their encoding lacks is written as escapes, and lines to 8 KiB are not mixed
    with those of processes that write to the same place: under PYTHONUNBUFFERED, which containers set, a line's end
    would come by itself. Gives the streams."""
    before: dict[str, TextIO | None] = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    lasting = {name: Lasting(stream) for name, stream in before.items() if stream}  # None after `>&-`
    for name, stream in lasting.items():
        if isinstance(before[name], TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            stream.collect()
        setattr(sys, name, stream)
    try:
        yield list(lasting.values())
    finally:
        for name, stream in lasting.items():
            stream.flush()
            stream.release()
            setattr(sys, name, before[name])
