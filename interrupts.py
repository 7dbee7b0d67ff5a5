"""Ctrl-C as one line wherever it falls. While a command's modules are loaded it waits: libraries make other errors of
it there. When the command is over it comes too late: of a library's own end it would make a traceback."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Literal

LINE = "error: interrupted; run the same command again to go on"
_IMPORTS = "<frozen importlib._bootstrap>"
_phase: Literal["starts", "works", "holds", "over"] = "starts"
_waits = False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handler of a signal that is to end the work: KeyboardInterrupt as Python's own of SIGINT, or kept until `due`.
    One that comes once more is not kept."""
    global _waits
    kept = _phase in ("holds", "over") or (_phase == "starts" and _imports(frame))
    if _waits or not kept:
        _waits = False
        raise KeyboardInterrupt
    _waits = True


def due() -> None:
    """Raises KeyboardInterrupt for a signal that was kept."""
    global _waits
    if _waits:
        _waits = False
        raise KeyboardInterrupt


def begin() -> None:
    """All that a command needs is loaded: from now on no signal is kept, lest it falls where others are held back."""
    global _phase
    due()
    _phase = "works"


@contextmanager
def held() -> Iterator[None]:
    """Inside, in the main thread, a signal whose handler is `interrupt` is kept until the end, for what must not be
    left half done. One that comes once more is not, and an error inside is the end in any case."""
    global _phase, _waits
    before, _phase = _phase, "holds"
    try:
        yield
    except BaseException:
        _phase, _waits = before, False
        raise
    _phase = before
    if before != "holds":
        due()


def end() -> None:
    """The command is over."""
    global _phase, _waits
    _phase, _waits = "over", False


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTS:
        frame = frame.f_back
    return frame is not None


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Before a command's guard. Anything else keeps its traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print(LINE, file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _uncaught
# Not where SIGINT is ignored, as by a shell's background jobs, or the caller has a way of his own.
if (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, interrupt)
