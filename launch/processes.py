"""Start commands, pass a stop on to the ranks they lead to, and leave no process behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from types import FrameType
from typing import IO, NamedTuple

from asa.stop_signals import handled
from launch.session import Remote, Session

TICK = 0.2  # seconds between two looks at the processes
AGAIN = 1.0  # seconds within which a signal counts as the one before: process groups and schedulers repeat themselves


class Outcome(NamedTuple):
    """How commands ended."""

    code: int  # 0, or the first failure's
    signal: int  # number of the signal that asked them to end; 0 without, or where ranks failed in spite of it
    killed: int = 0  # number of the signal that ended a command, or a rank, of which nobody had asked that; 0 without


class Asked:
    """SIGTERM, SIGINT and SIGHUP to this process, which only notes them."""

    def __init__(self, stage: str) -> None:
        self.signal = 0
        self.at_once = False
        self._since = 0.0
        self._answer = "ending, with a save once it trains" if stage == "pretrain" else "ending"

    @contextmanager
    def noted(self) -> Iterator["Asked"]:
        with handled(self._note):
            yield self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self._since = number, time.monotonic()
            text = f"{signal.Signals(number).name}: {self._answer}; a second one ends everything at once\n"
            # Of a terminal that is closed, which is what SIGHUP tells, or of `2>&-`.
            with suppress(OSError, AttributeError):
                os.write(sys.stderr.fileno(), text.encode())  # print may be what was interrupted
        elif time.monotonic() - self._since > AGAIN:
            self.at_once = True


def run_together(
    commands: list[list[str]], variables: dict[str, str], stage: str, remote: Remote | None = None
) -> Outcome:
    """Run the commands side by side until none of their processes is left.

    SIGTERM, SIGINT and SIGHUP ask the ranks of `stage` to end and wait for them, LIMIT seconds at most; a second one
    ends everything at once. Args: remote, where the ranks are on other machines.
    """
    with Asked(stage).noted() as asked, _guard(stage) as guard:
        children = [subprocess.Popen(command, env=variables, start_new_session=True) for command in commands]
        guard.write("".join(f"{child.pid}\n" for child in children))
        guard.flush()
        sessions = [Session(child.pid, stage, remote) for child in children]
        left = sessions
        while any(child.poll() is None for child in children) or left:
            left = [session for session in left if session.tick(bool(asked.signal))]
            if asked.at_once:
                for session in left:
                    session.kill()
            time.sleep(TICK)
    begun = any(session.begun for session in sessions)
    cut_off = any(session.cut_off for session in sessions)
    ours = [session.killed for session in sessions]
    return outcome([child.returncode for child in children], asked.signal, cut_off, begun, ours)


def outcome(codes: list[int], asked: int, cut_off: bool, begun: bool = True, ours: Sequence[bool] = ()) -> Outcome:
    """Sum the commands' exit codes up; a negative one is a signal's number.

    Args: asked, the signal that this process got; cut_off, whether a command was gone before its ranks; begun,
        whether there were ranks; ours, which of the commands we have killed ourselves, none without.
    """
    # A rank's own code, say of a save that failed. One that a signal ends before it can save has 128 + signal or, by
    # DeepSpeed, 256 - signal; and before there are ranks the deepspeed program may answer a signal by 1.
    own = next((code for code in codes if code in (1, 2)), 0)
    if begun and own:
        return Outcome(own, 0)
    stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    code = next((code if code > 0 else 1 for code in codes if code), int(cut_off))
    theirs = [_by_signal(0 if mine else code) for code, mine in zip_longest(codes, ours, fillvalue=False)]
    killed = 0 if asked else next((number for number in theirs if number and number not in stops), 0)
    return Outcome(code, asked or next((-code for code in codes if -code in stops), 0), killed)


def _by_signal(code: int) -> int:
    """Number of the signal that an exit code tells of, 0 where none; 256 less it is DeepSpeed's code for a rank's."""
    return -code if code < 0 else 256 - code if code > 256 - signal.NSIG else 0


@contextmanager
def _guard(stage: str) -> Iterator[IO[str]]:
    """Where to write sessions that are to be stopped should this process be killed (launch/guard.py)."""
    command = [sys.executable, "-m", "launch.guard", stage]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True) as guard:
        assert guard.stdin is not None
        yield guard.stdin
