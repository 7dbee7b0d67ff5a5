"""Passes in fp16 under autocast: gradients that plain torch would round to nothing, faults and overflows told apart."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asa import loss_scale
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.engine import PlainEngine
from asa.errors import WorkError
from asa.loss_scale import START, LossScale
from asa.losses import task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.signal import Perturb
from tests.asa.conftest import LENGTH, ROWS, WIDTH, gradients, tiny_batch, tiny_engine, tiny_module

HALF = {"device_type": "cpu", "dtype": torch.float16}


def of_a_large_step(batch: Batch) -> Batch:
    """As one of the micro-batches of 8,192 rows, of which a loss is divided by the number."""
    return replace(batch, total_rows=8192, total_labels=40_000)


def backward(engine: PlainEngine, batch: Batch, low: bool, method: str = "vanilla") -> dict[str, Tensor]:
    with torch.autocast(**HALF, enabled=low):
        METHODS[method](MethodsConfig()).backward(engine, batch, At(0, 0))
    return {name: value / (START if low else 1) for name, value in gradients(engine.module).items()}


@pytest.mark.parametrize(("kind", "method"), [("mlm", "vanilla"), ("mlm", "asa"), ("token", "asa")])
def test_gradients_of_a_large_step_are_near_those_of_fp32(kind: Any, method: str) -> None:
    asa = ASAConfig() if method == "asa" else None
    batch = of_a_large_step(tiny_batch(kind))
    exact, found = (backward(tiny_engine(tiny_module(kind, asa)), batch, low, method) for low in (False, True))
    for name, value in exact.items():
        if name.startswith("model.") and "key.bias" not in name:  # of which all is rounding
            assert (found[name] - value).norm() <= 0.02 * value.norm(), name


def test_a_step_is_that_of_fp32_and_tells_its_scale() -> None:
    engines = [tiny_engine(tiny_module()) for _ in range(2)]
    batch = of_a_large_step(tiny_batch())
    for engine, low in zip(engines, (False, True), strict=True):
        backward(engine, batch, low)
    exact, found = (engine.step() for engine in engines)
    assert (exact.loss_scale, found.loss_scale, found.applied, found.overflow) == (1, START, True, False)
    assert float(found.grad_norm) == pytest.approx(float(exact.grad_norm), rel=0.01)


def test_an_ascents_gradient_is_as_large_as_without_a_scale() -> None:
    found: list[Tensor] = []
    for low in (False, True):
        engine, batch = tiny_engine(tiny_module()), of_a_large_step(tiny_batch())
        delta_BLD = torch.zeros(ROWS, LENGTH, WIDTH, requires_grad=True)
        with torch.autocast(**HALF, enabled=low):
            loss = task_loss(engine.probe(batch, Perturb(embed_BLD=delta_BLD)), batch)
            found += engine.ascend(loss, [delta_BLD])
    assert (found[1] - found[0]).norm() <= 0.02 * found[0].norm()


def test_gradients_from_before_the_first_pass_in_fp16_count_as_much() -> None:
    engine, batch = tiny_engine(tiny_module()), of_a_large_step(tiny_batch())
    once = backward(engine, batch, low=False)
    twice = backward(engine, batch, low=True)
    for name, value in once.items():
        if "key.bias" not in name:
            assert (twice[name] - 2 * value).norm() <= 0.02 * value.norm(), name


@pytest.mark.parametrize("fault", [True, False])
def test_a_fault_leaves_the_scale_and_an_overflow_halves_it(fault: bool) -> None:
    engine, batch = tiny_engine(tiny_module()), tiny_batch()
    with torch.autocast(**HALF):
        loss = task_loss(engine.forward(batch), batch)
    engine.backward(loss * torch.nan if fault else loss)
    some = next(p for p in engine.module.parameters() if p.grad is not None)
    assert some.grad is not None
    some.grad[0] = torch.inf
    stats = engine.step()
    assert (stats.applied, stats.overflow) == (False, not fault)
    assert engine.counters() == {"applied": 0, "scaler": {"value": START if fault else START / 2, "updates": 0}}


def test_an_ascent_that_overflowed_is_to_blame_for_the_nan_after_it() -> None:
    scale = LossScale()
    scale.begin()
    scale.climbed(torch.tensor(1.0), [torch.tensor([torch.inf])])
    scale.lost(torch.tensor(torch.nan))
    assert scale.update(applied=False)
    assert scale.value == START / 2


def test_the_scale_grows_and_there_is_a_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH", 3)
    scale = LossScale()
    assert not scale.update(applied=False)  # off
    scale.begin()
    for _ in range(6):
        assert not scale.update(applied=True)
    assert scale.value == 4 * START
    while scale.value > 1:
        assert scale.update(applied=False)
    with pytest.raises(WorkError, match="not finite even at the smallest loss scale, 1; put passes under autocast in"):
        scale.update(applied=False)


def test_an_overflow_begins_the_count_of_updates_until_the_scale_grows_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH", 3)
    scale = LossScale()
    scale.begin()
    for applied in (True, True, False, True, True):
        scale.update(applied)
    assert scale.value == START / 2
    scale.update(applied=True)
    assert scale.value == START


def test_a_rank_without_a_pass_begins_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would leave the others' gradients, which it gets, under their scale."""
    engine = tiny_engine(tiny_module())
    monkeypatch.setattr("asa.dist.any_", lambda flag: True)
    monkeypatch.setattr("asa.dist.all_reduce_", lambda gradient: gradient.add_(START))
    stats = engine.step()
    count = sum(p.numel() for p in engine.module.parameters())
    assert (stats.loss_scale, engine._scale.on) == (START, True)
    assert float(stats.grad_norm) == pytest.approx(count**0.5, rel=1e-3)


def test_an_engine_goes_on_with_its_scale() -> None:
    first, second = tiny_engine(tiny_module()), tiny_engine(tiny_module())
    backward(first, tiny_batch(), low=True)
    first._scale.value = 8.0
    second.set_counters(first.counters())
    assert (second._scale.on, second._scale.value) == (True, 8.0)
    third = tiny_engine(tiny_module())
    third.set_counters({"applied": 0, "scaler": {"cur_scale": 4}})  # DeepSpeed's
    assert not third._scale.on
