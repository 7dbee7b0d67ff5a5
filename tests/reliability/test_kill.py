"""Kills for real: a rank dies by SIGKILL in mid-run, the same command is given again, and nothing is lost."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from asa.config import save_yaml
from pretrain.config import PretrainConfig
from tests.pretrain.conftest import model, request_, shards
from tests.reliability.runs import finish, ranks, same_end, start, wait_for_checkpoint

__all__ = ["model", "request_", "shards"]  # fixtures

pytestmark = [
    pytest.mark.reliability,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes want two cores"),
]
STEPS = 400


def test_killed_twice_and_started_again_it_ends_with_the_undisturbed_weights(
    request_: PretrainConfig, tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    save_yaml(replace(request_, steps=STEPS, save_every=20, eval_every=STEPS, micro_batch=2), config)
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    assert finish(start(config, calm))[0] == 0
    reached = 0
    for rank in (0, 1):
        launcher = start(config, rough)
        reached = wait_for_checkpoint(launcher, rough, reached)
        ranks(launcher.pid)[rank].send_signal(signal.SIGKILL)
        code, output = finish(launcher, timeout=120)
        assert code == 1
        assert "Traceback" not in output, "the other is ended by the launcher, or says in a line that it waits in vain"
    assert 0 < reached < STEPS
    assert finish(start(config, rough))[0] == 0
    assert same_end(calm, rough, STEPS)
