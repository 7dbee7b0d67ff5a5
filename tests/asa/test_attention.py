"""Biased attention beyond what every family is tested for: empty rows, masked units, the released scores (BERT)."""

import pytest
import torch
from torch import Tensor, nn

from asa.adversary import ASAConfig
from asa.attention import attach, perturbed
from asa.config import from_dict
from asa.errors import RequestError
from asa.losses import divergence
from asa.methods import MethodsConfig
from asa.signal import Perturb
from tests.asa.conftest import (
    LENGTH,
    ROWS,
    WIDTH,
    attend_to,
    hidden,
    random_keeps,
    tiny_batch,
    tiny_bert,
    tiny_module,
)

# B rows, L length, D width

IMPLEMENTATIONS = ("sdpa", "eager")
each_implementation = pytest.mark.parametrize("attention", IMPLEMENTATIONS)


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


def test_the_divergence_has_no_gradient_at_masked_units_and_some_at_kept_ones() -> None:
    module, batch = tiny_module(), tiny_batch()
    keeps = [keep_BLL.requires_grad_() for keep_BLL in random_keeps(5)]
    attacked = module(batch, Perturb(attend=attend_to(keeps)))
    torch.stack(list(divergence(module(batch), attacked, batch, ASAConfig()).values())).sum().backward()
    for keep_BLL in keeps:
        assert keep_BLL.grad is not None
        assert keep_BLL.grad[keep_BLL == 0].abs().max() == 0
        assert keep_BLL.grad.abs().max() > 1e-3


def layer_output(config: ASAConfig, keep_BLL: Tensor) -> tuple[Tensor, nn.Module, Tensor]:
    model = tiny_bert()
    attach(model, config)
    h_BLD = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    unseen_B11L = torch.where(tiny_batch().pad_BL, torch.finfo(torch.float32).min, 0.0)[:, None, None]
    with perturbed(model, Perturb(attend=lambda site: keep_BLL)):
        out = attention_module(model)(h_BLD, attention_mask=unseen_B11L)[0]
    return out, attention_module(model), h_BLD


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
    nothing = torch.zeros_like(keep_BLL)
    found, expected = (layer_output(config, nothing)[0] for config in (ASAConfig(masked_score="replaced"), ASAConfig()))
    assert tiny_batch().pad_BL[1:].any()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # padding is not attended to either


def test_an_empty_row_option_that_would_do_nothing_is_refused() -> None:
    """Scores that are all shifted alike give the same softmax: only "replaced" scores make an empty row uniform."""
    with pytest.raises(ValueError, match="empty_row"):
        ASAConfig(empty_row="uniform", masked_score="shifted")
    with pytest.raises(
        RequestError, match=r"set --asa.masked_score or --asa.empty_row$"
    ):  # and none that mends nothing
        from_dict(MethodsConfig, {"asa": {"empty_row": "uniform"}})


@pytest.mark.parametrize("shape", [(ROWS, LENGTH), (LENGTH, LENGTH), (ROWS - 1, LENGTH, LENGTH), (ROWS, 1, LENGTH + 1)])
def test_a_map_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    model, batch = tiny_bert(), tiny_batch()
    attach(model)
    with pytest.raises(RequestError, match=rf"gave a map of \[{', '.join(map(str, shape))}\], allowed: \["):
        hidden(model, batch, [torch.ones(shape)] * 2)


@pytest.mark.parametrize("last", [0, -1, ROWS + 1])
def test_rows_that_a_pass_has_not_cannot_be_attacked(last: int) -> None:
    model, batch = tiny_bert(), tiny_batch()
    attach(model)
    with (
        pytest.raises(RequestError, match=f"last = {last}, allowed: 1 to the pass's {ROWS} rows"),
        perturbed(model, Perturb(attend=attend_to(random_keeps(0)), last=last)),
    ):
        model(**batch.inputs)


@pytest.mark.parametrize("options", [{}, {"masked_score": "replaced", "empty_row": "uniform"}])
@pytest.mark.parametrize("last", [None, ROWS - 1])
def test_a_map_of_one_row_is_every_rows(options: dict[str, str], last: int | None) -> None:
    model, batch = tiny_bert(attention="eager"), tiny_batch()
    attach(model, from_dict(ASAConfig, options))
    inputs = {**batch.inputs, "attention_mask": torch.ones_like(batch.inputs["attention_mask"])}
    one = [keep_BLL[:1].clone() for keep_BLL in random_keeps(0)]
    found = []
    for keeps in (one, [keep_1LL.expand(last or ROWS, -1, -1) for keep_1LL in one]):
        with perturbed(model, Perturb(attend=attend_to(keeps), last=last)):
            found.append(model.base_model(**inputs).last_hidden_state)
    assert torch.equal(*found)
