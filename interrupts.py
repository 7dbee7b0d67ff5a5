"""Ctrl-C as one line wherever it falls: while libraries are imported, too, some of which make another error of it."""

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import NoReturn

LINE = "error: interrupted; run the same command again to go on"
_came = False


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handler of a signal that is to end the work: as Python's own of SIGINT, and noted."""
    global _came
    _came = True
    raise KeyboardInterrupt


def is_one(error: BaseException) -> bool:
    """Whether an error is of such a signal, as far as one can tell: nothing fails for another reason after it."""
    return _came or isinstance(error, KeyboardInterrupt)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Before a command's guard. Anything else keeps its traceback."""
    if is_one(error):
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
