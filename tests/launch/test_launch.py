"""The real launcher: two processes train and resume; wrong requests end with one line before any process starts."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from asa import checkpoint, manifest, record
from asa.config import save_yaml
from asa.optim import OptimConfig
from pretrain.config import PretrainConfig
from tests.finetune.conftest import Make, make, model_folder, task_folder
from tests.pretrain.conftest import make_model, model, request_, shards

__all__ = ["make", "model", "model_folder", "request_", "shards", "task_folder"]  # fixtures

Done = subprocess.CompletedProcess[str]
CORES = len(os.sched_getaffinity(0))
two_cores = pytest.mark.skipif(CORES < 2, reason="two processes want two cores")


def python(*arguments: str | Path, timeout: int = 280) -> Done:
    """`python -m ARGUMENTS` on a machine without GPU."""
    command = [sys.executable, "-m", *map(str, arguments)]
    settings = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout, check=False)


def assert_refused(done: Done, code: int, expected: str) -> None:
    assert done.returncode == code, done.stderr
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@two_cores
def test_two_processes_train_as_one_does_and_say_what_they_run(request_: PretrainConfig, tmp_path: Path) -> None:
    # Vanilla, whose loss and task terms are one tensor.
    config = replace(request_, method="vanilla", steps=12, micro_batch=2, optim=OptimConfig(lr=1e-2))
    save_yaml(replace(config, eval_every=12, save_every=12), tmp_path / "run.yaml")
    curves = []
    for nproc in ("2", "1"):
        out = request_.out.with_name(f"run{nproc}")
        done = python("launch", "pretrain", "--config", tmp_path / "run.yaml", "--nproc", nproc, "--out", out)
        assert done.returncode == 0, done.stderr[-2000:]
        shown = next(line for line in done.stdout.splitlines() if line.startswith("$ "))
        assert re.search(rf"deepspeed --num_accelerators {nproc} .*--module pretrain run", shown)
        curves.append([e["task"] for e in record.read(out / record.NAME) if e["event"] == "train"])
    # Dropout differs between process counts, samples and masks do not.
    assert curves[0] == pytest.approx(curves[1], rel=0.05)
    # The loss falls by about 1.15 nats from 4.75, so that equal curves are learning curves.
    assert all(curve[-1] < curve[0] - 0.8 for curve in curves)


class Wrong(NamedTuple):
    """A request that must be refused; BAD in a flag stands for the folder of broken inputs."""

    flags: list[str]
    code: int
    expected: str


WRONG = {
    "misspelt key": Wrong(["--optim.lrr", "3"], 2, "did you mean 'optim.lr'"),
    "value out of range": Wrong(["--optim.lr", "3"], 2, "allowed: 0 < lr <= 1, set --optim.lr"),
    "no steps": Wrong(["--steps", "0"], 2, "allowed: 1 <= steps"),
    "unknown method": Wrong(["--method", "freelbb"], 2, "vanilla"),
    "fp16 without a GPU": Wrong(["--precision", "fp16"], 2, "--precision fp32"),
    "no processes": Wrong(["--nproc", "0"], 2, "set --nproc"),
    "no such shards": Wrong(["--data", "nowhere"], 2, "--data"),
    "unfinished shards": Wrong(["--data", "BAD/unfinished"], 2, "has no manifest.json"),
    "another tokenizer": Wrong(["--model", "BAD/other-words"], 2, "another tokenizer"),
    "unsupported family": Wrong(["--model", "BAD/family"], 2, "gpt2"),
    "no weights": Wrong(["--model", "BAD/no-weights"], 2, "has no weights"),
    "unequal shares": Wrong(["--global_batch", "7", "--nproc", "2"], 2, "set --global_batch"),
    "damaged shards": Wrong(["--data", "BAD/flipped", "--nproc", "2"], 1, "is damaged"),
}


@pytest.fixture(scope="module")
def bad(model: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config in order, run.yaml, and folders that are each broken in one way."""
    folder = tmp_path_factory.mktemp("bad")
    config = PretrainConfig(data=shards, model=model, out=folder / "run", global_batch=8, micro_batch=4)
    save_yaml(config, folder / "run.yaml")
    (shutil.copytree(shards, folder / "unfinished") / manifest.NAME).unlink()
    flip_a_byte(next(shutil.copytree(shards, folder / "flipped").glob("train-*.arrow")))
    make_model(folder / "other-words", extra_words=3)
    (shutil.copytree(model, folder / "no-weights") / "model.safetensors").unlink()
    settings = shutil.copytree(model, folder / "family") / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_type": "gpt2"}))
    return folder


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def answers(bad: Path) -> dict[str, Done]:
    """What the command line answers to each wrong request, asked side by side to save time."""

    def ask(name: str) -> Done:
        flags = [flag.replace("BAD", str(bad)) for flag in WRONG[name].flags]
        return python("launch", "pretrain", "--config", bad / "run.yaml", "--out", bad / "runs" / name, *flags)

    with ThreadPoolExecutor(CORES) as pool:
        return dict(zip(WRONG, pool.map(ask, WRONG), strict=True))


@pytest.mark.parametrize("name", [pytest.param(n, marks=two_cores) if "2" in w.flags else n for n, w in WRONG.items()])
def test_a_wrong_request_ends_with_one_line_before_anything_is_written(
    name: str, answers: dict[str, Done], bad: Path
) -> None:
    assert_refused(answers[name], WRONG[name].code, WRONG[name].expected)
    assert not (bad / "runs" / name).exists()


@pytest.fixture
def cut_run(tmp_path: Path) -> Path:
    """A run folder whose only checkpoint lacks a file that its manifest lists."""
    newest = tmp_path / "cut" / "checkpoints" / "step-2"
    newest.mkdir(parents=True)
    (newest / "model.safetensors").write_bytes(b"weights")
    manifest.write(newest, checkpoint.KIND, {"step": 2})
    (newest / "model.safetensors").unlink()
    return tmp_path / "cut"


def test_a_run_whose_checkpoint_lacks_a_file_is_not_continued(bad: Path, cut_run: Path) -> None:
    done = python("launch", "pretrain", "--config", bad / "run.yaml", "--out", cut_run)
    assert_refused(done, 1, "lacks model.safetensors")
    assert not (cut_run / record.NAME).exists()


def test_a_checkpoint_that_lacks_a_file_is_not_exported(cut_run: Path, tmp_path: Path) -> None:
    done = python("pretrain", "export", "--checkpoint", cut_run, "--out", tmp_path / "export")
    assert_refused(done, 1, "lacks model.safetensors")
    assert not (tmp_path / "export").exists()


@two_cores
def test_two_processes_share_the_fine_tuning_runs(make: Make, tmp_path: Path) -> None:
    config = make(methods=["vanilla", "asa"], max_steps=1)
    save_yaml(config, tmp_path / "tune.yaml")
    done = python("launch", "finetune", "--config", tmp_path / "tune.yaml", "--nproc", "2")
    assert done.returncode == 0, done.stderr[-2000:]
    workers = [line for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert [line.split("--worker ")[1] for line in workers] == ["0/2", "1/2"]
    for method in config.methods:
        assert record.finished(config.out / f"tiny-{method}-0" / record.NAME)


def test_fine_tuning_by_an_unknown_method_is_refused_before_anything_is_trained(make: Make, tmp_path: Path) -> None:
    config = make()
    save_yaml(config, tmp_path / "tune.yaml")
    done = python("launch", "finetune", "--config", tmp_path / "tune.yaml", "--methods", "vanilla,freelp")
    assert_refused(done, 2, "no method 'freelp'; did you mean 'freelb'?")
    assert not config.out.exists()
