"""`python -m tests.stopping OWNER NAME CALL MODULE ARGUMENTS`: runs a module that stops itself, as by SIGSTOP, right
after a call (counted from 1) of OWNER's NAME. So a kill finds it there, however fast or busy the machine."""

import itertools
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

LONGEST = 300.0  # seconds until a process stops or ends


def command(owner: str, name: str, call: int, words: list[str]) -> list[str]:
    """The same as the words of a `python -m MODULE ARGUMENTS`, but that it stops itself."""
    python, flag, *rest = words
    return [python, flag, "tests.stopping", owner, name, str(call), *rest]


def stopped(process: subprocess.Popen[Any]) -> bool:
    """Whether a child has stopped itself, once it has or has come to its end."""
    deadline = time.monotonic() + LONGEST
    while process.poll() is None:
        if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            return True
        assert time.monotonic() < deadline, "neither stopped nor ended"
        time.sleep(0.01)
    return False


def main(owner: str, name: str, call: int, module: str) -> None:
    place = pkgutil.resolve_name(owner)
    work, calls = getattr(place, name), itertools.count(1)

    def counted(*rest: Any, **named: Any) -> Any:
        found = work(*rest, **named)
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGSTOP)
        return found

    setattr(place, name, counted)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _, owner_, name_, call_, module_ = sys.argv[:5]
    del sys.argv[1:5]
    main(owner_, name_, int(call_), module_)
