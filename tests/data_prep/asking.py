"""Asking the stage's commands in this process."""

import pytest

from cli import main
from data_prep import __main__ as commands

NAMES = ("build", "dedup", "text", "merge", "sample", "verify", "inspect", "tokenizer")
COMMANDS = {name: getattr(commands, name) for name in NAMES}


def run(*argv: object) -> int:
    """Exit code of `python -m data_prep ARGV`."""
    with pytest.raises(SystemExit) as stop:
        main(COMMANDS, "data_prep", [str(part) for part in argv])
    return int(stop.value.code or 0)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]
