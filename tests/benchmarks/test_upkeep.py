"""The cost of keeping a run is measured on a real one; how long anything takes is not tested."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asa.errors import RequestError
from benchmarks.upkeep import measure, upkeep
from tests.pretrain.conftest import model, shards

__all__ = ["model", "shards"]  # fixtures


def test_fewer_gpus_than_processes_are_refused_and_not_passed_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RequestError, match=r"processes = 2: allowed: 1 to 1.*set --processes"):
        upkeep(["--data", "d", "--model", "m"])


def test_every_part_has_its_line(
    model: Path, shards: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "DS_ACCELERATOR"):
        monkeypatch.setenv(name, "")  # the benchmark sets it, and afterwards it is as before
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    settings = {"data": shards, "model": model, "processes": 1, "rounds": 2, "global_batch": 8, "micro_batch": 4} | {
        "results": "null"
    }
    upkeep([part for name, value in settings.items() for part in (f"--{name}", str(value))])
    head, *lines = [line for line in capfd.readouterr().out.splitlines() if "(" in line or "milliseconds" in line]
    assert "1 processes, 8 rows a step" in head
    parts = ["step", "stop flag, each step", "log line, each log_every", "checkpoint, save", "checkpoint, load"]
    assert [line[:26].strip() for line in lines] == parts


def test_the_norms_of_a_log_line_are_the_lines_and_not_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def takes(seconds: float) -> None:
        nonlocal now
        now += seconds

    def update(session: Any, log: bool) -> tuple[dict[str, Any], None]:
        takes(100)
        return {}, session.run.engine.step(norms=log)

    step = lambda norms=False: takes(30 if norms else 10)  # noqa: E731
    run = SimpleNamespace(
        config=SimpleNamespace(out=tmp_path), engine=SimpleNamespace(step=step), method=None,
        device=torch.device("cpu"), step=0,
    )  # fmt: skip
    session: Any = SimpleNamespace(
        run=run, meter=SimpleNamespace(steps=0), stop=SimpleNamespace(agreed=lambda: False),
        record=SimpleNamespace(log=lambda *line: takes(2)),
    )  # fmt: skip
    for name, fake in {"update": update, "figures": lambda *of: takes(1), "save": lambda *of: None}.items():
        monkeypatch.setattr(f"benchmarks.upkeep.{name}", fake)
    monkeypatch.setattr("benchmarks.upkeep.checkpoint.complete", lambda root: [root])
    monkeypatch.setattr("benchmarks.upkeep.checkpoint.load", lambda *of: None)
    monkeypatch.setattr("benchmarks.upkeep.time.perf_counter", lambda: now)
    found = measure(session, rounds=2)
    assert found["step"] == [110, 110]
    assert found["log line, each log_every"] == [30 - 10 + 1 + 2] * 2
    assert run.engine.step is step
