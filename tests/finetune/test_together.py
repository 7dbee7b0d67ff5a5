"""A run that two processes share and one of them fails at: what becomes of it and of the runs after it."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from asa import dist, record
from asa.config import save_yaml
from asa.engine import PlainEngine
from asa.errors import Apart, WorkError
from asa.methods.vanilla import Vanilla
from finetune.__main__ import _as_ranks
from finetune.state import Saver
from finetune.sweep import sweep
from finetune.together import FULL
from tests.finetune.conftest import Given, Make, events

FAILING = "tests.finetune.failing:Failing"
HERE = "127.0.0.1"
VARIABLES = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": HERE, "OMP_NUM_THREADS": "1"}


def together(make: Make, tmp_path: Path, what: str, rank: int = 1, **changes: Any) -> tuple[list[int], list[str], Path]:
    """Exit codes and errors of both ranks, and the folder of the runs."""
    out = tmp_path / "shared"
    outside = {"rank": rank, "what": what}
    save_yaml(make(methods=[FAILING, "vanilla"], outside=outside, out=out, **changes), tmp_path / "request.yaml")
    # The ranks meet in this process, as they do in torch's launcher, so that nobody can take the port before they do.
    store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    meeting = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    variables = {**os.environ, **VARIABLES, **meeting}
    command = [sys.executable, "-m", "finetune", "run", "--config", str(tmp_path / "request.yaml")]
    ranks = []
    for number in ("0", "1"):
        own = {**variables, "RANK": number, "LOCAL_RANK": number}
        ranks.append(subprocess.Popen(command, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    try:
        errors = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [process.returncode for process in ranks], errors, out


@pytest.mark.slow
def test_full_memory_on_one_rank_ends_the_run_alone(make: Make, tmp_path: Path) -> None:
    codes, errors, out = together(make, tmp_path, "memory")
    assert codes == [1, 1], errors
    assert f"1 of 2 runs failed (colours/tiny-{FAILING}-0); the first: rank 1: {FULL}" in errors[0]
    assert events(out, f"tiny-{FAILING}-0")[-1] == {"event": "failed", "step": 3, "error": f"rank 1: {FULL}"}
    assert events(out, "tiny-vanilla-0")[-1]["event"] == "end"


@pytest.mark.slow
def test_a_model_that_one_rank_cannot_read_costs_the_run_alone(make: Make, tmp_path: Path) -> None:
    codes, errors, out = together(make, tmp_path, "disk")
    assert codes == [1, 1], errors
    assert f"1 of 2 runs failed (colours/tiny-{FAILING}-0); the first: rank 1: " in errors[0]
    assert "could not be read ([Errno 5] Input/output error)" in errors[0]
    assert events(out, f"tiny-{FAILING}-0")[-1]["event"] == "failed"
    assert events(out, "tiny-vanilla-0")[-1]["event"] == "end"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_prediction_that_is_not_finite_on_one_rank_ends_the_run_alone(rank: int, make: Make, tmp_path: Path) -> None:
    codes, errors, out = together(make, tmp_path, "nan", rank)
    assert codes == [1, 1], errors
    told = f"tiny-{FAILING}-0: a prediction is not finite; lower --optim.lr"
    assert [told in error for error in errors] == [True, False]
    assert events(out, f"tiny-{FAILING}-0")[-1]["event"] == "failed"
    assert events(out, "tiny-vanilla-0")[-1]["event"] == "end"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "engine", "told"),
    [
        ("memory", "deepspeed", "error: another rank has ended"),
        ("bug", "plain", "error: rank 1 failed: KeyError('a bug')"),
    ],
)
def test_what_the_ranks_cannot_go_on_from_ends_all_and_says_why(
    make: Make, tmp_path: Path, what: str, engine: str, told: str
) -> None:
    codes, errors, out = together(make, tmp_path, what, engine=engine)
    assert codes == [1, 1]
    assert told in errors[0]
    assert f"error: rank 1: {FULL}" in errors[1] if what == "memory" else "KeyError: 'a bug'" in errors[1]
    assert events(out, f"tiny-{FAILING}-0")[-1]["event"] == "failed"
    assert not list(out.glob(f"*/tiny-vanilla-0/{record.NAME}"))


def test_an_error_that_a_rank_does_not_share_is_told_by_that_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost() -> None:
        raise Apart("its device is gone")

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(dist, "rank", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(Apart):
        _as_ranks(lost)
    assert capsys.readouterr().err == "error: its device is gone\n"


def test_a_stop_after_the_last_run_leaves_nothing_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("RANK", raising=False)
    before: list[Any] = []
    _as_ranks(lambda: before.append(signal.getsignal(signal.SIGTERM)))
    assert callable(before[0])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_a_failed_run_holds_no_memory_while_others_are_made(given: Given, tmp_path: Path) -> None:
    asked = given(methods=[FAILING], seeds=[0, 1, 2], outside={"rank": 0, "what": "memory"})
    gc.collect()
    before = sum(isinstance(found, PlainEngine) for found in gc.get_objects())
    with pytest.raises(WorkError, match="3 of 3 runs failed") as caught:
        sweep(asked)
    gc.collect()
    assert caught.value.__cause__ is None
    assert sum(isinstance(found, PlainEngine) for found in gc.get_objects()) == before
    assert events(tmp_path / "runs", f"tiny-{FAILING}-2")[-1]["error"] == FULL


@pytest.mark.parametrize(
    ("owner", "name"),
    [(PlainEngine, "full_state"), (PlainEngine, "restore"), (Vanilla, "after_step"), (Saver, "save")],
)
def test_memory_that_ends_outside_of_a_pass_is_a_failed_run_as_well(
    owner: type, name: str, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, calls = getattr(owner, name), []

    def full(*rest: Any) -> Any:
        calls.append(name)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work(*rest)

    monkeypatch.setattr(owner, name, full)
    monkeypatch.setattr(Saver, "due", lambda saver: True)
    with pytest.raises(WorkError, match="1 of 2 runs failed") as caught:
        sweep(given(seeds=[0, 1], max_steps=2, log_every=1))
    assert FULL in str(caught.value)
    last = events(tmp_path / "runs", "tiny-vanilla-0")[-1]
    assert (last["event"], last["error"]) == ("failed", FULL)
    assert events(tmp_path / "runs", "tiny-vanilla-1")[-1]["event"] == "end"


def test_memory_that_ends_while_a_saved_state_is_read_is_a_failed_run(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*rest: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("finetune.sweep.is_begun", lambda *rest: True)
    monkeypatch.setattr("finetune.state.resume", full)
    with pytest.raises(WorkError, match="1 of 1 runs failed") as caught:
        sweep(given())
    assert FULL in str(caught.value)
    assert events(tmp_path / "runs", "tiny-vanilla-0")[-1]["error"] == FULL
