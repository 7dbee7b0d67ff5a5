"""A signal ends a run in order: a complete checkpoint, and the continued run equals one that nobody disturbed."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asa import checkpoint, record
from asa.methods.asa import ASA
from pretrain import loop
from pretrain.config import PretrainConfig
from pretrain.loop import train
from pretrain.objective import MaskedLM
from pretrain.stop import Stop

pytestmark = pytest.mark.usefixtures("one_process")
CPU = torch.device("cpu")


def signalled(real: Callable[..., Any], at: int, number: int) -> Callable[..., Any]:
    """`real`, which in its call number `at` (from 1) gets the signal."""
    calls = 0

    def wrapped(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), number)
        return real(*args)

    return wrapped


def told(run: Path) -> list[dict]:
    """Train and eval lines without what a clock or the system says."""
    lines = [line for line in record.read(run / record.NAME) if line["event"] in ("train", "eval")]
    return [{key: value for key, value in line.items() if key not in ("tokens_per_s", "memory_gb")} for line in lines]


@pytest.mark.parametrize(
    ("number", "owner", "name", "call", "stopped_at"),
    [
        (signal.SIGTERM, ASA, "backward", 6, 3),  # in the second micro-batch of step 3, where an evaluation is due
        (signal.SIGINT, ASA, "backward", 7, 4),
        (signal.SIGTERM, MaskedLM, "count", 1, None),  # in the evaluation before the first step: nothing to save
        (signal.SIGTERM, MaskedLM, "count", 8, 6),  # in the one after the last step
    ],
)
def test_a_signal_stops_after_the_step_at_hand_and_the_continued_run_is_the_undisturbed_one(
    request_: PretrainConfig, tmp_path: Path, number: int, owner: type, name: str, call: int, stopped_at: int | None
) -> None:
    calm = replace(request_, out=tmp_path / "calm")
    assert train(calm, CPU) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, signalled(getattr(owner, name), call, number))
        assert train(request_, CPU) == number
    checkpoints = checkpoint.complete(request_.out / "checkpoints")
    assert [folder.name for folder in checkpoints[-1:]] == ([] if stopped_at is None else [f"step-{stopped_at}"])
    assert not record.finished(request_.out / record.NAME)
    assert train(request_, CPU) == 0
    expected, found = (load_file(c.out / "checkpoints" / "step-6" / "model.safetensors") for c in (calm, request_))
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert json.dumps(told(request_.out)) == json.dumps(told(calm.out))
    assert record.finished(request_.out / record.NAME)


def test_a_rank_stops_where_another_has_got_the_signal(
    request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else that one waits for it in the next step."""
    made, update = list[int](), loop.update
    monkeypatch.setattr(loop, "update", lambda session, log: (made.append(1), update(session, log))[1])
    monkeypatch.setattr("asa.dist.any_", lambda mine: mine or bool(made))
    assert train(replace(request_, method="vanilla", steps=3, eval_every=3), CPU) == 0
    assert [path.name for path in checkpoint.complete(request_.out / "checkpoints")] == ["step-1"]


def test_a_second_interrupt_interrupts_and_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    stop = Stop()
    with stop.caught():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.agreed()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("under_nohup", [False, True])
def test_a_terminal_that_is_closed_stops_what_nohup_does_not_protect(under_nohup: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if under_nohup else signal.SIG_DFL)
    try:
        with Stop().caught() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal == (0 if under_nohup else signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_repeated_sigterm_does_not_cut_the_checkpoint_off() -> None:
    """DeepSpeed's launcher sends one of its own after that of whoever stops the job."""
    with Stop().caught() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.agreed()
