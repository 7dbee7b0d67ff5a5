"""A run in half precision beside one in fp32: what is told of them, and on little data the runs themselves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from asa import record
from asa.errors import RequestError, WorkError
from benchmarks import half_precision as half
from benchmarks.half_precision import Found, HalfPrecisionConfig, half_precision, report, stop
from tests.pretrain.conftest import model, shards

__all__ = ["model", "shards"]  # fixtures


def run(losses: list[float], scale: float, resumed: int) -> Found:
    """A run whose log lines have these losses."""
    train = [
        {"step": 5 * n, "task": loss, "loss_scale": scale, "skipped": 2, "tokens_per_s": 1000.0 * n}
        for n, loss in enumerate(losses, start=1)
    ]
    return Found(train, [{"heldout_loss": 9.0}, {"heldout_loss": 4.5}], resumed, 4.25)


def test_losses_stand_beside_each_other_with_their_mean_distance() -> None:
    request = HalfPrecisionConfig(data=Path("d"), model=Path("m"), steps=15)
    found = {"fp32": run([3.0, 2.0, 1.0], 1, 5), "fp16": run([3.5, 2.0, 1.1], 65536, 10)}
    lines = report(request, found, 128).splitlines()
    assert lines[2].split() == ["5", "3.0000", "3.5000", "65536", "2"]
    assert lines[5] == "fp16 - fp32, mean over 3 log lines: +0.2000"
    ends = "held-out loss 9.0000 before, 4.5000 after, 4.2500 of the export"
    assert lines[6] == f"fp32: {ends}; stopped after step 5 and continued; 2000 tokens a second"
    assert lines[7] == f"fp16: {ends}; stopped after step 10 and continued; 2000 tokens a second"


def test_of_many_lines_some_are_shown_the_last_among_them() -> None:
    request = HalfPrecisionConfig(data=Path("d"), model=Path("m"), steps=125)
    found = {name: run([9.0 - n / 10 for n in range(25)], 1, 5) for name in ("fp32", "fp16")}
    lines = report(request, found, 128).splitlines()
    assert [int(line.split()[0]) for line in lines[2:-3]] == [5, 20, 35, 50, 65, 80, 95, 110, 125]


def test_steps_that_were_not_timed_have_no_rate() -> None:
    one = run([3.0], 1, 5)
    del one.train[0]["tokens_per_s"]
    told = report(HalfPrecisionConfig(data=Path("d"), model=Path("m")), {"fp32": one, "fp16": one}, 128)
    assert told.endswith("; - tokens a second")


def program(folder: Path, then: str) -> list[str]:
    """A command that knows how to stop, writes a log line as a run does, and then does something else."""
    line = json.dumps({"event": "train", "step": 1}) + "\n"
    text = "import pathlib, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    text += f"pathlib.Path({str(folder / record.NAME)!r}).write_text({line!r})\n"
    return [sys.executable, "-c", text + then]


def test_a_run_is_stopped_after_its_first_line(tmp_path: Path) -> None:
    assert stop(program(tmp_path, "time.sleep(600)"), tmp_path / record.NAME)


def test_a_run_that_ends_before_is_no_stopped_one(tmp_path: Path) -> None:
    assert not stop(program(tmp_path, ""), tmp_path / "elsewhere.jsonl")


def test_a_run_too_short_to_be_stopped_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "stop", lambda command, path: False)
    request = HalfPrecisionConfig(data=Path("d"), model=Path("m"), steps=2)
    with pytest.raises(WorkError, match=r"^the run in fp16 ended before it could be stopped; raise --steps$"):
        half.measure(request, "fp16", tmp_path)


def test_a_run_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"^a run failed: no luck$"):
        stop(program(tmp_path, "sys.exit('first\\nno luck')"), tmp_path / "elsewhere.jsonl")


def test_what_the_second_run_would_refuse_is_refused_before_the_first(model: Path, shards: Path) -> None:
    argv = ["--model", str(model), "--results", "null", "--data"]
    with pytest.raises(RequestError, match=r"nowhere; give an existing one with --data$"):
        half_precision([*argv, "nowhere", "--precision", "bf16"])
    with pytest.raises(RequestError, match=r"yopo"):
        half_precision([*argv, str(shards), "--precision", "bf16", "--zero", "3", "--method", "yopo"])
    if not torch.cuda.is_available():
        with pytest.raises(RequestError, match=r"fp16 needs a GPU"):
            half_precision([*argv, str(shards)])


def test_a_folder_may_have_the_name_of_a_run(
    model: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(half, "measure", lambda *_: run([3.0], 1, 5))
    half_precision(["--model", "run", "--results", "null", "--data", str(shards), "--precision", "bf16"])


@pytest.mark.slow
def test_a_stopped_command_stops_its_run(model: Path, shards: Path, tmp_path: Path) -> None:
    argv = ["--data", str(shards), "--model", str(model), "--precision", "bf16", "--steps", "100000"]
    command = [sys.executable, "-m", "benchmarks", "half-precision", *argv, "--results", "null"]
    process = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(tmp_path)}, cwd=Path(__file__).parents[2])
    try:
        until = time.monotonic() + 120
        while not list(tmp_path.glob("tmp*/fp32/run/metrics.jsonl")):
            assert time.monotonic() < until
            time.sleep(0.1)
        started = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
    assert len(started) > 1
    assert psutil.wait_procs(started, timeout=60)[1] == []


@pytest.mark.slow
def test_runs_are_stopped_continued_and_exported(model: Path, shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--data", str(shards), "--model", str(model), "--precision", "bf16", "--steps", "30", "--batch", "8"]
    half_precision([*argv, "--results", "null"])
    *_, full, half = capsys.readouterr().out.splitlines()
    for line in (full, half):
        before, after, exported = map(float, re.findall(r"(\d\.\d+) (?:before|after|of)", line))
        assert after < before
        assert exported == pytest.approx(after, rel=0.01)
        assert "stopped after step" in line
