"""What a program of one's own gets wrong is refused in one line, where it would be a traceback or another training."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel, BertPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from asa.adversary import ASAConfig, saved_config
from asa.attention import attach
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine, PlainEngine
from asa.errors import RequestError
from asa.integrations.passes import AcceleratedPasses
from asa.methods import METHODS, At, MethodsConfig, build_method
from asa.methods.asa import ASA
from asa.methods.base import Outside, Stateless, learn
from asa.methods.freelb import FreeLBConfig
from asa.model import TaskModel
from asa.optim import OptimConfig
from asa.signal import Perturb
from tests.asa.conftest import (
    CPU,
    LENGTH,
    ROWS,
    WIDTH,
    gradients,
    settled,
    tiny_batch,
    tiny_bert,
    tiny_engine,
    tiny_module,
)


def backward(module: TaskModel, batch: Batch, name: str = "asa", **settings: Any) -> dict[str, Tensor]:
    return METHODS[name](MethodsConfig(**settings)).backward(tiny_engine(module), batch, At(0, 0))


@pytest.mark.parametrize("asa", [None, ASAConfig()])
def test_weights_in_fp16_are_not_trained_by_plain_torch(asa: ASAConfig | None) -> None:
    """Adam's eps is 0 there: weights went by 5 in a step at a rate of 2e-5."""
    module = tiny_module("classification", asa)
    module.model.half()
    with pytest.raises(RequestError, match=r"weights in fp16 .* dtype=torch.float32 .* or take DeepSpeed's engine$"):
        PlainEngine(module, OptimConfig(), steps=10, device=CPU)
    module.model.requires_grad_(False)
    if asa:
        PlainEngine(module, OptimConfig(), steps=10, device=CPU)  # the adversaries are fp32


@pytest.mark.parametrize("name", ["asa", "asa_freelb", "pgd", "freelb"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_around_a_method_is_autocast_around_its_passes(name: str, dtype: torch.dtype) -> None:
    """Around a backward pass it would make fp16 of the adversaries' gradients, nine tenths of which were 0."""
    found = []
    for around in (True, False):
        module = tiny_module("classification", ASAConfig())
        engine, batch = tiny_engine(module), tiny_batch("classification", rows=1)  # so few make a map each
        if not around:
            engine.forward, engine.probe = (_cast(one, dtype) for one in (engine.forward, engine.probe))  # type: ignore[method-assign]
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype, enabled=around):
            settled(name, engine, batch, MethodsConfig(freelb=FreeLBConfig(passes=2)))
        found.append(gradients(module))
    assert any(name.startswith("adversary") and value.any() for name, value in found[0].items()) == ("asa" in name)
    for part, value in found[0].items():
        size = value.norm().item()
        assert (value - found[1][part]).norm().item() <= 0.02 * size, part


class Asked(torch.autograd.Function):
    """A number, in whose gradient's place autocast is asked for."""

    asked: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        Asked.asked.append(torch.is_autocast_enabled("cpu"))
        return grads[0].expand(2)


def test_no_gradient_is_made_under_the_callers_autocast() -> None:
    engine = tiny_engine(tiny_module("classification"))
    passes = AcceleratedPasses(engine.module, 1, Accelerator(cpu=True))
    Asked.asked.clear()
    x = torch.ones(2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        for one in (engine, passes):
            one.ascend(Asked.apply(x), [x])
            one.backward(Asked.apply(x))
        assert torch.is_autocast_enabled("cpu")
    assert Asked.asked == [False] * 4


def test_autocast_around_steps_sees_the_weights_of_each() -> None:
    """It keeps what it has made of weights until it ends."""
    losses = []
    for around in (True, False):
        engine, batch, found = tiny_engine(tiny_module("classification")), tiny_batch("classification"), []
        # Not one that is switched off: it would keep what those inside make, too.
        with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
            for _ in range(4):
                with torch.autocast("cpu", torch.bfloat16):
                    terms = METHODS["vanilla"](MethodsConfig()).backward(engine, batch, At(0, 0))
                engine.step()
                found.append(float(terms["loss"]))
        losses.append(found)
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def _cast(forward: Any, dtype: torch.dtype) -> Any:
    def inside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return forward(*args, **kwargs)

    return inside


class Pair(BertPreTrainedModel):
    """Encodes a text and the same text backwards, or its first half and its second one."""

    halves = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = BertModel(config)
        self.classifier = nn.Linear(2 * config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **rest: Any) -> SequenceClassifierOutput:
        both = ((x.chunk(2, 1) if self.halves else (x, x.flip(1))) for x in (input_ids, attention_mask))
        parts = zip(*both, strict=True)
        states = [self.bert(ids, attention_mask=mask).last_hidden_state[:, 0] for ids, mask in parts]
        return SequenceClassifierOutput(logits=self.classifier(torch.cat(states, -1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", METHODS)
def test_an_encoder_that_runs_twice_in_a_pass_is_not_half_perturbed(name: str) -> None:
    """ASA charged the maps of the first text alone, and word methods moved the second text's padding."""
    module = TaskModel(Pair(tiny_bert("classification").config), "classification", ASAConfig())
    batch = tiny_batch("classification")
    if name in ("vanilla", "r_drop"):
        assert backward(module, batch, name)["loss"].isfinite()
        return
    method = METHODS[name](MethodsConfig(freelb=FreeLBConfig(passes=2)))
    method.after_step(engine := tiny_engine(module))  # asa_sparse attacks in its second step
    with pytest.raises(RequestError, match=r"^the model runs its encoder more than once in a pass, .* or r_drop$"):
        method.backward(engine, batch, At(0, 0))


@pytest.mark.parametrize("compiled", ["module", "model"])
def test_nor_where_it_is_compiled(compiled: str) -> None:
    module = TaskModel(Pair(tiny_bert("classification").config), "classification", ASAConfig())
    (module if compiled == "module" else module.model).compile(backend="eager")
    with pytest.raises(RequestError, match=r"^the model runs its encoder more than once"):
        backward(module, tiny_batch("classification"))


class Again(BertForMaskedLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.bert(*args, **kwargs)
        return super().forward(*args, **kwargs)


def test_nor_is_a_masked_lms() -> None:
    module = TaskModel(Again(cast(Any, tiny_bert().config)), "mlm", ASAConfig())
    with pytest.raises(RequestError, match=r"^the model runs its encoder more than once"):
        backward(module, tiny_batch())


def test_one_perturbation_may_be_every_rows() -> None:
    module, batch = tiny_module("classification"), tiny_batch("classification")
    of_all = torch.randn(LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    found = [module(batch, Perturb(embed_BLD=delta)).logits for delta in (of_all, of_all.expand(ROWS, LENGTH, WIDTH))]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert not torch.equal(found[0], module(batch).logits)


@pytest.mark.parametrize("shape", [(), (1,), (ROWS, LENGTH, WIDTH)])
def test_a_perturbation_keeps_its_precision_in_a_half_precision_model(shape: tuple[int, ...]) -> None:
    module = tiny_module("classification").to(torch.bfloat16)
    seen: list[torch.dtype] = []
    words = module.model.get_input_embeddings()
    words.register_forward_hook(lambda *args: seen.append(args[-1].dtype))
    module(tiny_batch("classification"), Perturb(embed_BLD=torch.full(shape, 1e-5)))
    assert seen == [torch.float32]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_perturbation_of_other_words_than_are_embedded_is_named(compiled: bool) -> None:
    model = Pair(tiny_bert("classification").config)
    model.halves = True
    module = TaskModel(model, "classification")
    if compiled:
        module.compile(backend="eager")
    with pytest.raises(
        RequestError, match=r"^the model embeds words of shape \[3, 5, 16\] where .* \[3, 10, 16\]; give"
    ):
        backward(module, tiny_batch("classification"), "freelb")


def test_an_addition_that_fails_is_no_wrong_shape() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        tiny_module()(tiny_batch(), Perturb(embed_BLD=torch.ones(ROWS, LENGTH, WIDTH).as_subclass(Full)))


class Full(Tensor):
    """Added to anything, it finds memory full."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("add", "__add__", "__radd__"):
            raise torch.OutOfMemoryError
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (ASAConfig(reversal=1.0), "asa.reversal is 1.0 in the TaskModel and 0.0001 in the method's settings"),
        (ASAConfig(heads="each"), "asa.heads is each in the TaskModel and shared in"),
        (ASAConfig(mask="gumbel"), "asa.mask is gumbel in the TaskModel and hard in"),
        (ASAConfig(temperature=2.0), "asa.temperature is 2.0 in the TaskModel and 1.0 in"),
        (
            ASAConfig(empty_row="uniform", masked_score="replaced"),
            "asa.empty_row is uniform in the TaskModel and unmasked in",
        ),
        (ASAConfig(masked_score="replaced"), "asa.masked_score is replaced in the TaskModel and shifted in"),
        (ASAConfig(sentence="head"), "asa.sentence is head in the TaskModel and hidden_softmax in"),
        (ASAConfig(dropout="shared"), "asa.dropout is shared in the TaskModel and independent in"),
    ],
)
@pytest.mark.parametrize("name", ["asa", "asa_sparse", "asa_freelb"])
def test_settings_that_contradict_the_adversarys_are_named(name: str, theirs: ASAConfig, why: str) -> None:
    """Half of them were the TaskModel's and half the method's."""
    module = tiny_module("classification", theirs)
    method = METHODS[name](MethodsConfig())
    method.after_step(engine := tiny_engine(module))
    with pytest.raises(RequestError, match=rf"^{why}.*; give both one ASAConfig$"):
        method.backward(engine, tiny_batch("classification"), At(0, 0))


class Annealed(ASA):
    """Another tau in each step."""

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        self.config = replace(self.config, tau=2 * self.config.tau)
        return super().backward(engine, batch, at)


@config
class Growing(ASAConfig):
    """ASA's settings and one more."""

    growth: float = 2.0
    """Of what a method of one's own makes of it."""
    tau: float = 0.3
    """Without bounds."""


def test_what_only_a_method_reads_may_be_its_own_and_is_saved(tmp_path: Path) -> None:
    batch = tiny_batch("classification")
    module = tiny_module("classification", Growing())
    methods = (ASA(ASAConfig()), Annealed(Growing(growth=3.0)))
    penalties = [method.backward(tiny_engine(module), batch, At(0, 0))["penalty"] for method in methods]
    torch.testing.assert_close(penalties[1], 4 * penalties[0])
    assert module.adversary is not None
    module.adversary.save_pretrained(tmp_path)
    assert saved_config(tmp_path) == ASAConfig(tau=2 * ASAConfig().tau)
    module.adversary.load_pretrained(tmp_path)
    ASA(Growing(tau=1000.0)).backward(tiny_engine(module), batch, At(0, 0))
    module.adversary.save_pretrained(tmp_path / "wide")
    with pytest.raises(RequestError, match=r"tau = 1000"):
        saved_config(tmp_path / "wide")


def test_a_kind_is_one_that_there_is_and_the_batchs() -> None:
    with pytest.raises(
        RequestError, match=r"^kind = 'tokens': allowed: mlm, classification, regression, choice, token$"
    ):
        TaskModel(tiny_bert("token"), cast(Any, "tokens"))
    module = tiny_module("token", ASAConfig())
    with pytest.raises(RequestError, match=r"^a batch of kind 'classification' for a TaskModel of kind 'token'; give"):
        backward(module, replace(tiny_batch("token"), kind="classification"))


class Peft(nn.Module):
    """As PEFT's models are: around the base model, whose config they show."""

    def __init__(self, prompts: bool = False) -> None:
        super().__init__()
        self.base_model = tiny_bert("classification")
        self.config = self.base_model.config
        self.active_peft_config = SimpleNamespace(is_prompt_learning=prompts)

    def get_base_model(self) -> Any:
        return self.base_model


MIXED: Any = type("PeftMixedModel", (nn.Module,), {"__module__": "peft.mixed_model"})  # which has no get_base_model


@pytest.mark.parametrize(
    ("model", "config", "why"),
    [
        (None, None, "NoneType is no Hugging Face model; give a PreTrainedModel"),
        ("bert-base-uncased", None, "str is no Hugging Face model"),
        (nn.Linear(2, 2), None, "Linear is no Hugging Face model"),
        (Peft(), None, r"Peft is PEFT's; give what its get_base_model\(\) returns"),
        (MIXED(), None, r"PeftMixedModel is PEFT's; give the model inside of it, its base_model.model"),
        (Peft(prompts=True), None, r"Peft learns prompts, which its base model has not and nothing here trains"),
        (tiny_bert(), {"tau": 0.3}, "dict is no ASAConfig; give one, or nothing"),
        (tiny_bert(), MethodsConfig(), "MethodsConfig is no ASAConfig"),
    ],
)
def test_what_is_no_model_or_no_settings_is_named(model: Any, config: Any, why: str) -> None:
    with pytest.raises(RequestError, match=rf"^{why}"):
        attach(model, config)


def test_what_a_batch_lacks_is_named() -> None:
    batch = tiny_batch("classification")
    words = {"inputs_embeds": torch.zeros(3, 10, 16), "attention_mask": batch.inputs["attention_mask"]}
    for name in ("asa", "freelb"):
        with pytest.raises(RequestError, match=r"^the batch has inputs_embeds, attention_mask and no input_ids; give"):
            backward(tiny_module("classification", ASAConfig()), replace(batch, inputs=words), name)
    with pytest.raises(RequestError, match=r"^a batch of kind mlm has no positions; give the masked tokens' places"):
        backward(tiny_module(asa=ASAConfig()), replace(tiny_batch(), positions=None))
    labels = tiny_batch().labels
    for positions in (torch.ones(len(labels), dtype=torch.bool), torch.arange(len(labels) + 1), labels.float()):
        with pytest.raises(RequestError, match=r"^positions are \[\d+\] of .*; give the index of each masked token"):
            backward(tiny_module(asa=ASAConfig()), replace(tiny_batch(), positions=positions))


def test_lists_and_classes_of_other_types_are_refused() -> None:
    batch = tiny_batch("classification")
    with pytest.raises(RequestError, match=r"^input_ids is a list; give tensors"):
        replace(batch, inputs=batch.inputs | {"input_ids": batch.ids.tolist()})
    for kind in ("classification", "regression"):
        with pytest.raises(RequestError, match=r"^labels are a list; give a tensor"):
            replace(tiny_batch(kind), labels=[0, 1, 0])  # type: ignore[arg-type]
    for dtype in (torch.float32, torch.int32, torch.uint8):
        with pytest.raises(RequestError, match=r"^labels of kind classification are \w+, allowed: int64"):
            replace(batch, labels=batch.labels.to(dtype))


def test_a_misspelt_method_is_told_which_there_are() -> None:
    with pytest.raises(RequestError, match=r"^no method 'azza'; .*allowed: vanilla, asa, "):
        build_method("azza", MethodsConfig(), "fp32", 0)


class Silent(Stateless):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        learn(engine, {"task": engine.forward(batch).logits.sum()})
        return self.answer


@pytest.mark.parametrize(("answer", "had"), [(None, "NoneType"), ({"task": torch.ones(())}, r"\['task'\]")])
def test_a_method_of_ones_own_returns_its_loss(answer: Any, had: str) -> None:
    method = Outside("mine", Silent(answer))
    with pytest.raises(RequestError, match=rf"^method mine returned {had}; return a dict of its terms, 'loss' among"):
        method.backward(tiny_engine(tiny_module("classification")), tiny_batch("classification"), At(0, 0))


@pytest.mark.parametrize(("value", "had"), [(None, "NoneType"), (0.5, "float")])
def test_the_terms_of_a_method_of_ones_own_are_tensors(value: Any, had: str) -> None:
    method = Outside("mine", Silent({"loss": value}))
    with pytest.raises(RequestError, match=rf"^method mine returned loss as {had}; return its terms as tensors$"):
        method.backward(tiny_engine(tiny_module("classification")), tiny_batch("classification"), At(0, 0))


def test_a_method_of_ones_own_has_all_parts() -> None:
    class Bare:
        passes = 1

        def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
            return {}

    with pytest.raises(
        RequestError,
        match=r"^method mine has no after_step, load_state_dict, replays, state_dict, uses_adversary; derive",
    ):
        Outside("mine", cast(Any, Bare()))
