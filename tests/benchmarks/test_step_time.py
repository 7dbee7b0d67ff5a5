"""The step timer runs real optimizer steps in turns and reports them; how long they take is not tested."""

from pathlib import Path

import pytest
import torch

from asa.errors import RequestError
from benchmarks.step_time import StepTimeConfig, build_steps, measure, report, step_time
from benchmarks.steps import ASA, STOCK, VANILLA, mlm_batch
from tests.asa.conftest import LENGTH, tiny_bert

CPU = torch.device("cpu")


def tiny(folder: Path, length: int = LENGTH) -> StepTimeConfig:
    tiny_bert().save_pretrained(folder)
    return StepTimeConfig(model=folder, length=length, batch=2, repeats=3, warmup=1)


def test_every_step_is_timed_once_per_round_after_the_warm_up(tmp_path: Path) -> None:
    seconds = measure(tiny(tmp_path), CPU)
    assert list(seconds) == [VANILLA, ASA, STOCK]
    assert {len(taken) for taken in seconds.values()} == {3}


def test_a_timed_step_updates_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[int] = []
    update = torch.optim.AdamW.step

    def counted(optimizer: torch.optim.AdamW, *args: object) -> None:
        updates.append(sum(p.grad is not None for group in optimizer.param_groups for p in group["params"]))
        update(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", counted)
    for step in build_steps(tiny(tmp_path), CPU).values():
        step()
    # The ASA step also updates two adversaries of two linear maps each; none of the three leaves the encoder out.
    assert updates[1] == updates[0] + 8
    assert min(updates) > 30


def test_the_report_gives_medians_spread_and_ratios() -> None:
    seconds = {VANILLA: [0.1, 0.2, 0.9], ASA: [0.4, 0.3, 0.5], STOCK: [0.1, 0.5, 0.25]}
    lines = report(StepTimeConfig(repeats=3), seconds).splitlines()
    assert lines[2].split() == ["vanilla", "200.0", "100.0", "900.0"]
    assert lines[-1] == "ratios: ASA/vanilla 2.000, vanilla/stock 0.800, ASA/stock 1.600"


def test_a_model_without_enough_positions_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"length = {LENGTH + 1}.*8 to {LENGTH}; set --length"):
        measure(tiny(tmp_path, LENGTH + 1), CPU)


def test_a_wrong_size_is_refused_before_anything_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        step_time(["--width", "65"])
    assert exit_.value.code == 2
    assert "set --width" in capsys.readouterr().err


def test_the_batch_masks_15_percent_of_every_row() -> None:
    batch = mlm_batch(3, 40, 99)
    assert batch.positions is not None
    assert (batch.positions // 40).bincount().tolist() == [6, 6, 6]
    assert torch.equal(batch.labels, batch.inputs["input_ids"].flatten()[batch.positions])
    assert batch.total_labels == 18
