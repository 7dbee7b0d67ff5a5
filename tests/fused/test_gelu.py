"""GELU's kernel against torch's formulas in float64, and where the modules of a model use it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.activations import GELUActivation, NewGELUActivation
from transformers.models.bert.modeling_bert import BertIntermediate

from asa import fused
from asa.adversary import ASAConfig
from asa.attention import attach, detach, perturbed
from asa.engine import PlainEngine
from asa.errors import RequestError
from asa.families import FAMILIES
from asa.forwards import PLAIN
from asa.fused import probe_gelu
from asa.methods import METHODS, At, MethodsConfig
from asa.optim import OptimConfig
from tests.asa.conftest import LAYERS, LENGTH, ROWS, batch_for, gradients, tiny_batch, tiny_module
from tests.asa.encoders import tiny
from tests.asa.test_recompute import compiled_steps
from tests.fused.oracle import DEVICE, SLOW_HERE, TOLERANCES, error
from tests.fused.test_norms import hooked, without_bias

activations: Any = pytest.importorskip("asa.fused.activations", reason="no Triton here")

HERE = torch.device(DEVICE)
# N rows, W width


def operands(rows: int, width: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """x (NW), what arrives (NW), the bias (W)."""
    draw = torch.Generator().manual_seed(rows * width)
    shapes = (rows, width), (rows, width), (width,)
    x_NW, arriving_NW, bias_W = (torch.randn(shape, generator=draw) for shape in shapes)
    return [one.to(DEVICE, dtype) for one in (3 * x_NW, arriving_NW, bias_W)]


def ours(made: list[Tensor], shares: int = 132) -> tuple[Tensor, ...]:
    """GELU and its gradients."""
    given = [made[0].detach().requires_grad_(), made[2].detach().requires_grad_()]
    y_NW = activations.Gelu.apply(*given, shares)
    return y_NW.detach(), *torch.autograd.grad(y_NW, given, made[1])


def formulas(made: list[Tensor]) -> tuple[Tensor, ...]:
    x_NW = made[0].detach().double().requires_grad_()
    y_NW = F.gelu(x_NW)
    (dx_NW,) = torch.autograd.grad(y_NW, x_NW, made[1].double())
    return y_NW.detach(), dx_NW, dx_NW.sum(0)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (37, 24), (70, 300), pytest.param((64, 3072), marks=SLOW_HERE)])
def test_its_gradients_are_the_formulas(shape: tuple[int, int], dtype: torch.dtype) -> None:
    made = operands(*shape, dtype)
    found, wanted = ours(made), formulas(made)
    assert all(one.dtype == dtype for one in found)
    errors = [error(one, other) for one, other in zip(found, wanted, strict=True)]
    assert max(errors) < TOLERANCES[dtype], errors
    assert torch.equal(found[0], F.gelu(made[0]))


def test_the_slope_is_right_to_the_seventh_digit_wherever_it_is_asked() -> None:
    x_1W = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e18, -40, 0.0, 1e-30, 40, 1e18])])[None].to(DEVICE)
    made = [x_1W, torch.ones_like(x_1W), torch.zeros_like(x_1W[0])]
    found, wanted = ours(made)[1].double(), formulas(made)[1]
    # A GPU divides and exponentiates to the last digit or two, the interpreter to the last.
    assert (found - wanted).abs().max() < (8e-7 if DEVICE == "cuda" else 3e-7)


@given(
    rows=st.integers(0, 30),
    width=st.integers(1, 70),
    tile=st.sampled_from([(1, 8), (4, 256)]),
    shares=st.integers(1, 6),
)
@settings(max_examples=15)
def test_tiles_and_shares_do_not_matter(rows: int, width: int, tile: tuple[int, int], shares: int) -> None:
    made = operands(rows, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "DEVICES", {DEVICE})
        patch.setattr(activations, "TILE", {"R": tile[0], "C": tile[1], "num_warps": 4})
        found, wanted = ours(made, shares), formulas(made)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_operands_may_lie_apart_and_be_of_any_shape() -> None:
    made = operands(6, 24)
    wanted = ours(made)
    x_BLW, bias_W = torch.stack([made[0], made[0]], 1)[:, 0].view(2, 3, 24).requires_grad_(), made[2].requires_grad_()
    y_BLW = fused.biased_gelu(x_BLW, bias_W)
    arriving_BLW = torch.stack([made[1], made[1]], 1)[:, 0].view(2, 3, 24)
    found = y_BLW, *torch.autograd.grad(y_BLW, (x_BLW, bias_W), arriving_BLW)
    assert all(torch.equal(one, other.view(one.shape)) for one, other in zip(found, wanted, strict=True))


def test_a_second_derivative_is_refused() -> None:
    x_NW, _, bias_W = (one.requires_grad_() for one in operands(3, 8))
    with pytest.raises(
        RequestError, match=r"fused activations have no second derivative; .* asa\.fused\.DEVICES\.clear"
    ):
        torch.autograd.grad(fused.biased_gelu(x_NW, bias_W).sum(), x_NW, create_graph=True)


@pytest.mark.parametrize("width", [8, 1536, 3072])
def test_the_trial_draws_no_random_numbers_and_finds_no_fault(width: int) -> None:
    before = torch.get_rng_state()
    assert probe_gelu.fault(HERE, torch.float16, width) is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("place", "told"), [(2, "what it is of"), (3, "the bias before it")])
def test_the_trial_tells_what_is_wrong_and_torch_does_it(
    place: int, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = activations.run

    def run(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        right(kernel, grid, *args, **options)
        args[place].mul_(1.1)

    monkeypatch.setattr(activations, "run", run)
    fused._works.cache_clear()
    try:
        assert not any(fused.gelu_supported(8, torch.ones(2, 8, device=DEVICE)) for _ in "ab")
    finally:
        fused._works.cache_clear()
    (message,) = caplog.messages
    start = "Triton's kernels are wrong here, so activations are not fused: GELU's gradient to"
    assert message.startswith(f"{start} {told} is off by 0.1 of its size")


def test_the_trial_is_of_the_width_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another width may be another program."""
    tried: list[Any] = []
    monkeypatch.setattr(probe_gelu, "fault", lambda *asked: tried.append(asked))
    one = torch.ones(2, 24, device=DEVICE)
    fused._works.cache_clear()
    try:
        assert fused.gelu_supported(96, one)
    finally:
        fused._works.cache_clear()
    assert tried == [(one.device, torch.float32, 96)]


@pytest.mark.usefixtures("taken")
def test_what_the_kernel_was_not_made_for_is_not_supported() -> None:
    one = torch.ones(2, 8, device=DEVICE)
    assert fused.gelu_supported(8, one, nn.Parameter(one))
    assert not fused.gelu_supported(8, one, one.half())
    assert not fused.gelu_supported(8, one, torch.ones(2, 8, device="meta"))
    assert not fused.gelu_supported(8, one.double())


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each gradient that the kernel makes, however few, without those of the trial before the first."""
    monkeypatch.setattr(fused, "FEWEST_NUMBERS", 0)
    monkeypatch.setattr(fused, "_works", lambda *_: True)
    rows: list[int] = []
    right = activations.run

    def run(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        rows.append(args[0][..., 0].numel())
        right(kernel, grid, *args, **options)

    monkeypatch.setattr(activations, "run", run)
    return rows


def outputs(model: Any, name: str = "bert") -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    with perturbed(model):
        logits = model(**batch_for(name).to(HERE).inputs).logits
    torch.cos(logits * 3).sum().backward()
    return logits.detach(), gradients(model)


def is_torchs(model: Any, found: tuple[Tensor, dict[str, Tensor]], name: str = "bert") -> None:
    """What a pass has given is what it gives without kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "DEVICES", set())
        logits, wanted = outputs(model, name)
    torch.testing.assert_close(found[0], logits, rtol=1e-4, atol=1e-5)
    assert found[1].keys() == wanted.keys()
    size = torch.stack([value.norm() for value in wanted.values()]).norm()
    assert all((found[1][key] - value).norm() < 1e-4 * size for key, value in wanted.items())


def attached(name: str = "bert") -> Any:
    model: Any = tiny(name)
    model.to(HERE).eval()
    attach(model)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_what_it_was(name: str, taken: list[int]) -> None:
    model = attached(name)
    found = outputs(model, name)
    assert len(taken) == LAYERS * bool(FAMILIES[name].intermediate)
    is_torchs(model, found, name)


def test_few_numbers_are_left_to_torch(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = attached()
    numbers = batch_for("bert").inputs["input_ids"].numel() * model.config.hidden_size
    monkeypatch.setattr(fused, "FEWEST_NUMBERS", numbers)
    outputs(model)
    assert len(taken) == LAYERS
    monkeypatch.setattr(fused, "FEWEST_NUMBERS", numbers + 1)
    outputs(model)
    assert len(taken) == LAYERS


def test_a_pass_that_is_none_of_ours_and_a_detached_model_are_theirs(taken: list[int]) -> None:
    model = attached()
    model(**batch_for("bert").to(HERE).inputs).logits.sum().backward()
    detach(model)
    model(**batch_for("bert").to(HERE).inputs).logits.sum().backward()
    assert taken == []
    assert not any("forward" in vars(part) for part in model.modules())


def watched(part: Any) -> None:
    part.intermediate_act_fn.register_full_backward_hook(lambda *_: None)


def of_another_kind(part: Any) -> None:
    part.intermediate_act_fn = NewGELUActivation()


def written_out(part: Any) -> None:
    part.intermediate_act_fn = GELUActivation(use_gelu_python=True)


def by_anothers_gelu(part: Any) -> None:
    part.intermediate_act_fn.act = lambda x: 2 * F.gelu(x)


def a_function(part: Any) -> None:
    del part.intermediate_act_fn
    part.intermediate_act_fn = F.gelu


def wrapped(part: Any) -> None:
    whole = part.intermediate_act_fn.forward
    part.intermediate_act_fn.forward = lambda x: 2 * whole(x)


def of_another_class(part: Any) -> None:
    class Other(type(part)):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return super().forward(hidden_states) * 2

    part.__class__ = Other


@pytest.mark.parametrize(
    "change",
    [
        *(hooked, watched, of_another_kind, written_out, by_anothers_gelu, a_function, without_bias, wrapped),
        of_another_class,
    ],
    ids=lambda change: change.__name__,
)
def test_a_part_that_somebody_has_changed_or_watches_is_left_to_torch(
    change: Callable[[Any], None], taken: list[int]
) -> None:
    model = attached()
    change(model.base_model.encoder.layer[0].intermediate)
    found = outputs(model)
    assert len(taken) == LAYERS - 1
    is_torchs(model, found)


@pytest.mark.parametrize("kind", [BertIntermediate, nn.Linear, GELUActivation], ids=lambda kind: kind.__name__)
def test_a_forward_that_was_put_into_a_class_since_is_what_runs(
    kind: Any, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, was = attached(), kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args: 2 * was(self, *args))
    found = outputs(model)
    assert taken == []
    is_torchs(model, found)


def test_a_gelu_that_was_put_into_torch_is_what_runs(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    right = F.gelu
    monkeypatch.setattr(F, "gelu", lambda x: right(x, approximate="tanh"))
    model = attached()
    found = outputs(model)
    assert taken == []
    is_torchs(model, found)


def test_a_patch_of_a_class_that_is_taken_back_leaves_the_kernels(taken: list[int]) -> None:
    model, was = attached(), GELUActivation.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GELUActivation, "forward", lambda self, x: was(self, x))
        patch.setattr("asa.forwards.PLAIN", {kind: PLAIN[kind] for kind in PLAIN if kind is not GELUActivation})
        attach(model)  # as if it were the first
        outputs(model)
        assert taken == []
        patch.setattr(GELUActivation, "forward", was)
        attach(model)
        outputs(model)
    assert len(taken) == LAYERS


def test_a_model_that_came_attached_comes_to_the_kernel(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = attached()
    of_torch = {kind: PLAIN[kind] for kind in PLAIN if kind is not GELUActivation}
    monkeypatch.setattr("asa.forwards.PLAIN", of_torch)  # as in a process that has not attached
    outputs(model)
    assert len(taken) == LAYERS


def test_a_forward_of_ones_own_stays(taken: list[int]) -> None:
    model: Any = tiny("bert").to(DEVICE)  # type: ignore[arg-type]
    part = model.base_model.encoder.layer[0].intermediate
    part.forward = mine = lambda states: 2 * type(part).forward(part, states)
    attach(model)
    assert part.forward is mine
    found = outputs(model.eval())
    assert len(taken) == LAYERS - 1
    is_torchs(model, found)


def test_a_block_that_was_copied_obeys_the_model_it_came_to(taken: list[int]) -> None:
    other: Any = tiny("bert").to(DEVICE)  # type: ignore[arg-type]
    other.base_model.encoder.layer[1] = copy.deepcopy(attached().base_model.encoder.layer[1])
    attach(other)
    outputs(other)
    assert len(taken) == LAYERS


def test_what_a_model_asks_for_is_of_its_operands_and_the_width_of_its_activation(
    taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(fused, "gelu_supported", lambda *those: asked.append(those))
    model = attached()
    dense = model.base_model.encoder.layer[0].intermediate.dense
    states = torch.randn(2, dense.in_features, device=DEVICE)
    with perturbed(model):
        model.base_model.encoder.layer[0].intermediate(states)
    ((width, *operands),) = asked
    assert width == dense.out_features != dense.in_features
    assert [id(one) for one in operands] == [id(one) for one in (states, dense.weight, dense.bias)]
    assert taken == []


def test_autocast_and_a_frozen_bias(taken: list[int]) -> None:
    model = attached()
    model.base_model.encoder.layer[0].intermediate.dense.bias.requires_grad_(False)
    found = outputs(model)
    assert len(taken) == LAYERS
    is_torchs(model, found)
    with torch.autocast(DEVICE, torch.bfloat16):
        outputs(model)
    assert len(taken) == LAYERS


def test_gradients_by_functions_are_left_to_torch(taken: list[int]) -> None:
    model = attached()
    part = model.base_model.encoder.layer[0].intermediate
    states = torch.randn(2, part.dense.in_features, device=DEVICE)
    with perturbed(model):
        torch.func.grad(lambda x: part(x).sum())(states)
    assert taken == []


@pytest.mark.parametrize("method", ["vanilla", "asa", "smart"])
def test_a_step_is_the_same_by_the_kernel(method: str, taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(3)
        module = tiny_module(asa=ASAConfig() if method == "asa" else None, dropout=0.0).train()
        engine = PlainEngine(module, OptimConfig(), steps=10, device=HERE)
        torch.manual_seed(7)
        terms = METHODS[method](MethodsConfig()).backward(engine, tiny_batch().to(HERE), At(0, 0))
        return terms["loss"], gradients(module)

    loss, found = step()
    count = len(taken)
    assert count >= LAYERS
    assert max(taken) == ROWS * LENGTH * (1 + (method == "asa"))
    assert min(taken) < ROWS * LENGTH  # the last block's, of what the head reads
    monkeypatch.setattr(fused, "DEVICES", set())
    wanted_loss, wanted = step()
    assert len(taken) == count
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-4, atol=1e-6)
    size = torch.stack([value.norm() for value in wanted.values()]).norm()
    assert all((found[key] - value).norm() < 1e-4 * size for key, value in wanted.items())


def test_a_compiled_model_is_left_to_its_compiler(taken: list[int]) -> None:
    _, graphs = compiled_steps("bert", "eager", compiled=True)
    assert graphs == [1, 1, 1, 1]
    assert taken == []
