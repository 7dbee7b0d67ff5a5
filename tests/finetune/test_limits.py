"""What a method cannot work with is refused by both stages alike, before anything is trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asa.config import from_dict
from asa.errors import RequestError
from asa.methods import METHODS, At, MethodsConfig, build_method
from asa.methods.r3f import R3FConfig
from finetune import config as stage
from finetune.recipes import resolved
from finetune.tasks.spec import TaskConfig, named
from pretrain.config import PretrainConfig
from pretrain.config import check as pretrain_check
from tests.asa.conftest import tiny_batch, tiny_engine, tiny_module

HALF = {"engine": "deepspeed", "precision": "bf16"}


@contextmanager
def refused(told: str | None) -> Iterator[None]:
    if told is None:
        yield
        return
    with pytest.raises(RequestError) as caught:
        yield
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def finetune(method: str, given: dict[str, Any], task: str | None = None) -> None:
    """What `plan` does with a request, once the task's preset is in it."""
    asked = {"models": {"m": "m"}, "out": "o", "methods": [method], "tasks": [task] if task else [], **given}
    stage.check(resolved(asked, named(task) if task else TaskConfig(), method), cuda=False)


def pretrain(method: str, given: dict[str, Any]) -> None:
    asked = {"data": "no-such-folder", "model": "m", "out": "o", "method": method, **given}
    try:
        pretrain_check(from_dict(PretrainConfig, asked), world=1, cuda=False)
    except RequestError as error:
        if "no-such-folder" not in str(error):  # what is asked after the method
            raise


@pytest.mark.parametrize("method", ["pgd", "freeat", "yopo", "freelb", "asa_freelb", "creat"])
@pytest.mark.parametrize(
    ("ball", "radius"),
    [
        ({"start": 0.3}, 0.1),
        ({"start": 0.3, "radius": 0.2}, 0.2),
        ({"start": 0.3, "radius": 0.3}, None),
        ({"start": 0.3, "radius": None}, None),
        ({"radius": 0.2}, None),
    ],
)
def test_a_start_outside_the_ball_is_refused_wherever_the_radius_comes_from(
    method: str, ball: dict[str, Any], radius: float | None
) -> None:
    group = "freelb" if method == "asa_freelb" else method
    told = f"{group}.start = 0.3 is outside the ball, allowed: 0 <= start <= radius, which is {radius};"
    for ask in (finetune, pretrain):
        with refused(f"{told} lower --{group}.start or raise --{group}.radius" if radius else None):
            ask(method, {group: ball})


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"start": 0.5}, None),  # sst2's preset has a radius of 0.6
        ({"radius": 0.1}, "freelb.start = 0.6 is outside"),
        ({"radius": 0.1, "start": 0.1}, None),
    ],
)
def test_a_preset_may_widen_the_ball_and_a_flag_may_not_leave_its_start_outside(
    flags: dict[str, float], told: str | None
) -> None:
    with refused(told):
        finetune("freelb", {"freelb": flags}, "sst2")


@pytest.mark.parametrize("method", ["pgd", "creat"])
def test_a_method_used_without_a_stage_refuses_it_as_well(method: str) -> None:
    with refused(f"raise --{method}.radius"):
        settings = from_dict(MethodsConfig, {method: {"start": 0.3}})
        METHODS[method](settings).backward(tiny_engine(tiny_module()), tiny_batch(), At(0, 0))


@pytest.mark.parametrize(
    ("method", "group", "told"),
    [
        ("alum", {}, "alum.radius = 1e-05 drowns in the rounding of bf16, allowed there: 0.01 <= alum.radius; raise"),
        ("smart", {"radius": 0.01}, "smart.noise = 1e-05"),
        ("smart", {"weight": 0.0}, None),
        ("smart", {"radius": 0.01, "noise": 0.01}, None),
        ("vat", {}, "vat.distance = 0.001"),
        ("vat", {"distance": 0.01}, None),
        ("r3f", {}, "r3f.noise"),
        ("freelb", {"radius": 1e-3}, None),
    ],
)
def test_a_small_perturbation_in_half_precision_is_refused_by_both_stages(
    method: str, group: dict[str, float], told: str | None
) -> None:
    with refused(told):
        finetune(method, {method: group, **HALF})
    with refused(told):
        pretrain(method, {method: group, "precision": "bf16"})
    finetune(method, {method: group})


def test_a_precision_of_none_is_named() -> None:
    with refused("precision 'half': allowed: fp32, bf16, fp16"):
        build_method("asa", MethodsConfig(), "half", 0)  # type: ignore[arg-type]


def test_an_r3f_of_one_pass_twice_is_refused() -> None:
    options = MethodsConfig(r3f=R3FConfig(noise=0.0, dropout="shared"))
    with refused("with r3f.noise 0 and r3f.dropout shared both passes are one; set --r3f.noise above 0, or"):
        build_method("r3f", options, "fp32", 0)
    build_method("vanilla", options, "fp32", 0)  # which does not read them


def test_yopo_is_refused_under_zero_3_by_both_stages() -> None:
    for ask, given in ((finetune, {"engine": "deepspeed", "zero": 3}), (pretrain, {"zero": 3})):
        with refused("set --zero 2"):
            ask("yopo", given)
    finetune("yopo", {"engine": "deepspeed", "zero": 2})


def test_a_fine_tuning_run_is_refused_before_it_has_begun(
    tmp_path: Path, model_folder: Path, task_folder: Path
) -> None:
    from finetune.sweep import sweep

    asked = {"task": {"folder": task_folder}, "models": {"tiny": model_folder}, "out": tmp_path / "runs", "length": 16}
    with refused("freelb.start = 0.2"):
        sweep({**asked, "methods": ["vanilla", "freelb"], "freelb": {"start": 0.2}})
    assert not (tmp_path / "runs").exists()
