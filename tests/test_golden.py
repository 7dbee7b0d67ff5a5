"""Our methods compute what the released programs computed, and the check notices when they do not."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from asa.methods import smart_released
from tests.check_golden import CHECKS, main, verdict
from tests.golden_embed import check_smart
from tests.golden_files import error, read

GOLDEN = Path(__file__).parent / "golden"
KNOWN = [path.stem for path in sorted(GOLDEN.glob("*.safetensors")) if path.name.split("_")[0] in CHECKS]


def test_every_golden_file_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GOLDEN) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"asa_choice4", "asa_seq1", "asa_seq3", "asa_token5", "freelb_l2", "freelb_linf"} <= set(KNOWN)
    assert {"smart_cls", "smart_cls_k2", "smart_reg"} <= set(KNOWN)
    assert [line.split()[0] for line in lines if line.endswith(" ok")] == KNOWN
    assert [line for line in lines if "FAIL" in line] == []


def flip_one_unit(golden: dict[str, Tensor]) -> None:
    golden["keep.1"].view(-1)[3] = 1 - golden["keep.1"].view(-1)[3]


def shift_one_gradient(golden: dict[str, Tensor]) -> None:
    name = next(name for name in golden if name.startswith("grad.") and name.endswith("adversary.0.query.weight"))
    golden[name].view(-1)[5] += 1e-3 * golden[name].abs().max()


def lose_one_gradient(golden: dict[str, Tensor]) -> None:
    name = next(name for name in golden if name.startswith("grad.") and name.endswith("adversary.1.query.weight"))
    golden[name].view(-1)[5] = math.nan


def lose_a_weight(golden: dict[str, Tensor]) -> None:
    """Not-a-number on our side: the forward pass spreads it to the logits."""
    golden["param.classifier.bias"].view(-1)[0] = math.nan


def shift_the_loss(golden: dict[str, Tensor]) -> None:
    golden["loss"] *= 1.0001


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (flip_one_unit, "keep.1"),
        (shift_one_gradient, "adversary.0.query.weight"),
        (lose_one_gradient, "adversary.1.query.weight"),
        (lose_a_weight, "logits"),
        (shift_the_loss, "loss"),
    ],
)
def test_a_golden_file_that_differs_in_one_number_fails(
    damage: Callable[[dict[str, Tensor]], None], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden, meta = read(GOLDEN / "asa_seq3.safetensors")
    damage(golden)
    save_file(golden, tmp_path / "asa_seq3.safetensors", meta)
    assert main(tmp_path) == 1
    line = capsys.readouterr().out.strip()
    assert "FAIL at" in line
    assert line.endswith(place)


def shift_a_perturbation(golden: dict[str, Tensor]) -> None:
    golden["delta.1"][0, 1, 3] += 1e-3 * golden["delta.1"].abs().max()


@pytest.mark.parametrize("name", ["freelb_l2", "freelb_linf", "smart_cls", "smart_cls_k2", "smart_reg"])
def test_a_perturbation_that_differs_in_one_number_fails(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden, meta = read(GOLDEN / f"{name}.safetensors")
    shift_a_perturbation(golden)
    save_file(golden, tmp_path / f"{name}.safetensors", meta)
    assert main(tmp_path) == 1
    assert "FAIL at" in capsys.readouterr().out


def test_an_ascent_up_another_objective_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the objective that the released SMART climbs: the perturbation it leads to is still mostly noise."""
    golden, meta = read(GOLDEN / "smart_cls.safetensors")
    climbed = smart_released._climbed
    monkeypatch.setattr(smart_released, "_climbed", lambda *args: climbed(*args) / 2)
    good, worst, _ = verdict(check_smart(golden, meta))
    assert (good, worst) == (False, "ascent.0")


@pytest.mark.parametrize("errors", [{"a": math.nan, "b": 1.0}, {"b": 1.0, "a": math.nan}])
def test_not_a_number_is_the_worst_error_wherever_it_stands(errors: dict[str, float]) -> None:
    good, worst, value = verdict(errors)
    assert (good, worst) == (False, "a")
    assert math.isnan(value)


def test_an_expected_zero_is_met_by_zero_only() -> None:
    zero = torch.zeros(3)
    assert error(zero, zero) == 0
    assert error(torch.tensor([0.0, 1e-30, 0.0]), zero) == math.inf
    assert math.isnan(error(torch.tensor([0.0, math.nan, 0.0]), zero))


@pytest.mark.parametrize("name", ["", "unknown_seq3.safetensors"])
def test_a_folder_where_nothing_can_be_checked_is_a_wrong_request(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name:
        shutil.copy(GOLDEN / "asa_seq3.safetensors", tmp_path / name)
    assert main(tmp_path) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
