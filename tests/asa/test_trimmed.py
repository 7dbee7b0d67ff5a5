"""Tokens that no head reads are left out after the last block's attention, and nothing else changes."""

import copy
import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle
from transformers import BertForMaskedLM, BertForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from asa.adversary import ASAConfig
from asa.attention import attach, has_stock_head, perturbed, trimmed
from asa.batch import Kind
from asa.errors import RequestError
from asa.families import FAMILIES
from asa.hf import checkpoint_activations
from asa.losses import task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.model import Output, TaskModel, reads_first
from asa.signal import Below
from tests.asa.conftest import LENGTH, VOCAB, WIDTH, batch_for, gradients, tiny_bert, tiny_engine
from tests.asa.encoders import EAGER_ONLY, LAYERS, tiny

CHOICES = [name for name in FAMILIES if name not in ("deberta", "modernbert")]  # with a class of multiple choice
EVERYWHERE: tuple[Kind, ...] = ("mlm", "classification", "regression")
CHOICE: Kind = "choice"
CASES = [*((name, kind) for name in FAMILIES for kind in EVERYWHERE), *((name, CHOICE) for name in CHOICES)]


def last_block(model: PreTrainedModel) -> nn.Module:
    family = FAMILIES[model.config.model_type]
    return model.base_model.get_submodule(f"{family.layers}.{LAYERS - 1}")


HANDLES: list[RemovableHandle] = []


@pytest.fixture(autouse=True)
def _nothing_is_counted_after_a_test() -> Iterator[None]:
    yield
    while HANDLES:
        HANDLES.pop().remove()


def count(module: nn.Module) -> list[int]:
    """Tokens of which a module tells something, pass by pass. No hook on the module: one of somebody's own gets all."""
    counts: list[int] = []

    def note(ran: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if ran is module:
            states: Tensor = output[0] if isinstance(output, tuple) else output
            counts.append(states.shape[:-1].numel())

    HANDLES.append(register_module_forward_hook(note))
    return counts


def seen(model: PreTrainedModel) -> list[int]:
    """Tokens that have left the last block, pass by pass."""
    return count(last_block(model))


def trained(
    name: str, kind: Kind, method: str, whole: bool, change: Callable[[PreTrainedModel], None] | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[int]]:
    """Terms and gradients of a step in fp64, and what left the last block."""
    # Hugging Face's eager ModernBERT is not a number in fp64 where a window sees padding alone.
    model = tiny(name, kind, "eager" if name in EAGER_ONLY else "sdpa").double()
    if change is not None:
        change(model)
    asa = ASAConfig() if METHODS[method](MethodsConfig()).uses_adversary else None
    engine = tiny_engine(TaskModel(model, kind, asa))
    counts = seen(model)
    engine.module.whole = whole
    terms = METHODS[method](MethodsConfig()).backward(engine, batch_for(name, kind), At(0, 0))
    return terms, gradients(engine.module), counts


@pytest.mark.parametrize("method", ["vanilla", "asa"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_losses_and_gradients_are_those_of_whole_passes(name: str, kind: Kind, method: str) -> None:
    (terms, found, counts), (slow_terms, slow, whole) = (trained(name, kind, method, how) for how in (False, True))
    batch = batch_for(name, kind)
    passes = 1 if method == "vanilla" else 2
    rows = len(batch.pad_BL)
    read = rows if batch.positions is None else rows + len(batch.positions)
    assert whole == [passes * rows * LENGTH]
    assert counts == [passes * (read if FAMILIES[name].tail else rows * LENGTH)]
    assert terms.keys() == slow_terms.keys()
    assert found.keys() == slow.keys()
    tolerance = 1e-6 if name == "deberta" else 1e-10  # whose LayerNorm is in fp32, whatever it is given
    for ours, theirs in ((terms, slow_terms), (found, slow)):
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], rtol=tolerance, atol=tolerance, msg=key)


@pytest.mark.parametrize("sentence", ["hidden_softmax", "head"])
def test_the_states_at_cls_are_those_of_a_whole_pass(sentence: Any) -> None:
    outputs: list[Output] = []
    for whole in (False, True):
        module = TaskModel(tiny("bert").double(), "mlm", ASAConfig(sentence=sentence))
        module.whole = whole
        batch = batch_for("bert")
        # Left padding moves [CLS].
        batch.inputs["attention_mask"][1] = batch.inputs["attention_mask"][1].flip(0)
        outputs.append(module(batch))
    for field in ("logits", "cls_BD", "cls_logits"):
        ours, theirs = (getattr(out, field) for out in outputs)
        assert (ours is None) == (theirs is None) == (field == "cls_logits" and sentence != "head")
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["mlm", "classification"])
def test_what_is_recomputed_is_left_out_again(kind: Kind) -> None:
    plain = trained("bert", kind, "asa", whole=False)
    again = trained("bert", kind, "asa", whole=False, change=checkpoint_activations)
    assert again[2] == plain[2]
    for key, value in plain[1].items():
        torch.testing.assert_close(again[1][key], value, rtol=1e-10, atol=1e-12, msg=key)


def test_a_pass_with_a_tap_of_final_states_is_whole() -> None:
    module = TaskModel(tiny("bert"), "mlm")
    counts, states = seen(module.model), []
    batch = batch_for("bert")
    module(batch, None, lambda block, h_BLD: states.append(h_BLD))
    assert counts == [batch.pad_BL.numel()]
    assert [tuple(state.shape[:2]) for state in states] == [tuple(batch.pad_BL.shape)] * (LAYERS + 1)
    module(batch, None, Below(lambda block, h_BLD: states.append(h_BLD)))
    assert counts[1] < counts[0]
    assert len(states) == LAYERS + 1 + LAYERS  # not what leaves the last block


@pytest.mark.parametrize("kind", ["mlm", "classification"])
def test_passes_that_share_dropout_share_it_with_those_that_have_a_tap(kind: Kind) -> None:
    engine, batch = tiny_engine(TaskModel(tiny("bert", kind, dropout=0.3), kind)), batch_for("bert", kind)
    counts = seen(engine.module.model)
    with engine.same_dropout():
        plain, tapped = engine.forward(batch).logits, engine.forward(batch, None, lambda block, h_BLD: None).logits
    assert torch.equal(plain, tapped)
    engine.forward(batch)
    with engine.same_dropout(taps=False):
        one, other = engine.forward(batch).logits, engine.probe(batch).logits
        for run in (engine.forward, engine.probe):
            with pytest.raises(RequestError, match="dropout may not be"):
                run(batch, None, lambda block, h_BLD: None)
        engine.probe(batch, None, Below(lambda block, h_BLD: None))
    assert torch.equal(one, other)
    assert counts[0] == counts[1] == batch.pad_BL.numel() > counts[2] == counts[3] == counts[4]


@pytest.mark.parametrize("method", ["freelb", "smart", "pgd", "r3f", "yopo"])
def test_methods_of_shared_dropout_leave_out_what_no_head_reads(method: str) -> None:
    batch = batch_for("bert", "classification")
    assert set(trained("bert", "classification", method, whole=False)[2]) == {len(batch.pad_BL)}


class MeanHead(BertForSequenceClassification):
    """One's own head, which reads every token."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found: Any = super().forward(*args, **kwargs | {"output_hidden_states": True})
        found.logits = self.classifier(found.hidden_states[-1].mean(1))
        return found


class MeanPooler(nn.Module):
    """One's own part in a head of Hugging Face's."""

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        return hidden_BLD.mean(1)


def own_class() -> PreTrainedModel:
    shape: Any = tiny_bert("classification").config
    torch.manual_seed(0)
    return MeanHead(shape)


def own_pooler() -> PreTrainedModel:
    model: Any = tiny_bert("classification")
    model.bert.pooler = MeanPooler()
    return model


def own_layer(name: str) -> PreTrainedModel:
    model: Any = tiny(name, "classification")
    layer = nn.TransformerEncoderLayer(WIDTH, 2, dim_feedforward=8, batch_first=True)
    if name == "bert":
        model.bert.pooler = nn.Sequential(layer, model.bert.pooler)
    else:
        model.classifier = nn.Sequential(layer, model.classifier)
    return model


def own_forward() -> PreTrainedModel:
    model: Any = tiny_bert("classification")
    pooler = model.bert.pooler
    pooler.forward = lambda hidden_BLD: pooler.activation(pooler.dense(hidden_BLD.mean(1)))
    return model


def own_hook() -> PreTrainedModel:
    model: Any = tiny_bert("classification")
    model.bert.pooler.register_forward_hook(lambda module, args, output: args[0].mean(1))
    return model


def own_summary() -> PreTrainedModel:
    model: Any = tiny("electra", "choice")
    model.sequence_summary.summary_type = "mean"
    return model


def own_block(kind: Kind) -> PreTrainedModel:
    model: Any = tiny_bert(kind)
    blocks = model.bert.encoder.layer
    blocks[-1].output = Mixing(blocks[-1].output)
    return model


class Mixing(nn.Module):
    """One's own adapter, in which tokens meet."""

    def __init__(self, output: nn.Module) -> None:
        super().__init__()
        self.output = output

    def forward(self, *args: Tensor) -> Tensor:
        states_BLD = self.output(*args)
        return states_BLD - states_BLD.mean(1, keepdim=True)


def own_centre(kind: Kind) -> PreTrainedModel:
    model: Any = tiny_bert(kind)

    def centre(encoder: nn.Module, args: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state - output.last_hidden_state.mean(1, keepdim=True)
        return output

    model.bert.encoder.register_forward_hook(centre)
    return model


def centred(states_BLD: Tensor) -> Tensor:
    return states_BLD - states_BLD.mean(1, keepdim=True)


def wrap_forward(part: nn.Module) -> None:
    """As one patches a method, which then says that it is Hugging Face's."""
    old = part.forward

    @functools.wraps(old)
    def forward(*args: Any, **inputs: Any) -> Any:
        return centred(old(*args, **inputs))

    part.forward = forward  # type: ignore[method-assign]


def wrapped_block() -> PreTrainedModel:
    model = tiny_bert("classification")
    wrap_forward(last_block(model))
    return model


ELSEWHERE = {
    "a forward in a wrapper": wrapped_block,
    "torch's layer before the pooler": lambda: own_layer("bert"),
    "torch's layer before the head": lambda: own_layer("roberta"),
    "a forward of one's own": own_forward,
    "a hook": own_hook,
    "ELECTRA's mean, set by hand": own_summary,
    "an adapter": lambda: own_block("classification"),
    "a hook on the encoder": lambda: own_centre("classification"),
    "a class of one's own": own_class,
    "a part of one's own": own_pooler,
    "ELECTRA's last token": lambda: tiny("electra", "choice", summary_type="last"),
    "ELECTRA's mean": lambda: tiny("electra", "choice", summary_type="mean"),
    "ModernBERT's mean": lambda: tiny("modernbert", "classification", classifier_pooling="mean"),
    "chunks": lambda: tiny("bert", "classification", chunk_size_feed_forward=5),
    "one block": lambda: tiny("deberta-v2", "classification", num_hidden_layers=1, conv_kernel_size=3),
}


@pytest.mark.parametrize("which", ELSEWHERE)
def test_a_head_that_reads_other_tokens_gets_them(which: str) -> None:
    model = ELSEWHERE[which]().eval()
    kind: Kind = "choice" if "ELECTRA" in which else "classification"
    batch = batch_for(str(model.config.model_type), kind)
    plain = model(**batch.inputs).logits
    torch.testing.assert_close(TaskModel(model, kind)(batch).logits, plain, rtol=0, atol=1e-6)
    assert not reads_first(model)


def give_pooler(model: Any) -> None:
    model.bert.pooler = MeanPooler()


def give_classifier(model: Any) -> None:
    model.classifier = nn.Sequential(MeanPooler(), nn.Linear(WIDTH, 3))


@pytest.mark.parametrize(("name", "replace"), [("bert", give_pooler), ("roberta", give_classifier)])
def test_a_head_that_is_replaced_later_gets_all_tokens(name: str, replace: Callable[[Any], None]) -> None:
    model: Any = tiny(name, "classification").eval()
    module, batch = TaskModel(model, "classification"), batch_for(name, "classification")
    before = module(batch).logits
    replace(model)
    after = module(batch).logits
    torch.testing.assert_close(after, model(**batch.inputs).logits, rtol=0, atol=1e-6)
    assert not torch.equal(before, after)


def centre_output(part: nn.Module, args: Any, output: Any) -> Any:
    output.last_hidden_state = centred(output.last_hidden_state)
    return output


def pool_again(base: Any, args: Any, output: Any) -> Any:
    output.last_hidden_state = centred(output.last_hidden_state)
    if output.pooler_output is not None:
        output.pooler_output = base.pooler(output.last_hidden_state)
    return output


def own_forward_later(part: nn.Module) -> None:
    forward = type(part).forward
    part.forward = lambda *args, **inputs: forward(part, *(centred(x) for x in args), **inputs)  # type: ignore[method-assign]


LATER: dict[str, tuple[Kind, Callable[[Any], object]]] = {
    "the last block": ("classification", lambda m: last_block(m).register_forward_hook(lambda *a: centred(a[2]))),
    "the last block's output": (
        "classification",
        lambda m: last_block(m).output.register_forward_hook(lambda *a: centred(a[2])),  # type: ignore[operator, union-attr]
    ),
    "the encoder": ("classification", lambda m: m.bert.encoder.register_forward_hook(centre_output)),
    "the base": ("classification", lambda m: m.bert.register_forward_hook(pool_again)),
    "the last block's forward": ("classification", lambda m: wrap_forward(last_block(m))),
    "the pooler": ("classification", lambda m: own_forward_later(m.bert.pooler)),
    "the last block, mlm": ("mlm", lambda m: last_block(m).register_forward_hook(lambda *a: centred(a[2]))),
    "the base, mlm": ("mlm", lambda m: m.bert.register_forward_hook(pool_again)),
    "the head, mlm": ("mlm", lambda m: own_forward_later(m.cls)),
    "a part of the head, mlm": (
        "mlm",
        lambda m: m.cls.predictions.transform.register_forward_pre_hook(lambda part, args: (centred(args[0]),)),
    ),
}


@pytest.mark.parametrize("where", LATER)
def test_what_somebody_hangs_in_later_gets_all_tokens(where: str) -> None:
    kind, change = LATER[where]
    model, batch = tiny("bert", kind).eval(), batch_for("bert", kind)
    module = TaskModel(model, kind)
    before = module(batch).logits
    change(model)
    plain = model(**batch.inputs).logits
    after = module(batch).logits
    torch.testing.assert_close(after, plain.flatten(0, 1)[batch.positions] if kind == "mlm" else plain)
    assert not torch.allclose(after, before, atol=1e-3)


def test_the_whole_models_own_forward_gets_all_tokens() -> None:
    model, batch = tiny("bert", "classification").eval(), batch_for("bert", "classification")
    module = TaskModel(model, "classification")
    shapes: list[torch.Size] = []

    def forward(**inputs: Any) -> Any:
        output = model.base_model(**inputs)  # type: ignore[operator]
        shapes.append(output.last_hidden_state.shape)
        return SequenceClassifierOutput(logits=model.classifier(output.last_hidden_state.mean(1)))  # type: ignore[operator, arg-type]

    model.forward = forward  # type: ignore[method-assign]
    torch.testing.assert_close(module(batch).logits, model(**batch.inputs).logits)
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "build",
    [
        lambda: own_block("mlm"),
        lambda: own_centre("mlm"),
        lambda: tiny("deberta-v2", num_hidden_layers=1, conv_kernel_size=3),
        lambda: tiny("bert", chunk_size_feed_forward=5),
    ],
    ids=["an adapter", "a hook on the encoder", "one block", "chunks"],
)
def test_a_masked_lm_whose_tokens_meet_after_the_last_attention_is_whole(build: Callable[[], PreTrainedModel]) -> None:
    model = build().eval()
    batch = batch_for(str(model.config.model_type))
    plain = model(**batch.inputs).logits.flatten(0, 1)[batch.positions]
    torch.testing.assert_close(TaskModel(model, "mlm")(batch).logits, plain, rtol=0, atol=1e-5)


class Neighbours(nn.Module):
    """A masked LM's head in which tokens meet."""

    def __init__(self) -> None:
        super().__init__()
        self.across = nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)
        self.words = nn.Linear(WIDTH, VOCAB)

    def forward(self, h_BLD: Tensor) -> Tensor:
        return self.words(self.across(h_BLD)[0])


@pytest.mark.parametrize("sentence", ["hidden_softmax", "head"])
@pytest.mark.parametrize("later", [False, True])
def test_a_masked_lms_head_of_ones_own_gets_all_tokens(later: bool, sentence: Any) -> None:
    model: Any = tiny_bert().double().eval()
    head = Neighbours().double()
    if not later:
        model.cls = head
    module, batch = TaskModel(model, "mlm", ASAConfig(sentence=sentence)), batch_for("bert")
    if later:
        model.cls = head
    found, whole = module(batch), model(**batch.inputs, output_hidden_states=True)
    firsts = slice(None), 0
    torch.testing.assert_close(found.logits, whole.logits.flatten(0, 1)[batch.positions], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.cls_BD, whole.hidden_states[-1][firsts], rtol=0, atol=1e-12)
    if sentence == "head":
        torch.testing.assert_close(found.cls_logits, whole.logits[firsts], rtol=0, atol=1e-12)
    terms = METHODS["asa"](MethodsConfig(asa=ASAConfig(sentence=sentence))).backward(
        tiny_engine(module), batch, At(0, 0)
    )
    assert {"asa_token", "asa_sentence"} <= terms.keys()
    assert "model.cls.across.weight_hh_l0" in gradients(module)


class Unchanged(BertForMaskedLM):
    """A class of one's own with Hugging Face's forward."""


class Changed(BertForMaskedLM):
    def forward(self, *args: Any, **inputs: Any) -> Any:
        return super().forward(*args, **inputs)


def test_a_stock_head_runs_on_masked_tokens_whatever_the_encoder_is() -> None:
    config: Any = tiny_bert().config
    hooked, replaced, shown = tiny_bert(), tiny_bert(), tiny_bert()
    last_block(hooked).register_forward_hook(lambda *_: None)
    replaced.bert.encoder.layer[0] = own_block("mlm").bert.encoder.layer[-1]  # type: ignore[union-attr, operator]
    shown.register_forward_hook(lambda *_: None)
    cases = [(hooked, True), (replaced, True), (Unchanged(config), True), (Changed(config), False), (shown, False)]
    batch = batch_for("bert")
    assert batch.positions is not None
    for model, masked_alone in cases:
        module = TaskModel(model, "mlm")
        counts = count(model.get_output_embeddings())
        module.eval()(batch)
        assert counts == [len(batch.positions) if masked_alone else batch.pad_BL.numel()], type(model)


def grow(blocks: Any) -> None:
    blocks.append(copy.deepcopy(blocks[-1]))


def cut(blocks: Any) -> None:
    del blocks[-1]


def twice(blocks: Any) -> None:
    blocks[0] = blocks[-1]


def around(blocks: Any) -> None:
    blocks.append(blocks[0])


def again(blocks: Any) -> None:
    blocks.append(blocks[-1])


def put(blocks: Any) -> None:
    blocks[-1].attention.output = copy.deepcopy(blocks[-1].attention.output)


def mix(blocks: Any) -> None:
    blocks[-1].output = Mixing(blocks[-1].output)


def wrap(blocks: Any) -> None:
    blocks[-1] = MixedBlock(blocks[-1])


class MixedBlock(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, h_BLD: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        states_BLD = self.block(h_BLD, *args, **kwargs)
        return states_BLD + states_BLD.mean(1, keepdim=True)


CHANGES = [grow, cut, twice, around, again, put, mix, wrap]


@pytest.mark.parametrize("change", CHANGES)
def test_a_last_block_that_is_another_since_attach_computes_all_tokens(change: Callable[[Any], None]) -> None:
    """The hook that leaves tokens out is not where it was."""
    model, batch = tiny_bert(), batch_for("bert")
    module = TaskModel(model, "mlm").eval()
    assert trimmed(model)
    change(model.base_model.get_submodule("encoder.layer"))
    assert not trimmed(model)
    whole_NC = model(**batch.inputs).logits.flatten(0, 1)
    torch.testing.assert_close(module(batch).logits, whole_NC[batch.positions])


@pytest.mark.parametrize("change", [twice, around, again])
def test_a_block_that_stood_twice_before_attach_computes_all_tokens(change: Callable[[Any], None]) -> None:
    model, batch = tiny_bert(), batch_for("bert")
    change(model.base_model.get_submodule("encoder.layer"))
    module = TaskModel(model, "mlm").eval()
    whole_NC = model(**batch.inputs).logits.flatten(0, 1)
    torch.testing.assert_close(module(batch).logits, whole_NC[batch.positions])


def test_a_block_that_is_left_alone_computes_all_tokens() -> None:
    """DeBERTa v2 adds a convolution of all to what leaves the first one."""
    model, batch = tiny("deberta-v2", "mlm", "eager", conv_kernel_size=3), batch_for("deberta-v2")
    module = TaskModel(model, "mlm").eval()
    blocks: Any = model.base_model.get_submodule("encoder.layer")
    del blocks[0]
    whole_NC = model(**batch.inputs).logits.flatten(0, 1)
    torch.testing.assert_close(module(batch).logits, whole_NC[batch.positions])


@pytest.fixture
def autocast() -> Iterator[Callable[[nn.Module], None]]:
    """Puts accelerate's autocast on a model, whatever set accelerate up before."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield lambda model: accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_what_accelerate_leaves_behind_is_nobodys_forward(autocast: Callable[[nn.Module], None]) -> None:
    model = tiny_bert()
    autocast(model)
    assert "forward" in vars(model)
    attach(model)
    assert (has_stock_head(model), trimmed(model)) == (True, True)
    vars(model)["forward"] = lambda **inputs: None
    attach(model)
    assert (has_stock_head(model), trimmed(model)) == (False, False)


@pytest.mark.parametrize("bound", [False, True])
def test_a_users_forward_under_that_autocast_is_the_users(bound: bool, autocast: Callable[[nn.Module], None]) -> None:
    model = tiny_bert()

    @functools.wraps(model.forward)
    def mine(*args: Any, **inputs: Any) -> Any:
        return type(model).forward(model, *args[bound:], **inputs)

    vars(model)["forward"] = MethodType(mine, model) if bound else mine
    autocast(model)
    attach(model)
    assert (has_stock_head(model), trimmed(model)) == (False, False)


def test_a_hook_is_of_whoever_wrote_the_function_that_a_decorator_wraps() -> None:
    """DeepSpeed hides some of its hooks from a compiler, as a user may."""
    model = tiny_bert()
    attach(model)
    disabled: Any = torch.compiler.disable
    theirs = FunctionType(last_block.__code__, {"__name__": "deepspeed.runtime.zero", "__builtins__": {}})
    handle = model.base_model.register_forward_hook(disabled(theirs))
    assert (has_stock_head(model), trimmed(model)) == (True, True)
    handle.remove()
    model.base_model.register_forward_hook(disabled(lambda *_: None))
    assert (has_stock_head(model), trimmed(model)) == (False, False)


@pytest.mark.parametrize("place", ["model", "head", "block"])
def test_a_forward_that_was_put_into_a_class_is_the_users(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks and makers of kernels do so; that of a block cannot be a whole model's head."""
    model: Any = tiny_bert()
    part = {"model": model, "head": model.cls.predictions.transform, "block": model.bert.encoder.layer[-1].output}[
        place
    ]
    usual = type(part).forward

    @functools.wraps(usual)
    def mine(*args: Any, **inputs: Any) -> Any:
        return usual(*args, **inputs)

    monkeypatch.setattr(type(part), "forward", mine)
    attach(model)
    assert (has_stock_head(model), trimmed(model)) == (place == "block", False)


def test_a_model_of_ones_own_that_names_no_logits_is_refused() -> None:
    model: Any = tiny_bert("classification")
    module = TaskModel(model, "classification")
    model.forward = lambda **inputs: (model.bert(**inputs).pooler_output,)
    with pytest.raises(RequestError, match="returns a tuple without logits"):
        module(batch_for("bert", "classification"))


def test_whose_head_reads_the_first_token_is_known_by_its_class() -> None:
    sequences, others = (
        (tiny("bert", "choice"), tiny("roberta", "classification")),
        (tiny("bert", "token"), tiny("bert")),
    )
    for model in (*sequences, *others):
        attach(model)
        assert reads_first(model) == (model in sequences)


def test_without_reads_a_pass_is_whole() -> None:
    model, batch = tiny("bert"), batch_for("bert")
    attach(model)
    with perturbed(model):
        assert model(**batch.inputs).logits.shape[:2] == batch.pad_BL.shape


def test_rows_of_embeddings_are_read_whole() -> None:
    module, batch = TaskModel(tiny("bert", "classification"), "classification"), batch_for("bert", "classification")
    plain = task_loss(module(batch), batch)
    words: nn.Module = module.model.get_input_embeddings()
    batch.inputs["inputs_embeds"] = words(batch.inputs.pop("input_ids"))
    torch.testing.assert_close(task_loss(module(batch), batch), plain)
