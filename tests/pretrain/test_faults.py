"""What is not finite is never applied: its rows are named, and the run stops or goes on as its configuration says."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertForMaskedLM, PreTrainedModel

from asa import checkpoint, dist, record, rtd
from asa.batch import Batch
from asa.engine import Engine, PlainEngine
from asa.errors import NotWritten, WorkError
from asa.methods import vanilla
from asa.model import Output, TaskModel
from asa.optim import OptimConfig, learning_rate
from pretrain import loop
from pretrain.config import PretrainConfig
from pretrain.data import Batches
from pretrain.faults import IN_A_ROW, Faults
from pretrain.loop import train
from tests.asa.encoders import tiny

pytestmark = pytest.mark.usefixtures("one_process")
CPU = torch.device("cpu")
BAD_STEP, SLOTS = 3, 2


class InfiniteGradient(torch.autograd.Function):
    """The identity whose gradient overflows."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0] * torch.inf


@pytest.fixture
def config(request_: PretrainConfig) -> PretrainConfig:
    return replace(request_, method="vanilla", steps=6, eval_every=6, save_every=2)


def break_loss(
    monkeypatch: pytest.MonkeyPatch, how: Callable[[Tensor], Tensor], first: int, last: int | None = None
) -> None:
    """Do `how` to the loss of the second micro-batch of the steps from `first` (from 1) to `last`."""
    calls = 0
    real = vanilla.task_loss

    def broken(out: Output, batch: Batch) -> Tensor:
        nonlocal calls
        step, slot = calls // SLOTS + 1, calls % SLOTS
        calls += 1
        loss = real(out, batch)
        return how(loss) if slot == 1 and first <= step <= (last or first) else loss

    monkeypatch.setattr(vanilla, "task_loss", broken)


def rows(config: PretrainConfig, step: int) -> list[list[int]]:
    """Numbers of the training rows of each micro-batch of a step (from 1)."""
    batches = Batches(config.data, config.seed, config.global_batch, config.mask_share, 0, 1)
    return [numbers.tolist() for numbers in batches.rows(step - 1, SLOTS)]


def events(config: PretrainConfig, event: str) -> list[dict]:
    return [line for line in record.read(config.out / record.NAME) if line["event"] == event]


def test_a_loss_that_is_nan_stops_the_run_and_names_its_rows(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_loss(monkeypatch, lambda loss: loss * torch.nan, BAD_STEP)
    shown = ", ".join(map(str, rows(config, BAD_STEP)[1]))
    with pytest.raises(WorkError, match=rf"the loss of step 3 of rank 0 is not finite; its training rows: {shown};"):
        train(config, CPU)
    assert [fault["rows"] for fault in events(config, "fault")] == [rows(config, BAD_STEP)[1]]
    assert [path.name for path in checkpoint.complete(config.out / "checkpoints")] == ["step-2"]


@pytest.mark.parametrize(
    ("how", "what", "zero"),
    [
        (InfiniteGradient.apply, "gradient", 0),
        (lambda loss: loss * torch.nan, "loss", 1),
        (lambda loss: loss + torch.inf, "loss", 2),  # its gradients are finite
        (InfiniteGradient.apply, "gradient", 3),
    ],
)
def test_skipped_by_configuration_the_run_goes_on_without_that_update(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch, how: Callable[[Tensor], Tensor], what: str, zero: int
) -> None:
    config = replace(config, on_nonfinite="skip", zero=zero)
    break_loss(monkeypatch, how, BAD_STEP)
    train(config, CPU)
    (fault,) = events(config, "fault")
    first, second = rows(config, BAD_STEP)
    assert (fault["step"], fault["what"]) == (BAD_STEP, what)
    assert fault["rows"] == (second if what == "loss" else first + second)
    steps = events(config, "train")
    assert [line["skipped"] for line in steps] == [0, 0, 1, 1, 1, 1]
    # The rate of the update that was not made is that of the next one.
    assert [line["lr"] for line in steps] == [learning_rate(config.optim, n, 6) for n in (0, 1, 2, 2, 3, 4)]
    assert record.finished(config.out / record.NAME)


def test_a_run_that_goes_on_counts_what_was_skipped_before(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, on_nonfinite="skip")
    break_loss(monkeypatch, lambda loss: loss * torch.nan, BAD_STEP)
    train(config, CPU)
    shutil.rmtree(config.out / "checkpoints" / "step-6")
    train(config, CPU)
    assert [line["skipped"] for line in events(config, "train")] == [0, 0, 1, 1, 1, 1]


def test_a_generator_that_is_nan_is_a_fault_that_can_be_skipped(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = rtd.masked_lm, []

    def broken(model: PreTrainedModel, batch: Batch, *rest: Any) -> Output:
        out = real(model, batch, *rest)
        calls.append(torch.is_grad_enabled())
        return out if sum(calls) != BAD_STEP * SLOTS or not calls[-1] else Output(out.logits * torch.nan)

    monkeypatch.setattr(rtd, "masked_lm", broken)
    train(replace(config, objective="rtd", on_nonfinite="skip"), CPU)
    (fault,) = events(config, "fault")
    assert (fault["step"], fault["what"]) == (BAD_STEP, "loss")
    assert [line["skipped"] for line in events(config, "train")] == [0, 0, 1, 1, 1, 1]


def test_faults_without_an_end_stop_the_run_all_the_same(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_loss(monkeypatch, lambda loss: loss * torch.inf, 2, 100)
    with pytest.raises(WorkError, match=f"{IN_A_ROW} faults without an update"):
        train(replace(config, steps=30, eval_every=30, on_nonfinite="skip"), CPU)
    assert len(events(config, "fault")) == IN_A_ROW


def test_a_step_of_several_updates_counts_as_one_fault() -> None:
    """As of a method that replays a batch: ten steps, and not ten of its updates, tell that skipping is no help."""
    engine = PlainEngine(TaskModel(tiny("bert"), "mlm"), OptimConfig(), 1, CPU)
    faults, rows = Faults("skip"), [np.arange(2)]
    for step in (1, 1, 2, 2):
        faults.not_applied(engine, step, False, [torch.tensor(torch.nan)], rows, lambda fault: None)
    assert (faults.skipped, faults.in_a_row) == (4, 2)


def test_faults_with_updates_between_them_stop_no_run() -> None:
    """In weeks there may be more than skipping is tried in a row."""
    engine = PlainEngine(TaskModel(tiny("bert"), "mlm"), OptimConfig(), 1, CPU)
    faults, rows = Faults("skip"), [np.arange(2)]
    for step in range(1, IN_A_ROW + 2):
        faults.not_applied(engine, step, False, [torch.tensor(torch.nan)], rows, lambda fault: None)
        faults.applied()
    assert (faults.skipped, faults.in_a_row) == (IN_A_ROW + 1, 0)


def test_a_weight_that_is_not_finite_is_named_and_no_policy_skips_it(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "model.bert.encoder.layer.1.output.dense.weight"
    real = vanilla.Vanilla.backward

    def spoil(self: vanilla.Vanilla, engine: Engine, batch: Batch, at: object) -> dict[str, Tensor]:
        dict(engine.module.named_parameters())[name].data[0, 0] = torch.nan
        return real(self, engine, batch, at)  # type: ignore[arg-type]

    monkeypatch.setattr(vanilla.Vanilla, "backward", spoil)
    with pytest.raises(WorkError, match=rf"weight {name} is not finite"):
        train(replace(config, on_nonfinite="skip"), CPU)
    assert checkpoint.complete(config.out / "checkpoints") == []


def test_a_model_with_a_weight_that_is_not_finite_is_named(config: PretrainConfig, tmp_path: Path) -> None:
    """No learning rate mends it."""
    model = BertForMaskedLM.from_pretrained(config.model)
    name = "bert.encoder.layer.0.attention.self.key.bias"
    model.get_parameter(name).data[0] = torch.nan
    shutil.copytree(config.model, broken := tmp_path / "broken")
    model.save_pretrained(broken)
    told = rf"at step 0 is nan: the weight model\.{re.escape(name)} of .*broken is not finite; give another --model"
    with pytest.raises(WorkError, match=told):
        train(replace(config, model=broken), CPU)


def test_a_weight_that_broke_is_told_of_a_held_out_figure_that_is_not_finite(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "model.bert.encoder.layer.1.output.dense.weight"

    def spoil(self: vanilla.Vanilla, engine: Engine) -> None:
        dict(engine.module.named_parameters())[name].data[0, 0] = torch.nan

    monkeypatch.setattr(vanilla.Vanilla, "after_step", spoil)
    told = rf"at step 1 is nan: the weight {re.escape(name)} is not finite; go on from an older checkpoint"
    with pytest.raises(WorkError, match=told):
        train(replace(config, eval_every=1), CPU)


def test_a_checkpoint_that_cannot_be_written_ends_the_run_or_not_as_configured(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = checkpoint.save

    def full_at_two(root: Path, step: int, *rest: object) -> Path:
        if step == 2:
            raise checkpoint.SaveFailed("No space left on device")
        return real(root, step, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "save", full_at_two)
    with pytest.raises(checkpoint.SaveFailed, match="No space"):
        train(config, CPU)
    going_on = replace(config, out=tmp_path / "on", on_save_error="continue")
    train(going_on, CPU)
    assert [(line["step"], line["what"]) for line in events(going_on, "fault")] == [(2, "save")]
    assert [path.name for path in checkpoint.complete(going_on.out / "checkpoints")] == ["step-4", "step-6"]


def test_an_overflow_of_the_loss_scale_is_no_fault_and_a_loss_is() -> None:
    engine = PlainEngine(TaskModel(tiny("bert"), "mlm"), OptimConfig(), 1, CPU)
    faults, told = Faults("stop"), []
    rows = [np.arange(2)]
    faults.not_applied(engine, 1, True, [torch.tensor(1.0)], rows, told.append)
    assert (faults.skipped, faults.in_a_row, told) == (1, 0, [])
    with pytest.raises(WorkError, match="the loss of step 2"):
        faults.not_applied(engine, 2, False, [torch.tensor(torch.nan)], rows, told.append)
    assert [fault.rows for fault in told] == [[0, 1]]


def test_the_record_is_written_where_a_refusal_reaches_every_rank(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside dist.on_main, which raises on all ranks what rank 0 meets."""
    on_main, inside = dist.on_main, list[str]()
    calls: dict[bool, list[str]] = {True: [], False: []}  # by whether they were inside

    def marked(work: Callable[[], Any]) -> Any:
        inside.append("on_main")
        try:
            return on_main(work)
        finally:
            inside.pop()

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[bool(inside)].append(name)
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(dist, "on_main", marked)
    for name in ("__init__", "log", "steps", "end"):
        monkeypatch.setattr(record.Record, name, watched(name, getattr(record.Record, name)))
    monkeypatch.setattr(loop, "save_yaml", watched("save_yaml", loop.save_yaml))
    train(replace(config, steps=2), CPU)
    assert calls[False] == []
    assert {"__init__", "log", "end", "save_yaml"} <= set(calls[True])


def test_a_record_that_cannot_be_written_ends_the_run_or_not_as_configured(
    config: PretrainConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = record.Record.log
    error: type[WorkError] = NotWritten

    def full_at_two(self: record.Record, event: str, step: int, values: dict) -> None:
        if step == 2:
            raise error("metrics.jsonl cannot be written: No space left on device")
        real(self, event, step, values)

    monkeypatch.setattr(record.Record, "log", full_at_two)
    with pytest.raises(WorkError, match="No space"):
        train(config, CPU)
    going_on = replace(config, out=tmp_path / "on", on_save_error="continue")
    train(going_on, CPU)
    assert [line["step"] for line in events(going_on, "train")] == [1, 3, 4, 5, 6]
    error = WorkError  # what another rank gets of a bug on rank 0, which has left
    with pytest.raises(WorkError, match="No space"):
        train(replace(going_on, out=tmp_path / "bug"), CPU)
