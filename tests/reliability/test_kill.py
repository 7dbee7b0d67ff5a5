"""Kills for real: a rank dies by SIGKILL in mid-run, the same command is given again, and nothing is lost."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from asa import checkpoint
from asa.config import save_yaml
from pretrain.config import PretrainConfig
from tests.pretrain.conftest import model, request_, shards

__all__ = ["model", "request_", "shards"]  # fixtures

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes want two cores"),
]
STEPS = 400


def start(config: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "launch", "pretrain", "--config", str(config), "--out", str(out), "--nproc", "2"]
    settings = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ranks(launcher: subprocess.Popen[bytes]) -> list[psutil.Process]:
    children = psutil.Process(launcher.pid).children(recursive=True)
    return [child for child in children if child.cmdline()[2:5] == ["-m", "pretrain", "run"]]


def wait_for_checkpoint(launcher: subprocess.Popen[bytes], out: Path, after: int) -> int:
    """The newest complete step once it is beyond `after`."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = checkpoint.complete(out / "checkpoints")
        step = int(found[-1].name.removeprefix("step-")) if found else 0
        if step > after:
            return step
        assert launcher.poll() is None, "the run ended before it was killed"
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint after step {after} in four minutes")


def test_killed_twice_and_started_again_it_ends_with_the_undisturbed_weights(
    request_: PretrainConfig, tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    save_yaml(replace(request_, steps=STEPS, save_every=20, eval_every=STEPS, micro_batch=2), config)
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    assert start(config, calm).wait(timeout=400) == 0
    reached = 0
    for rank in (0, 1):
        launcher = start(config, rough)
        reached = wait_for_checkpoint(launcher, rough, reached)
        ranks(launcher)[rank].send_signal(signal.SIGKILL)
        assert launcher.wait(timeout=120) != 0
    assert 0 < reached < STEPS
    assert start(config, rough).wait(timeout=400) == 0
    expected, found = (load_file(out / "checkpoints" / f"step-{STEPS}" / "model.safetensors") for out in (calm, rough))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_sigterm_to_the_launcher_leaves_no_process_behind(request_: PretrainConfig, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    save_yaml(replace(request_, steps=100_000, save_every=20, eval_every=100_000), config)
    launcher = start(config, tmp_path / "run")
    wait_for_checkpoint(launcher, tmp_path / "run", 0)
    running = ranks(launcher)
    assert len(running) == 2
    launcher.terminate()
    assert launcher.wait(timeout=60) == 128 + signal.SIGTERM
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in running)
