"""Whoever is signalled or killed, ranks end in order where they can, and no process stays behind.

The tree of processes is DeepSpeed's: a runner that a signal ends at once, below it a parent of the ranks that kills
them when it is signalled itself, below that two ranks that save when asked.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import psutil
import pytest

from launch.__main__ import answer
from launch.processes import Asked, Outcome, outcome
from launch.session import Session

RANK = """
import os, signal, sys, time
from pathlib import Path
folder, manner, rank = Path(sys.argv[2]), sys.argv[3], sys.argv[4]
def save(number, frame):
    (folder / f"asked-{rank}").touch()
    if manner == "failing":
        sys.exit(int(rank))
    if manner != "deaf":
        time.sleep(0.3)
        (folder / f"saved-{rank}").touch()
        sys.exit(0)
signal.signal(signal.SIGTERM, save)
if manner == "forking" and os.fork() == 0:
    while not (folder / "enough").exists():
        time.sleep(0.02)
    os._exit(0)
(folder / f"begun-{rank}").touch()
time.sleep(600)
"""
PARENT = """
import signal, subprocess, sys, time
from pathlib import Path
stage, folder, manner = sys.argv[1:]
ranks = []
def kill(number, frame):
    for rank in ranks:
        rank.kill()
    sys.exit(1)
if manner == "slow":
    (Path(folder) / "begun-0").touch()
    time.sleep(600)
ranks += [subprocess.Popen([sys.executable, "-u", "-m", stage, "run", folder, manner, str(i)]) for i in (0, 1)]
signal.signal(signal.SIGTERM, kill)
signal.signal(signal.SIGINT, kill)
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
RUNNER = """
import subprocess, sys
code = subprocess.run([sys.executable, *sys.argv[1:]]).returncode
sys.exit(max(code, 0))  # the real one, too, takes a killed child for a success
"""
LAUNCHER = """
import os, signal, sys
from pathlib import Path
from launch import processes, session
for number in (signal.SIGHUP, signal.SIGINT):  # the tests may run under nohup or in the background
    signal.signal(number, signal.SIG_DFL)
session.LIMIT, session.LOST, processes.AGAIN = float(sys.argv[4]), 0.0, float(sys.argv[5])
here = Path(sys.argv[0]).parent
tick = session.Session.tick
def counted(looked, stopping):
    left = tick(looked, stopping)
    with (here / "looks").open("a") as file:
        file.write(".")
    return left
session.Session.tick = counted
command = [sys.executable, str(here / "runner.py"), str(here / "parent.py"), *sys.argv[1:4]]
print(list(processes.run_together([command], dict(os.environ), sys.argv[1])))
"""


class Tree:
    """A launcher with the processes below it; `folder` gets the files they write."""

    def __init__(self, folder: Path, manner: str, limit: float, again: float) -> None:
        self.folder = folder
        self.stage = f"stage_{uuid4().hex}"  # nobody else's, nor their guards'
        files = {"runner": RUNNER, "parent": PARENT, "launcher": LAUNCHER, f"{self.stage}/__main__": RANK}
        for name, text in files.items():
            (folder / f"{name}.py").parent.mkdir(exist_ok=True)
            (folder / f"{name}.py").write_text(text)
        paths = os.pathsep.join([str(Path(__file__).parents[2]), str(folder)])
        command = [sys.executable, str(folder / "launcher.py"), self.stage, str(folder), manner, str(limit), str(again)]
        # A group of its own: killing it must not reach the test.
        self.process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        begun = [folder / "begun-0"] if manner == "slow" else [folder / "begun-0", folder / "begun-1"]
        wait_until(lambda: all(file.exists() for file in begun))

    def running(self, word: str = "") -> list[psutil.Process]:
        """Its processes whose command line has `word` in it."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            guard = f"launch.guard {self.stage}" in line
            if (str(self.folder) in line or guard) and word in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def outcome(self) -> Outcome:
        """Well before `limit`, at which everything would be killed."""
        return Outcome(*eval(self.process.communicate(timeout=60)[0]))

    def ranks(self) -> list[psutil.Process]:
        return self.running(f"{self.stage} run")

    def look_again(self) -> None:
        """Wait until the launcher has looked at the ranks as they are now, and has done what it does after that."""
        last = self.looks() + 3  # the first may be under way
        wait_until(lambda: self.looks() >= last)

    def looks(self) -> int:
        file = self.folder / "looks"
        return file.stat().st_size if file.exists() else 0

    def asked(self) -> int:
        return len(list(self.folder.glob("asked-*")))

    def saved(self) -> int:
        return len(list(self.folder.glob("saved-*")))


def test_a_signal_counts_where_nobody_reads_what_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGHUP comes when the terminal is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(fileno=lambda: writer))
    with Asked("pretrain").noted() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.signal == signal.SIGTERM
    os.close(writer)


Plant = Callable[..., Tree]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    trees: list[Tree] = []

    def plant_(manner: str = "good", limit: float = 600, again: float = 0) -> Tree:
        trees.append(Tree(tmp_path, manner, limit, again))
        return trees[-1]

    yield plant_
    for tree in trees:
        for process in [tree.process, *tree.running()]:
            process.kill()
        tree.process.wait()
        assert tree.process.stdout
        tree.process.stdout.close()


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_launcher_lets_the_ranks_save(number: signal.Signals, plant: Plant) -> None:
    tree = plant()
    tree.process.send_signal(number)
    assert tree.outcome() == Outcome(0, number)
    assert (tree.saved(), tree.running()) == (2, [])


def test_a_signal_that_arrives_twice_is_one_request(plant: Plant) -> None:
    tree = plant(again=60)
    tree.process.send_signal(signal.SIGTERM)
    tree.process.send_signal(signal.SIGINT)
    assert tree.outcome().code == 0
    assert (tree.saved(), tree.running()) == (2, [])


def test_a_second_signal_ends_everything_at_once(plant: Plant) -> None:
    tree = plant("deaf")
    tree.process.send_signal(signal.SIGINT)
    wait_until(lambda: tree.asked() == 2)
    assert len(tree.ranks()) == 2
    tree.process.send_signal(signal.SIGINT)
    assert tree.outcome().signal == signal.SIGINT
    assert tree.running() == []


def test_ranks_that_do_not_end_are_killed_at_the_limit(plant: Plant) -> None:
    tree = plant("deaf", limit=0.5)
    tree.process.send_signal(signal.SIGTERM)
    assert tree.outcome().signal == signal.SIGTERM
    assert tree.running() == []


def test_before_ranks_have_begun_a_signal_ends_all(plant: Plant) -> None:
    tree = plant("slow")
    tree.process.send_signal(signal.SIGTERM)
    assert tree.outcome().signal == signal.SIGTERM
    assert tree.running() == []


def test_a_signal_to_the_runner_lets_the_ranks_save(plant: Plant) -> None:
    tree = plant()
    tree.running("runner.py")[0].terminate()
    assert tree.outcome() == Outcome(1, signal.SIGTERM)
    assert (tree.saved(), tree.running()) == (2, [])


@pytest.mark.parametrize("whom", ["runner.py", "parent.py"])
def test_ranks_whose_parents_are_killed_save_and_the_run_has_failed(whom: str, plant: Plant) -> None:
    tree = plant()
    next(process for process in tree.running(whom) if process.cmdline()[1].endswith(whom)).kill()
    assert tree.outcome()[:2] == (1, 0)
    assert (tree.saved(), tree.running()) == (2, [])


def test_ranks_whose_launcher_is_killed_save(plant: Plant) -> None:
    tree = plant()
    tree.process.kill()
    wait_until(lambda: not tree.running())
    assert tree.saved() == 2


def test_a_rank_that_waits_for_a_lost_one_is_ended(plant: Plant) -> None:
    tree = plant("deaf")
    tree.look_again()
    tree.ranks()[1].kill()
    assert tree.outcome() == Outcome(1, 0)
    assert tree.running() == []


def test_what_ranks_fork_is_no_rank_that_is_lost_when_it_ends(plant: Plant) -> None:
    tree = plant("forking")
    assert len(tree.ranks()) == 4
    tree.look_again()
    (tree.folder / "enough").touch()
    wait_until(lambda: len(tree.ranks()) <= 2)
    tree.look_again()
    assert len(tree.ranks()) == 2
    tree.process.send_signal(signal.SIGTERM)
    assert tree.outcome() == Outcome(0, signal.SIGTERM)
    assert tree.saved() == 2


def test_a_rank_that_fails_after_a_signal_has_failed(plant: Plant) -> None:
    tree = plant("failing")
    tree.process.send_signal(signal.SIGTERM)
    assert tree.outcome() == Outcome(1, 0)


@pytest.mark.parametrize(("code", "told"), [(1, 1), (2, 2), (247, 1), (137, 1)])
def test_a_rank_that_was_killed_is_failed_work(code: int, told: int) -> None:
    """256 - 9 is DeepSpeed's code for it, 128 + 9 a shell's."""
    assert answer(Outcome(code, 0), finished=False) == told


def test_a_stop_after_the_end_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The launcher, too, was asked when all was written."""
    late = Outcome(1, signal.SIGTERM)
    assert [answer(late, finished) for finished in (True, False, None)] == [0, 143, 143]
    assert capsys.readouterr().out.count("stopped; the same command continues it") == 2


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (
            signal.SIGKILL,
            "ended by SIGKILL (often: out of memory, of which fewer processes take less); the same command",
        ),
        (signal.SIGSEGV, "ended by SIGSEGV; the same command makes what is left"),
    ],
)
def test_a_worker_that_was_killed_is_told(number: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(outcome([0, -number], 0, cut_off=False), finished=None) == 1
    assert told in capsys.readouterr().err
    assert answer(outcome([256 - number], 0, cut_off=False), finished=False) == 1, "as DeepSpeed has it of a rank"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("command", "rank"), [("run", True), ("tune", True), ("report", False)])
def test_ranks_are_what_trains(command: str, rank: bool) -> None:
    session = Session(os.getpid(), "finetune")
    process = SimpleNamespace(cmdline=lambda: ["python", "-u", "-m", "finetune", command, "--out", "x"])
    assert session._is_rank(cast(Any, process)) == rank


def test_exit_codes_are_summed_up() -> None:
    assert outcome([0, 0], 0, cut_off=False) == Outcome(0, 0)
    assert outcome([0, 2, 1], 0, cut_off=False) == Outcome(2, 0)
    assert outcome([-9, 0], 0, cut_off=False) == Outcome(1, 0, signal.SIGKILL)
    assert outcome([0, -9], signal.SIGTERM, cut_off=False) == Outcome(1, signal.SIGTERM), "a second one ended all"
    assert outcome([-9, -9], 0, cut_off=False, ours=[True, False]) == Outcome(1, 0, signal.SIGKILL)
    assert outcome([1, -9], 0, cut_off=False, ours=[False, True]) == Outcome(1, 0)
    assert outcome([0, -15], 0, cut_off=False) == Outcome(1, signal.SIGTERM)
    assert [outcome([code], 0, cut_off=False).killed for code in (3, 143, 191, 241)] == [0, 0, 0, 0]
    assert outcome([0], 0, cut_off=True) == Outcome(1, 0)
    # A save that fails is no orderly stop; ranks that end by the signal, 256 - 15 as DeepSpeed has it, are.
    assert outcome([2, 0], signal.SIGTERM, cut_off=False) == Outcome(2, 0)
    assert outcome([241], signal.SIGTERM, cut_off=False) == Outcome(241, signal.SIGTERM)
    assert outcome([1], signal.SIGTERM, cut_off=False, begun=False) == Outcome(1, signal.SIGTERM)
