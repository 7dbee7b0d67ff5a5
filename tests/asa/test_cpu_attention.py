"""Attention on a CPU: torch's own numbers and gradients, and honest dropout."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asa import cpu_attention, dispatch
from asa.adversary import ASAConfig
from asa.attention import attach, detach, perturbed
from asa.cpu_attention import attend
from asa.errors import RequestError
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel
from asa.spare import DRAWS
from tests.asa.conftest import tiny_batch, tiny_bert, tiny_engine

# B rows, H heads, K width of one head, L length (queries, then keys)

MASKS = (None, (3, 1, 6, 6), (3, 2, 6, 6), (1, 1, 6, 6), (3, 1, 1, 6))


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are small: what is treated together too, so that there are several portions."""
    monkeypatch.setattr(cpu_attention, "CACHED", 100)
    monkeypatch.setattr(cpu_attention, "SMALL", 0)


def given(mask: tuple[int, ...] | None, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(3, 6, 2, 4, dtype=dtype).transpose(1, 2) for _ in range(3)]
    if mask:
        made.append(torch.randn(mask, dtype=dtype))
    return [x.requires_grad_() for x in made]


def ours(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, dropout: float = 0.0) -> Tensor:
    torch.manual_seed(1)
    return attend(q, k, v, mask, dropout, 0.3)


def theirs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, scale=0.3).transpose(1, 2)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("together", [1, 2, 3])
def test_without_dropout_it_is_torchs(
    monkeypatch: pytest.MonkeyPatch, mask: tuple[int, ...] | None, dtype: torch.dtype, together: int
) -> None:
    monkeypatch.setattr(cpu_attention, "CACHED", together * 2 * 6 * 6)  # weights of as many of the three rows
    args = given(mask, dtype)
    found, expected = ours(*args), theirs(*args)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    grads = [torch.autograd.grad(out, args, upstream) for out in (found, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    "mask", [MASKS[0], *(pytest.param(mask, marks=pytest.mark.slow) for mask in MASKS[1:-1]), MASKS[-1]]
)
def test_with_dropout_the_gradient_is_that_of_finite_differences(mask: tuple[int, ...] | None) -> None:
    assert torch.autograd.gradcheck(lambda *args: ours(*args, dropout=0.4), given(mask))


@pytest.mark.parametrize("dropout", [0.01, 0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(dropout: float) -> None:
    q = torch.zeros(4, 8, 64, 64)
    context_BLHK = attend(q, q, torch.eye(64).expand_as(q), None, dropout, 1.0)  # the weights themselves
    kept = context_BLHK > 0
    assert 1 - kept.double().mean().item() == pytest.approx(dropout, abs=0.004)
    assert context_BLHK.double().sum(-1).mean().item() == pytest.approx(1, abs=0.005)
    rows = kept.flatten().double().view(-1, 1024).mean(1)
    assert rows.std().item() == pytest.approx((dropout * (1 - dropout) / 1024) ** 0.5, rel=0.25)  # independent draws


def test_of_all_the_draws_as_many_drop_a_weight_as_the_threshold_says(monkeypatch: pytest.MonkeyPatch) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16)
    monkeypatch.setattr(cpu_attention, "bits", lambda like: every)
    for threshold in (1, 6554, 2**15, DRAWS - 1):
        signs = cpu_attention._draws(torch.empty(DRAWS), threshold)
        assert torch.signbit(signs).sum() == threshold
        assert (signs != 0).all()


def test_the_passes_of_an_attached_model_use_it_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(cpu_attention, "attend", lambda *args: calls.append(1) or attend(*args))
    model, batch = tiny_bert(dropout=0.1).train(), tiny_batch()
    attach(model)
    assert model.config._attn_implementation == "sdpa"
    model(**batch.inputs)
    assert calls == []  # by itself the model is the one it was, to the bit
    with perturbed(model):
        model(**batch.inputs)
        assert len(calls) == 2
        model.eval()(**batch.inputs)
    detach(model)
    model.train()(**batch.inputs)
    assert len(calls) == 2


def test_an_asa_step_is_that_of_torchs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for small in (0, 2**40):
        monkeypatch.setattr(cpu_attention, "SMALL", small)
        torch.manual_seed(2)
        module = TaskModel(tiny_bert().double(), "mlm", ASAConfig())
        METHODS["asa"](MethodsConfig()).backward(tiny_engine(module), tiny_batch(), At(0, 0))
        found.append({name: p.grad for name, p in module.named_parameters()})
    assert found[0].keys() == found[1].keys()
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-4, atol=1e-8, msg=name)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_queries_that_see_no_key_get_zeros_as_torchs(kind: str) -> None:
    q, k, v = given(None)
    seen = torch.ones(3, 1, 6, 6, dtype=torch.bool)
    seen[0, :, 2] = False
    mask = seen if kind == "bool" else torch.zeros(3, 1, 6, 6, dtype=q.dtype).masked_fill(~seen, -torch.inf)
    torch.manual_seed(1)
    found = cpu_attention.context(q, k, v, mask, dropout=0.5, scaling=0.3)
    assert not found[0, 2].any()
    assert found.isfinite().all()
    assert found[0, 3].any()


@pytest.mark.parametrize(("dropout", "causal"), [(1e-6, False), (1 - 1e-6, False), (0.5, True)])
def test_what_it_does_not_compute_is_torchs(dropout: float, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "sdpa_attention_forward", lambda *args, **kwargs: ("torchs", None))
    model = tiny_bert()
    attach(model)
    module = model.base_model.get_submodule("encoder.layer.0.attention.self")
    q, k, v = given(None)
    with perturbed(model):
        assert dispatch.forward(module, q, k, v, None, dropout, 0.3, is_causal=causal)[0] == "torchs"
        assert dispatch.forward(module, q, k, v, None, 0.5, 0.3)[0] != "torchs"


def test_a_second_derivative_is_refused() -> None:
    """Of a bare sum torch's once_differentiable would say nothing."""
    q, k, v = (x.requires_grad_() for x in given(None)[:3])
    with pytest.raises(RequestError, match="have no second derivative"):
        torch.autograd.grad(ours(q, k, v).sum(), q, create_graph=True)
