"""Dropout on a CPU: honest, in our passes alone, and repeated where it is to be."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from asa import dropout
from asa.attention import attach, detach, perturbed
from asa.hf import checkpoint_activations
from asa.methods import METHODS, At, MethodsConfig
from asa.signal import Left, Pass, Perturb, Signal
from tests.asa.conftest import gradients, tiny_batch, tiny_bert, tiny_engine, tiny_module

NOW = Pass(Perturb(), None, None, Left([], []), False, False)


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "SMALL", 0)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_drops_its_share_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.full((512, 2047), 3.0, dtype=dtype, requires_grad=True)
    y = dropout.dropout(nn.Dropout(p), Signal(NOW), x)
    dropped = (y == 0).double()
    assert dropped.mean().item() == pytest.approx(p, abs=0.002)
    assert torch.unique(y.detach()).tolist() == pytest.approx([0, 3 / (1 - p)], rel=2e-4)
    assert dropped.mean(1).std().item() == pytest.approx((p * (1 - p) / 2047) ** 0.5, rel=0.15)  # independent draws
    assert dropped.mean(0).std().item() == pytest.approx((p * (1 - p) / 512) ** 0.5, rel=0.15)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, y.detach() / 3)


def test_the_same_state_draws_the_same_whatever_the_layout() -> None:
    x = torch.randn(8, 6, 4).transpose(1, 2)
    found = []
    for one in (x, x.contiguous()):
        torch.manual_seed(3)
        found.append(dropout.dropout(nn.Dropout(0.4), Signal(NOW), one))
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Dropout(0.0), torch.ones(64)),
        (nn.Dropout(1.0), torch.ones(64)),
        (nn.Dropout(0.5).eval(), torch.ones(64)),
        (nn.Dropout(0.5), torch.ones(64, dtype=torch.bfloat16)),
        (nn.Dropout(0.5, inplace=True), torch.ones(64)),
    ],
    ids=["0", "1", "eval", "bf16", "inplace"],
)
def test_the_rest_is_the_modules(module: nn.Dropout, x: torch.Tensor) -> None:
    found = []
    for one in (lambda y: dropout.dropout(module, Signal(NOW), y), module):
        torch.manual_seed(0)
        found.append((one(x.clone()), torch.get_rng_state()))
    (ours, drawn), (torchs, wanted) = found
    assert torch.equal(ours, torchs)
    assert torch.equal(drawn, wanted)


def test_a_forward_that_was_put_into_the_class_since_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(64)
    monkeypatch.setattr(nn.Dropout, "forward", nn.Identity.forward)
    assert dropout.dropout(nn.Dropout(0.5), Signal(NOW), x) is x


def test_a_model_by_itself_is_the_one_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny_bert(dropout=0.3).train(), tiny_batch()

    def logits() -> torch.Tensor:
        torch.manual_seed(0)
        return model(**batch.inputs).logits

    calls: list[int] = []
    factors = dropout._factors
    monkeypatch.setattr(dropout, "_factors", lambda *rest: calls.append(1) or factors(*rest))
    wanted = logits()
    attach(model)
    assert torch.equal(logits(), wanted)
    assert calls == []
    with perturbed(model):
        assert not torch.equal(logits(), wanted)
    assert len(calls) == 5  # of embeddings, and two a layer
    detach(model)
    assert torch.equal(logits(), wanted)
    assert not any("forward" in vars(module) for module in model.modules())


def test_what_is_not_ours_is_left_alone() -> None:
    """A forward that somebody gave a module, before or after; dropouts that come, go or serve two models."""
    model: Any = tiny_bert("classification")
    other: Any = tiny_bert("classification")

    def own(x: torch.Tensor) -> torch.Tensor:
        return x * 0 + 7

    def late(x: torch.Tensor) -> torch.Tensor:
        return x

    model.dropout.forward = own
    shared = other.dropout = model.base_model.embeddings.dropout
    attach(model)
    attach(other)
    assert model.dropout(torch.ones(2)).tolist() == [7, 7]
    model.classifier = nn.Sequential(nn.Dropout(0.2), model.classifier)
    inner = model.base_model.encoder.layer[0].output.dropout
    inner.forward = late
    attach(model)
    detach(model)
    detach(other)
    assert model.dropout.forward is own
    assert inner.forward is late
    assert "forward" not in vars(shared)
    assert {m for m in (*model.modules(), *other.modules()) if "forward" in vars(m)} == {model.dropout, inner}


def test_it_is_called_as_torchs() -> None:
    model: Any = tiny_bert()
    attach(model)
    assert model.base_model.embeddings.dropout(input=torch.ones(2)).shape == (2,)


def test_copies_are_bound_to_their_own_model() -> None:
    model = tiny_bert(dropout=0.3).train()
    attach(model)
    for one in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        mine = {id(module) for module in one.modules()}
        bound = [vars(module)["forward"].args[0] for module in one.modules() if type(module) is nn.Dropout]
        assert bound
        assert all(id(module) in mine for module in bound)


def test_what_is_recomputed_draws_the_same() -> None:
    found = []
    for checkpointed in (False, True):
        torch.manual_seed(2)
        module = tiny_module(dropout=0.3).train()
        if checkpointed:
            checkpoint_activations(module.model)
        torch.manual_seed(5)
        METHODS["vanilla"](MethodsConfig()).backward(tiny_engine(module), tiny_batch(), At(0, 0))
        found.append(gradients(module))
    torch.testing.assert_close(*found)


def test_passes_that_share_their_dropout_draw_the_same() -> None:
    engine = tiny_engine(tiny_module("classification", dropout=0.3).train())
    batch = tiny_batch("classification")
    with engine.same_dropout():
        first, second = engine.forward(batch), engine.forward(batch)
    assert torch.equal(first.logits, second.logits)
    assert not torch.equal(first.logits, engine.forward(batch).logits)
