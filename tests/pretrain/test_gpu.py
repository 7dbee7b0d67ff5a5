"""The FP16 engine on a real device."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from asa import record
from asa.config import save_yaml
from asa.optim import OptimConfig
from pretrain.config import PretrainConfig
from tests.pretrain.test_resume import no_dropout

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


def curve(config: PretrainConfig, path: Path) -> list[float]:
    save_yaml(config, path)
    command = [sys.executable, "-m", "launch", "pretrain", "--config", str(path), "--nproc", "1"]
    subprocess.run(command, env=os.environ, check=True, timeout=500)
    events = record.read(config.out / record.NAME)
    return [event["task"] for event in events if event["event"] == "train"]


@pytest.mark.parametrize("method", ["vanilla", "asa"])
def test_fp16_follows_the_fp32_loss_curve(request_: PretrainConfig, tmp_path: Path, method: str) -> None:
    """Without dropout, which the attention kernels of the two draw each in its own way."""
    base = replace(request_, **no_dropout(request_, tmp_path), method=method, steps=60, optim=OptimConfig(lr=1e-2))
    half = curve(replace(base, precision="fp16", out=tmp_path / "fp16"), tmp_path / "fp16.yaml")
    full = curve(replace(base, out=tmp_path / "fp32"), tmp_path / "fp32.yaml")
    assert mean(half[-10:]) == pytest.approx(mean(full[-10:]), rel=0.02)
    # The loss falls by about 2 nats from 4.75, so that equal ends are those of a run that learned.
    assert all(losses[-1] < losses[0] - 1.5 for losses in (half, full))
