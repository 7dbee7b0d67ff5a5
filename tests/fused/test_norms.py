"""The norms' kernels against torch's formulas in float64, and where the modules of a model use them."""

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from transformers.models.bert.modeling_bert import BertOutput
from transformers.models.xmod.modeling_xmod import XmodSelfOutput

from asa import fused
from asa.adversary import ASAConfig
from asa.attention import attach, detach, perturbed
from asa.engine import PlainEngine
from asa.errors import RequestError
from asa.families import FAMILIES
from asa.fused import probe_norms
from asa.hf import checkpoint_activations
from asa.methods import METHODS, At, MethodsConfig
from asa.optim import OptimConfig
from asa.spare import spare
from tests.asa.conftest import LAYERS, LENGTH, ROWS, WIDTH, batch_for, gradients, tiny_batch, tiny_bert, tiny_module
from tests.asa.encoders import tiny
from tests.asa.test_recompute import compiled_steps
from tests.fused.oracle import DEVICE, SEED, SLOW_HERE, TOLERANCES, error, spared_numbers

norms: Any = pytest.importorskip("asa.fused.norms", reason="no Triton here")

HERE = torch.device(DEVICE)
EPS = 1e-5
# N rows, W width


def operands(rows: int, width: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """x, residual (NW), bias, gain, shift (W), what arrives (NW)."""
    draw = torch.Generator().manual_seed(rows * width)
    shapes = [(rows, width)] * 2 + [(width,)] * 3 + [(rows, width)]
    return [torch.randn(shape, generator=draw).to(DEVICE, dtype) for shape in shapes]


def ours(made: list[Tensor], dropout: float = 0.0, shares: int = 528) -> tuple[Tensor, ...]:
    """The norm and its gradients."""
    given = [x.detach().requires_grad_() for x in made[:5]]
    y_NW = norms.AddNorm.apply(*given, norms.Options(EPS, dropout), shares)
    return y_NW.detach(), *torch.autograd.grad(y_NW, given, made[5])


def formulas(made: list[Tensor], dropout: float = 0.0) -> tuple[Tensor, ...]:
    given = [x.detach().double().requires_grad_() for x in made[:5]]
    x_NW, residual_NW, bias_W, gain_W, shift_W = given
    factors_NW = spared_numbers(SEED, (len(x_NW), x_NW.shape[1]), dropout) * spare(dropout)[1]
    y_NW = F.layer_norm((x_NW + bias_W) * factors_NW + residual_NW, bias_W.shape, gain_W, shift_W, EPS)
    return y_NW.detach(), *torch.autograd.grad(y_NW, given, made[5].double())


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (37, 24), (70, 129), (5, 768), pytest.param((3, 2048), marks=SLOW_HERE)])
def test_the_norm_and_its_gradients_are_the_formulas(
    shape: tuple[int, int], dtype: torch.dtype, dropout: float
) -> None:
    made = operands(*shape, dtype)
    found, wanted = ours(made, dropout), formulas(made, dropout)
    assert all(one.dtype == dtype for one in found)
    errors = [error(one, other) for one, other in zip(found, wanted, strict=True)]
    assert max(errors) < TOLERANCES[dtype], errors


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@given(rows=st.integers(0, 12), width=st.integers(8, 70), tile=st.sampled_from([8, 64, 2048]), shares=st.integers(1, 6))
@settings(max_examples=12)
def test_tiles_and_shares_do_not_matter(dropout: float, rows: int, width: int, tile: int, shares: int) -> None:
    made = operands(rows, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "DEVICES", {DEVICE})
        patch.setattr(norms, "seed_of", lambda device, _: torch.tensor([SEED], device=device))
        patch.setattr(norms, "ONE_TILE", tile)
        found, wanted = ours(made, dropout, shares), formulas(made, dropout)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_generator_that_was_put_back_repeats_dropout_and_bits() -> None:
    made, runs = operands(37, 24), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(ours(made, 0.3))
    assert all(torch.equal(one, other) for one, other in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0], runs[2][0])


@pytest.mark.parametrize(("dropout", "left"), [(1e-7, 1.0), (1.0, 0.0)])
def test_a_probability_at_either_end_drops_nothing_or_all(dropout: float, left: float) -> None:
    made = operands(9, 24)
    found = ours(made, dropout)
    x_NW, residual_NW, bias_W, gain_W, shift_W, _ = made
    wanted = F.layer_norm((x_NW + bias_W) * left + residual_NW, bias_W.shape, gain_W, shift_W, EPS)
    torch.testing.assert_close(found[0], wanted)
    assert bool(found[1].any()) == bool(left)


def test_operands_may_lie_apart_and_be_of_any_shape() -> None:
    x, residual, *weights, _ = operands(6, 24)
    bias, gain, shift = weights
    wanted = fused.add_norm(x, bias, residual, gain, shift, EPS, 0.0)
    apart = torch.stack([x, x], 1)[:, 0]
    bias, gain, shift = (torch.stack([one, one], 1)[:, 0] for one in weights)
    found = fused.add_norm(apart.view(2, 3, 24), bias, residual.view(2, 3, 24), gain, shift, EPS, 0.0)
    assert torch.equal(found, wanted.view(2, 3, 24))


@pytest.mark.parametrize("shape", [(4, 24), (2, 2, 24)])
def test_kept_gradients_share_no_memory(shape: tuple[int, ...]) -> None:
    """Without dropout those to x and to the residual are one: added to twice they would be wrong."""
    x, residual, bias, gain, shift, _ = operands(4, 24)
    given = [one.reshape(shape).clone().requires_grad_() for one in (x, residual)]
    leaves: list[Any] = [*given, *(one.requires_grad_() for one in (bias, gain, shift))]

    def grads() -> list[Tensor]:
        fused.add_norm(given[0], bias, given[1], gain, shift, EPS, 0.0).cos().sum().backward()
        return [leaf.grad for leaf in leaves]

    once = [grad.clone() for grad in grads()]
    assert all(torch.equal(grad, 2 * first) for grad, first in zip(grads(), once, strict=True))
    assert len({leaf.grad.untyped_storage().data_ptr() for leaf in leaves}) == 5


def test_a_gradient_that_arrives_spread_is_read_right() -> None:
    made = operands(5, 24)
    given = [x.detach().requires_grad_() for x in made[:5]]
    y_NW = norms.AddNorm.apply(*given, norms.Options(EPS, 0.0))
    found = torch.autograd.grad(y_NW, given, torch.stack([made[5], made[5]], 1)[:, 0])
    assert all(torch.equal(one, other) for one, other in zip(found, ours(made)[1:], strict=True))


@pytest.mark.usefixtures("taken")
def test_what_the_kernels_were_not_made_for_is_not_supported() -> None:
    one = torch.ones(2, 8, device=DEVICE)
    assert fused.norms_supported(one, one, nn.Parameter(one))
    assert not fused.norms_supported(one, one, one.half())
    assert not fused.norms_supported(one, one, torch.ones(2, 8, device="meta"))
    assert not fused.norms_supported(one, one, one.as_subclass(Another))
    assert not fused.norms_supported(one.double(), one.double())
    wide = torch.ones(1, 2049, device=DEVICE)
    assert not fused.norms_supported(wide, wide)


class Another(Tensor):
    pass


def test_a_second_derivative_is_refused() -> None:
    made = [x.requires_grad_() for x in operands(3, 8)[:5]]
    y_NW = norms.AddNorm.apply(*made, norms.Options(EPS, 0.0))
    with pytest.raises(RequestError, match=r"no second derivative; .* call asa\.fused\.DEVICES\.clear"):
        torch.autograd.grad(y_NW.sum(), made, create_graph=True)


@pytest.mark.parametrize("width", [8, 384, 768, 2048])
def test_the_trial_draws_no_random_numbers_and_finds_no_fault(width: int) -> None:
    before = torch.get_rng_state()
    assert probe_norms.fault(HERE, torch.float16, width) is None
    assert torch.equal(torch.get_rng_state(), before)


def spoilt(kernel: str, place: int) -> Callable[..., None]:
    """A launch after which one result of a kernel is a tenth too large."""
    right = norms.run

    def run(launched: Any, grid: Any, *args: Any, **settings: Any) -> None:
        right(launched, grid, *args, **settings)
        if launched is getattr(norms, kernel):
            args[place].mul_(1.1)

    return run


@pytest.mark.parametrize(
    ("kernel", "place", "told"),
    [
        ("norm_kernel", 5, "norm is off by 0.1"),
        ("norm_gradient_kernel", 7, "gradient to the norm's x is off by 0.1"),
        ("norm_gradient_kernel", 8, "gradient to the norm's"),
        ("norm_gradient_kernel", 9, "gradient to the norm's bias is off by 0.1"),
        ("shares_kernel", 1, "gradient to the norm's bias is off by 0.1"),
    ],
)
def test_the_trial_tells_what_is_wrong_and_torch_does_it(
    kernel: str, place: int, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(norms, "run", spoilt(kernel, place))
    fused._works.cache_clear()
    try:
        assert not any(
            fused.norms_supported(torch.ones(2, 8, device=DEVICE), torch.ones(8, device=DEVICE)) for _ in "ab"
        )
    finally:
        fused._works.cache_clear()
    (message,) = caplog.messages
    assert message.startswith(f"Triton's kernels are wrong here, so norms are not fused: {told}")


@pytest.mark.parametrize("threshold", [0, 49152])  # none dropped; those dropped that stay
def test_the_trial_notices_a_wrong_share(threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = norms.spare
    monkeypatch.setattr(norms, "spare", lambda p: (threshold, real(p)[1]) if p else real(p))
    assert (probe_norms.fault(HERE, torch.float32, 96) or "").startswith("dropout 0.25 spares")


def test_the_trial_notices_another_dropout_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    right = norms.run

    def run(kernel: Any, grid: Any, *args: Any, **settings: Any) -> None:
        if kernel is norms.norm_gradient_kernel:
            args = (*args[:10], args[10] + 1, *args[11:])
        right(kernel, grid, *args, **settings)

    monkeypatch.setattr(norms, "run", run)
    assert "with dropout 0.25" in (probe_norms.fault(HERE, torch.float32, 96) or "")


def test_no_trial_is_made_inside_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the trial's own would wait for the thread that waits for the trial."""
    tried: list[Any] = []
    monkeypatch.setattr(probe_norms, "fault", lambda *asked: tried.append(asked))
    given = torch.ones(2, 24, device=DEVICE)
    answers: list[tuple[bool, int]] = []
    reached = torch.ones(1, requires_grad=True) * 1.0
    reached.register_hook(lambda _: answers.append((fused.norms_supported(given), len(tried))))
    fused._works.cache_clear()
    try:
        for supported in (None, True):
            if supported:
                assert fused.norms_supported(given)
            reached.sum().backward(retain_graph=True)
    finally:
        fused._works.cache_clear()
    assert answers == [(False, 0), (True, 1)]


def test_the_trial_is_of_the_width_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another width is another program."""
    tried: list[Any] = []
    monkeypatch.setattr(probe_norms, "fault", lambda *asked: tried.append(asked))
    given = torch.ones(2, 24, device=DEVICE)
    fused._works.cache_clear()
    try:
        assert fused.norms_supported(given, given)
    finally:
        fused._works.cache_clear()
    assert tried == [(given.device, torch.float32, 24)]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each norm that the kernels take, however few, without those of the trial before the first."""
    monkeypatch.setattr(fused, "FEWEST_NUMBERS", 0)
    monkeypatch.setattr(fused, "_works", lambda *_: True)
    rows: list[int] = []
    right = norms.run

    def run(kernel: Any, grid: Any, *args: Any, **settings: Any) -> None:
        if kernel is norms.norm_kernel:
            rows.append(len(args[0]))
        right(kernel, grid, *args, **settings)

    monkeypatch.setattr(norms, "run", run)
    return rows


class Foreign(BertOutput):
    """Of a module that is none of transformers'."""

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return hidden_states


def outputs(model: Any, name: str) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    with perturbed(model):
        logits = model(**batch_for(name).to(HERE).inputs).logits
    torch.cos(logits * 3).sum().backward()
    return logits.detach(), gradients(model)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_what_it_was(name: str, taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny(name)
    model.to(HERE).train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    attach(model)
    found, of_found = outputs(model, name)
    assert len(taken) == LAYERS * len(FAMILIES[name].outputs)
    monkeypatch.setattr(fused, "DEVICES", set())
    wanted, of_wanted = outputs(model, name)
    assert len(taken) == LAYERS * len(FAMILIES[name].outputs)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert of_found.keys() == of_wanted.keys()
    size = torch.stack([value.norm() for value in of_wanted.values()]).norm()
    assert all((of_found[key] - value).norm() < 1e-4 * size for key, value in of_wanted.items())


def forward(model: Any) -> Tensor:
    with perturbed(model):
        return model(**tiny_batch().to(HERE).inputs).logits


def attached() -> Any:
    model: Any = tiny_bert(dropout=0.3)
    model.to(HERE)
    attach(model)
    return model


def test_few_numbers_are_left_to_torch(taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = attached().eval()
    monkeypatch.setattr(fused, "FEWEST_NUMBERS", ROWS * LENGTH * WIDTH)
    forward(model)
    assert len(taken) == 2 * LAYERS
    monkeypatch.setattr(fused, "FEWEST_NUMBERS", ROWS * LENGTH * WIDTH + 1)
    forward(model)
    assert len(taken) == 2 * LAYERS


def test_dropout_is_that_of_training(taken: list[int]) -> None:
    model = attached().train()
    assert not torch.equal(forward(model), forward(model))
    model.eval()
    assert torch.equal(forward(model), forward(model))
    assert len(taken) == 4 * 2 * LAYERS


def test_a_pass_that_is_none_of_ours_and_a_detached_model_are_theirs(taken: list[int]) -> None:
    model = attached()
    model(**tiny_batch().to(HERE).inputs)
    detach(model)
    model(**tiny_batch().to(HERE).inputs)
    assert taken == []
    assert not any("forward" in vars(part) for part in model.modules())


def hooked(part: Any) -> None:
    part.dense.register_forward_hook(lambda *_: None)


def hooked_before(part: Any) -> None:
    part.dense.register_forward_pre_hook(lambda *_: None)


def hooked_before_backwards(part: Any) -> None:
    part.dense.register_full_backward_pre_hook(lambda *_: None)


def watched_backwards(part: Any) -> None:
    part.LayerNorm.register_full_backward_hook(lambda *_: None)


def replaced(part: Any) -> None:
    part.dropout = nn.Identity()


def without_bias(part: Any) -> None:
    part.dense.bias = None


def wrapped(part: Any) -> None:
    whole = part.dense.forward
    part.dense.forward = lambda x: whole(x)


def reparametrized(part: Any) -> None:
    nn.utils.parametrizations.weight_norm(part.dense)


def of_another_class(part: Any) -> None:
    class Other(type(part)):
        def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
            return super().forward(hidden_states, input_tensor) * 2

    part.__class__ = Other


def over_two_axes(part: Any) -> None:
    part.LayerNorm = nn.LayerNorm([LENGTH, WIDTH], device=DEVICE)


@pytest.mark.parametrize(
    "change",
    [
        *(hooked, hooked_before, hooked_before_backwards, watched_backwards, replaced),
        *(without_bias, wrapped, reparametrized),
        *(of_another_class, over_two_axes),
    ],
    ids=lambda change: change.__name__,
)
def test_a_part_that_somebody_has_changed_or_watches_is_left_to_torch(
    change: Callable[[Any], None], taken: list[int]
) -> None:
    model = attached().eval()
    change(model.base_model.encoder.layer[0].output)
    found = forward(model)
    assert len(taken) == 2 * LAYERS - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "DEVICES", set())
        torch.testing.assert_close(found, forward(model), rtol=1e-4, atol=1e-5)


def test_a_hook_on_every_module_and_autocast_are_left_to_torch(taken: list[int]) -> None:
    model = attached()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        forward(model)
    finally:
        handle.remove()
    with torch.autocast(DEVICE, torch.bfloat16):
        forward(model)
        forward(model.bfloat16())
    assert taken == []


@pytest.mark.parametrize("kind", [BertOutput, nn.Linear, nn.LayerNorm], ids=lambda kind: kind.__name__)
def test_a_forward_that_was_put_into_a_class_since_is_what_runs(
    kind: Any, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, was = attached().eval(), kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args: 2 * was(self, *args))
    found = forward(model)
    assert len(taken) == (LAYERS if kind is BertOutput else 0)
    monkeypatch.setattr(fused, "DEVICES", set())
    torch.testing.assert_close(found, forward(model), rtol=1e-4, atol=1e-5)


def test_torchs_own_forward_of_another_class_is_none_of_this_ones(
    taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = attached().train()
    monkeypatch.setattr(nn.Dropout, "forward", nn.Identity.forward)  # before the first pass
    torch.manual_seed(1)
    found = forward(model)
    assert taken == []
    monkeypatch.setattr(fused, "DEVICES", set())
    torch.manual_seed(1)
    assert torch.equal(found, forward(model))


@pytest.mark.parametrize("kind", [XmodSelfOutput, Foreign], ids=lambda kind: kind.__name__)
def test_an_end_that_is_none_of_the_familys_keeps_its_forward(kind: Any) -> None:
    model: Any = tiny_bert()
    model.base_model.encoder.layer[0].output.__class__ = kind
    model.base_model.encoder.layer[1].output.forward = mine = lambda hidden, states: states
    attach(model)
    assert "forward" not in vars(model.base_model.encoder.layer[0].output)
    assert model.base_model.encoder.layer[1].output.forward is mine


def test_a_block_that_was_copied_obeys_the_model_it_came_to(taken: list[int]) -> None:
    other: Any = tiny_bert().to(DEVICE)  # type: ignore[arg-type]
    other.base_model.encoder.layer[1] = copy.deepcopy(attached().base_model.encoder.layer[1])
    attach(other)
    forward(other)
    assert len(taken) == 2 * LAYERS


def test_a_residual_of_another_shape_is_left_to_torch(taken: list[int]) -> None:
    model = attached().eval()
    end, states = model.base_model.encoder.layer[0].output, torch.randn(2, 3, 24, device=DEVICE)
    one = torch.randn(1, 1, WIDTH, device=DEVICE)
    with perturbed(model):
        assert torch.equal(end(states, one), end.LayerNorm(end.dense(states) + one))
    assert taken == []


def test_gradients_by_functions_are_left_to_torch(taken: list[int]) -> None:
    model = attached().eval()
    end, states = model.base_model.encoder.layer[0].output, torch.randn(2, 24, device=DEVICE)
    with perturbed(model):
        torch.func.grad(lambda x: end(x, states[:, :WIDTH]).sum())(states)
    assert taken == []


def step(method: str, checkpointed: bool = False, dropout: float = 0.0) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    module = tiny_module(asa=ASAConfig() if method == "asa" else None, dropout=dropout).train()
    if checkpointed:
        checkpoint_activations(module.model)
    engine = PlainEngine(module, OptimConfig(), steps=10, device=HERE)
    torch.manual_seed(7)
    terms = METHODS[method](MethodsConfig()).backward(engine, tiny_batch().to(HERE), At(0, 0))
    return terms["loss"], gradients(module)


@pytest.mark.parametrize("method", ["vanilla", "asa", "smart", "freelb"])
def test_a_step_is_the_same_by_the_kernels(method: str, taken: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    loss, found = step(method)
    assert len(taken) >= 2 * LAYERS
    count = len(taken)
    monkeypatch.setattr(fused, "DEVICES", set())
    wanted_loss, wanted = step(method)
    assert len(taken) == count
    torch.testing.assert_close(loss, wanted_loss, rtol=1e-4, atol=1e-6)
    size = torch.stack([value.norm() for value in wanted.values()]).norm()
    assert all((found[key] - value).norm() < 1e-4 * size for key, value in wanted.items())


def test_what_is_recomputed_draws_the_same_dropout(taken: list[int]) -> None:
    loss, wanted = step("vanilla", dropout=0.2)
    again_loss, again = step("vanilla", checkpointed=True, dropout=0.2)
    assert len(taken) == 3 * 2 * LAYERS
    assert torch.equal(loss, again_loss)
    for key, value in wanted.items():
        torch.testing.assert_close(again[key], value, rtol=1e-5, atol=1e-7, msg=key)


def test_a_compiled_model_is_left_to_its_compiler(taken: list[int]) -> None:
    _, graphs = compiled_steps("bert", "eager", compiled=True)
    assert graphs == [1, 1, 1, 1]
    assert taken == []


def test_the_last_block_normalizes_only_what_is_read(taken: list[int]) -> None:
    step("vanilla")
    whole, *_, read = taken
    assert read < whole


def test_a_compiled_pass_is_not_compiled_anew_where_tensors_grow_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "FEWEST_NUMBERS", 1000)
    model = tiny_bert(dropout=0.0)
    attach(model)
    end = cast(Any, model).base_model.encoder.layer[0].output
    torch.compiler.reset()
    graphs = CompileCounter()
    compiled = torch.compile(lambda x_BLD, y_BLD: end(x_BLD, y_BLD), backend=graphs, dynamic=True)
    with perturbed(model):
        for length in (3, 5, 1000):
            compiled(torch.randn(2, length, end.dense.in_features), torch.randn(2, length, end.dense.out_features))
    assert graphs.frame_count == 1


def test_operands_begin_where_the_trials_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton makes another program for addresses that are a multiple of 16, and the trial has an odd number of rows."""
    found: list[set[bool]] = []
    run = norms.run

    def noted(kernel: Any, grid: Any, *args: Any, **settings: Any) -> None:
        found.append({x.data_ptr() % 16 == 0 for x in args if isinstance(x, Tensor) and x.numel()})
        run(kernel, grid, *args, **settings)

    monkeypatch.setattr(norms, "run", noted)
    for rows in (3, 4):
        ours(operands(rows, 8))
    assert found == [{True}] * 6
