"""A run that is cut off anywhere and started again ends with the bits of one that was not."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asa.config import save_yaml
from asa.engine import PlainEngine
from asa.errors import RequestError
from asa.record import Record
from finetune import state
from finetune.sweep import sweep
from tests import stopping
from tests.finetune.conftest import Given, Make, events

METHODS = ["vanilla", "asa", "smart", "freeat"]
COSTS = ("seconds", "train_seconds", "peak_resident_bytes")


class Killed(BaseException):
    """Stands for a signal that nothing catches."""


def facts(out: Path, run: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key not in COSTS} for event in events(out, run)[1:]]


def assert_same_end(one: Path, other: Path, run: str) -> None:
    """The same record but for the times, the same predictions and weights, nothing left of the way there."""
    assert facts(one, run) == facts(other, run)
    mine, theirs = (next(out.glob(f"*/{run}")) for out in (one, other))
    for name in ("logits", "gold"):
        with np.load(mine / "predictions" / "test.npz") as a, np.load(theirs / "predictions" / "test.npz") as b:
            assert np.array_equal(a[name], b[name])
    a, b = (load_file(folder / "model" / "model.safetensors") for folder in (mine, theirs))
    assert all((a[name] == b[name]).all() for name in a)
    assert not (theirs / state.FOLDER).exists()


def kill_at(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """Let the updates before number `update`, counted from 1, be made and the process be gone at this one."""
    made, step = 0, PlainEngine.step

    def counted(engine: PlainEngine, norms: bool = False) -> Any:
        nonlocal made
        made += 1
        if made == update:
            raise Killed
        return step(engine, norms)

    monkeypatch.setattr(PlainEngine, "step", counted)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_from_its_newest_state(
    method: str, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = {"save_every": 0, "log_every": 1 if method == "freeat" else 2}  # two updates a step
    wanted = given(methods=[method], epochs=4, save_model=True, evals_per_epoch=2, **often)
    run = f"tiny-{method}-0"
    sweep({**wanted, "out": tmp_path / "whole"})
    made = []
    for update in (6, 4):
        with monkeypatch.context() as patched:
            kill_at(patched, update)
            with pytest.raises(Killed):
                sweep(wanted)
        (folder,) = (tmp_path / "runs").glob(f"*/{run}/{state.FOLDER}")
        made.append(max(int(path.name.removeprefix("step-")) for path in folder.glob("step-*")))
        assert len(list(folder.glob("best-*.safetensors"))) == 1
    assert 0 < made[0] < made[1] < 12
    sweep(wanted)
    assert_same_end(tmp_path / "whole", tmp_path / "runs", run)


def test_patience_and_the_best_evaluation_outlive_a_kill(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = given(epochs=30, patience=3, save_every=0, save_model=True, log_every=1, optim={"lr": 0.05})
    sweep({**wanted, "out": tmp_path / "whole"})
    end = events(tmp_path / "whole", "tiny-vanilla-0")[-1]
    assert end["steps"] < 90
    assert end["best_step"] < end["steps"] - 3  # the kill comes after the best evaluation, before the end
    with monkeypatch.context() as patched:
        kill_at(patched, end["steps"] - 1)
        with pytest.raises(Killed):
            sweep(wanted)
    sweep(wanted)
    assert_same_end(tmp_path / "whole", tmp_path / "runs", "tiny-vanilla-0")


def cut_off(monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]) -> None:
    """Leave the run killed at its last step, with a saved state."""
    with monkeypatch.context() as patched:
        kill_at(patched, 6)
        with pytest.raises(Killed):
            sweep(wanted)


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def altered(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("step-*/model.safetensors", truncated),
        pytest.param("best-*", truncated, marks=pytest.mark.slow),
        ("best-*", altered),
        ("best-*", None),
    ],
)
def test_a_damaged_state_is_told_and_the_run_starts_anew(
    file: str,
    damage: Callable[[bytes], bytes] | None,
    given: Given,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = given(save_every=0, save_model=True)
    sweep({**wanted, "out": tmp_path / "whole"})
    cut_off(monkeypatch, wanted)
    (weights,) = (tmp_path / "runs").glob(f"*/*/{state.FOLDER}/{file}")
    weights.unlink() if damage is None else weights.write_bytes(damage(weights.read_bytes()))
    capsys.readouterr()
    sweep(wanted)
    assert "the run starts anew" in capsys.readouterr().out
    assert_same_end(tmp_path / "whole", tmp_path / "runs", "tiny-vanilla-0")


def test_a_saved_state_of_other_settings_is_replaced_on_request_alone(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = given(save_every=0, save_model=True)
    cut_off(monkeypatch, {**wanted, "length": 12})
    with pytest.raises(RequestError, match=r"unfinished run, .* another length; set --out or --overwrite true"):
        sweep(wanted)
    assert any((tmp_path / "runs").glob(f"*/*/{state.FOLDER}/step-*"))
    sweep({**wanted, "overwrite": True})
    sweep({**wanted, "out": tmp_path / "whole"})
    assert_same_end(tmp_path / "whole", tmp_path / "runs", "tiny-vanilla-0")


def test_another_number_of_threads_does_not_go_on(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = given(save_every=0, save_model=True)
    cut_off(monkeypatch, wanted)
    begun = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: begun + 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    capsys.readouterr()
    sweep(wanted)
    assert f"begun with threads {begun}, now {begun + 1}; the run starts anew" in capsys.readouterr().out
    (start, *_) = events(tmp_path / "runs", "tiny-vanilla-0")
    assert start["threads"] == begun + 1


def test_a_run_that_goes_on_tells_the_time_of_all_its_parts(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = given(save_every=0)
    cut_off(monkeypatch, wanted)
    resume = state.resume

    def long_ago(*given: Any) -> Any:
        found = resume(*given)
        assert found is not None
        return replace(found, seconds=1000.0, training=600.0)

    monkeypatch.setattr(state, "resume", long_ago)
    sweep(wanted)
    end = events(wanted["out"], "tiny-vanilla-0")[-1]
    assert 1000 < end["seconds"] < 1100
    assert 600 < end["train_seconds"] < 700


def test_the_lines_of_a_run_are_on_disk_before_the_state_that_goes_on_behind_them(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else after a power cut the state may be there and they not."""
    done, sync, save = list[str](), Record.sync, state.Saver.save
    monkeypatch.setattr(Record, "sync", lambda self: (done.append("lines"), sync(self)))
    monkeypatch.setattr(state.Saver, "save", lambda *given: (done.append("state"), save(*given)))
    sweep(given(save_every=0))
    assert done == ["lines", "state"] * 2 + ["lines"]  # the last: of the end


def test_the_best_weights_of_a_state_stay_until_the_next_one_is_there(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a kill in between leaves a state without them, and the run starts anew."""
    there, nothing = list[list[str]](), cast(Any, None)

    def best() -> list[str]:
        return sorted(path.name for path in (tmp_path / state.FOLDER).glob("best-*"))

    monkeypatch.setattr(state.checkpoint, "save", lambda *given, **settings: there.append(best()))
    saver = state.Saver(tmp_path, 60, model_folder)
    for step in (1, 2):
        weights = {"weight": torch.zeros(1)}
        saver.save(nothing, nothing, state.Progress(step, state.Best(step, 0.5, {"accuracy": 0.5}, weights)))
    assert there == [["best-1.safetensors"], ["best-1.safetensors", "best-2.safetensors"]]
    assert best() == ["best-2.safetensors"]


def test_a_state_holds_what_the_run_has_taken_and_how_long_it_is_no_better(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, nothing = list[dict[str, Any]](), cast(Any, None)
    monkeypatch.setattr(state.checkpoint, "save", lambda *given, **settings: held.append(given[-1]))
    progress = state.Progress(3, None, stale=2, seconds=9.0, training=4.0)
    state.Saver(tmp_path, 60, model_folder).save(nothing, nothing, progress)
    assert held == [{"best": None, "stale": 2, "seconds": 9.0, "training": 4.0}]


def test_a_long_save_makes_the_next_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    saver = state.Saver(tmp_path, 60, tmp_path)
    for at, due in ((59, False), (60, True)):
        now[0] = at
        assert saver.due() == due
    saver._took = 3.0
    for at, due in ((179, False), (180, True)):
        now[0] = at
        assert saver.due() == due


@pytest.mark.reliability
def test_killed_for_real_again_and_again_it_ends_as_if_nothing_had_been(make: Make, tmp_path: Path) -> None:
    """SIGKILL to the process, each time some updates later, until a call comes to its end."""
    config = make(methods=["asa"], epochs=60, save_every=0, save_model=True, log_every=1)
    save_yaml(config, tmp_path / "tune.yaml")

    def command(out: str) -> list[str]:
        words = ["run", "--config", str(tmp_path / "tune.yaml"), "--out", str(tmp_path / out)]
        return [sys.executable, "-m", "finetune", *words]

    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    assert subprocess.run(command("whole"), env=environment, timeout=300).returncode == 0
    kills = 0
    while True:
        until = stopping.command("asa.engine:PlainEngine", "step", 20 + 7 * kills, command("runs"))
        process = subprocess.Popen(until, env=environment)
        if not stopping.stopped(process):
            break
        process.kill()
        process.wait(60)
        kills += 1
    assert kills >= 3
    assert process.returncode == 0
    assert_same_end(tmp_path / "whole", tmp_path / "runs", "tiny-asa-0")
