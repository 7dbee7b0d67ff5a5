"""Every encoder family, both attention implementations: nothing changes without a map, and with one it is what a slow
float64 reference computes."""

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model, PreTrainedModel

from asa.adversary import MASKED, ASAConfig
from asa.attention import attach, detach, perturbed
from asa.batch import Batch, Kind
from asa.errors import RequestError
from asa.families import FAMILIES, family
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel
from asa.signal import Perturb, Site
from tests.asa.conftest import REAL, ROWS, attend_to, batch_for, gradients, hidden, random_keeps, tiny_engine
from tests.asa.encoders import EAGER_ONLY, HEADS, LAYERS, LENGTH, PAIRS, VOCAB, WIDTH, tiny
from tests.asa.reference import slow_attention

# B rows, H heads, L length, D width

each_pair = pytest.mark.parametrize(("name", "attention"), PAIRS)
each_family = pytest.mark.parametrize("name", FAMILIES)


def per_head(keeps: list[Tensor]) -> list[Tensor]:
    """Maps BHLL in which the heads differ."""
    return [torch.stack([keep_BLL, keep_BLL.flip(-1)], dim=1) for keep_BLL in keeps]


@each_pair
@pytest.mark.parametrize("kind", ["mlm", "classification", "token"])
def test_an_attached_model_without_a_map_is_the_plain_one_bit_for_bit(name: str, attention: str, kind: Kind) -> None:
    model, batch = tiny(name, kind, attention), batch_for(name, kind)
    plain = model(**batch.inputs).logits
    attach(model)
    assert torch.equal(model(**batch.inputs).logits, plain)
    with perturbed(model):
        assert torch.equal(model(**batch.inputs).logits, plain)


@each_pair
def test_a_map_that_keeps_everything_changes_nothing(name: str, attention: str) -> None:
    model, batch = tiny(name, attention=attention), batch_for(name)
    attach(model)
    real = ~batch.pad_BL
    plain = hidden(model, batch, None)[real]
    for ones in (torch.ones(ROWS, LENGTH, LENGTH), torch.ones(ROWS, HEADS, LENGTH, LENGTH)):
        torch.testing.assert_close(hidden(model, batch, [ones] * LAYERS)[real], plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("name", [name for name, attention in PAIRS if attention == "sdpa"])
def test_a_row_of_padding_alone_is_under_a_map_what_it_is_without(name: str, learnt: bool) -> None:
    """Its gradients too: torch's kernels take weights of 1 each where all scores are as low as a mask makes them."""
    model, batch = tiny(name, "token", "sdpa").double(), batch_for(name, "token")
    batch.inputs["attention_mask"][1] = 0
    attach(model)

    def found(keep: Tensor | None) -> list[Tensor]:
        with perturbed(model, None if keep is None else Perturb(attend=lambda site: keep)):
            logits_LC = model(**batch.inputs).logits[1]
        weights = [p for p in model.parameters() if p.requires_grad]
        grads = torch.autograd.grad(logits_LC.square().sum(), weights, allow_unused=True)
        return [logits_LC, *(torch.zeros(0) if grad is None else grad for grad in grads)]

    plain = found(None)
    for keep in (torch.ones(ROWS, LENGTH, LENGTH), torch.rand(ROWS, HEADS, LENGTH, LENGTH).round()):
        for one, other in zip(found(keep.double().requires_grad_(learnt)), plain, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@each_pair
@settings(max_examples=5)
@given(st.integers(0, 2**31), st.floats(0, 1))
def test_what_padding_holds_never_reaches_a_real_position(name: str, attention: str, seed: int, share: float) -> None:
    model, batch, keeps = tiny(name, attention=attention), batch_for(name), random_keeps(seed, share=share)
    attach(model)
    noise_BL = torch.randint(5, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))
    ids_BL = torch.where(batch.pad_BL, noise_BL, batch.inputs["input_ids"])
    one = hidden(model, batch, keeps)
    batch.inputs["input_ids"] = ids_BL
    two = hidden(model, batch, keeps)
    torch.testing.assert_close(one[~batch.pad_BL], two[~batch.pad_BL], rtol=0, atol=1e-6)


def both_ways(name: str, attention: str, layer: int, keep: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients (input, map, weights) of one layer in float64: ours and the slow reference's."""
    model, batch = tiny(name, attention=attention).double(), batch_for(name)
    module = list(model.base_model.get_submodule(FAMILIES[name].layers).children())[layer]
    module = module.get_submodule(FAMILIES[name].attention)
    given = call_of(model, module, batch)
    attach(model)
    generator = torch.Generator().manual_seed(3)
    h_BLD = torch.randn(ROWS, LENGTH, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
    weight_BLD = torch.randn(ROWS, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
    weight_BLD = weight_BLD * ~batch.pad_BL[:, :, None]  # what stands at padding is nobody's business
    keep = keep.double().requires_grad_()
    with perturbed(model, Perturb(attend=lambda site: keep)):
        ours = module(h_BLD, **given)[0]
    slow = slow_attention(name, module, given, h_BLD, list(REAL), keep, -MASKED)
    wrt = [h_BLD, keep, *module.parameters()]
    results = []
    for out in (ours, slow):
        found = torch.autograd.grad((out * weight_BLD).sum(), wrt, allow_unused=True, retain_graph=True)
        results.append([out[~batch.pad_BL], *(torch.zeros(()) if g is None else g for g in found)])
    return results[0], results[1]


def call_of(model: PreTrainedModel, module: nn.Module, batch: Batch) -> dict[str, Any]:
    """What the model calls this attention module with, beside the hidden states."""
    seen: dict[str, Any] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        seen.update(bound | bound.pop("kwargs", {}))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    model(**batch.inputs)
    handle.remove()
    del seen["hidden_states"]
    return {key: value.detach() if isinstance(value, Tensor) else value for key, value in seen.items()}


@each_pair
@pytest.mark.parametrize("heads", ["shared", "each"])
def test_output_and_gradients_equal_the_slow_reference(name: str, attention: str, heads: str) -> None:
    # Hugging Face makes rotations (ModernBERT) and the scale of the scores (DeBERTa) in fp32.
    tolerance = 1e-6 if name in ("modernbert", "deberta", "deberta-v2") else 1e-8
    for layer in range(LAYERS):
        keeps = random_keeps(layer) if heads == "shared" else per_head(random_keeps(layer))
        ours, slow = both_ways(name, attention, layer, keeps[layer])
        for one, other in zip(ours, slow, strict=True):
            assert (one - other).abs().max() <= tolerance * max(1, other.abs().max().item())
        assert ours[2].abs().max() > 1  # the map's gradient carries the mask constant


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in EAGER_ONLY])
def test_eager_and_sdpa_give_the_same_logits_and_gradients(name: str) -> None:
    found = []
    for attention in ("eager", "sdpa"):
        module, batch = TaskModel(tiny(name, attention=attention).double(), "mlm"), batch_for(name)
        keeps = [keep_BLL.double() for keep_BLL in random_keeps(4)]
        out = module(batch, Perturb(attend=attend_to(keeps)))
        out.logits.square().mean().backward()
        found.append({"logits": out.logits.detach(), **gradients(module)})
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        # ModernBERT's eager attention takes its softmax in fp32.
        tolerance = 1e-5 if name == "modernbert" else 1e-9
        assert (value - found[1][key]).abs().max() <= tolerance * max(1, value.abs().max().item()), key


@each_pair
def test_weights_are_those_the_plain_model_attends_with(name: str, attention: str) -> None:
    model, batch = tiny(name, attention=attention, dropout=0.3), batch_for(name)
    attach(model)
    seen: list[Tensor] = []

    def attend(site: Site) -> Tensor:
        seen.append(site.weights())
        return torch.ones(ROWS, LENGTH, LENGTH)

    state = torch.get_rng_state()
    model.eval()
    hidden_states = hidden(model, batch, None)
    with perturbed(model, Perturb(attend=attend)):
        model(**batch.inputs)
    assert model.config._attn_implementation == attention
    assert torch.equal(torch.get_rng_state(), state)  # no dropout was drawn
    plain = tiny(name, attention="eager", dropout=0.3).eval().base_model(**batch.inputs, output_attentions=True)
    everywhere = ~batch.pad_BL
    torch.testing.assert_close(plain.last_hidden_state[everywhere], hidden_states[everywhere], rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(seen, plain.attentions, strict=True):
        real = everywhere[:, None, :].expand(ROWS, HEADS, LENGTH)
        torch.testing.assert_close(mine[real], theirs[real], rtol=1e-5, atol=1e-6)


@each_family
def test_the_head_on_chosen_rows_gives_the_full_heads_logits(name: str) -> None:
    # In float64: in fp32 products of a few rows are rounded as those of all on some CPUs, and otherwise on others.
    model, batch = tiny(name).double(), batch_for(name)
    full_BLV = model(**batch.inputs).logits
    out = TaskModel(model, "mlm", ASAConfig(sentence="head"))(batch)
    assert batch.positions is not None
    torch.testing.assert_close(out.logits, full_BLV.flatten(0, 1)[batch.positions], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(out.cls_logits, full_BLV[:, 0], rtol=1e-11, atol=1e-12)


@each_family
def test_a_shift_of_the_word_embeddings_arrives_and_zero_shift_is_none(name: str) -> None:
    module, batch = TaskModel(tiny(name), "mlm"), batch_for(name)
    width = module.model.get_input_embeddings()(batch.inputs["input_ids"]).shape[-1]
    delta_BLD = torch.zeros(ROWS, LENGTH, width, requires_grad=True)
    out = module(batch, Perturb(embed_BLD=delta_BLD))
    assert torch.equal(out.logits, module(batch).logits)
    (gradient_BLD,) = torch.autograd.grad(out.logits.square().sum(), delta_BLD)
    assert gradient_BLD[~batch.pad_BL].abs().max() > 1e-3
    assert gradient_BLD[batch.pad_BL].abs().max() < 1e-6  # padding reaches nothing


@each_family
def test_detach_restores_the_model_and_attaching_twice_adds_nothing(name: str) -> None:
    model, batch = tiny(name), batch_for(name)
    before, plain = traces(model), model(**batch.inputs).logits
    attach(model)
    once = traces(model)
    attach(model)
    assert traces(model) == once != before
    detach(model)
    assert traces(model) == before
    assert torch.equal(model(**batch.inputs).logits, plain)
    detach(model)  # a model never attached, or detached before, stays as it is


def traces(model: nn.Module) -> list[Any]:
    """Everything attach could leave behind: hooks and attributes, by module."""
    modules: list[Any] = list(model.modules())
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in modules]
    return [hooks, [sorted(vars(module)) for module in modules]]


@each_family
def test_a_copy_obeys_its_own_signal(name: str) -> None:
    """A moving-average teacher is a copy of the attached model; the student's attack must not reach it."""
    model, batch = tiny(name), batch_for(name)
    attach(model)
    plain = hidden(model, batch, None)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    with perturbed(model, Perturb(attend=attend_to(random_keeps(0)))):
        assert torch.equal(twin.base_model(**batch.inputs).last_hidden_state, plain)  # type: ignore[operator]
    attacked = hidden(twin, batch, random_keeps(0))
    assert (attacked - plain)[~batch.pad_BL].abs().max() > 1e-3


@each_family
@pytest.mark.parametrize("heads", ["shared", "each"])
def test_the_adversary_saves_beside_the_model_and_loads_into_another(name: str, heads: Any, tmp_path: Path) -> None:
    config = ASAConfig(heads=heads)
    first, second = (TaskModel(tiny(name, seed=seed), "mlm", config) for seed in (0, 1))
    names = set(first.model.state_dict())
    assert first.adversary is not None
    assert second.adversary is not None
    first.model.save_pretrained(tmp_path)
    first.adversary.save_pretrained(tmp_path)
    second.adversary.load_pretrained(tmp_path)
    for one, other in zip(first.adversary.parameters(), second.adversary.parameters(), strict=True):
        assert torch.equal(one, other)
    assert set(type(first.model).from_pretrained(tmp_path).state_dict()) == names


def test_a_saved_adversary_of_another_kind_or_shape_is_refused(tmp_path: Path) -> None:
    def adversaries(**changes: Any) -> Any:
        return attach(tiny("bert", **changes), ASAConfig())

    with pytest.raises(RequestError, match="no saved adversary"):
        adversaries().load_pretrained(tmp_path)
    adversaries().save_pretrained(tmp_path)
    with pytest.raises(RequestError, match=r"set --asa\.heads"):
        attach(tiny("bert"), ASAConfig(heads="each")).load_pretrained(tmp_path)
    with pytest.raises(RequestError, match="another shape"):
        adversaries(num_hidden_layers=3).load_pretrained(tmp_path)


@each_family
def test_an_asa_step_trains_model_and_adversary(name: str) -> None:
    for kind in ("mlm", "classification", "token"):
        module = TaskModel(tiny(name, kind, dropout=0.1), kind, ASAConfig())
        terms = METHODS["asa"](MethodsConfig()).backward(tiny_engine(module), batch_for(name, kind), At(0, 0))
        found = gradients(module)
        assert all(value.isfinite().all() for value in found.values())
        moved = {key.split(".")[0] for key, value in found.items() if value.abs().max() > 0}
        assert moved == {"model", "adversary"}
        assert ((terms["masked_share"] > 0) & (terms["masked_share"] < 1)).all()


def test_an_unsupported_family_is_refused_and_the_supported_ones_named() -> None:
    with pytest.raises(RequestError, match=r"'gpt2' is not supported; give one of .*bert.*modernbert.* by --start"):
        family("gpt2", "--start")
    model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9))
    before = traces(model)
    with pytest.raises(RequestError, match="'gpt2' is not supported"):
        attach(model)
    assert traces(model) == before


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deberta", {"relative_attention": False}, "relative_attention"),
        ("deberta", {"talking_head": True}, "talking_head"),
    ],
)
def test_a_variant_we_do_not_serve_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        attach(tiny(name, **changes))


def test_released_scores_are_for_berts_like_and_flash_attention_for_none() -> None:
    with pytest.raises(RequestError, match="masked_score shifted"):
        attach(tiny("modernbert"), ASAConfig.released())
    model = tiny("bert")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(RequestError, match="attn_implementation='sdpa'"):
        attach(model)


def test_a_local_layers_map_counts_what_its_window_shows() -> None:
    model, batch = tiny("modernbert"), batch_for("modernbert")
    attach(model)
    seen: dict[int, Tensor] = {}

    def attend(site: Site) -> Tensor:
        seen[site.layer] = site.seen_BLL.expand(ROWS, LENGTH, LENGTH)
        return torch.ones(ROWS, LENGTH, LENGTH)

    with perturbed(model, Perturb(attend=attend)):
        model(**batch.inputs)
    assert seen[0][0].all()
    place = torch.arange(LENGTH)
    assert torch.equal(seen[1][0], (place[:, None] - place).abs() <= 2)  # local_attention 4: two to either side
