"""Runs of the real launcher with two processes, and how they are watched and disturbed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

from asa import checkpoint
from tests.pretrain.conftest import losses

SETTINGS = os.environ | {"CUDA_VISIBLE_DEVICES": ""}


def start(config: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """A run in the background; its output is in `communicate()`."""
    command = [sys.executable, "-m", "launch", "pretrain", "--config", str(config), "--out", str(out), "--nproc", "2"]
    return subprocess.Popen(
        [*command, *more], env=SETTINGS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(launcher: subprocess.Popen[str], timeout: float = 400) -> tuple[int, str]:
    """Exit code and output."""
    output, _ = launcher.communicate(timeout=timeout)
    return launcher.returncode, output


def ranks(launcher: int) -> list[psutil.Process]:
    """The processes that train, by rank. Args: launcher, its process id."""
    below = psutil.Process(launcher).children(recursive=True)
    training = [one for one in below if one.cmdline()[2:5] == ["-m", "pretrain", "run"]]
    return sorted(training, key=lambda one: int(one.environ()["RANK"]))


def steps(out: Path) -> list[int]:
    """Steps of the complete checkpoints."""
    return [int(folder.name.removeprefix("step-")) for folder in checkpoint.complete(out / "checkpoints")]


def wait_for_checkpoint(launcher: subprocess.Popen[str], out: Path, after: int) -> int:
    """The newest complete step once it is beyond `after`."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = steps(out)
        if found and found[-1] > after:
            return found[-1]
        assert launcher.poll() is None, f"the run ended early: {launcher.communicate()[0]}"
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint after step {after} in four minutes")


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def weights(out: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / f"step-{step}" / "model.safetensors")


def same_end(one: Path, other: Path, step: int) -> bool:
    """Whether two runs ended with equal weights and equal loss lines."""
    mine, theirs = weights(one, step), weights(other, step)
    return losses(one) == losses(other) and all(torch.equal(mine[name], theirs[name]) for name in mine)
