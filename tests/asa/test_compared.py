"""Cross entropy and symmetric KL at once, against torch's own of the same logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asa import compared
from asa.batch import IGNORE
from asa.errors import RequestError
from asa.losses import symmetric_kl


def by_torch(logits_2NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    log_p, log_q = logits_2NC.log_softmax(-1).chunk(2)
    kls = [F.kl_div(b, a, reduction="none", log_target=True).sum(-1) for a, b in ((log_p, log_q), (log_q, log_p))]
    entropies = F.cross_entropy(logits_2NC[: len(labels_N)], labels_N, reduction="none", ignore_index=IGNORE)
    return entropies, (kls[0] + kls[1]) / 2


def case(rows: int, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(rows)
    logits = 3 * torch.randn(2 * rows, classes, generator=random, dtype=dtype)
    labels = torch.randint(0, classes, (rows,), generator=random)
    labels[1] = IGNORE
    return logits, labels


def gradients(losses: tuple[Tensor, Tensor], logits: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 2, len(losses[0]), dtype=losses[0].dtype, device=losses[0].device)
    return torch.autograd.grad((losses[0] * weights).sum() + (losses[1] * weights.flip(0)).sum(), logits)[0]


@pytest.mark.parametrize("portion", [compared.CACHED, 12])
def test_losses_and_gradients_are_torchs(portion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In portions too, the last of which is smaller."""
    monkeypatch.setattr(compared, "CACHED", portion)
    logits, labels = case(5, 6, torch.float64)
    logits.requires_grad_()
    ours, theirs = compared.compare(logits, labels), by_torch(logits, labels)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(ours, logits), gradients(theirs, logits), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("absent", [0, 3])
def test_an_absent_answer_costs_no_digits(absent: int) -> None:
    """Whichever it is: its logit of -1e4 has no digits left for the others."""
    logits, labels = case(4, 4, torch.float32)
    logits[:, absent] = -1e4
    labels[:] = 1
    logits.requires_grad_()
    wide = logits.detach().double().requires_grad_()
    found = gradients(compared.compare(logits, labels), logits)
    torch.testing.assert_close(found.double(), gradients(by_torch(wide, labels), wide), rtol=1e-5, atol=1e-6)


def test_a_common_offset_costs_no_digits() -> None:
    logits, labels = case(4, 9, torch.float64)
    logits[torch.arange(4), labels.clamp_min(0)] += 10  # sure answers
    near = compared.compare(logits.float(), labels)
    far = compared.compare((logits.float() + 1024), labels)
    torch.testing.assert_close(near[0].double(), by_torch(logits, labels)[0], rtol=1e-3, atol=1e-9)
    torch.testing.assert_close(far[0], by_torch(logits.float() + 1024, labels)[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("offset", [0, 1024])
def test_nor_does_it_cost_the_gradient_any(offset: int) -> None:
    logits, labels = case(4, 9, torch.float32)
    logits[torch.arange(4), labels.clamp_min(0)] += 10
    logits = (logits + offset).requires_grad_()
    wide = logits.detach().double().requires_grad_()
    found = gradients(compared.compare(logits, labels), logits).double()
    wanted = gradients(by_torch(wide, labels), wide)
    assert (found - wanted).norm() < 1e-4 * wanted.norm()


def test_a_shift_of_one_pass_costs_few_digits() -> None:
    """Which is none of the divergence, and so may not be its largest part."""
    logits, labels = case(64, 30, torch.float64)
    logits[64:] = logits[:64] + 0.01 * logits[64:] + 4
    found = compared.compare(logits.float(), labels)[1].double()
    expected = by_torch(logits, labels)[1]
    assert (found - expected).abs().max() < 2e-4 * expected.max()


def test_two_like_passes_diverge_by_nothing() -> None:
    """Neither value nor gradient: an attack that does nothing leaves the plain step."""
    logits, labels = case(4, 9, torch.float32)
    logits[4:] = logits[:4]
    logits.requires_grad_()
    divergences = compared.compare(logits, labels)[1]
    assert not divergences.any()
    assert not torch.autograd.grad(divergences.sum(), logits)[0].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    logits, labels = case(4, 9, torch.float32)
    logits = logits.to(dtype).requires_grad_()
    ours = compared.compare(logits, labels)
    assert ours[0].dtype == ours[1].dtype == torch.float32
    torch.testing.assert_close(ours, by_torch(logits.float(), labels), rtol=1e-5, atol=1e-6)
    assert gradients(ours, logits).dtype == dtype


def test_without_a_row_both_are_empty_and_pass_no_gradient() -> None:
    """A micro-batch of masked-LM may have no masked token."""
    logits = torch.zeros(0, 7, requires_grad=True)
    entropies, divergences = compared.compare(logits, torch.zeros(0, dtype=torch.long))
    assert entropies.shape == divergences.shape == (0,)
    (entropies.sum() + divergences.sum()).backward()


def test_a_label_that_is_no_class_is_refused() -> None:
    logits, labels = case(4, 3, torch.float32)
    labels[2] = -1
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        compared.compare(logits, labels)


def test_a_second_derivative_is_refused() -> None:
    """Which torch would have made up: 0, without a word."""
    logits, labels = case(3, 5, torch.float64)
    logits.requires_grad_()
    log_p, log_q = logits.log_softmax(-1).chunk(2)
    for loss in (*compared.compare(logits, labels), symmetric_kl(log_p, log_q)):
        with pytest.raises(RequestError, match="no second derivative"):
            torch.autograd.grad(loss.sum(), logits, create_graph=True)
