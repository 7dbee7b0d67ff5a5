"""Commands that a benchmark runs as a user has them, each a process with processes of its own."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from asa.errors import WorkError

GRACE = 20  # seconds that a command may take to end in order


@contextmanager
def started(
    command: Sequence[str], settings: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """A process and the file of what it prints. Left before its end, it is asked to end, as a run does with its ranks,
    and made to after a while.

    Args: settings, environment variables besides those there are.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as told:
        # Its last line is the last one written, on whichever of the two streams.
        variables = os.environ | {"PYTHONUNBUFFERED": "1", **(settings or {})}
        process = subprocess.Popen(command, env=variables, stdout=told, stderr=subprocess.STDOUT)
        try:
            yield process, told
        finally:
            process.terminate()  # does nothing where it has ended
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def printed(command: Sequence[str], settings: Mapping[str, str] | None = None) -> str:
    """What a command prints. Raises WorkError where it fails, a signal's end too."""
    with started(command, settings) as (process, told):
        refuse(process.wait(), command, told)
        told.seek(0)
        return told.read()


def refuse(code: int, command: Sequence[str], told: IO[str]) -> None:
    """Raises WorkError for a code that is no success, with the last line that was printed."""
    if code:
        told.seek(0)
        said = told.read().strip().splitlines()
        raise WorkError(f"a run failed: {said[-1].removeprefix('error: ') if said else shlex.join(command)}")
