"""Ctrl-C as one line wherever it falls, and not within imports: libraries make other errors of it there."""

import signal
import sys
import threading
from types import FrameType, TracebackType

LINE = "error: interrupted; run the same command again to go on"
LOOK = 0.05  # seconds between two looks whether an import has ended
_IMPORTS = "<frozen importlib._bootstrap>"
_waits = False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handler of a signal that is to end the work: KeyboardInterrupt as Python's own of SIGINT, of one that falls into
    imports when they have ended, or when it comes once more."""
    global _waits
    first = number == signal.SIGALRM or not _waits
    _waits = first and _imports(frame)
    if _waits:
        signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, LOOK if _waits else 0)
    if not _waits:
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTS:
        frame = frame.f_back
    return frame is not None


def end() -> None:
    """For what is still to be done the signal comes too late: of a library's own end it would make a traceback."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    if signal.getsignal(signal.SIGINT) is interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


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
