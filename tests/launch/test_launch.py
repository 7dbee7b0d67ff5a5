"""The real launcher: two processes train as one does, share fine-tuning, and all save whoever is signalled."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

from asa import checkpoint, record
from asa.config import save_yaml
from asa.optim import OptimConfig
from pretrain.config import PretrainConfig
from tests.finetune.conftest import Make, events, given, make, model_folder, still_model, task_folder, write_task
from tests.pretrain.conftest import request_

__all__ = ["given", "make", "model_folder", "request_", "still_model", "task_folder"]  # fixtures

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes want two cores")

SETTINGS = os.environ | {"CUDA_VISIBLE_DEVICES": ""}


def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`python -m ARGUMENTS` on a machine without GPU."""
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, env=SETTINGS, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow  # three launches; the quickstart makes such, and contract tests compare updates
def test_two_processes_train_as_one_does_and_say_what_they_run(request_: PretrainConfig, tmp_path: Path) -> None:
    # Vanilla, whose loss and task terms are one tensor.
    config = replace(request_, method="vanilla", steps=12, micro_batch=2, optim=OptimConfig(lr=1e-2))
    save_yaml(replace(config, eval_every=12, save_every=12), tmp_path / "run.yaml")
    curves = []
    for command in (["launch", "pretrain", "--nproc", "2"], ["pretrain", "run"]):
        out = tmp_path / command[0]
        done = python(*command, "--config", tmp_path / "run.yaml", "--out", out)
        assert done.returncode == 0, done.stderr[-2000:]
        if command[0] == "launch":
            shown = next(line for line in done.stdout.splitlines() if line.startswith("$ "))
            assert re.search(r"deepspeed --num_accelerators 2 .*--module pretrain run", shown)
        curves.append([e["task"] for e in record.read(out / record.NAME) if e["event"] == "train"])
    # Dropout differs between process counts, samples and masks do not.
    assert curves[0] == pytest.approx(curves[1], rel=0.05)
    # The loss falls by about 1.15 nats from 4.75, so that equal curves are learning curves.
    assert all(curve[-1] < curve[0] - 0.8 for curve in curves)


@pytest.mark.slow
def test_a_run_goes_on_when_nobody_reads_what_it_says(request_: PretrainConfig, tmp_path: Path) -> None:
    """Ctrl-C ends the `tee` behind a run as well."""
    config = replace(request_, method="vanilla", steps=4, eval_every=2, save_every=2, log_every=1)
    save_yaml(config, tmp_path / "run.yaml")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "launch", "pretrain", "--config", str(tmp_path / "run.yaml")]
    done = subprocess.run(
        [*command, "--nproc", "1"], env=SETTINGS, stdout=writer, stderr=writer, timeout=280, check=False
    )
    os.close(writer)
    assert done.returncode == 0
    assert record.finished(config.out / record.NAME)
    assert len(checkpoint.complete(config.out / "checkpoints")) == 2


def test_two_processes_share_the_fine_tuning_runs(make: Make, tmp_path: Path) -> None:
    config = make(methods=["vanilla", "asa"], max_steps=1)
    save_yaml(config, tmp_path / "tune.yaml")
    done = python("launch", "finetune", "--config", tmp_path / "tune.yaml", "--nproc", "2")
    assert done.returncode == 0, done.stderr[-2000:]
    workers = [line for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert [line.split("--worker ")[1] for line in workers] == ["0", "1"]
    for method in config.methods:
        assert events(config.out, f"tiny-{method}-0")[-1]["event"] == "end"
        # A process that starts late may also tell that the other has finished a run before.
        made = [line for line in done.stdout.splitlines() if f"tiny-{method}-0 " in line and "best epoch" in line]
        assert len(made) == 1


@pytest.mark.slow
def test_two_processes_share_the_trials_of_a_search(make: Make, tmp_path: Path) -> None:
    config = make(methods=["vanilla", "freelb"], max_steps=1)
    save_yaml(config, tmp_path / "run.yaml")
    search = ["--trials", "3", "--search.freelb.radius", "[0.01,0.1]"]
    done = python("launch", "tune", "--config", tmp_path / "run.yaml", "--nproc", "2", *search)
    assert done.returncode == 0, done.stderr[-2000:]
    made = re.findall(r"^(trial-\d/colours/\S+) +dev_accuracy", done.stdout, re.MULTILINE)
    trials = [f"trial-{number}/colours/tiny-freelb-0" for number in range(3)]
    assert sorted(made) == sorted(["trial-0/colours/tiny-vanilla-0", *trials])
    assert done.stdout.count("colours freelb: dev accuracy") == 1
    best = yaml.safe_load((config.out / "best.yaml").read_text())
    assert 0.01 <= best["colours"]["freelb"]["radius"] <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [3, None])
def test_two_processes_of_deepspeed_share_a_fine_tuning_run(
    micro_batch: int | None, make: Make, still_model: Path, tmp_path: Path
) -> None:
    """Losses as those of one process of plain torch; 25 rows in batches of 8 leave one, which a rank has to itself."""
    task = write_task(tmp_path / "odd", rows=25)
    settings = {
        "task": {"folder": task},
        "models": {"still": still_model},
        "methods": ["vanilla", "asa"],
        "log_every": 1,
    }
    save_yaml(make(**settings), tmp_path / "one.yaml")
    zero = {"engine": "deepspeed", "zero": 2, "micro_batch": micro_batch, "out": tmp_path / "two"}
    save_yaml(make(**settings, **zero), tmp_path / "two.yaml")
    for command in (["finetune", "run", "--config", "one"], ["launch", "finetune", "--ranks", "2", "--config", "two"]):
        done = python(*command[:-1], tmp_path / f"{command[-1]}.yaml")
        assert done.returncode == 0, done.stderr[-2000:]
    for method in ("vanilla", "asa"):
        one, two = (events(out, f"still-{method}-0") for out in (tmp_path / "runs", tmp_path / "two"))
        assert two[0]["processes"] == 2
        assert len(one) == len(two) >= 8
        for mine, theirs in zip(one[1:-1], two[1:-1], strict=True):
            assert mine.keys() == theirs.keys()
            for key, value in mine.items():
                assert theirs[key] == (value if isinstance(value, str) else pytest.approx(value, rel=2e-6, abs=1e-7))
        assert two[-1]["test_loss"] == pytest.approx(one[-1]["test_loss"], rel=1e-6)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_run_without_a_launcher_answers_a_stop_itself(
    number: signal.Signals, request_: PretrainConfig, tmp_path: Path
) -> None:
    """What follows it by && is not to take an early checkpoint for the last."""
    save_yaml(replace(request_, steps=100_000, save_every=100_000, eval_every=100_000), tmp_path / "run.yaml")
    command = [sys.executable, "-m", "pretrain", "run", "--config", str(tmp_path / "run.yaml")]
    with subprocess.Popen(command, env=SETTINGS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        deadline = time.monotonic() + 200
        while len(record.read(request_.out / record.NAME)) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        run.send_signal(number)
        said = run.communicate(timeout=200)[0]
    assert run.returncode == 128 + number, said
    assert "the same command continues it" in said


WHOM = {"launcher": 143, "pretrain run": 143, "deepspeed.launcher.launch": 1, "bin/deepspeed": 143}


@pytest.mark.reliability
@pytest.mark.parametrize("whom", WHOM)
def test_whoever_is_asked_to_end_all_ranks_save_and_nothing_stays_behind(
    whom: str, request_: PretrainConfig, tmp_path: Path
) -> None:
    save_yaml(replace(request_, steps=100_000, save_every=100_000, eval_every=100_000), tmp_path / "run.yaml")
    command = [sys.executable, "-m", "launch", "pretrain", "--config", str(tmp_path / "run.yaml"), "--nproc", "2"]
    with subprocess.Popen(command, env=SETTINGS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as parent:
        deadline = time.monotonic() + 200
        while len(record.read(request_.out / record.NAME)) < 5 and time.monotonic() < deadline:
            time.sleep(0.2)
        children = psutil.Process(parent.pid).children(recursive=True)
        asked = [parent] if whom == "launcher" else [c for c in children if whom in " ".join(c.cmdline()[:5])]
        asked[-1].send_signal(signal.SIGTERM)
        said = parent.communicate(timeout=200)[0]
    assert parent.returncode == WHOM[whom], said
    found = re.search(r"stopped at step (\d+)", said)
    assert found, said
    assert checkpoint.complete(request_.out / "checkpoints")[-1].name == f"step-{found[1]}"
    assert [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE] == []
