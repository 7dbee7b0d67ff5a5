"""The processes that one command has started, found by the session that it leads and none of them leaves.

Of these processes the ranks alone are asked to stop: the deepspeed program ends at a signal without telling anybody,
and DeepSpeed's launch.py kills its ranks 30 seconds after one, checkpoint written or not.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import NamedTuple

import psutil

LEFT = 5.0  # seconds that processes other than ranks may outlive the command that started them
LOST = 600.0  # seconds that ranks may go on after another of their session has ended; also rank 0's to close wandb
LIMIT = 900.0  # seconds that ranks may take to save and end


class Remote(NamedTuple):
    """Commands that signal the ranks on other machines; each answers 0 where all machines had some."""

    stop: list[str]
    kill: list[str]


class Session:
    """The processes of one session: ranks, which run `python -m STAGE run` or `tune`, and those that started them."""

    def __init__(self, leader: int, stage: str, remote: Remote | None = None) -> None:
        self.leader = leader
        self._ranks_of = [["-m", stage, command] for command in ("run", "tune")]
        self._remote = remote
        self._asked: set[int] = set()
        self._begun = 0  # ranks seen at once
        self._deadline = float("inf")
        self.cut_off = False  # ranks had to be stopped because the command was gone
        self.killed = False  # the command, by us

    @property
    def begun(self) -> bool:
        """Whether there have been ranks."""
        return self._begun > 0

    def tick(self, stopping: bool) -> bool:
        """Look after the processes, asking those to end that have not been asked; False when none is left."""
        members = self._members()
        ranks = self._ranks(members)
        self._begun = max(self._begun, len(ranks))
        if all(member.pid != self.leader for member in members):
            self.cut_off |= bool(ranks)
            stopping |= bool(ranks or not self._begun)
            self._end_within(LIMIT if ranks else LEFT)
        if stopping:
            self._end_within(LIMIT)
            self._ask(members, ranks)
        elif len(ranks) < self._begun:
            # Ranks end together. Where one is lost the others may wait for it, and launch.py ends them one by one.
            self._end_within(LOST)
        if time.monotonic() > self._deadline:
            self.kill()
        return bool(members)

    def kill(self) -> None:
        """End every process at once."""
        if self._remote:
            _succeeds(self._remote.kill)
        for member in self._members():
            self.killed |= member.pid == self.leader
            _send(member, signal.SIGKILL)

    def _end_within(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def _ask(self, members: list[psutil.Process], ranks: list[psutil.Process]) -> None:
        """Ask the ranks that have not been asked; where none has begun, everybody."""
        if self._remote and not self._begun:
            self._begun = int(_succeeds(self._remote.stop))
        for process in ranks if self._begun else members:
            if process.pid not in self._asked:
                self._asked.add(process.pid)
                _send(process, signal.SIGTERM)

    def _members(self) -> list[psutil.Process]:
        found = []
        for pid in psutil.pids():
            with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                if os.getsid(pid) == self.leader:
                    process = psutil.Process(pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def _ranks(self, members: list[psutil.Process]) -> list[psutil.Process]:
        """Without what ranks have forked: until it runs something else it has its parent's command line."""
        alike = {member.pid: member for member in members if self._is_rank(member)}
        return [member for member in alike.values() if _parent(member) not in alike]

    def _is_rank(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            words = process.cmdline()
            return any(words[at : at + 3] in self._ranks_of for at in range(len(words)))
        return False


def _parent(process: psutil.Process) -> int | None:
    with suppress(psutil.Error):
        return process.ppid()
    return None


def _send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
