"""attach in odd but legal use: pickled, on the base model, in other types, padded on the left, refused half-way."""

import pickle
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AttentionInterface,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertPreTrainedModel,
    PreTrainedModel,
)

from asa import cpu_attention
from asa.adversary import ASAConfig
from asa.attention import attach, detach, perturbed, trimmed
from asa.errors import RequestError
from asa.families import FAMILIES
from asa.hf import check_model, checkpoint_activations
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel
from asa.signal import Perturb, Site
from tests.asa.conftest import (
    LAYERS,
    ROWS,
    attend_to,
    batch_for,
    gradients,
    hidden,
    random_keeps,
    tiny_batch,
    tiny_bert,
    tiny_engine,
)
from tests.asa.encoders import LENGTH, tiny


@pytest.mark.parametrize("public", [attach, detach, perturbed, TaskModel.__init__])
def test_the_types_of_a_public_name_can_be_read_while_the_program_runs(public: Any) -> None:
    """Typed command lines and notebooks do so; a type imported for checkers alone is a NameError then."""
    assert get_type_hints(public)["model"] is PreTrainedModel


@pytest.mark.parametrize("name", FAMILIES)
def test_an_attached_model_pickles_with_its_attachment(name: str) -> None:
    model, batch = tiny(name), batch_for(name)
    attach(model)
    twin = pickle.loads(pickle.dumps(model))
    found = []
    for one in (model, twin):
        with perturbed(one, Perturb(attend=attend_to(random_keeps(0)))):
            found.append(one(**batch.inputs).logits)
    assert torch.equal(*found)
    detach(twin)
    assert torch.equal(twin(**batch.inputs).logits, tiny(name)(**batch.inputs).logits)


def test_a_base_model_attached_before_its_task_model_is_asked_once_per_layer() -> None:
    model, batch = tiny("bert"), tiny_batch()
    attach(model.base_model)  # type: ignore[arg-type]
    attach(model)
    sites: list[Site] = []

    def attend(site: Site) -> Tensor:
        sites.append(site)
        return torch.ones(ROWS, LENGTH, LENGTH)

    with perturbed(model.base_model, Perturb(attend=attend)):  # type: ignore[arg-type]
        model(**batch.inputs)
    assert [site.layer for site in sites] == [0, 1]
    detach(model)
    detach(model.base_model)  # type: ignore[arg-type]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_model_that_was_not_attached_says_so() -> None:
    with pytest.raises(RequestError, match=r"call asa\.attach"), perturbed(tiny("bert")):
        pass


@pytest.mark.parametrize("name", FAMILIES)
def test_inputs_embeds_are_refused_where_the_words_are_perturbed(name: str) -> None:
    model, batch = tiny(name), batch_for(name)
    attach(model)
    words_BLD = model.get_input_embeddings()(batch.inputs["input_ids"])
    rest = {"attention_mask": batch.inputs["attention_mask"], "inputs_embeds": words_BLD}
    with perturbed(model):
        model(**rest)
    with (
        pytest.raises(RequestError, match="give input_ids"),
        perturbed(model, Perturb(embed_BLD=torch.ones_like(words_BLD))),
    ):
        model(**rest)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_released_scores_run_in_half_precision(dtype: torch.dtype) -> None:
    config = ASAConfig.released()
    module = TaskModel(tiny("bert", "classification"), "classification", config)
    engine = tiny_engine(module)  # which would not train weights in fp16
    module.to(dtype)
    METHODS["asa"](MethodsConfig(asa=config)).backward(engine, batch_for("bert", "classification"), At(0, 0))
    assert all(value.isfinite().all() for value in gradients(module).values())


def test_adversaries_are_made_where_and_as_wide_as_the_model_is() -> None:
    model, batch = tiny("bert").double(), tiny_batch()
    adversaries = attach(model)
    attend: Any = lambda site: adversaries[site.layer](site.h_BLD, site.seen_BLL)  # noqa: E731
    with perturbed(model, Perturb(attend=attend)):
        assert model(**batch.inputs).logits.dtype == torch.float64
    assert {p.dtype for p in attach(tiny("bert").half()).parameters()} == {torch.float32}


def test_an_attach_that_is_refused_leaves_no_trace() -> None:
    model = tiny("bert")
    checkpoint_activations(model, {"use_reentrant": True})
    with pytest.raises(RequestError, match="use_reentrant=False"):
        attach(model)
    encoder = model.base_model.get_submodule("encoder")
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in encoder.modules())
    with pytest.raises(RequestError, match="call asa"), perturbed(model):
        pass


def test_an_attach_that_is_refused_leaves_an_earlier_one_alive() -> None:
    model: Any = tiny("bert")
    attach(model)
    last = model.bert.encoder.layer[-1]
    model.bert.encoder.layer[-1] = torch.nn.Identity()
    with pytest.raises(RequestError, match=r"layer\.1 has no attention\.self"):
        attach(model)
    model.bert.encoder.layer[-1] = last
    assert calls(model) == [(n, True) for n in range(LAYERS)]


def test_decoders_and_masks_per_head_are_refused() -> None:
    decoder = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, is_decoder=True))
    with pytest.raises(RequestError, match="is_decoder"):
        attach(decoder)
    with pytest.raises(ValueError, match=r"dropout shared.*set --asa\.masked_score"):
        ASAConfig(dropout="shared", masked_score="replaced")


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_that_came_after_attach_are_told_of_where_they_were_to_be_perturbed(name: str) -> None:
    """They would be left alone, and the attack do nothing, without a word."""
    model, batch = tiny(name), batch_for(name)
    attach(model)
    layers = list(model.base_model.get_submodule(FAMILIES[name].layers).children())
    attention = FAMILIES[name].attention
    layers[1].set_submodule(attention, deepcopy(layers[1].get_submodule(attention)))
    words_BLD = model.get_input_embeddings()(batch.inputs["input_ids"])
    model(**batch.inputs)  # and nothing is asked of them
    with perturbed(model, Perturb(embed_BLD=torch.ones_like(words_BLD))):
        model(**batch.inputs)
    attacked = Perturb(attend=attend_to(random_keeps(0)))
    with (
        pytest.raises(RequestError, match=r"\.1\..* was added, replaced or removed after asa\.attach"),
        perturbed(model, attacked),
    ):
        model(**batch.inputs)
    attach(model)
    model.set_input_embeddings(deepcopy(model.get_input_embeddings()))
    with perturbed(model, attacked):
        model(**batch.inputs)
    with (
        pytest.raises(RequestError, match=r"embeddings.* was added, replaced or removed after asa\.attach"),
        perturbed(model, Perturb(embed_BLD=torch.ones_like(words_BLD))),
    ):
        model(**batch.inputs)


class Wrapped(torch.nn.Module):
    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.part(*args, **kwargs)


CHANGES: dict[str, tuple[str, Any]] = {
    "replaced": ("0", lambda layers: [deepcopy(layers[0]), *layers[1:]]),
    "put first": ("0", lambda layers: [deepcopy(layers[0]), *layers]),
    "put last": (str(LAYERS), lambda layers: [*layers, deepcopy(layers[0])]),
    "swapped": ("0", lambda layers: layers[::-1]),
    "removed": ("1", lambda layers: layers[:-1]),
    "wrapped": ("", lambda layers: [layers[0], Wrapped(layers[1])]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_blocks_that_are_not_where_they_were_are_told_of_where_they_were_to_be_shown(change: str) -> None:
    model, batch = tiny("bert"), tiny_batch()
    attach(model)
    encoder: Any = model.base_model.get_submodule("encoder")
    where, made = CHANGES[change]
    encoder.layer = torch.nn.ModuleList(made(list(encoder.get_submodule("layer").children())))
    said = pytest.raises(RequestError, match=rf"encoder\.layer\.{where}.* was added, replaced or removed")
    attacked: Any = {"perturb": Perturb(attend=attend_to(random_keeps(0)))}
    shown: Any = {"tap": lambda _, h_BLD: None}
    for asked in (attacked, shown):
        with said if where else nullcontext(), perturbed(model, **asked):
            model(**batch.inputs)


def calls(model: PreTrainedModel) -> list[tuple[int, bool]]:
    """The layers that an attack of one pass is asked about, and whether each sees all of its keys."""
    asked: list[tuple[int, bool]] = []

    def attend(site: Site) -> Tensor:
        asked.append((site.layer, bool((site.seen_BLL == tiny_batch().inputs["attention_mask"].unsqueeze(1)).all())))
        return random_keeps(0)[0]

    with perturbed(model, Perturb(attend=attend)):
        model(**tiny_batch().inputs)
    return asked


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta-v2"])
@pytest.mark.parametrize("detached", [False, True])
def test_a_copied_block_obeys_the_model_it_was_put_into(name: str, detached: bool) -> None:
    """A block of an attached model brings its hooks: it would be masked twice, or not work after detach."""
    model, batch = tiny(name), batch_for(name)
    attach(model)
    blocks: Any = model.base_model.get_submodule("encoder.layer")
    blocks.append(deepcopy(blocks[-1]))
    plain = model(**batch.inputs).logits
    if detached:
        detach(model)
        assert torch.equal(model(**batch.inputs).logits, plain)
    asked: list[int] = []
    attach(model)
    with perturbed(model, Perturb(attend=lambda site: asked.append(site.layer))):
        assert torch.equal(model(**batch.inputs).logits, plain)
    assert asked == list(range(LAYERS + 1))


@pytest.mark.parametrize("config", [ASAConfig(), ASAConfig.released()])
def test_a_model_of_copied_parts_is_attacked_as_one_whose_parts_nobody_has_touched(config: ASAConfig) -> None:
    teacher, student, batch = tiny("bert", dropout=0.2), tiny("bert", dropout=0.2), tiny_batch()
    attach(teacher, config)
    for part in ("encoder", "embeddings"):
        setattr(student.bert, part, deepcopy(teacher.base_model.get_submodule(part)))
    attach(student, config)
    assert trimmed(student)
    assert calls(student) == [(n, True) for n in range(LAYERS)]
    assert calls(teacher) == [(n, True) for n in range(LAYERS)]
    found = []
    for model in (teacher, student):
        torch.manual_seed(0)
        with perturbed(model.train(), Perturb(attend=attend_to(random_keeps(0)))):
            found.append(model.base_model(**batch.inputs).last_hidden_state)  # type: ignore[operator]
    assert torch.equal(*found)
    detach(student)
    assert not any("_asa_seat" in vars(module) for module in student.modules())


def test_a_copy_made_in_a_pass_is_not_in_it() -> None:
    model, batch = tiny("bert"), tiny_batch()
    attach(model)
    with perturbed(model, Perturb(attend=attend_to(random_keeps(0)))):
        copied = deepcopy(model)
        assert not torch.equal(copied(**batch.inputs).logits, model(**batch.inputs).logits)
    assert torch.equal(copied(**batch.inputs).logits, model(**batch.inputs).logits)


def test_of_two_models_that_share_blocks_the_one_that_is_no_longer_obeyed_says_so() -> None:
    first, second = tiny("bert"), tiny("bert")
    second.bert.encoder = first.bert.encoder  # type: ignore[union-attr]
    attach(first)
    attach(second)
    assert calls(second) == [(n, True) for n in range(LAYERS)]
    with pytest.raises(RequestError, match=r"layer\.0\.attention\.self is part of another model too.*attach again"):
        calls(first)
    detach(first)
    third = tiny("bert")
    third.bert.encoder = first.bert.encoder  # type: ignore[union-attr]
    detach(third)  # which was never attached
    assert calls(second) == [(n, True) for n in range(LAYERS)]
    attach(first)
    attach(second)
    detach(second)
    with pytest.raises(RequestError, match="attach again"):
        calls(first)
    first(**tiny_batch().inputs)
    attach(first)
    assert calls(first) == [(n, True) for n in range(LAYERS)]


def test_a_block_that_stands_twice_is_told_of_where_it_was_to_be_attacked() -> None:
    model: Any = tiny("bert")
    layer = model.bert.encoder.layer
    model.bert.encoder.layer = torch.nn.ModuleList([layer[0], layer[0], layer[1]])
    attach(model)
    with pytest.raises(RequestError, match=r"layer\.1\.attention\.self is encoder\.layer\.0\S+ once more.*put a copy"):
        calls(model)
    words_BLD = model.get_input_embeddings()(tiny_batch().inputs["input_ids"])
    with perturbed(model, Perturb(embed_BLD=torch.ones_like(words_BLD))):
        model(**tiny_batch().inputs)


def test_attention_that_two_blocks_share_is_told_of_and_left_as_it_was() -> None:
    model: Any = tiny("bert")
    blocks = model.bert.encoder.layer
    blocks[1].attention = blocks[0].attention
    attach(model)
    with pytest.raises(RequestError, match=r"layer\.1\.attention\.self is encoder\.layer\.0\S+ once more"):
        calls(model)
    detach(model)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert blocks[0].attention.self.config is model.config


def test_a_block_without_attention_is_refused_and_leaves_no_trace() -> None:
    model: Any = tiny("bert")
    layer = model.bert.encoder.layer
    model.bert.encoder.layer = torch.nn.ModuleList([layer[0], Wrapped(layer[1])])
    with pytest.raises(RequestError, match=r"encoder\.layer\.1 has no attention\.self; call asa\.attach before"):
        attach(model)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_detach_leaves_no_trace_on_a_block_that_was_cut_off() -> None:
    model: Any = tiny("bert")
    attach(model)
    last = model.bert.encoder.layer[-1]
    del model.bert.encoder.layer[-1]
    detach(model)
    assert not any(module._forward_pre_hooks or "_asa_seat" in vars(module) for module in last.modules())
    assert last.attention.self.config._attn_implementation == model.config._attn_implementation


def test_a_block_that_was_given_to_another_model_obeys_that_one() -> None:
    model, other = tiny("bert"), tiny("bert")
    blocks, others = (one.base_model.get_submodule("encoder.layer") for one in (model, other))
    attach(model)
    others[1] = blocks[1]  # type: ignore[index, operator]
    del blocks[1]  # type: ignore[operator]
    attach(other)
    attach(model)
    assert calls(other) == [(n, True) for n in range(LAYERS)]


def test_words_that_are_no_part_of_the_encoder_are_no_hindrance() -> None:
    class Mine(BertForMaskedLM):
        def __init__(self, config: BertConfig) -> None:
            super().__init__(config)
            self.own = torch.nn.Embedding(config.vocab_size, config.hidden_size)

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.own

    config: Any = tiny("bert").config
    attach(Mine(config))


def test_a_mask_that_is_changed_between_two_forwards_of_a_pass_is_looked_at_again() -> None:
    model, batch = tiny("bert"), tiny_batch()
    attach(model)
    seen: list[Tensor] = []

    def attend(site: Site) -> None:
        seen.append(site.seen_BLL.clone())

    mask_B1LL = torch.zeros(ROWS, 1, LENGTH, LENGTH)
    with perturbed(model, Perturb(attend=attend)) as now:
        for hidden in (1, 3):
            mask_B1LL[:, :, :, -hidden:] = torch.finfo(torch.float32).min
            model(input_ids=batch.inputs["input_ids"], attention_mask=mask_B1LL)
            assert len(now.left.masks) == 1
    assert [int(one[0, 0].sum()) for one in seen] == [LENGTH - 1] * LAYERS + [LENGTH - 3] * LAYERS


def test_a_mask_that_is_changed_between_two_layers_is_looked_at_again() -> None:
    model, batch = tiny("bert"), tiny_batch()
    attach(model)
    seen: list[int] = []
    mask_B1LL = torch.zeros(ROWS, 1, LENGTH, LENGTH)

    def attend(site: Site) -> None:
        seen.append(int(site.seen_BLL[0, 0].sum()))
        mask_B1LL[:, :, :, -1 - len(seen) :] = torch.finfo(torch.float32).min

    with perturbed(model, Perturb(attend=attend)):
        model(input_ids=batch.inputs["input_ids"], attention_mask=mask_B1LL)
    assert seen == [LENGTH, LENGTH - 2][:LAYERS]


def test_the_sentence_term_reads_the_first_real_token_of_rows_padded_on_the_left() -> None:
    module, batch = TaskModel(tiny("bert", position_embedding_type="none"), "mlm"), tiny_batch()
    batch.inputs["attention_mask"] = batch.inputs["attention_mask"].flip(1)
    hidden_BLD = module.model.base_model(**batch.inputs).last_hidden_state  # type: ignore[operator]
    firsts = [row.tolist().index(1) for row in batch.inputs["attention_mask"]]
    expected_BD = hidden_BLD[torch.arange(ROWS), firsts]
    torch.testing.assert_close(module(batch).cls_BD, expected_BD)


def test_weights_put_every_part_back_into_its_own_mode() -> None:
    model, batch = tiny("bert", attention="sdpa"), tiny_batch()
    frozen = model.base_model.get_submodule("encoder.layer.0.attention.self.dropout").eval()
    attach(model)

    def attend(site: Site) -> Tensor:
        site.weights()
        return torch.ones(ROWS, LENGTH, LENGTH)

    with perturbed(model, Perturb(attend=attend)):
        model(**batch.inputs)
    assert not frozen.training
    assert model.base_model.get_submodule("encoder.layer.1.attention.self.dropout").training


@pytest.mark.parametrize("text", ["[]", '{"model_type": ["bert"]}', '{"model_type": "bert", "hidden_size": "x"}'])
def test_a_config_of_the_wrong_form_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(RequestError, match="--start"):
        check_model(tmp_path, "--start")


class Mine(BertPreTrainedModel):
    """With an encoder under a name of the user's own."""

    base_model_prefix = ""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.encoder = BertModel(config)
        self.post_init()

    def forward(self, **inputs: Any) -> Any:
        return self.encoder(**inputs)


def test_a_model_of_ones_own_that_does_not_name_its_encoder_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = tiny_bert().config
    with pytest.raises(RequestError, match=r"^Mine does not tell its word embeddings; set its base_model_prefix"):
        attach(Mine(config))
    monkeypatch.setattr(Mine, "base_model_prefix", "encoder")
    attach(Mine(config))


def test_a_task_model_attacks_by_no_other_settings_than_its_own() -> None:
    model, batch = tiny_bert("classification"), tiny_batch("classification")
    released = TaskModel(model, "classification", ASAConfig.released())
    method = METHODS["asa"](MethodsConfig(asa=ASAConfig.released()))
    terms = method.backward(tiny_engine(released), batch, At(0, 0))
    later = TaskModel(model, "classification")
    torch.testing.assert_close(released(batch).logits, later(batch).logits)  # unperturbed they are one
    with pytest.raises(
        RequestError, match=r"attached anew with masked_score shifted.* built with masked_score replaced"
    ):
        method.backward(tiny_engine(released), batch, At(0, 0))
    again = TaskModel(model, "classification", ASAConfig.released())
    again.adversary = released.adversary
    for one in (again, released):  # of the same settings both are right
        found = method.backward(tiny_engine(one), batch, At(0, 0))
        torch.testing.assert_close(found["loss"], terms["loss"])


SETTINGS: list[dict[str, Any]] = [{"reversal": 1.0}, {"temperature": 4.0}, {"mask": "gumbel"}, {"heads": "each"}]


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_an_attention_that_makes_its_map_goes_by_the_settings_of_its_adversary(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by those of a TaskModel that was built later of the same model."""
    monkeypatch.setattr(cpu_attention, "SMALL", 0)
    asa, found = ASAConfig(**changes), []
    for later in (False, True):
        module = TaskModel(tiny_bert("classification"), "classification", asa)
        if later:
            TaskModel(module.model, "classification")
        torch.manual_seed(5)
        METHODS["asa"](MethodsConfig(asa=asa)).backward(tiny_engine(module), tiny_batch("classification"), At(0, 0))
        found.append(gradients(module))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, msg=name)


def test_a_forward_of_the_users_on_the_norm_of_the_embeddings_is_called() -> None:
    model, batch = tiny_bert("classification"), tiny_batch("classification")
    norm: Any = model.bert.embeddings.LayerNorm  # type: ignore[union-attr]
    norm.forward = lambda x: 2 * F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    expected = model(**batch.inputs).logits
    attach(model)
    assert torch.equal(model(**batch.inputs).logits, expected)
    copied = deepcopy(model)
    attach(copied)
    detach(model)
    for one in (model, copied):
        assert torch.equal(one(**batch.inputs).logits, expected)


def blind(module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[torch.Tensor, None]:
    """An attention that takes no mask."""
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("before", ["sdpa", "eager"])
def test_an_attention_without_masks_that_is_set_later_is_not_attacked_in_vain(before: str) -> None:
    AttentionInterface.register("blind", blind)
    model, batch = tiny_bert("classification", attention=before), tiny_batch("classification")
    attach(model)
    model.config._attn_implementation = "blind"
    with pytest.raises(RequestError, match="attention 'blind' takes no mask with a gradient"):
        hidden(model, batch, random_keeps(1))


def test_a_detached_model_is_told_as_such() -> None:
    module = TaskModel(tiny_bert(), "mlm")
    detach(module.model)
    with pytest.raises(RequestError, match=r"obeys no perturbation yet; call asa\.attach\(model\) first"):
        module(tiny_batch())


def test_a_choice_without_a_mask_may_say_so() -> None:
    module, batch = TaskModel(tiny_bert("choice"), "choice"), tiny_batch("choice")
    del batch.inputs["attention_mask"]
    expected = module(batch).logits
    batch.inputs["attention_mask"] = None  # type: ignore[assignment]
    assert torch.equal(module(batch).logits, expected)


@pytest.mark.parametrize(("before", "after"), [("sdpa", "eager"), ("eager", "sdpa")])
def test_another_attention_may_be_set_after_attaching(before: str, after: str) -> None:
    model = tiny("bert", "classification", attention=before).eval()
    module = TaskModel(model, "classification", ASAConfig())
    batch = batch_for("bert", "classification")
    METHODS["asa"](MethodsConfig()).backward(tiny_engine(module), batch, At(0, 0))
    expected = gradients(module)
    module.zero_grad()
    model.set_attn_implementation(after)
    METHODS["asa"](MethodsConfig()).backward(tiny_engine(module), batch, At(0, 0))
    for name, value in gradients(module).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5, msg=name)
    if after == "eager":
        assert len(model(**batch.inputs, output_attentions=True).attentions) == model.config.num_hidden_layers


@pytest.mark.filterwarnings("ignore:_compile flag")
def test_an_attention_without_float_masks_is_refused_after_attaching_too() -> None:
    model = tiny("bert", "classification", attention="sdpa").eval()
    attach(model)
    model.set_attn_implementation("flex_attention")
    batch = batch_for("bert", "classification")
    with (
        torch.compiler.set_stance("force_eager"),  # transformers compiles that mask, which takes a C++ compiler seconds
        pytest.raises(RequestError, match="'flex_attention' takes no mask with a gradient"),
        perturbed(model, Perturb(attend=attend_to(random_keeps(0)))),
    ):
        model(**batch.inputs)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_map_of_bools_is_one_of_numbers(attention: str) -> None:
    model = tiny("bert", "classification", attention=attention).eval()
    attach(model)
    batch = batch_for("bert", "classification")
    keeps = random_keeps(0)
    logits = []
    for given in (keeps, [keep_BLL.bool() for keep_BLL in keeps]):
        with perturbed(model, Perturb(attend=attend_to(given))):
            logits.append(model(**batch.inputs).logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)


def test_released_scores_tell_their_weights_when_asked() -> None:
    model = tiny("bert", "classification", attention="eager").eval()
    attach(model, ASAConfig.released())
    batch = batch_for("bert", "classification")
    keeps = random_keeps(0)
    for keep_BLL in keeps:
        keep_BLL[..., 0] = 1  # an empty row is attended evenly
    with perturbed(model, Perturb(attend=attend_to(keeps))):
        weights = model(**batch.inputs, output_attentions=True).attentions
    masked = keeps[0].unsqueeze(1).expand_as(weights[0]) == 0
    assert weights[0][masked].max() < 1e-6


def test_what_all_rows_share_is_not_doubled() -> None:
    module = TaskModel(tiny("bert", "classification"), "classification", ASAConfig())
    batch = batch_for("bert", "classification")
    length = batch.pad_BL.shape[1]
    inputs = {**batch.inputs, "position_ids": torch.arange(length).unsqueeze(0)}
    engine, method = tiny_engine(module), METHODS["asa"](MethodsConfig())
    losses = [method.backward(engine, one, At(0, 0))["loss"] for one in (batch, replace(batch, inputs=inputs))]
    torch.testing.assert_close(losses[1], losses[0])


@pytest.mark.parametrize(("name", "config"), [("deberta-v2", ASAConfig()), ("bert", ASAConfig.released())])
def test_a_map_of_a_pass_that_broke_off_is_not_the_next_ones(name: str, config: ASAConfig) -> None:
    model = tiny(name).eval()
    attach(model, config)
    batch = batch_for(name)
    clean = model(**batch.inputs).logits
    block = model.base_model.get_submodule(FAMILIES[name].layers).get_submodule("0")
    first = block.get_submodule(FAMILIES[name].attention).get_submodule("query_proj" if name != "bert" else "query")

    def broken(*args: Any) -> None:
        raise MemoryError

    hook = first.register_forward_hook(broken)
    with pytest.raises(MemoryError), perturbed(model, Perturb(attend=attend_to(random_keeps(0)))):
        model(**batch.inputs)
    hook.remove()
    assert torch.equal(model(**batch.inputs).logits, clean)
