"""Every setting of every method and of the optimizer changes the weights that three updates of a tiny BERT end with."""

from typing import Any, NamedTuple

import pytest
import torch

from asa.batch import Kind
from asa.config import from_dict
from asa.engine import PlainEngine
from asa.methods import METHODS, At, MethodsConfig
from asa.optim import OptimConfig
from tests.asa.conftest import CPU, tiny_batch, tiny_module


class Knob(NamedTuple):
    """A value other than the default, the settings of the same group that stand on both sides, and where it counts."""

    value: Any
    beside: dict[str, Any] = {}  # noqa: RUF012  # never changed
    kind: Kind = "classification"
    steps: int = 4  # of the whole run; three are made


BALL = {"ball": Knob("linf"), "radius": Knob(0.02), "step_size": Knob(0.02), "start": Knob(0.05)}
DROPOUT = {"dropout": Knob("independent")}
LOUD = {"radius": 0.05, "noise": 0.05, "step_size": 0.02}  # beside the defaults of 1e-5 a change could drown
SMOOTH = {
    "weight": Knob(0.5, LOUD),
    "radius": Knob(0.02, LOUD),
    "noise": Knob(0.02, LOUD),
    "step_size": Knob(0.01, LOUD),
    "ascents": Knob(2, LOUD),
    "dropout": Knob("independent", LOUD),
}
RELEASED = {"masked_score": "replaced"}
ASA = {
    "tau": Knob(1.0),
    "mask": Knob("gumbel"),
    "temperature": Knob(5.0),
    "heads": Knob("each"),
    "reversal": Knob(1.0),
    "empty_row": Knob("uniform", RELEASED),
    "penalty_rows": Knob("all", {"reversal": 1.0}),
    "masked_score": Knob("replaced"),
    "divergence": Knob("one_sided"),
    "stop_gradient": Knob(True),
    "regression": Knob("batch_softmax", kind="regression"),
    "token_mean": Knob("rows", kind="token"),
    "sentence": Knob("mse", kind="mlm"),
    "dropout": Knob("shared"),
}
METHOD_KNOBS: dict[str, dict[str, Knob]] = {
    "asa": ASA,
    "asa_sparse": {"every": Knob(1), "share": Knob(0.4, {"every": 1}), "layers": Knob([0], {"every": 1})},
    "random_mask": {"strategy": Knob("magnitude"), "share": Knob(0.5)},
    "pgd": {**BALL, **DROPOUT, "ascents": Knob(3)},
    "freeat": {**BALL, "replays": Knob(3)},
    "yopo": {**BALL, **DROPOUT, "passes": Knob(2), "inner": Knob(1)},
    "freelb": {**BALL, **DROPOUT, "passes": Knob(3), "clean_first": Knob(True, {"start": 0.05})},
    "creat": {**BALL, "dropout": Knob("shared"), "ascents": Knob(2), "temperature": Knob(9.0, {"start": 0.05})},
    "fgm": {**DROPOUT, "ball": Knob("linf"), "radius": Knob(0.1), "weight": Knob(0.1)},
    "smart": {
        **SMOOTH,
        "proximal": Knob(0.1),
        "beta_early": Knob(0.1, steps=90),
        "beta_late": Knob(0.1),
    },
    "smart_released": {
        "weight": Knob(0.5),
        "noise": Knob(0.1, {"ascents": 0}),
        "step_size": Knob(1.0),
        "ascents": Knob(2),
    },
    "alum": SMOOTH,
    "vat": {
        **DROPOUT,
        "weight": Knob(0.1),
        "radius": Knob(0.5),
        "distance": Knob(0.5),
        "iterations": Knob(2),
    },
    "r3f": {
        "weight": Knob(0.1),
        "noise": Knob(0.1),
        "distribution": Knob("normal", {"noise": 0.1}),
        "dropout": Knob("shared"),
    },
    "r_drop": {"weight": Knob(0.1)},
}
OPTIM_KNOBS = {"lr": 0.02, "warmup": 0.5, "weight_decay": 0.9, "beta1": 0.5, "beta2": 0.9, "eps": 0.1, "clip": 0.01}
ROUNDING = 1e-5
CASES = [(group, field) for group, knobs in METHOD_KNOBS.items() for field in knobs]


def weights(method: str, kind: Kind = "classification", steps: int = 4, optim: Any = None, **own: Any) -> list[float]:
    """A number for each parameter after three updates, dropout on. Args: own, settings of the method."""
    settings = from_dict(MethodsConfig, {method: own} if own else {})
    built = METHODS[method](settings)
    module = tiny_module(kind, settings.asa if built.uses_adversary else None, dropout=0.1)
    if module.adversary is not None:
        torch.manual_seed(0)
        for p in module.adversary.parameters():
            torch.nn.init.normal_(p, std=0.3)
    engine = PlainEngine(module, OptimConfig(**({"lr": 0.01, "warmup": 0.0} | (optim or {}))), steps, CPU)
    module.train()
    for step in range(3):
        for replay in range(built.replays):
            torch.manual_seed(10 * step + replay)
            built.backward(engine, tiny_batch(kind, step), At(0, replay))
            engine.step()
            built.after_step(engine)
    return [p.double().sum().item() for p in module.parameters()]


_KNOWN: dict[str, list[float]] = {}


def remembered(method: str, kind: Kind, steps: int, **own: Any) -> list[float]:
    """What many settings are compared with, made once."""
    key = repr((method, kind, steps, own))
    if key not in _KNOWN:
        _KNOWN[key] = weights(method, kind, steps, **own)
    return _KNOWN[key]


@pytest.mark.parametrize(("group", "field"), CASES, ids=[".".join(case) for case in CASES])
def test_a_setting_of_a_method_changes_what_it_trains(group: str, field: str) -> None:
    knob = METHOD_KNOBS[group][field]
    before = remembered(group, knob.kind, knob.steps, **knob.beside)
    after = weights(group, knob.kind, knob.steps, **{**knob.beside, field: knob.value})
    assert before != pytest.approx(after, rel=ROUNDING)


@pytest.mark.parametrize("field", OPTIM_KNOBS)
def test_a_setting_of_the_optimizer_changes_what_is_trained(field: str) -> None:
    changed = weights("vanilla", optim={field: OPTIM_KNOBS[field]})
    assert remembered("vanilla", "classification", 4) != pytest.approx(changed, rel=ROUNDING)


@pytest.mark.parametrize("method", METHOD_KNOBS)
def test_the_same_settings_train_the_same(method: str) -> None:
    """Without which the tests above could not fail."""
    assert weights(method) == remembered(method, "classification", 4)
