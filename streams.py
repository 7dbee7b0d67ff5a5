"""Output that outlives its reader: what is told of a run must not end it."""

import errno
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from io import RawIOBase, TextIOWrapper
from shutil import get_terminal_size
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from asa.places import FULL

T = TypeVar("T")

CUT_OFF = (*FULL, errno.EFBIG)  # the last is a limit on a file's size
SELDOM = 30.0  # seconds between two states of a bar where there is no terminal


class Lasting:
    """A text stream that writes nowhere from when its reader has gone: a pipe whose other end Ctrl-C has ended as well,
    a terminal that was closed. So it does on a full disk, which it notes: what was written there is cut off.

    by_line: it is written out at the ends of lines, and not piece by piece."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.full = self.by_line = False
        self._pieces = deque[str]()  # of a line; threads may add to it while it is written

    def collect(self) -> None:
        """Write out lines where pieces would be. By nothing of Python's: what a signal interrupts would be kept there,
        and keep a process from its end where nobody reads; and no thread may be in it when it goes."""
        self.by_line = isinstance(self._stream.buffer, RawIOBase)

    def release(self) -> None:
        """Undo `collect`, after a flush. Handlers of logs, say, still hold this and go on with what is under it."""
        self.by_line = False

    def write(self, text: str) -> int:
        if not self.by_line:
            return self._or_lose(lambda: self._stream.write(text), len(text))
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._pieces.append(text)
        if text.endswith("\n"):
            self.flush()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._pieces:
            self._or_lose(self._write_out, None)
        self._or_lose(self._stream.flush, None)

    def _write_out(self) -> None:
        pieces = list[str]()
        with suppress(IndexError):
            while True:
                pieces.append(self._pieces.popleft())
        left = memoryview("".join(pieces).encode(self._stream.encoding, self._stream.errors or "strict"))
        while left:
            count = self._stream.buffer.write(left)  # of a part, where a disk fills
            if count is None:  # somebody has made it non-blocking meanwhile
                os.set_blocking(self._stream.fileno(), True)
            left = left[count or 0 :]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _or_lose(self, work: Callable[[], T], instead: T) -> T:
        try:
            return work()
        except BlockingIOError:  # made so since: what the pipe did not take is lost, what follows waits
            os.set_blocking(self._stream.fileno(), True)
            return instead
        except OSError as error:
            self.full |= error.errno in CUT_OFF
            # The descriptor itself, which C++ libraries and children share; what is buffered goes there as well.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != (lost := self._stream.fileno()):  # as it is where that was closed
                os.dup2(nowhere, lost)
                os.close(nowhere)
            return instead


@contextmanager
def lasting_output() -> Generator[list[Lasting]]:
    """Inside, stdout and stderr last, what their encoding lacks is written as escapes, and lines to 4 KiB are not mixed
    with those of processes that write to the same place: under PYTHONUNBUFFERED, which containers set, a line's end
    would come by itself. What a parent has made non-blocking waits for its reader, or it would lose what a full pipe
    does not take. Gives the streams."""
    before: dict[str, TextIO | None] = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    with open(os.devnull, "w") as nowhere:  # after `>&-` there is None, of which bars fail
        lasting = {name: Lasting(stream or nowhere) for name, stream in before.items()}
        unblocked = list[int]()
        for name, stream in lasting.items():
            if isinstance(before[name], TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
                with suppress(OSError):  # no descriptor: a test's
                    if not os.get_blocking(place := stream.fileno()):
                        os.set_blocking(place, True)
                        unblocked.append(place)
                stream.collect()
            setattr(sys, name, stream)
        try:
            yield list(lasting.values())
        finally:
            for name, stream in lasting.items():
                stream.flush()
                stream.release()
                setattr(sys, name, before[name])
            for place in unblocked:
                with suppress(OSError):  # closed
                    os.set_blocking(place, False)


class _Lines:
    """A stream that gets the states of a bar as lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if state := text.strip():  # what else a bar writes clears a terminal's line
            self._stream.write(state + "\n")

    def flush(self) -> None:
        self._stream.flush()


def bar(what: str, total: int, unit: str, *, often: float = 0.5, **settings: Any) -> tqdm:
    """A progress bar on stderr: redrawn each `often` seconds on a terminal. Elsewhere a line each half minute, since
    what passes the output of other machines on (pdsh, srun) waits for the end of a line, and logs of weeks grow.

    Args: settings, more of tqdm's.
    """
    settings = {**settings, "desc": what, "total": total, "unit": unit, "miniters": 0}
    if sys.stderr.isatty():
        with suppress(OSError, ValueError, AttributeError):  # of a stream that only says it is a terminal
            if not os.get_terminal_size(sys.stderr.fileno()).columns:
                # One that does not tell its size, as in a container: tqdm would take 0 columns for no bar.
                settings["ncols"], settings["nrows"] = get_terminal_size()
        return tqdm(mininterval=often, **settings)
    return tqdm(mininterval=SELDOM, file=_Lines(sys.stderr), **settings)
