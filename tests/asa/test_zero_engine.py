"""DeepSpeed's engine: ZeRO 3 computes what the plain engine does, no gradient beside, and leaves torch as it was; a
model that is changed under an engine is refused."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from asa.batch import Kind
from asa.engine import Engine
from asa.errors import RequestError
from asa.hf import checkpoint_activations
from asa.losses import task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel
from asa.optim import OptimConfig
from asa.zero import DeepSpeedEngine
from tests.asa.conftest import CPU, tiny_batch, tiny_engine, tiny_module

pytestmark = pytest.mark.usefixtures("one_process")


NAMES = [f"encoder.layer.0.attention.self.query.{name}" for name in ("weight", "bias")]
NAMES += ["embeddings.word_embeddings.weight"]  # an MLM head's last layer, too


def full(*_: object) -> None:
    raise MemoryError


def flops(engine: Engine, method: str) -> int:
    with FlopCounterMode(display=False) as counter:
        METHODS[method](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    return counter.get_total_flops()


@pytest.mark.parametrize("frozen", [False, True])
def test_an_ascent_on_zero_3_computes_no_gradient_of_a_weight(frozen: bool) -> None:
    def module() -> TaskModel:
        made = tiny_module()
        for name, p in made.named_parameters():
            p.requires_grad_(not (frozen and ".layer.0." in name))
        return made

    torchs = F.linear
    expected = {name: flops(tiny_engine(module()), name) for name in ("vanilla", "pgd", "smart", "freelb")}
    engine = DeepSpeedEngine(module(), OptimConfig(), 10, CPU, zero=3, precision="fp32", micro_batch=3)
    assert {name: flops(engine, name) for name in expected} == expected
    assert F.linear is torchs  # other engines of the process go by it
    engine.close()


def test_a_pass_that_is_made_again_in_a_backward_goes_by_the_layer_of_the_first() -> None:
    """Torch's own would hold each gathered weight until then; one beside the other is an error of torch's."""
    module, torchs, seen = tiny_module(), F.linear, list[Any]()
    checkpoint_activations(module.model)
    first: Any = module.get_submodule("model.bert.encoder.layer.0.attention.self.query")
    first.register_forward_pre_hook(lambda *_: seen.append(F.linear))
    engine = DeepSpeedEngine(module, OptimConfig(), 10, CPU, zero=3, precision="fp32", micro_batch=3)
    METHODS["pgd"](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    assert len(seen) == 2 * 3
    assert len({torchs, *seen}) == 2
    assert F.linear is torchs
    engine.close()


@pytest.mark.parametrize("kind", ["mlm", "classification"])
def test_an_ascent_in_a_weight_is_the_plain_engines(kind: Kind) -> None:
    def found(engine: Engine) -> list[Tensor]:
        batch, named = tiny_batch(kind), dict(engine.module.named_parameters())
        wanted = [named[f"model.bert.{name}"] for name in NAMES]
        return [part.clone() for part in engine.ascend(task_loss(engine.forward(batch), batch), wanted)]

    expected = found(tiny_engine(tiny_module(kind)))
    engine = DeepSpeedEngine(tiny_module(kind), OptimConfig(), 10, CPU, zero=3, precision="fp32", micro_batch=3)
    for mine, its in zip(found(engine), expected, strict=True):
        torch.testing.assert_close(mine, its)
    engine.close()


def test_what_fails_or_is_put_there_by_others_leaves_and_finds_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs, seen = F.linear, list[Tensor]()
    with monkeypatch.context() as patch:
        patch.setattr("deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3._setup_for_real_optimizer", full)
        with pytest.raises(MemoryError):
            DeepSpeedEngine(tiny_module(), OptimConfig(), 10, CPU, zero=3, precision="fp32", micro_batch=3)
    assert F.linear is torchs
    engine = DeepSpeedEngine(tiny_module(), OptimConfig(), 10, CPU, zero=3, precision="fp32", micro_batch=3)

    def users(input: Tensor, *weights: Tensor) -> Tensor:
        seen.append(input)
        return torchs(input, *weights)

    monkeypatch.setattr(F, "linear", users)
    engine.forward(tiny_batch())
    assert seen
    assert F.linear is users
    theirs = SimpleNamespace(__module__="deepspeed.runtime.zero.linear")  # as another engine of DeepSpeed's leaves it
    monkeypatch.setattr(F, "linear", theirs)
    engine.forward(tiny_batch())
    assert F.linear is theirs
    engine.close()


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_embeddings_that_were_resized_since_are_refused(zero: Literal[0, 1, 2]) -> None:
    """On ZeRO 0 torch's fused Adam writes past its averages, which may end the process."""
    module, batch = tiny_module("classification"), tiny_batch("classification")
    engine = DeepSpeedEngine(module, OptimConfig(), 10, CPU, zero, precision="fp32", micro_batch=3)
    model: Any = module.model
    model.resize_token_embeddings(model.config.vocab_size + 1000)
    loss = task_loss(engine.forward(batch), batch)
    with pytest.raises(RequestError, match=r"^model\.\S*word_embeddings.* was frozen, of another size or not there"):
        engine.backward(loss)
    engine.close()


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_what_was_frozen_when_the_engine_was_made_is_refused_once_it_is_not(zero: Literal[0, 2, 3]) -> None:
    module, batch = tiny_module("classification"), tiny_batch("classification")
    module.model.base_model.requires_grad_(False)
    engine = DeepSpeedEngine(module, OptimConfig(), 10, CPU, zero, precision="fp32", micro_batch=3)
    module.model.base_model.requires_grad_(True)
    loss = task_loss(engine.forward(batch), batch)
    with pytest.raises(RequestError, match=r"^model\.\S+ was frozen, .*; make the engine anew$"):
        engine.backward(loss)
    assert engine.full_state().keys() == dict(module.named_parameters()).keys()  # which is to be saved all the same
    engine.close()


@pytest.mark.parametrize("zero", [0, 3])
def test_what_stood_there_when_the_engine_was_made_is_no_layer_of_its_later_passes(
    zero: Literal[0, 3], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, torchs, seen = tiny_module(), F.linear, list[Any]()
    with monkeypatch.context() as patch:
        patch.setattr(F, "linear", lambda *given: torchs(*given))
        engine = DeepSpeedEngine(module, OptimConfig(), 10, CPU, zero, precision="fp32", micro_batch=3)
    first: Any = module.get_submodule("model.bert.encoder.layer.0.attention.self.query")
    first.register_forward_pre_hook(lambda *_: seen.append(F.linear))
    engine.forward(tiny_batch())
    assert [now is torchs for now in seen] == [zero == 0]
    assert zero == 0 or seen[0].__module__ == "asa.zero_linear"
    engine.close()
