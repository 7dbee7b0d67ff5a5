"""Attacked rows behind clean ones: what comes of both at once is what comes of each alone."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asa.errors import RequestError
from asa.fused import beside as beside_module
from asa.fused import floors, fused_attention
from asa.fused.beside import Beside
from tests.fused.oracle import Problem, problem

launch: Any = pytest.importorskip("asa.fused.launch", reason="no Triton here")

FREE = 3  # clean rows


def operands(given: Problem) -> list[Tensor]:
    """q, k and v of clean rows and then the problem's, by token in memory as projections make them."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for x in given.operands[:3]:
        rest = x.shape[1:]
        clean = torch.randn(FREE, *rest, generator=draw).to(x)
        found.append(torch.cat([clean, x.detach()]).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_())
    return found


def attend(given: Problem, beside: Beside, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    free_q, free_k, free_v, q, k, v = parts
    return attacked(given, q, k, v, beside, F.scaled_dot_product_attention(free_q, free_k, free_v))


def attacked(
    given: Problem, q: Tensor, k: Tensor, v: Tensor, beside: Beside | None = None, clean: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    mask_q, mask_k, mask_bias = given.operands[3:]
    options: dict[str, Any] = {"scale": given.scale, "dropout": 0.0, "config": given.config}
    return fused_attention(
        q, k, v, mask_q, mask_k, mask_bias, floors(given.seen_BL), **options, beside=beside, clean_BHLK=clean
    )


def together(given: Problem, between: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
    """Context, kept units and the gradients of all operands. Args: between changes the attacked queries."""
    qkv, beside = operands(given), Beside(FREE)
    parts = list(beside.part(*qkv))
    parts[3] = between(parts[3])
    context, kept = attend(given, beside, tuple(parts))
    arriving = torch.cos(64 * context.detach()), given.d_kept_BL
    return [context, kept, *torch.autograd.grad((context, kept), (*qkv, *given.operands[3:]), arriving)]


def apart(given: Problem) -> list[Tensor]:
    q, k, v = qkv = operands(given)
    clean = F.scaled_dot_product_attention(q[:FREE], k[:FREE], v[:FREE])
    others, kept = attacked(given, q[FREE:], k[FREE:], v[FREE:])
    context = torch.cat([clean, others])
    arriving = torch.cos(64 * context.detach()), given.d_kept_BL
    return [context, kept, *torch.autograd.grad((context, kept), (*qkv, *given.operands[3:]), arriving)]


def small() -> Problem:
    return problem((2, 2, 70, 32), 48, pads=(9,))


def test_both_at_once_are_what_each_is_alone() -> None:
    for one, other in zip(together(small()), apart(small()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_nothing_that_the_kernels_make_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor anything else for the layout: projections get gradients by token."""

    def cat(*args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("copied")

    monkeypatch.setattr(beside_module.torch, "cat", cat, raising=True)
    given = small()
    beside, made = Beside(FREE), []
    qkv = [torch.randn(FREE + 2, 70, 2, 32).to(given.operands[0]).requires_grad_() for _ in range(3)]
    parts = beside.part(*(x.transpose(1, 2) for x in qkv))
    for x in qkv:
        x.register_hook(lambda grad: made.append(grad.is_contiguous()))
    context, kept = attend(given, beside, parts)
    assert context.transpose(1, 2).is_contiguous()
    torch.autograd.grad((context, kept), qkv, (torch.ones_like(context), given.d_kept_BL))
    assert made == [True] * 3


def test_a_gradient_that_somebody_changes_on_its_way_counts() -> None:
    changed = together(small(), lambda q_BHLK: 2 * q_BHLK)
    given = small()
    with torch.no_grad():
        given.operands[0].mul_(2)
    wanted = together(given)
    torch.testing.assert_close(changed[0][FREE:], wanted[0][FREE:])
    torch.testing.assert_close(changed[2][FREE:], 2 * wanted[2][FREE:])
    torch.testing.assert_close(changed[2][:FREE], together(small())[2][:FREE])


def test_a_graph_that_is_kept_gives_its_gradients_again() -> None:
    given, beside = small(), Beside(FREE)
    qkv = operands(given)
    context, kept = attend(given, beside, beside.part(*qkv))
    runs = [torch.autograd.grad(context.square().sum() + kept.sum(), qkv, retain_graph=True) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    assert beside.made == []


def test_what_somebody_else_made_is_put_together_by_token() -> None:
    beside = Beside(2)
    free, attacked = torch.randn(2, 3, 5, 7), torch.randn(4, 3, 5, 7)
    found = beside.whole(free, attacked)
    assert torch.equal(found, torch.cat([free, attacked]))
    assert found.transpose(1, 2).is_contiguous()


def test_rooms_that_nobody_wanted_do_not_pile_up() -> None:
    given, beside = small(), Beside(FREE)
    context, kept = attend(given, beside, beside.part(*operands(given)))
    for _ in range(2):
        torch.autograd.grad(context.sum() + kept.sum(), given.operands[3], retain_graph=True)
        assert len(beside.made) <= 3


def test_a_second_derivative_is_refused() -> None:
    given, beside = small(), Beside(FREE)
    qkv = operands(given)
    context, kept = attend(given, beside, beside.part(*qkv))
    with pytest.raises(RequestError, match="fused attention's gradients have no second derivative"):
        torch.autograd.grad(context.square().sum() + kept.sum(), qkv, create_graph=True)


def test_a_frozen_model_leaves_no_room_behind() -> None:
    given, beside = small(), Beside(FREE)
    qkv = [x.detach() for x in operands(given)]
    context, kept = attend(given, beside, beside.part(*qkv))
    torch.autograd.grad(context.square().sum() + kept.sum(), given.operands[3])
    assert beside.made == []


@pytest.mark.parametrize("backwards", [True, False])
def test_nothing_outlives_its_step(backwards: bool) -> None:
    given, beside = small(), Beside(FREE)
    qkv = operands(given)
    context, kept = attend(given, beside, beside.part(*qkv))
    if backwards:
        torch.autograd.grad(context.square().sum() + kept.sum(), qkv)
    alive = weakref.ref(context)
    del context, kept
    gc.collect()
    assert alive() is None
