"""Requests of pre-training that no engine can serve, refused before anything is read; what fine-tuning's log shows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from asa.engine import StepStats
from asa.errors import RequestError
from asa.methods.creat import CreATConfig
from asa.methods.freeat import FreeATConfig
from asa.methods.r3f import R3FConfig
from asa.methods.smart import SMARTConfig
from asa.methods.vat import VATConfig
from finetune.meter import Meter
from pretrain.config import PretrainConfig, check
from tests import check_golden

NOWHERE = {"data": Path("no_data"), "model": Path("no_model"), "out": Path("no_out")}
LARGE: dict[str, Any] = {"radius": 0.01, "noise": 0.01}


def reason(**asked: Any) -> str:
    """Why the request is refused; without another reason, that its data is nowhere."""
    with pytest.raises(RequestError) as caught:
        check(PretrainConfig(**NOWHERE, **asked), 1, cuda=True)
    return str(caught.value)


@pytest.mark.parametrize(
    ("asked", "flag"),
    [
        ({"method": "freeat", "objective": "rtd"}, "--objective mlm"),
        ({"method": "yopo", "zero": 3}, "--zero 2"),
        ({"method": "smart", "precision": "bf16"}, "--smart.radius"),
        ({"method": "alum", "precision": "fp16"}, "--alum.radius"),
        ({"method": "vat", "precision": "bf16"}, "--vat.distance"),
        ({"method": "r3f", "precision": "bf16"}, "--r3f.noise"),
        (
            {"method": "creat", "precision": "fp16", "creat": CreATConfig(dropout="shared")},
            "--creat.dropout independent",
        ),
    ],
)
def test_what_no_engine_can_do_is_refused_by_the_flag_that_mends_it(asked: dict[str, Any], flag: str) -> None:
    assert flag in reason(**asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "freeat"},
        {"method": "freeat", "objective": "rtd", "freeat": FreeATConfig(replays=1)},
        {"method": "yopo", "zero": 2},
        {"method": "smart"},
        {"method": "smart", "precision": "bf16", "smart": SMARTConfig(weight=0.0)},
        {"method": "smart", "precision": "bf16", "smart": SMARTConfig(**LARGE)},
        {"method": "vat", "precision": "bf16", "vat": VATConfig(distance=0.01)},
        {"method": "r3f", "precision": "bf16", "r3f": R3FConfig(noise=0.01)},
        {"method": "creat"},
        {"method": "creat", "creat": CreATConfig(dropout="shared")},
        {"method": "creat", "precision": "bf16"},
        {"method": "creat", "precision": "bf16", "creat": CreATConfig(dropout="shared", temperature=0.0)},
        {"method": "freelb", "precision": "bf16"},
    ],
)
def test_their_neighbours_are_not(asked: dict[str, Any]) -> None:
    assert "no_data" in reason(**asked)


def test_a_term_that_some_steps_lack_is_averaged_over_those_that_have_it() -> None:
    meter, one = Meter(), torch.ones(())
    for step in range(4):
        meter.add({"loss": one * step} | ({"penalty": one * step} if step % 2 else {}), StepStats(True, 1.0, 0.1))
    assert meter.drain() == {"loss": 1.5, "penalty": 2.0, "grad_norm": 1.0, "lr": 0.1}
    meter.add({"loss": one}, StepStats(True, 1.0, 0.1))
    assert meter.drain() == {"loss": 1.0, "grad_norm": 1.0, "lr": 0.1}


def test_a_truncated_golden_file_fails_and_the_others_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = Path(__file__).parents[1] / "golden"
    whole = (golden / "freelb_l2.safetensors").read_bytes()
    (tmp_path / "freelb_a.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "freelb_b.safetensors").write_bytes(whole)
    assert check_golden.main(tmp_path) == 1
    damaged, good = capsys.readouterr().out.splitlines()
    assert "FAIL" in damaged
    assert good.endswith(" ok")
