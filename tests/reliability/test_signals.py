"""SIGTERM and SIGINT to any one process of a run: every rank ends with exit code 0 and the checkpoint is complete."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from asa import checkpoint, manifest, record
from asa.config import save_yaml
from pretrain.config import PretrainConfig
from tests.pretrain.conftest import losses, model, request_, shards
from tests.reliability.runs import alive, finish, ranks, same_end, start, steps

__all__ = ["model", "request_", "shards"]  # fixtures
pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes want two cores"),
]
STEPS = 1500


def program(part: str) -> Callable[[int], psutil.Process]:
    """Finds the program between our launcher (its process id is given) and the ranks that has `part` in its command."""

    def find(launcher: int) -> psutil.Process:
        between = psutil.Process(launcher).children(recursive=True)
        return next(
            one for one in between if any(part in word for word in one.cmdline()[:4]) and one not in ranks(launcher)
        )

    return find


STOPPED = 128 + signal.SIGTERM  # our launcher's exit code for a run that stopped and can be continued

# What gets which signal, and the exit code of our launcher.
TARGETS: dict[str, tuple[Callable[[int], psutil.Process], int, int]] = {
    "rank 0, SIGTERM": (lambda launcher: ranks(launcher)[0], signal.SIGTERM, STOPPED),
    "rank 1, SIGINT": (lambda launcher: ranks(launcher)[1], signal.SIGINT, STOPPED),
    "DeepSpeed's launch.py, SIGTERM": (program("deepspeed.launcher.launch"), signal.SIGTERM, 1),
    "the deepspeed program, SIGTERM": (program("bin/deepspeed"), signal.SIGTERM, STOPPED),
    "our launcher, SIGINT": (psutil.Process, signal.SIGINT, 128 + signal.SIGINT),
    "our launcher, SIGTERM": (psutil.Process, signal.SIGTERM, STOPPED),
}


def test_stopped_in_every_way_and_continued_it_ends_like_the_undisturbed_run(
    request_: PretrainConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run.yaml"
    # Checkpoints are so rare that the ones found are those of the stops.
    save_yaml(
        replace(request_, steps=STEPS, save_every=STEPS, eval_every=STEPS, log_every=1, micro_batch=2, keep=99), path
    )
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    assert finish(start(path, calm))[0] == 0
    for target, (find, number, expected) in TARGETS.items():
        launcher = start(path, rough)
        before = len(steps(rough))
        wait_for_steps(rough, before)
        process = psutil.Process(launcher.pid)
        running = [process, *process.children(recursive=True)]
        find(launcher.pid).send_signal(number)
        code, output = finish(launcher, timeout=120)
        assert code == expected, f"{target}: {code}\n{output}"
        assert len(steps(rough)) == before + 1, f"{target}\n{output}"
        assert "the same command continues it" in output, output
        manifest.verify(checkpoint.complete(rough / "checkpoints")[-1], checkpoint.KIND, "--out")
        assert not alive(running), target
        assert not record.finished(rough / record.NAME)
    assert finish(start(path, rough))[0] == 0
    assert same_end(calm, rough, STEPS)


def wait_for_steps(out: Path, stops: int) -> None:
    """Until this part of the run has made some steps."""
    done = max(steps(out), default=0) if stops else 0
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = losses(out)
        if found and found[-1][0] > done + 5:
            return
        time.sleep(0.05)
    raise AssertionError("no step in two minutes")
