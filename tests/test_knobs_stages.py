"""Settings of the stages change what tiny runs record, write or say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from asa import record
from finetune import loop
from finetune.state import Saver
from finetune.sweep import sweep
from tests import knobs_worker
from tests.finetune.conftest import write_model, write_task

IN_A_PROCESS = [
    f"{stage}.{field}" for stage in ("pretrain", "finetune") for field in getattr(knobs_worker, stage.upper())
]
IN_A_PROCESS += ["pretrain.deterministic"]
# Setting -> what is looked at, its other value, what stands on both sides.
FINETUNE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "methods": ("files", ["r3f"], {}),
    "seeds": ("files", [1], {}),
    "length": ("numbers", 8, {}),
    "batch": ("numbers", 4, {}),
    "micro_batch": ("numbers", 2, {}),
    "buckets": ("numbers", False, {}),
    "epochs": ("numbers", 0.5, {}),
    "max_steps": ("numbers", 2, {}),
    "train_rows": ("numbers", 8, {}),
    "evals_per_epoch": ("numbers", 3, {}),
    "patience": ("numbers", 1, {"epochs": 6, "optim": {"lr": 1e-9}}),
    "eval_batch": ("evaluated", 5, {}),
    "log_every": ("numbers", 1, {}),
    "save_every": ("saves", 0, {}),
    "worker": ("said", 1, {}),
    "save_model": ("files", True, {}),
}


_KNOWN: dict[str, dict[str, Any]] = {}  # what several settings are compared with, made once


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("knobs")
    write_model(folder / "model")
    write_task(folder / "task")
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("worker")
    variables = {**os.environ, "LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.knobs_worker", str(folder)]
    ended = subprocess.run(command, env=variables, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("setting", IN_A_PROCESS)
def test_a_setting_under_deepspeed_changes_what_is_seen(setting: str, found: dict[str, Any]) -> None:
    without, with_it = found[setting]
    assert without != with_it


def observed(
    place: Path, out: Path, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, said: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """What a sweep of one short run records, writes, prints, evaluates with and saves on its way."""
    sizes, saves = [], []
    predict, save = loop.predict, Saver.save
    monkeypatch.undo()
    monkeypatch.setattr(loop, "predict", lambda *given: (sizes.append(given[2]), predict(*given))[1])
    monkeypatch.setattr(Saver, "save", lambda *given: (saves.append(1), save(*given))[1])
    asked = {"task": {"folder": place / "task"}, "models": {"tiny": place / "model"}, "methods": ["vanilla"]}
    asked |= {"seeds": [0], "length": 16, "batch": 8, "epochs": 1, "log_every": 2, "optim": {"lr": 0.01}}
    said.readouterr()
    torch.manual_seed(0)
    sweep({**asked, **changed, "out": out})
    (run,) = out.glob("colours/*")
    drop = ("seconds", "train_seconds", "peak_resident_bytes")
    events = [event for event in record.read(run / record.NAME) if event["event"] in ("train", "eval", "end")]
    return {
        "numbers": [{key: value for key, value in event.items() if key not in drop} for event in events],
        "files": sorted(
            {path.relative_to(out).as_posix() for path in out.rglob("*") if "tensorboard" not in path.parts}
        ),
        "said": re.sub(r"\d+\.\d+ s", "", said.readouterr().out),
        "evaluated": set(sizes),
        "saves": len(saves),
    }


@pytest.mark.parametrize("setting", FINETUNE)
def test_a_setting_of_fine_tuning_changes_what_is_seen(
    setting: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    what, value, beside = FINETUNE[setting]
    if repr(beside) not in _KNOWN:
        _KNOWN[repr(beside)], again = (
            observed(place, tmp_path / name, beside, monkeypatch, capsys) for name in ("before", "again")
        )
        assert _KNOWN[repr(beside)] == again  # without which the last line could not fail
    after = observed(place, tmp_path / "after", {**beside, setting: value}, monkeypatch, capsys)
    assert _KNOWN[repr(beside)][what] != after[what]
