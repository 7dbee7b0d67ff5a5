"""Attention that makes its own keep map on a CPU: the formulas' numbers and gradients, and where it is used."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asa import cpu_attention
from asa.adversary import ASAConfig, threshold
from asa.attention import perturbed
from asa.biased import bias, fill_empty_rows
from asa.cpu_map import KeepMap
from asa.hf import checkpoint_activations
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.asa import ready
from asa.methods.asa_sparse import ASASparseConfig
from asa.methods.freelb import FreeLBConfig
from asa.signal import Perturb
from tests.asa.conftest import LAYERS, ROWS, gradients, tiny_batch, tiny_engine, tiny_module
from tests.fused import oracle

# B rows, D width, H heads, K width of one head, L length (queries, then keys)

OPTIONS: dict[str, tuple[str, str, MethodsConfig]] = {
    "mlm": ("asa", "mlm", MethodsConfig()),
    "choice": ("asa", "choice", MethodsConfig(asa=ASAConfig(penalty_rows="all", temperature=2.0))),
    "sparse": ("asa_sparse", "classification", MethodsConfig(asa_sparse=ASASparseConfig(every=1, layers=(1,)))),
    "share": ("asa_sparse", "classification", MethodsConfig(asa_sparse=ASASparseConfig(every=1, share=0.5))),
    "freelb": ("asa_freelb", "classification", MethodsConfig(freelb=FreeLBConfig(passes=2, dropout="independent"))),
}


@pytest.fixture(autouse=True)
def one_row_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "CACHED", 1)
    monkeypatch.setattr(cpu_attention, "SMALL", 0)


@pytest.fixture
def attacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each attention that made its own map."""
    rows: list[int] = []
    attention = cpu_attention.attacked

    def counted(*args: Any) -> tuple[Tensor, Tensor]:
        rows.append(len(args[-1].q_BLD))
        return attention(*args)

    monkeypatch.setattr(cpu_attention, "attacked", counted)
    return rows


def keep_map(problem: oracle.Problem, biased: bool) -> KeepMap:
    _, _, _, mask_q, mask_k, mask_bias = problem.operands
    settings = problem.config.reversal, problem.config.temperature
    return KeepMap(mask_q, mask_k, mask_bias.to(mask_q.dtype) if biased else None, problem.seen_BL, *settings)


@settings(max_examples=40, derandomize=True)
@given(st.data())
def test_forward_and_all_gradients_are_those_of_the_formulas(data: st.DataObject) -> None:
    """Of attacked rows, padding alone among them, behind clean ones, which are torch's."""
    rows, heads, length, head, width = (data.draw(st.integers(1, most)) for most in (4, 3, 12, 6, 9))
    pads = tuple(data.draw(st.lists(st.integers(0, length), max_size=rows)))
    config = ASAConfig(reversal=data.draw(st.floats(1e-4, 1)), temperature=data.draw(st.floats(0.5, 4)))
    biased, free = data.draw(st.booleans()), data.draw(st.integers(0, 2))
    of_map = oracle.problem((rows, heads, length, head), width, torch.float64, pads, config=config)
    if not biased:
        of_map.operands[-1].detach().zero_()
    q, k, v, *made = of_map.operands
    first_q, first_k, first_v = torch.randn(3, free, heads, length, head, dtype=torch.float64)
    seen_B1LL = torch.rand(free, 1, 1, length) > 0.3
    seen_B1LL[..., 0] = True
    both = torch.cat([first_q, q]), torch.cat([first_k, k]), torch.cat([first_v, v])
    mask = torch.cat([seen_B1LL, of_map.seen_BL[:, None, None]]).expand(-1, 1, length, -1)
    context, kept = cpu_attention.attacked(*both, mask, 0.0, of_map.scale, keep_map(of_map, biased))
    operands = (q, k, v, *made) if biased else (q, k, v, *made[:2])
    grads = torch.autograd.grad(
        (context[free:].transpose(1, 2), kept), operands, (of_map.d_context_BHLK, of_map.d_kept_BL.double())
    )
    wanted = oracle.plain(of_map)
    assert torch.equal(kept, wanted["kept"])
    torch.testing.assert_close(context[free:].transpose(1, 2), wanted["context"])
    for name, grad in zip(oracle.NAMES, grads, strict=False):
        torch.testing.assert_close(grad.double(), wanted[name], rtol=1e-6, atol=1e-9, msg=name)
    if free:
        torchs = F.scaled_dot_product_attention(first_q, first_k, first_v, seen_B1LL, scale=of_map.scale)
        torch.testing.assert_close(context[:free].transpose(1, 2), torchs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_dropout_it_is_the_map_laid_out(dtype: torch.dtype) -> None:
    given = oracle.problem((3, 2, 9, 4), 8, dtype, (3, 9), dropout=0.4)
    q, k, v, mask_q, mask_k, mask_bias = given.operands
    arriving = (given.d_context_BHLK.transpose(1, 2), given.d_kept_BL.to(dtype))
    torch.manual_seed(1)
    found = cpu_attention.attacked(q, k, v, None, given.dropout, given.scale, keep_map(given, True))
    torch.manual_seed(1)
    seen_BLL = given.seen_BL[:, None]
    x_BLL = (mask_q @ mask_k.transpose(1, 2) + mask_bias.unsqueeze(-1)) / mask_q.shape[-1] ** 0.5
    keep_BLL = threshold(x_BLL, given.config.reversal) * seen_BLL
    lowered = bias(fill_empty_rows(keep_BLL, seen_BLL), seen_BLL, dtype).unsqueeze(1)
    wanted = cpu_attention.attend(q, k, v, lowered, given.dropout, given.scale), keep_BLL.sum(-1)
    torch.testing.assert_close(found, wanted)
    pairs = [torch.autograd.grad(out, given.operands, arriving) for out in (found, wanted)]
    torch.testing.assert_close(*pairs)


def step(options: str, checkpointed: bool = False, dropout: float = 0.0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the method returns, and all gradients."""
    name, kind, config = OPTIONS[options]
    torch.manual_seed(3)
    module = tiny_module(kind, config.asa, dropout=dropout).double().train()  # type: ignore[arg-type]
    if checkpointed:
        checkpoint_activations(module.model)
    torch.manual_seed(7)
    terms = METHODS[name](config).backward(tiny_engine(module), tiny_batch(kind), At(0, 0))  # type: ignore[arg-type]
    return terms, gradients(module)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_is_the_one_with_maps_laid_out(
    options: str, attacked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = step(options)
    assert len(attacked) == (1 if options == "sparse" else LAYERS)
    monkeypatch.setattr("asa.fused.products.makes_map", lambda *_: False)
    wanted = step(options)
    assert len(attacked) == (1 if options == "sparse" else LAYERS)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            torch.testing.assert_close(one[name].double(), value.double(), rtol=1e-5, atol=1e-9, msg=name)


@pytest.mark.parametrize("types", [("float64", "float32"), ("float32", "float64"), ("float32", "bfloat16")], ids=str)
@pytest.mark.parametrize("merged", [True, False])
def test_an_adversary_of_another_type_makes_the_same_map(
    types: tuple[str, str], merged: bool, attacked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asa.adversary.merges", lambda _: merged)
    found = []
    for ours in (True, False):
        monkeypatch.setattr("asa.fused.products.makes_map", lambda *_, ours=ours: ours)
        torch.manual_seed(3)
        module = tiny_module(asa=ASAConfig())
        assert module.adversary is not None
        module.model.to(getattr(torch, types[0]))
        module.adversary.to(getattr(torch, types[1]))
        terms = METHODS["asa"](MethodsConfig()).backward(tiny_engine(module), tiny_batch(), At(0, 0))
        found.append((terms["loss"].double(), terms["masked_share"].double(), gradients(module)))
    assert len(attacked) == LAYERS
    torch.testing.assert_close(*found, rtol=2e-2 if types[1] == "bfloat16" else 2e-4, atol=1e-7)
    assert found[0][1].tolist() == pytest.approx(found[1][1].tolist())


def test_a_frozen_adversary_gives_the_price_no_graph(attacked: list[int]) -> None:
    module = tiny_module("classification", ASAConfig())
    assert module.adversary is not None
    module.adversary.requires_grad_(False)
    batch = tiny_batch("classification")
    attend, maps = ready(tiny_engine(module), batch, ASAConfig())
    with perturbed(module.model, Perturb(attend=attend)):
        logits = module.model(**batch.inputs).logits
    assert not any(found.kept().requires_grad for found in maps.values())
    logits.sum().backward()
    assert gradients(module).keys() == {name for name, p in module.model.named_parameters(prefix="model")}
    assert len(attacked) == LAYERS


def test_a_compiled_model_does_without(attacked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr("asa.dropout.SMALL", 0)
    monkeypatch.setattr("asa.dropout._factors", lambda *_: drawn.append(1))
    module = tiny_module(asa=ASAConfig(), dropout=0.2).train()
    module.model.compile(backend="eager")
    METHODS["asa"](MethodsConfig()).backward(tiny_engine(module), tiny_batch(), At(0, 0))
    assert (attacked, drawn) == ([], [])


def test_what_is_recomputed_draws_the_same_dropout(attacked: list[int]) -> None:
    terms, wanted = step("mlm", dropout=0.2)
    again_terms, again = step("mlm", checkpointed=True, dropout=0.2)
    assert len(attacked) == 3 * LAYERS
    assert torch.equal(terms["loss"], again_terms["loss"])
    torch.testing.assert_close(again, wanted)


@pytest.mark.parametrize(
    "changes", [{"mask": "gumbel"}, {"heads": "each"}, {"masked_score": "replaced"}, {"dropout": "shared"}], ids=str
)
def test_other_kinds_of_map_are_laid_out(changes: dict[str, Any], attacked: list[int]) -> None:
    engine, config = tiny_engine(tiny_module(asa=ASAConfig(**changes), dropout=0.1)), MethodsConfig()
    METHODS["asa"](replace(config, asa=ASAConfig(**changes))).backward(engine, tiny_batch(), At(0, 0))
    assert attacked == []


def test_so_are_small_ones_and_those_of_other_attentions(attacked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(tiny_module(asa=ASAConfig()))
    engine.module.model.set_attn_implementation("eager")
    METHODS["asa"](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    engine.module.model.set_attn_implementation("sdpa")
    monkeypatch.setattr(cpu_attention, "SMALL", 10**9)
    METHODS["asa"](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    assert attacked == []
    with torch.autocast("cpu", torch.bfloat16):
        monkeypatch.setattr(cpu_attention, "SMALL", 0)
        METHODS["asa"](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    assert attacked == []


def test_a_pass_with_no_clean_rows_is_attacked_whole(attacked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(tiny_module("classification", ASAConfig()))
    batch = tiny_batch("classification")
    outputs = []
    for ours in (True, False):
        monkeypatch.setattr("asa.fused.products.makes_map", lambda *_, ours=ours: ours)
        attend, _ = ready(engine, batch, ASAConfig())
        with torch.no_grad(), perturbed(engine.module.model, Perturb(attend=attend)):
            outputs.append(engine.module.model(**batch.inputs).logits)
    assert attacked == [ROWS] * LAYERS
    torch.testing.assert_close(*outputs)
