"""Biased attention: nothing changes without a map, and with one it is what a slow float64 reference computes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import GPT2Config, GPT2Model

from asa.adversary import MASKED, ASAConfig
from asa.attention import Perturb, Signal, attach, detach, family
from asa.batch import Batch, Kind
from asa.errors import RequestError
from asa.losses import divergence
from tests.asa.conftest import (
    KINDS,
    LAYERS,
    LENGTH,
    ROWS,
    VOCAB,
    WIDTH,
    attend_to,
    gradients,
    random_keeps,
    tiny_batch,
    tiny_bert,
    tiny_module,
)
from tests.asa.reference import slow_attention

# B rows, L length, D width

IMPLEMENTATIONS = ("sdpa", "eager")
each_implementation = pytest.mark.parametrize("attention", IMPLEMENTATIONS)


def hidden(model: nn.Module, batch: Batch, keeps: list[Tensor] | None) -> Tensor:
    """The final hidden states under the keep maps."""
    signal = Signal(batch.pad_BL, attend_to(keeps) if keeps else None, None)
    return model.base_model(**batch.inputs, asa=signal).last_hidden_state  # type: ignore[operator]


@each_implementation
@pytest.mark.parametrize("kind", KINDS)
def test_an_attached_model_without_a_map_is_the_plain_one_bit_for_bit(kind: Kind, attention: str) -> None:
    model, batch = tiny_bert(kind, attention=attention), tiny_batch(kind)
    plain = model(**batch.inputs).logits
    attach(model)
    assert torch.equal(model(**batch.inputs).logits, plain)
    assert torch.equal(model(**batch.inputs, asa=Signal(batch.pad_BL, None, None)).logits, plain)


@each_implementation
def test_a_map_that_keeps_everything_changes_nothing(attention: str) -> None:
    model, batch = tiny_bert(attention=attention), tiny_batch()
    attach(model)
    ones = [torch.ones(ROWS, LENGTH, LENGTH)] * LAYERS
    torch.testing.assert_close(hidden(model, batch, ones), hidden(model, batch, None), rtol=0, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(IMPLEMENTATIONS), st.floats(0, 1))
def test_what_padding_holds_never_reaches_a_real_position(seed: int, attention: str, share: float) -> None:
    model, batch, keeps = tiny_bert(attention=attention), tiny_batch(), random_keeps(seed, share=share)
    attach(model)
    noise_BL = torch.randint(0, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))
    ids_BL = torch.where(batch.pad_BL, noise_BL, batch.inputs["input_ids"])
    other = replace(batch, inputs=batch.inputs | {"input_ids": ids_BL})
    real = ~batch.pad_BL
    one, two = hidden(model, batch, keeps), hidden(model, other, keeps)
    torch.testing.assert_close(one[real], two[real], rtol=0, atol=1e-6)


@each_implementation
def test_a_query_that_keeps_no_real_key_attends_as_if_unmasked(attention: str) -> None:
    model, batch = tiny_bert(attention=attention), tiny_batch()
    attach(model)
    empty, only_padding, full = (random_keeps(0) for _ in range(3))
    for keep_BLL in empty:
        keep_BLL[1, 3] = 0
    for keep_BLL in only_padding:
        keep_BLL[1, 3] = batch.pad_BL[1].float()
    for keep_BLL in full:
        keep_BLL[1, 3] = 1
    expected = hidden(model, batch, full)
    assert torch.equal(hidden(model, batch, empty), expected)
    assert torch.equal(hidden(model, batch, only_padding), expected)
    one_key = [keep_BLL.clone() for keep_BLL in empty]
    for keep_BLL in one_key:
        keep_BLL[1, 3, 0] = 1
    assert (hidden(model, batch, one_key)[1, 3] - expected[1, 3]).abs().max() > 1e-3


def attention_module(model: nn.Module) -> nn.Module:
    return model.base_model.get_submodule("encoder.layer.0.attention.self")  # type: ignore[operator]


def both_ways(attention: str, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients (input, map, weights) of one layer in float64: ours and the slow reference's."""
    model = tiny_bert(attention=attention).double()
    attach(model)
    module, pad_BL = attention_module(model), tiny_batch().pad_BL
    generator = torch.Generator().manual_seed(seed)
    h_BLD = torch.randn(ROWS, LENGTH, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
    keep_BLL = random_keeps(seed)[0].double().requires_grad_()
    weight_BLD = torch.randn(ROWS, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
    weight_BLD = weight_BLD * ~pad_BL[:, :, None]  # what stands at padding is nobody's business
    ours = module(h_BLD, asa=Signal(pad_BL, lambda layer, h, pad: keep_BLL, None))[0]
    slow = slow_attention(module, h_BLD, pad_BL, keep_BLL, -MASKED)
    wrt = [h_BLD, keep_BLL, *module.parameters()]
    results = []
    for out in (ours, slow):
        loss = (out * weight_BLD).sum()
        results.append([out[~pad_BL], *torch.autograd.grad(loss, wrt)])
    return results[0], results[1]


@each_implementation
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_output_and_gradients_equal_the_slow_reference(attention: str, seed: int) -> None:
    ours, slow = both_ways(attention, seed)
    for one, other in zip(ours, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    assert ours[2].abs().max() > 1  # the map's gradient carries the mask constant


def test_eager_and_sdpa_give_the_same_logits_and_gradients() -> None:
    found = []
    for attention in IMPLEMENTATIONS:
        module, batch = tiny_module(attention=attention).double(), tiny_batch()
        keeps = [keep_BLL.double() for keep_BLL in random_keeps(4)]
        out = module(batch, Perturb(attend=attend_to(keeps)))
        out.logits.square().mean().backward()
        found.append({"logits": out.logits.detach(), **gradients(module)})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-9, atol=1e-12, msg=name)


def test_the_divergence_has_no_gradient_at_masked_units_and_some_at_kept_ones() -> None:
    module, batch = tiny_module(), tiny_batch()
    keeps = [keep_BLL.requires_grad_() for keep_BLL in random_keeps(5)]
    attacked = module(batch, Perturb(attend=attend_to(keeps)))
    torch.stack(list(divergence(module(batch), attacked, batch, ASAConfig()).values())).sum().backward()
    for keep_BLL in keeps:
        assert keep_BLL.grad is not None
        assert keep_BLL.grad[keep_BLL == 0].abs().max() == 0
        assert keep_BLL.grad.abs().max() > 1e-3


def hooks(model: nn.Module) -> int:
    modules: list[Any] = list(model.modules())
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in modules)


def test_detach_takes_every_hook_away_and_attaching_twice_adds_none() -> None:
    model, batch = tiny_bert(), tiny_batch()
    before, plain = hooks(model), model(**batch.inputs).logits
    attach(model)
    once = hooks(model)
    attach(model)
    assert hooks(model) == once > before
    detach(model)
    assert hooks(model) == before
    assert torch.equal(model(**batch.inputs).logits, plain)
    detach(model)  # a model never attached, or detached before, stays as it is
    assert hooks(model) == before


def test_adversaries_are_no_part_of_the_model() -> None:
    model = tiny_bert()
    names = set(model.state_dict())
    assert len(attach(model)) == LAYERS
    assert set(model.state_dict()) == names


def test_an_unsupported_family_is_refused_and_the_supported_ones_named() -> None:
    with pytest.raises(RequestError, match=r"'gpt2' is not supported; give one of .*bert.* by --start"):
        family("gpt2", "--start")
    model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9))
    with pytest.raises(RequestError, match="'gpt2' is not supported"):
        attach(model)
    assert hooks(model) == 0


def layer_output(config: ASAConfig, keep_BLL: Tensor) -> tuple[Tensor, nn.Module, Tensor]:
    model = tiny_bert()
    attach(model, config)
    h_BLD = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    signal = Signal(tiny_batch().pad_BL, lambda layer, h, pad: keep_BLL, None)
    return attention_module(model)(h_BLD, asa=signal)[0], attention_module(model), h_BLD


def test_an_empty_row_of_the_released_program_is_uniform_over_everything() -> None:
    keep_BLL = random_keeps(0)[0]
    found, module, h_BLD = layer_output(ASAConfig.released(), keep_BLL)
    values_BLD = module.get_submodule("value")(h_BLD)
    torch.testing.assert_close(found[0, 2], values_BLD[0].mean(0), rtol=1e-4, atol=1e-5)


def test_with_replaced_scores_too_an_empty_row_can_attend_as_if_unmasked() -> None:
    keep_BLL = random_keeps(0)[0]
    found = layer_output(ASAConfig(masked_score="replaced"), keep_BLL)[0]
    expected = layer_output(ASAConfig(), keep_BLL)[0]
    torch.testing.assert_close(found[0, 2], expected[0, 2], rtol=1e-5, atol=1e-6)


def test_an_empty_row_option_that_would_do_nothing_is_refused() -> None:
    """Scores that are all shifted alike give the same softmax: only "replaced" scores make an empty row uniform."""
    with pytest.raises(ValueError, match="empty_row"):
        ASAConfig(empty_row="uniform", masked_score="shifted")
