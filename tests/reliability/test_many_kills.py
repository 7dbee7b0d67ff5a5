"""A hundred SIGKILLs, at least forty of them inside a save: all are recovered from, the end is that of a calm run.

Ranks are forked from a process that has everything imported, so that a start takes a second instead of ten.
"""

import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from asa import checkpoint, manifest
from asa.config import save_yaml
from pretrain.config import PretrainConfig
from tests.pretrain.conftest import model, request_, shards
from tests.reliability.runs import same_end, steps

__all__ = ["model", "request_", "shards"]  # fixtures
pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes want two cores"),
]
KILLS, STEPS = 100, 1500
FORKS = multiprocessing.get_context("forkserver")


def rank(number: int, port: int, config: str, out: str) -> None:
    """One of the two processes of a run."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "DS_ACCELERATOR": "cpu"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch

    from pretrain.process import run

    torch.set_num_threads(1)  # imported already, it reads no variable; another number rounds otherwise

    run(["--config", config, "--out", out])


def start(config: Path, out: Path, port: int) -> list[ForkServerProcess]:
    both = [FORKS.Process(target=rank, args=(number, port, str(config), str(out))) for number in (0, 1)]
    for process in both:
        process.start()
    return both


def kill(both: list[ForkServerProcess], chosen: int) -> None:
    """SIGKILL to one, and then to the other, as the launcher does when one is lost."""
    for process in (both[chosen], both[1 - chosen]):
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def newest(root: Path) -> int:
    return max(steps(root.parent), default=0)


def unfinished(root: Path) -> set[tuple[str, int, int]]:
    """The folders of unfinished saves: what a killed one has left stays the same until the next save removes it."""
    found = set()
    for folder in root.glob("*.partial"):
        with suppress(FileNotFoundError):  # finished by now
            status = folder.stat()
            found.add((folder.name, status.st_ino, status.st_mtime_ns))
    return found


def wait_until_saving(both: list[ForkServerProcess], root: Path, left: set[tuple[str, int, int]], whole: int) -> None:
    """Args: left, the folders of earlier saves; whole, the step up to which there must be a checkpoint before."""
    deadline = time.monotonic() + 60
    while newest(root) < whole or not unfinished(root) - left:
        assert time.monotonic() < deadline
        assert all(process.is_alive() for process in both), "the run ended by itself"
        time.sleep(0.0005)


def wait_until_working(both: list[ForkServerProcess], record: Path, before: int | None) -> None:
    """Until the record, which a start first puts a new file in place of, has grown: the run is at its steps again.

    Args: before, the inode of the record of the part that was killed.
    """
    deadline = time.monotonic() + 60
    sizes: set[int] = set()
    while len(sizes) < 2:
        status = record.stat() if record.is_file() else None
        if status is not None and status.st_ino != before:
            sizes.add(status.st_size)
        assert time.monotonic() < deadline
        assert all(process.is_alive() for process in both), "the run ended by itself"
        time.sleep(0.01)


def test_a_hundred_kills_lose_nothing(request_: PretrainConfig, tmp_path: Path) -> None:
    FORKS.set_forkserver_preload(["pretrain.process", "pretrain.loop", "deepspeed"])
    chance = random.Random(0)
    config, calm, rough = tmp_path / "run.yaml", tmp_path / "calm", tmp_path / "rough"
    request = replace(request_, steps=STEPS, save_every=5, eval_every=STEPS, log_every=5)
    save_yaml(request, config)
    root, record = rough / "checkpoints", rough / "metrics.jsonl"
    inside = 0
    for number in range(KILLS):
        left, before = unfinished(root), record.stat().st_ino if record.is_file() else None
        reached = newest(root)
        both = start(config, rough, 29600 + number)
        if number % 2:
            # By turns in the first save, which finds what the last kill has left, and after one that gets the run on.
            wait_until_saving(both, root, left, reached + 5 * (number % 4 == 3))
            time.sleep(chance.uniform(0, 0.03))
        else:
            wait_until_working(both, record, before)
            time.sleep(chance.uniform(0, 0.5))
        kill(both, chance.randrange(2))
        inside += bool(unfinished(root) - left)
        for folder in checkpoint.complete(root):
            manifest.verify(folder, checkpoint.KIND, "--out")
    assert inside >= KILLS // 2 - 10, f"only {inside} kills fell into a save"
    reached = newest(root)
    assert 0 < reached < STEPS
    print(f"{KILLS} kills, {inside} inside a save; step {reached} reached", file=sys.stderr)
    # Saving every few steps has served the kills; it would take most of the rest of the time.
    save_yaml(replace(request, save_every=STEPS), config)
    for out, port in ((rough, 29800), (calm, 29801)):
        both = start(config, out, port)
        for process in both:
            process.join(timeout=600)
            assert process.exitcode == 0
    assert same_end(calm, rough, STEPS)
