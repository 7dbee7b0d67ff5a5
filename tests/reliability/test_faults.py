"""Faults for real, two processes: a rank that hangs, one that is stopped, a loss that is NaN on one of them."""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from asa import record
from asa.config import save_yaml
from launch.command import deepspeed_command, environment
from launch.nodes import Nodes
from launch.options import ClusterOptions
from pretrain.config import PretrainConfig
from tests.pretrain.conftest import model, request_, shards
from tests.reliability.runs import SETTINGS, alive, finish, ranks, start, steps, wait_for_checkpoint

__all__ = ["model", "request_", "shards"]  # fixtures
pytestmark = pytest.mark.reliability


def faulty(config: PretrainConfig, path: Path, fault: str) -> subprocess.Popen[str]:
    save_yaml(config, path)
    command = deepspeed_command(
        ClusterOptions(), Nodes({"localhost": 2}, node=0), ["tests.reliability.faulty", "run", "--config", str(path)]
    )
    settings = SETTINGS | environment(2) | {"FAULT": fault}
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def config(request_: PretrainConfig) -> PretrainConfig:
    return replace(request_, method="vanilla", steps=12, eval_every=12, save_every=2)


def test_a_rank_that_hangs_is_named_with_the_place_it_hangs_at(config: PretrainConfig, tmp_path: Path) -> None:
    code, output = finish(faulty(replace(config, hang_timeout=15), tmp_path / "run.yaml", "hang:5"), timeout=120)
    assert code != 0
    assert "error: no progress for" in output
    assert "rank 1 behind the others: rank 1 at pretrain.loop:" in output
    assert "no sign of life" not in output
    assert steps(config.out) == [2, 4]


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_process_is_named_and_the_run_ends_in_bounded_time(
    config: PretrainConfig, tmp_path: Path, stopped: int
) -> None:
    path = tmp_path / "run.yaml"
    save_yaml(replace(config, steps=100_000, eval_every=100_000, save_every=50, hang_timeout=15), path)
    launcher = start(path, config.out)
    wait_for_checkpoint(launcher, config.out, 0)
    running = ranks(launcher.pid)
    os.kill(running[stopped].pid, signal.SIGSTOP)
    before = time.monotonic()
    code, output = finish(launcher, timeout=120)
    assert code == 1
    assert f"rank {stopped} gave no sign of life" in output, output
    assert time.monotonic() - before < 100
    assert not alive(running)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_nan_on_one_rank_is_known_to_both(config: PretrainConfig, tmp_path: Path, policy: str) -> None:
    config = replace(config, on_nonfinite=policy, micro_batch=8)
    code, output = finish(faulty(config, tmp_path / "run.yaml", "nan:5"), timeout=120)
    assert "the loss of step 5 of rank 1 is not finite; its training rows:" in output
    assert code == (0 if policy == "skip" else 1)
    assert steps(config.out) == ([10, 12] if policy == "skip" else [2, 4])
    assert record.finished(config.out / record.NAME) == (policy == "skip")
