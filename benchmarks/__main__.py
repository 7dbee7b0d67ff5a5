"""python -m benchmarks COMMAND: what steps, runs and their data cost, peers in the same run (docs/benchmarks.md)."""

import interrupts  # first: it tells Ctrl-C in a line

# isort: split
import ast
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

COMMANDS = (
    "flops",
    "traffic",
    "kernel-time",
    "step-time",
    "memory",
    "finetune-throughput",
    "scaling",
    "startup",
    "upkeep",
    "half-precision",
    "gpu",
)
COMMANDS += ("data-prep", "tokenize", "reader")
GRACE = 20  # seconds that what was started may take to end in order


def command(name: str) -> Callable[[list[str]], None]:
    """The function of its name in the module of its name, which is imported when it is called: torch takes seconds."""
    word = name.replace("-", "_")

    def run(argv: list[str]) -> None:
        getattr(import_module(f"benchmarks.{word}"), word)(argv)

    source = ast.parse(Path(__file__).with_name(f"{word}.py").read_text())
    defined = (part for part in source.body if isinstance(part, ast.FunctionDef))
    run.__doc__ = next(ast.get_docstring(part) for part in defined if part.name == word)
    return run


def end_in_order() -> None:
    """Make signals the end of what was started and an exit in order; not those that nohup or a shell has ignored."""
    for stop in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(stop) != signal.SIG_IGN:
            signal.signal(stop, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """Asks all processes below this one to end and, after a while, makes them: their files lie in folders that are
    removed at the end."""
    import psutil

    below = psutil.Process().children(recursive=True)
    for process in below:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    until = time.monotonic() + GRACE
    while any(map(_works, below)) and time.monotonic() < until:
        time.sleep(0.05)
    for process in filter(_works, below):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    if number == signal.SIGINT:
        return interrupts.interrupt(number, frame)
    sys.exit(128 + number)


def _works(process: "psutil.Process") -> bool:
    """But for multiprocessing's tracker, which ends with the process that it tracks for."""
    import psutil

    try:
        ended = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        return not ended and "multiprocessing.resource_tracker" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    # Here, because worker processes import this file again and need none of it.
    import cli

    end_in_order()
    cli.main({name: command(name) for name in COMMANDS}, "benchmarks")
