"""Cross entropies of two passes and the divergences between them, at once, against torch's own of the same logits."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asa import compared
from asa.batch import IGNORE
from asa.compared import Compared, compare, compare_halves
from asa.errors import RequestError

# N rows, C classes

seeds = st.integers(0, 2**31)


def by_torch(logits_2NC: Tensor, labels_N: Tensor) -> Compared:
    log_p, log_q = logits_2NC.log_softmax(-1).chunk(2)
    kls = [F.kl_div(b, a, reduction="none", log_target=True).sum(-1) for a, b in ((log_p, log_q), (log_q, log_p))]
    entropies = [F.nll_loss(log, labels_N, reduction="none", ignore_index=IGNORE) for log in (log_p, log_q)]
    return Compared(*entropies, *kls)


def apart(logits_2NC: Tensor, labels_N: Tensor) -> Compared:
    """By two tensors, which lie elsewhere."""
    p_NC, q_NC = (half.clone() for half in logits_2NC.chunk(2))
    return compare(p_NC, q_NC, labels_N)


both_ways = pytest.mark.parametrize("ours", [compare_halves, apart], ids=["halves", "two"])


def case(rows: int, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(rows)
    logits = 3 * torch.randn(2 * rows, classes, generator=random, dtype=dtype)
    labels = torch.randint(0, classes, (rows,), generator=random)
    labels[1] = IGNORE
    return logits, labels


def gradients(losses: Sequence[Tensor], logits: Tensor) -> Tensor:
    """Of a sum in which each row of each loss has a weight of its own."""
    random = torch.Generator().manual_seed(0)
    weighted = [(loss * (0.5 + torch.rand(loss.shape, generator=random).to(loss))).sum() for loss in losses]
    return torch.autograd.grad(torch.stack(weighted).sum(), logits, retain_graph=True)[0]


@both_ways
@pytest.mark.parametrize("classes", [2, compared.FEW - 1, compared.FEW])
@pytest.mark.parametrize("rows", [5, 2, 0])
def test_losses_and_gradients_are_torchs(
    rows: int, classes: int, ours: Callable[..., Compared], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In portions too, the last of which is smaller; a row at least."""
    monkeypatch.setattr(compared, "CACHED", rows * classes)
    logits, labels = case(5, classes, torch.float64)
    logits.requires_grad_()
    found, wanted = ours(logits, labels), by_torch(logits, labels)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.symmetric_N, (wanted.forth_N + wanted.back_N) / 2, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(found, logits), gradients(wanted, logits), rtol=1e-12, atol=1e-12)
    for one, other in zip(found, wanted, strict=True):  # each alone: the others' gradients are zeros then
        torch.testing.assert_close(gradients([one], logits), gradients([other], logits), rtol=1e-12, atol=1e-12)


@given(seeds, seeds, st.floats(0.01, 20))
def test_divergences_are_not_negative_and_turn_round_with_the_passes(one: int, other: int, scale: float) -> None:
    p_NC, q_NC = (scale * case(5, 7, torch.float64)[0][:5].roll(seed, 0) for seed in (one, other))
    q_NC = q_NC + torch.randn(5, 7, generator=torch.Generator().manual_seed(other), dtype=torch.float64)
    found, turned = compare(p_NC, q_NC), compare(q_NC, p_NC)
    assert all((loss >= -1e-12).all() for loss in found)
    torch.testing.assert_close((found.forth_N, found.back_N), (turned.back_N, turned.forth_N))
    torch.testing.assert_close(found.symmetric_N, turned.symmetric_N)


def test_without_labels_no_entropy_counts() -> None:
    logits, _ = case(4, 5, torch.float64)
    logits.requires_grad_()
    found = compare_halves(logits)
    assert not found.entropy_p_N.any()
    assert not found.entropy_q_N.any()
    assert not gradients(found[:2], logits).any()


@pytest.mark.parametrize("fixed", [0, 1])
def test_a_pass_that_is_a_fixed_target_gets_no_gradient(fixed: int) -> None:
    logits, labels = case(5, 6, torch.float64)
    p_NC, q_NC = passes = [half.clone().requires_grad_(n != fixed) for n, half in enumerate(logits.chunk(2))]
    wanted = gradients(by_torch(logits.requires_grad_(), labels), logits).chunk(2)[1 - fixed]
    found = compare(p_NC, q_NC, labels)
    torch.testing.assert_close(gradients(found, passes[1 - fixed]), wanted, rtol=1e-12, atol=1e-12)


@both_ways
@pytest.mark.parametrize("absent", [0, 3])
def test_an_absent_answer_costs_no_digits(absent: int, ours: Callable[..., Compared]) -> None:
    """Whichever it is: its logit of -1e4 has no digits left for the others."""
    logits, labels = case(4, 4, torch.float32)
    logits[:, absent] = -1e4
    labels[:] = 1
    logits.requires_grad_()
    wide = logits.detach().double().requires_grad_()
    found = gradients(ours(logits, labels), logits)
    torch.testing.assert_close(found.double(), gradients(by_torch(wide, labels), wide), rtol=1e-5, atol=1e-6)


def test_a_common_offset_costs_no_digits() -> None:
    logits, labels = case(4, 9, torch.float64)
    logits[torch.arange(4), labels.clamp_min(0)] += 10  # sure answers
    for near in (logits.float(), logits.float() + 1024):
        found, wanted = compare_halves(near, labels), by_torch(near.double(), labels)
        for n in (0, 1):
            torch.testing.assert_close(found[n].double(), wanted[n], rtol=5e-4, atol=1e-9)


@pytest.mark.parametrize("offset", [0, 1024])
def test_nor_does_it_cost_the_gradient_any(offset: int) -> None:
    logits, labels = case(4, 9, torch.float32)
    logits[torch.arange(4), labels.clamp_min(0)] += 10
    logits = (logits + offset).requires_grad_()
    wide = logits.detach().double().requires_grad_()
    found = gradients(compare_halves(logits, labels), logits).double()
    wanted = gradients(by_torch(wide, labels), wide)
    assert (found - wanted).norm() < 1e-4 * wanted.norm()


def test_a_shift_of_one_pass_costs_few_digits() -> None:
    """Which is none of the divergence, and so may not be its largest part."""
    logits, labels = case(64, 30, torch.float64)
    logits[64:] = logits[:64] + 0.01 * logits[64:] + 4
    found = compare_halves(logits.float(), labels).symmetric_N.double()
    expected = by_torch(logits, labels).symmetric_N
    assert (found - expected).abs().max() < 2e-4 * expected.max()


def test_two_like_passes_diverge_by_nothing() -> None:
    """Neither value nor gradient: an attack that does nothing leaves the plain step."""
    logits, labels = case(4, 9, torch.float32)
    logits[4:] = logits[:4]
    logits.requires_grad_()
    found = compare_halves(logits, labels)
    assert not found.forth_N.any()
    assert not found.back_N.any()
    assert not torch.autograd.grad(found.symmetric_N.sum(), logits)[0].any()


@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4])
def test_a_small_gap_has_a_gradient_to_climb(size: float) -> None:
    """SMART's ascents start where the passes differ by little more than rounding."""
    logits, labels = case(64, 5, torch.float64)
    logits[64:] = logits[:64] + size * logits[64:]
    near = logits.float().requires_grad_()
    wide = near.detach().double().requires_grad_()
    found, wanted = (
        torch.autograd.grad(one.symmetric_N.sum(), x)[0][64:].double()
        for one, x in ((compare_halves(near, labels), near), (by_torch(wide, labels), wide))
    )
    assert (found - wanted).norm() < 2e-7 / size * wanted.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    logits, labels = case(4, 9, torch.float32)
    logits = logits.to(dtype).requires_grad_()
    ours = compare_halves(logits, labels)
    assert {loss.dtype for loss in ours} == {torch.float32}
    torch.testing.assert_close(ours, by_torch(logits.float(), labels), rtol=1e-5, atol=1e-6)
    assert gradients(ours, logits).dtype == dtype


@pytest.mark.parametrize(("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_passes_may_have_types_of_their_own(dtype: torch.dtype, wide: torch.dtype) -> None:
    """A teacher in fp32 and its model in half precision."""
    logits, labels = case(4, 9, torch.float32)
    p_NC, q_NC = logits.chunk(2)
    other = q_NC.to(dtype).requires_grad_()
    found = compare(p_NC, other, labels)
    wanted = by_torch(torch.cat([p_NC.to(wide), other.to(wide)]), labels)
    assert {loss.dtype for loss in found} == {wide}
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert gradients(found, other).dtype == dtype


@both_ways
def test_without_a_row_all_are_empty_and_pass_no_gradient(ours: Callable[..., Compared]) -> None:
    """A micro-batch of masked-LM may have no masked token."""
    logits = torch.zeros(0, 7, requires_grad=True)
    found = ours(logits, torch.zeros(0, dtype=torch.long))
    assert all(loss.shape == (0,) for loss in found)
    torch.stack([loss.sum() for loss in found]).sum().backward()


def test_a_label_that_is_no_class_is_refused() -> None:
    logits, labels = case(4, 3, torch.float32)
    labels[2] = -1
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        compare_halves(logits, labels)


@pytest.mark.parametrize(("rows", "other", "labels"), [(4, 4, 6), (4, 4, 3), (4, 3, 4), (4, 1, 4)])
def test_rows_and_labels_that_do_not_fit_are_refused(rows: int, other: int, labels: int) -> None:
    with pytest.raises(ValueError, match="logits do not fit"):
        compare(torch.zeros(rows, 9), torch.zeros(other, 9), torch.zeros(labels, dtype=torch.long))


def test_logits_have_two_dimensions() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3, 4\] and \[2, 3, 4\] logits do not fit \[2\] labels"):
        compare(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4))


def test_an_odd_number_of_rows_is_no_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a portion ends with the first pass, nobody would come to the last row."""
    monkeypatch.setattr(compared, "CACHED", 27)
    for labels in (None, torch.zeros(3, dtype=torch.long)):
        with pytest.raises(ValueError, match="logits do not fit"):
            compare_halves(torch.zeros(7, 9), labels)


def test_a_second_derivative_is_refused() -> None:
    """Which torch would have made up: 0, without a word."""
    logits, labels = case(3, 5, torch.float64)
    logits.requires_grad_()
    for loss in compare_halves(logits, labels):
        with pytest.raises(RequestError, match="no second derivative"):
            torch.autograd.grad(loss.sum(), logits, create_graph=True)
