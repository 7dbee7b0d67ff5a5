"""The losses' kernels against torch's own losses of the same logits in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from asa import compared, fused
from asa.adversary import ASAConfig
from asa.batch import IGNORE, Kind
from asa.compared import Compared
from asa.engine import PlainEngine
from asa.errors import RequestError
from asa.fused import probe_losses
from asa.methods import METHODS, At, MethodsConfig
from asa.optim import OptimConfig
from tests.asa.conftest import tiny_batch, tiny_module
from tests.asa.test_compared import by_torch, case, gradients
from tests.fused.oracle import DEVICE, SLOW_HERE, error

losses: Any = pytest.importorskip("asa.fused.losses", reason="no Triton here")

# Of the gradient, which has the logits' type; the losses are fp32 whatever that is.
GRADIENTS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def halves(logits: Tensor, labels: Tensor) -> Compared:
    return Compared(*fused.compare((logits,), labels))


def two(logits: Tensor, labels: Tensor) -> Compared:
    """By two tensors, which lie elsewhere."""
    return Compared(*fused.compare([half.clone() for half in logits.chunk(2)], labels))


both_ways = pytest.mark.parametrize("compare", [halves, two])


def problem(rows: int, classes: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    logits, labels = case(rows, classes, torch.float64)
    return logits.to(DEVICE, dtype).requires_grad_(), labels.to(DEVICE)


@both_ways
@pytest.mark.parametrize("dtype", GRADIENTS, ids=str)
@pytest.mark.parametrize("classes", [2, 3, 17, 255, 300, 1024, 5001, pytest.param(30522, marks=SLOW_HERE)])
def test_losses_and_gradients_are_torchs(
    classes: int, dtype: torch.dtype, compare: Callable[[Tensor, Tensor], Compared]
) -> None:
    logits, labels = problem(4, classes, dtype)
    wide = logits.detach().double().requires_grad_()
    ours, theirs = compare(logits, labels), by_torch(wide, labels)
    assert all(loss.dtype == torch.float32 for loss in ours)
    for one, other in zip(ours, theirs, strict=True):
        assert error(one, other) < 1e-5
        assert error(gradients([one], logits), gradients([other], wide)) < GRADIENTS[dtype]
    assert error(gradients(ours, logits), gradients(theirs, wide)) < GRADIENTS[dtype]
    alone = fused.cross_entropies(logits[:4], labels)
    assert torch.equal(alone, ours[0])
    grads = [torch.autograd.grad(loss.sum(), x)[0] for loss, x in ((alone, logits), (by_torch(wide, labels)[0], wide))]
    assert error(*grads) < GRADIENTS[dtype]
    assert not grads[0][4:].any()


@pytest.mark.parametrize("fixed", [0, 1])
def test_a_pass_that_is_a_fixed_target_gets_no_gradient(fixed: int) -> None:
    """Its type may be another: a teacher's is."""
    logits, labels = problem(4, 300)
    wide = logits.detach().double().requires_grad_()
    passes: list[Any] = [half.detach().clone() for half in logits.chunk(2)]
    passes[fixed] = passes[fixed].double().float()
    passes[1 - fixed] = passes[1 - fixed].half().requires_grad_()
    with torch.no_grad():
        wide.chunk(2)[1 - fixed].copy_(passes[1 - fixed])
    found, wanted = fused.compare(passes, labels), by_torch(wide, labels)
    assert all(error(one, other) < 1e-5 for one, other in zip(found, wanted, strict=True))
    slope = gradients(found, passes[1 - fixed])
    assert slope.dtype == torch.float16
    assert error(slope, gradients(wanted, wide).chunk(2)[1 - fixed]) < GRADIENTS[torch.float16]


@pytest.mark.parametrize(("classes", "tile"), [(10, 8), (2048, 128)])
def test_tiles_do_not_matter(classes: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = problem(3, classes)
    whole = halves(logits, labels)
    monkeypatch.setattr(losses, "LONGEST_TILE", tile)
    parts = halves(logits, labels)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(parts, logits), gradients(whole, logits), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [0, 1024, -1024])
def test_a_common_offset_costs_no_digits(offset: int) -> None:
    logits, labels = problem(4, 9)
    with torch.no_grad():
        logits[torch.arange(4), labels.clamp_min(0)] += 10  # sure answers
        logits += offset
    wide = logits.detach().double().requires_grad_()
    ours, theirs = halves(logits, labels), by_torch(wide, labels)
    torch.testing.assert_close(ours[0].double(), theirs[0], rtol=1e-3, atol=1e-9)
    assert error(gradients(ours, logits), gradients(theirs, wide)) < 1e-4


@pytest.mark.parametrize(("falling", "block"), [(False, slice(0, 40)), (True, slice(40, 64)), (False, slice(0, 0))])
def test_tiles_may_be_of_any_size_beside_each_other(
    falling: bool, block: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than exp can be, either way, or of words that are ruled out."""
    monkeypatch.setattr(losses, "LONGEST_TILE", 8)
    logits, labels = problem(3, 64)
    labels[:] = 39 if falling else 50
    with torch.no_grad():
        logits += torch.arange(64, device=DEVICE) * (-5 if falling else 5)
        logits[:, block] = -torch.inf
    wide = logits.detach().double().requires_grad_()
    ours, theirs = (loss(x[:3]) for loss, x in ((alone(labels), logits), (torchs(labels), wide)))
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    grads = [torch.autograd.grad(loss.sum(), x)[0] for loss, x in ((ours, logits), (theirs, wide))]
    torch.testing.assert_close(grads[0].double(), grads[1], rtol=1e-5, atol=1e-6)


def alone(labels: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: fused.cross_entropies(logits, labels)


def torchs(labels: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: F.cross_entropy(logits, labels, reduction="none")


def test_a_shift_of_one_pass_costs_few_digits() -> None:
    logits, labels = problem(64, 30)
    with torch.no_grad():
        logits[64:] = logits[:64] + 0.01 * logits[64:] + 4
    expected = by_torch(logits.double(), labels).symmetric_N
    assert (halves(logits, labels).symmetric_N - expected).abs().max() < 2e-4 * expected.max()


def test_two_like_passes_diverge_by_nothing() -> None:
    logits, labels = problem(4, 700)
    with torch.no_grad():
        logits[4:] = logits[:4]
    found = halves(logits, labels)
    assert not found.forth_N.any()
    assert not found.back_N.any()
    assert not torch.autograd.grad(found.symmetric_N.sum(), logits)[0].any()


def test_absent_answers_have_no_part() -> None:
    logits, labels = problem(4, 4)
    with torch.no_grad():
        logits[:, 3] = -1e4
        labels[:] = 1
    wide = logits.detach().double().requires_grad_()
    found, wanted = halves(logits, labels), by_torch(wide, labels)
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(found, logits).double(), gradients(wanted, wide), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("label", [-1, 5, -(2**40), 2**40])
def test_a_label_that_is_no_class_is_no_number(label: int) -> None:
    """Nor is its gradient. On a GPU torch's own losses end the process there; our engines refuse such a step."""
    logits, labels = problem(4, 5)
    labels[2] = label
    found = fused.cross_entropies(logits[:4], labels)
    assert found.isnan().tolist() == [False, False, True, False]
    slope = torch.autograd.grad(found.sum(), logits)[0]
    assert slope[:4].isnan().all(1).tolist() == [False, False, True, False]
    assert not slope[:2].isnan().any()


@pytest.mark.parametrize(("logits", "labels", "pair"), [(3, 5, False), (3, 2, False), (7, 3, True), (6, 6, True)])
def test_rows_and_labels_that_do_not_fit_are_refused(logits: int, labels: int, pair: bool) -> None:
    """Past the end of either lies other memory."""
    given = torch.zeros(logits, 4, device=DEVICE), torch.zeros(labels, dtype=torch.long, device=DEVICE)
    with pytest.raises(ValueError, match="logits do not fit"):
        (halves if pair else fused.cross_entropies)(*given)


@both_ways
def test_another_number_of_rows_is_no_other_kernel(
    compare: Callable[[Tensor, Tensor], Compared], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton compiles anew for a pointer that is no multiple of 16 bytes."""
    pointers: list[int] = []
    right = losses.run

    def noted(kernel: Any, grid: Any, *args: Any, **settings: Any) -> None:
        pointers.extend(arg.data_ptr() for arg in args if isinstance(arg, Tensor))
        right(kernel, grid, *args, **settings)

    monkeypatch.setattr(losses, "run", noted)
    for rows in (2, 3, 4):
        logits, labels = problem(rows, 7, torch.float16)
        gradients(compare(logits, labels), logits)
    assert pointers
    assert not any(pointer % 16 for pointer in pointers)


@pytest.mark.parametrize("classes", [3, 16, 30522])
def test_rows_of_the_gradient_begin_where_matrix_units_read_fast(classes: int) -> None:
    """And the head's products take it as it lies: a copy would cost more than it brings."""
    _, labels = problem(2, classes, torch.float16)
    slopes: list[Tensor] = []
    head = torch.nn.Linear(4, classes, bias=False, device=DEVICE, dtype=torch.float16)
    words = head(torch.ones(1, 2, 4, device=DEVICE, dtype=torch.float16))
    words.register_hook(slopes.append)
    fused.cross_entropies(words.squeeze(0), labels).sum().backward()
    (slope,) = slopes
    assert slope.stride()[-2:] == (-(-classes // 16) * 16, 1)
    assert slope.data_ptr() % 16 == 0


def test_labels_and_logits_may_lie_apart() -> None:
    logits, labels = problem(4, 7)
    apart = torch.cat([logits.detach(), logits.detach()], 1)[:, :7].requires_grad_()
    spread = torch.stack([labels, labels], 1)[:, 0]
    ours, theirs = halves(apart, spread), halves(logits, labels)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert torch.equal(gradients(ours, apart), gradients(theirs, logits))


def test_without_a_row_both_are_empty_and_pass_no_gradient() -> None:
    logits = torch.zeros(0, 7, requires_grad=True, device=DEVICE)
    found = halves(logits, torch.zeros(0, dtype=torch.long, device=DEVICE))
    assert all(loss.shape == (0,) for loss in found)
    torch.stack([loss.sum() for loss in found]).sum().backward()


def test_a_second_derivative_is_refused() -> None:
    logits, labels = problem(3, 5)
    with pytest.raises(RequestError, match="no second derivative"):
        torch.autograd.grad(fused.cross_entropies(logits[:3], labels).sum(), logits, create_graph=True)


def test_only_the_types_that_the_kernels_know_and_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fused.losses_supported(torch.zeros(1, 2, device=DEVICE))
    assert not fused.losses_supported(torch.zeros(1, 2, device=DEVICE, dtype=torch.float64))
    with FakeTensorMode():
        assert not fused.losses_supported(torch.zeros(1, 2, device="cpu"))
    monkeypatch.undo()
    assert not fused.losses_supported(torch.zeros(1, 2))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each fused loss was of two passes, without the trial before the first."""
    monkeypatch.setattr(fused, "_works", lambda part, *_: part == "losses")  # the others take their time
    found: list[bool] = []
    right = losses.Losses.apply

    def noted(*args: Any) -> Any:
        found.append(args[1])
        return right(*args)

    monkeypatch.setattr(losses.Losses, "apply", noted)
    return found


@pytest.mark.parametrize(
    ("name", "of_pairs"),
    [
        ("vanilla", [False]),
        ("asa", [True]),
        ("r_drop", [True]),
        ("random_mask", [False, True]),
        ("smart", [True] * 3),
        ("alum", [True] * 2),
        ("r3f", [True]),
        ("vat", [True, False, True]),
        ("smart_released", [False, True, True]),
    ],
)
@pytest.mark.parametrize("kind", ["mlm", "classification", "choice", "token"])
def test_methods_take_them(
    name: str, kind: Kind, of_pairs: list[bool], launches: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = [step(name, kind)]
    monkeypatch.setattr(fused, "DEVICES", set())
    terms.append(step(name, kind))
    sentences = [True] if kind == "mlm" and name in ("asa", "random_mask") else []
    assert launches == of_pairs + sentences
    torch.testing.assert_close(terms[0], terms[1], rtol=1e-4, atol=1e-5)


def step(name: str, kind: Kind) -> Tensor:
    """The loss of one step of a tiny model."""
    device = torch.device(DEVICE)
    torch.manual_seed(3)
    engine = PlainEngine(tiny_module(kind, asa=ASAConfig()), OptimConfig(), steps=10, device=device)
    torch.manual_seed(4)
    return METHODS[name](MethodsConfig()).backward(engine, tiny_batch(kind).to(device), At(0, 0))["loss"]


def test_regressions_go_without(launches: list[bool]) -> None:
    step("vanilla", "regression")
    assert launches == []


@pytest.mark.parametrize("dtype", GRADIENTS, ids=str)
def test_the_kernels_are_tried_before_they_are_used(dtype: torch.dtype) -> None:
    before = torch.get_rng_state()
    assert probe_losses.fault(torch.device(DEVICE), dtype) is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("wrong", range(7))
def test_kernels_that_compute_something_else_are_told_and_left_alone(
    wrong: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = probe_losses._ours

    def spoilt(*args: Tensor) -> tuple[Tensor, ...]:
        return tuple(x * 1.1 if n == wrong else x for n, x in enumerate(right(*args)))

    monkeypatch.setattr(probe_losses, "_ours", spoilt)
    fused._works.cache_clear()
    out = torch.zeros(4, 3, requires_grad=True, device=DEVICE)
    try:
        assert not fused.losses_supported(out)
        assert compared.compare_halves(out, torch.zeros(2, dtype=torch.long, device=DEVICE))[1].shape == (2,)
    finally:
        fused._works.cache_clear()
    (message,) = caplog.messages
    told = f"Triton's kernels are wrong here, so losses are not fused: {probe_losses.NAMES[wrong]} is off by 0.1"
    assert message.startswith(told)


def test_what_cannot_be_compiled_is_told_once_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    monkeypatch.setattr(losses.Losses, "apply", refuse)
    fused._works.cache_clear()
    try:
        assert not any(fused.losses_supported(torch.zeros(4, 3, device=DEVICE)) for _ in range(2))
    finally:
        fused._works.cache_clear()
    assert caplog.messages == ["Triton cannot run here, so losses are not fused: Failed to find C compiler."]


def test_unlabelled_rows_alone_give_nothing() -> None:
    logits, labels = problem(3, 5)
    labels[:] = IGNORE
    entropies = fused.cross_entropies(logits[:3], labels)
    assert not entropies.any()
    assert not torch.autograd.grad(entropies.sum(), logits)[0].any()
