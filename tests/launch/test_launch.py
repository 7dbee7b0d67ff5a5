"""The real launcher: two processes train and resume; wrong requests end with exit code 2 before any process starts."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from asa import record
from asa.config import save_yaml
from pretrain.config import PretrainConfig
from tests.pretrain.conftest import model, request_, shards

__all__ = ["model", "request_", "shards"]  # fixtures


def launch(*arguments: str, timeout: int = 280) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch", "pretrain", *arguments]
    settings = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture
def config(request_: PretrainConfig, tmp_path: Path) -> Path:
    # Vanilla, whose loss and task terms are one tensor.
    save_yaml(replace(request_, method="vanilla", steps=3, save_every=3), tmp_path / "run.yaml")
    return tmp_path / "run.yaml"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes want two cores")
def test_two_processes_train_as_one_does_and_say_what_they_run(config: Path, request_: PretrainConfig) -> None:
    curves = []
    for nproc in ("2", "1"):
        out = request_.out.with_name(f"run{nproc}")
        done = launch("--config", str(config), "--nproc", nproc, "--out", str(out), "--micro_batch", "2")
        assert done.returncode == 0, done.stderr[-2000:]
        shown = next(line for line in done.stdout.splitlines() if line.startswith("$ "))
        assert re.search(rf"deepspeed --num_accelerators {nproc} .*--module pretrain run", shown)
        curves.append([e["task"] for e in record.read(out / record.NAME) if e["event"] == "train"])
    # Dropout differs between process counts, samples and masks do not.
    assert curves[0] == pytest.approx(curves[1], rel=0.05)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--optim.lrr", "3"], "did you mean 'optim.lr'"),
        (["--optim.lr", "3"], "allowed: 0 < lr <= 1, set --optim.lr"),
        (["--steps", "0"], "allowed: 1 <= steps"),
        (["--method", "freelbb"], "vanilla"),
        (["--precision", "fp16"], "--precision fp32"),
        (["--nproc", "0"], "set --nproc"),
        (["--data", "nowhere"], "--data"),
        (["--micro_batch", "3"], "--micro_batch"),
    ],
)
def test_a_wrong_request_ends_with_one_line_and_exit_code_2(
    config: Path, request_: PretrainConfig, flags: list[str], expected: str
) -> None:
    done = launch("--config", str(config), *flags)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not request_.out.exists()
