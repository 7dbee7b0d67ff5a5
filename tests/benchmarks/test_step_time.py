"""The step timer runs real optimizer steps in turns and reports them; how long they take is not tested."""

from pathlib import Path
from typing import Any

import pytest
import torch

from asa.errors import RequestError
from benchmarks.peak import peak_bytes
from benchmarks.plot import draw
from benchmarks.step_time import StepTimeConfig, measure, report, step_time
from benchmarks.steps import ASA, STOCK, VANILLA, folder_config, names_of, task_batch
from benchmarks.updates import build_step
from tests.asa.conftest import LENGTH, tiny_bert

CPU = torch.device("cpu")


def tiny(folder: Path, **asked: Any) -> StepTimeConfig:
    tiny_bert().save_pretrained(folder)
    settings: dict[str, Any] = {"lengths": (LENGTH,), "batch": 2, "repeats": 3, "warmup": 1} | asked
    return StepTimeConfig(model=folder, **settings)


@pytest.mark.parametrize("task", ["mlm", "classification"])
def test_every_step_is_timed_once_per_round_after_the_warm_up(tmp_path: Path, task: Any) -> None:
    seconds = measure(tiny(tmp_path, task=task), LENGTH)
    assert list(seconds) == [VANILLA, ASA, STOCK]
    assert {len(taken) for taken in seconds.values()} == {3}


def test_every_method_can_be_timed(tmp_path: Path) -> None:
    seconds = measure(tiny(tmp_path, methods=("all", STOCK), repeats=1, warmup=0), LENGTH)
    assert list(seconds) == names_of(["all", STOCK])
    assert len(seconds) > 15


def test_a_picture_of_an_unknown_kind_is_refused_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.step_time.measure", None)
    with pytest.raises(RequestError, match=r"cost\.jpeg2.*set --plot"):
        step_time(["--plot", "cost.jpeg2"])


def updates_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Parameters that each update of one timed batch has."""
    updates: list[int] = []
    update = torch.optim.AdamW.step

    def counted(optimizer: torch.optim.AdamW, *args: object) -> None:
        updates.append(sum(p.grad is not None for group in optimizer.param_groups for p in group["params"]))
        update(optimizer)

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.AdamW, "step", counted)
        shape = folder_config(folder, "sdpa")
        build_step(shape, name, task_batch("mlm", 2, LENGTH, shape.vocab_size), CPU)()
    return updates


def test_a_timed_batch_updates_weights_as_often_as_its_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(tmp_path)
    (plain,), (asa,), (stock,) = (updates_of(name, tmp_path, monkeypatch) for name in (VANILLA, ASA, STOCK))
    # The ASA step also updates two adversaries of two linear maps each; none of the three leaves the encoder out.
    assert asa == plain + 8
    assert min(plain, stock) > 30
    assert updates_of("freeat", tmp_path, monkeypatch) == [plain, plain]


def test_the_report_gives_medians_and_ratios_to_the_first_step() -> None:
    seconds, peaks = {VANILLA: 0.2, ASA: 0.4}, {VANILLA: 2**20, ASA: 3 * 2**20}
    lines = report(StepTimeConfig(), 64, seconds, peaks).splitlines()
    assert "8 rows of 64" in lines[0]
    assert [line.split() for line in lines[1:]] == [
        ["step", "ms", "ratio", "MB", "ratio"],
        ["vanilla", "200.0", "1.000", "1", "1.000"],
        ["asa", "400.0", "2.000", "3", "3.000"],
    ]


def test_the_picture_has_a_bar_for_each_method_and_length(tmp_path: Path) -> None:
    seconds, peaks = {VANILLA: 0.2, ASA: 0.4}, {VANILLA: 1, ASA: 3}
    draw({16: (seconds, peaks), 32: (seconds, peaks)}, tmp_path / "new" / "cost.svg")
    text = (tmp_path / "new" / "cost.svg").read_text()
    assert all(f"<!-- {part} -->" in text for part in (ASA, "16 tokens", "32 tokens", "peak memory, vanilla = 1"))


def test_peak_memory_is_what_the_work_had_in_use_at_once() -> None:
    assert 64 * 2**20 < peak_bytes(_fill, 64) < 64 * 2**20 * 1.5


def _fill(megabytes: int) -> None:
    for _ in range(2):
        torch.ones(megabytes * 2**18)


def test_a_model_without_enough_positions_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"lengths = {LENGTH + 1}.*8 to {LENGTH}; set --lengths"):
        measure(tiny(tmp_path), LENGTH + 1)


def test_an_unknown_step_is_explained_by_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        step_time(["--methods", "freelp"])
    assert "did you mean 'freelb'?" in capsys.readouterr().err


def test_a_wrong_size_is_refused_before_anything_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        step_time(["--width", "65"])
    assert exit_.value.code == 2
    assert "set --width" in capsys.readouterr().err


def test_the_batch_masks_15_percent_of_every_row() -> None:
    batch = task_batch("mlm", 3, 40, 99)
    assert batch.positions is not None
    assert (batch.positions // 40).bincount().tolist() == [6, 6, 6]
    assert torch.equal(batch.labels, batch.inputs["input_ids"].flatten()[batch.positions])
    assert batch.total_labels == 18
