"""Activation checkpointing and torch.compile change how a step is computed, never what."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import BertModel, PreTrainedModel

from asa.adversary import ASAConfig
from asa.attention import attach, detach, perturbed
from asa.errors import RequestError
from asa.families import FAMILIES
from asa.hf import checkpoint_activations
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.creat import CreATConfig
from asa.methods.random_mask import RandomMaskConfig
from asa.model import TaskModel
from asa.recompute import Recalling
from asa.signal import Perturb
from tests.asa.conftest import CPU, attend_to, batch_for, gradients, random_keeps, tiny_batch, tiny_engine
from tests.asa.encoders import PAIRS, tiny

# What draws random numbers in a step; dropout is on in all of them.
OPTIONS = {
    "asa": ("asa", MethodsConfig()),
    "asa-gumbel": ("asa", MethodsConfig(asa=ASAConfig(mask="gumbel", heads="each", dropout="shared"))),
    "bernoulli": ("random_mask", MethodsConfig(random_mask=RandomMaskConfig(share=0.3))),
    "creat": ("creat", MethodsConfig(creat=CreATConfig(radius=0.5, step_size=0.5))),
    "magnitude": ("random_mask", MethodsConfig(random_mask=RandomMaskConfig(strategy="magnitude", share=0.3))),
}
# Of the bottom layer: one pass over both or two, or CreAT's three, each made again for its gradients.
FORWARDS = {"asa": 2, "creat": 6}
CHECKPOINTED = [pair for pair in PAIRS if FAMILIES[pair[0]].recomputes]


def step(model: PreTrainedModel, name: str, options: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of one step on an attached or plain model."""
    method_name, config = OPTIONS[options]
    method = METHODS[method_name](config)
    torch.manual_seed(4)
    module = TaskModel(model, "mlm", config.asa if method.uses_adversary else None)
    torch.manual_seed(5)
    terms = method.backward(tiny_engine(module), batch_for(name), At(0, 0))
    return terms["loss"], gradients(module)


@pytest.mark.parametrize(("name", "attention"), CHECKPOINTED)
@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_with_checkpointing_equal_those_without(name: str, attention: str, options: str) -> None:
    expected_loss, expected = step(tiny(name, attention=attention, dropout=0.2), name, options)
    model = tiny(name, attention=attention, dropout=0.2)
    checkpoint_activations(model)  # before it is attached, as a user's own model may be
    passes = count_forwards(model, name)
    loss, found = step(model, name, options)
    assert torch.equal(loss, expected_loss)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-7, msg=key)
    assert passes() == FORWARDS.get(options, 4)


def count_forwards(model: PreTrainedModel, name: str) -> Callable[[], int]:
    """How often the bottom layer's attention ran: what is recomputed counts twice."""
    block = next(iter(model.base_model.get_submodule(FAMILIES[name].layers).children()))
    attention, calls = block.get_submodule(FAMILIES[name].attention), list[nn.Module]()
    # Not on the module: one that somebody's hooks are on leaves nothing out.
    hook = register_module_forward_pre_hook(lambda module, args: calls.append(module))

    def counted() -> int:
        hook.remove()
        return sum(module is attention for module in calls)

    return counted


def switch_off(model: PreTrainedModel) -> None:
    found: Any = model  # older releases of transformers have the method by its former name
    (getattr(found, "activation_checkpointing_disable", None) or found.gradient_checkpointing_disable)()


def test_checkpointing_may_be_switched_on_and_off_while_attached() -> None:
    model = tiny("bert")
    attach(model)
    checkpoint_activations(model)
    for settings in ({"use_reentrant": True}, {"preserve_rng_state": True}):
        checkpoint_activations(model, settings)
        with pytest.raises(RequestError, match="use_reentrant=False"), perturbed(model):
            pass
    checkpoint_activations(model)
    with perturbed(model):
        pass
    detach(model)
    functions = [m._gradient_checkpointing_func for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    assert functions
    assert not any(isinstance(function, Recalling) for function in functions)
    switch_off(model)
    attach(model)
    switch_off(model)
    assert not any(getattr(m, "gradient_checkpointing", False) for m in model.modules())


def of_the_base() -> tuple[PreTrainedModel, Any]:
    model = tiny("bert")
    attach(model)
    return model, model.base_model


def of_the_whole() -> tuple[PreTrainedModel, Any]:
    model = tiny("bert")
    attach(model.base_model)  # type: ignore[arg-type]
    return model, model


def of_another_head() -> tuple[PreTrainedModel, Any]:
    model, other = tiny("bert"), tiny("bert", "classification")
    attach(model)
    other.bert = model.base_model
    return model, other


@pytest.mark.parametrize("build", [of_the_base, of_the_whole, of_another_head])
def test_whoever_switches_checkpointing_on_what_is_recomputed_is_perturbed(build: Callable[[], Any]) -> None:
    found = []
    for on in (False, True):
        model, switch = build()
        if on:
            checkpoint_activations(switch)
        passes = count_forwards(model, "bert")
        with perturbed(model, Perturb(attend=attend_to(random_keeps(0)))):
            loss = model(**tiny_batch().inputs).logits.square().sum()
        loss.backward()  # outside the pass
        assert passes() == 1 + on
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-6, atol=1e-7, msg=key)
    model.bert = BertModel(model.config, add_pooling_layer=False)  # an encoder that nobody attached
    checkpoint_activations(model)
    detach(model)


def rebuild(model: Any) -> None:
    """A new block around the attention of an old one."""
    old = model.bert.encoder.layer[1]
    new = type(old)(model.config)
    new.load_state_dict(old.state_dict())
    new.attention.self = old.attention.self
    model.bert.encoder.layer[1] = new


@pytest.mark.parametrize("change", [lambda model: None, rebuild])
@pytest.mark.parametrize("when", ["before the pass", "in the pass"])
def test_checkpointing_switched_on_at_any_time_recomputes_what_was(when: str, change: Callable[[Any], None]) -> None:
    found = []
    for on in ("never", when):
        model = tiny("bert")
        attach(model)
        change(model)
        if on == "before the pass":
            checkpoint_activations(model)
        with perturbed(model, Perturb(attend=attend_to(random_keeps(0)))):
            if on == "in the pass":
                checkpoint_activations(model)
            loss = model(**tiny_batch().inputs).logits.square().sum()
        loss.backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_pass_of_another_model_with_the_same_blocks_leaves_ones_own_recomputed_as_it_was() -> None:
    found = []
    for on in (False, True):
        model: Any = tiny("bert")
        other: Any = tiny("bert")
        other.bert.encoder = model.bert.encoder
        attach(other)
        attach(model)
        if on:
            checkpoint_activations(model)
        with perturbed(model, Perturb(attend=attend_to(random_keeps(0)))):
            with perturbed(other):
                other(**tiny_batch().inputs)
            loss = model(**tiny_batch().inputs).logits.square().sum()
        loss.backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
    block = model.bert.encoder.layer[0]
    assert not isinstance(block._gradient_checkpointing_func.function, Recalling)  # no longer with each pass


def test_reentrant_checkpointing_is_refused_in_a_pass_too() -> None:
    model = tiny("bert")
    attach(model)
    with perturbed(model):
        checkpoint_activations(model, {"use_reentrant": True})
        with pytest.raises(RequestError, match="use_reentrant=False"):
            model(**tiny_batch().inputs)


def compiled_steps(name: str, backend: str, compiled: bool) -> tuple[list[float], list[int]]:
    """Losses of ASA steps on batches of one shape, and the graphs compiled so far after each."""
    dynamo.reset()
    dynamo.utils.counters.clear()
    torch.manual_seed(4)
    module = TaskModel(tiny(name, attention="eager"), "mlm", ASAConfig())
    if compiled:
        module.compile(backend=backend)
    engine, method = tiny_engine(module), METHODS["asa"](MethodsConfig())
    losses, graphs = [], []
    for _ in range(4):
        losses.append(float(method.backward(engine, batch_for(name).to(CPU), At(0, 0))["loss"]))
        engine.step()
        graphs.append(dynamo.utils.counters["stats"]["unique_graphs"])
    return losses, graphs


SLOW = [("modernbert", "aot_eager"), ("deberta-v2", "aot_eager"), ("roberta", "aot_eager"), ("bert", "inductor")]


@pytest.mark.parametrize(
    ("name", "backend"), [("bert", "aot_eager"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_a_compiled_model_equals_eager_and_is_compiled_once(name: str, backend: str) -> None:
    expected, _ = compiled_steps(name, backend, compiled=False)
    losses, graphs = compiled_steps(name, backend, compiled=True)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert graphs == [1, 1, 1, 1]  # in the first step
