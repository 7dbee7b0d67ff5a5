"""python -m benchmarks COMMAND: what steps, runs and their data cost, peers in the same run (docs/benchmarks.md)."""

import ast
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

COMMANDS = (
    "flops",
    "traffic",
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
    """Make SIGTERM and SIGHUP the end of what was started and an exit in order; not what nohup has ignored."""
    for stop in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(stop) != signal.SIG_IGN:
            signal.signal(stop, _end)


def _end(number: int, _: object) -> None:
    """Asks all processes below this one to end: whoever has started one waits for it, some for as long as it works."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    sys.exit(128 + number)


if __name__ == "__main__":
    # Here, because worker processes import this file again and need none of it.
    import cli

    end_in_order()
    cli.main({name: command(name) for name in COMMANDS}, "benchmarks")
