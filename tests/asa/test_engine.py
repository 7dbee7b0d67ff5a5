"""PlainEngine: passes that leave no trace, repeatable dropout, perturbed embeddings, exact restore, the schedule."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from asa import cpu_attention, dispatch
from asa.adversary import ASAConfig
from asa.engine import PlainEngine, State, load_parameters
from asa.errors import RequestError
from asa.hf import checkpoint_activations
from asa.losses import task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel
from asa.optim import ClippingAdamW, OptimConfig, learning_rate, norm_of
from asa.signal import Left, Pass, Perturb
from tests.asa.conftest import (
    LAYERS,
    LENGTH,
    ROWS,
    WIDTH,
    attend_to,
    gradients,
    random_keeps,
    tiny_batch,
    tiny_bert,
    tiny_engine,
    tiny_module,
)

# B rows, L length, D width


def delta(seed: int = 0, scale: float = 0.1) -> Tensor:
    return scale * torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))


def test_probe_and_ascend_leave_parameter_gradients_alone() -> None:
    engine, batch = tiny_engine(tiny_module()), tiny_batch()
    delta_BLD = delta().requires_grad_()
    loss = task_loss(engine.probe(batch, Perturb(embed_BLD=delta_BLD)), batch)
    (gradient_BLD,) = engine.ascend(loss, [delta_BLD])
    assert gradient_BLD.abs().max() > 0
    assert delta_BLD.grad is None
    assert gradients(engine.module) == {}
    engine.backward(task_loss(engine.forward(batch), batch))
    before = gradients(engine.module)
    engine.ascend(task_loss(engine.probe(batch, Perturb(embed_BLD=delta_BLD)), batch), [delta_BLD])
    assert all(torch.equal(value, before[name]) for name, value in gradients(engine.module).items())


def test_ascend_gives_the_gradient_of_the_loss_in_the_perturbation() -> None:
    engine, batch = tiny_engine(tiny_module().double()), tiny_batch()
    delta_BLD = delta().double().requires_grad_()

    def loss(d_BLD: Tensor) -> Tensor:
        return engine.probe(batch, Perturb(embed_BLD=d_BLD)).logits.log_softmax(-1)[:, 0].sum()

    (gradient_BLD,) = engine.ascend(loss(delta_BLD), [delta_BLD])
    direction_BLD = delta(1).double()
    with torch.no_grad():
        slope = (loss(delta_BLD + 1e-6 * direction_BLD) - loss(delta_BLD - 1e-6 * direction_BLD)) / 2e-6
    torch.testing.assert_close((gradient_BLD * direction_BLD).sum(), slope, rtol=1e-5, atol=1e-7)


def test_backward_adds_gradients_up_and_step_clears_them() -> None:
    engine, batch = tiny_engine(tiny_module()), tiny_batch()
    engine.backward(task_loss(engine.forward(batch), batch))
    once = gradients(engine.module)
    engine.backward(task_loss(engine.forward(batch), batch))
    for name, value in gradients(engine.module).items():
        torch.testing.assert_close(value, 2 * once[name])
    engine.step()
    assert gradients(engine.module) == {}


def test_same_dropout_repeats_the_masks_and_forward_outside_does_not() -> None:
    engine, batch = tiny_engine(tiny_module(dropout=0.3).train()), tiny_batch()
    outside = [engine.forward(batch).logits for _ in range(2)]
    assert not torch.equal(outside[0], outside[1])
    with engine.same_dropout():
        first, second, third = engine.forward(batch).logits, engine.probe(batch).logits, engine.forward(batch).logits
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    with engine.same_dropout():
        again = engine.forward(batch).logits
        assert not torch.equal(again, first)
        with engine.same_dropout():
            assert not torch.equal(engine.forward(batch).logits, again)
        assert torch.equal(engine.forward(batch).logits, again)
    assert not torch.equal(engine.forward(batch).logits, engine.forward(batch).logits)


def test_the_same_dropout_is_refused_where_no_random_state_is_known() -> None:
    engine = tiny_engine(tiny_module())
    engine.device = torch.device("xpu")
    told = "passes on xpu cannot be given the same dropout; set the method's dropout"
    with pytest.raises(RequestError, match=told), engine.same_dropout():
        raise AssertionError


def test_every_process_begins_from_the_weights_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head and adversaries are drawn by each for itself."""
    other = {name: p.detach() + 1 for name, p in tiny_module(asa=ASAConfig()).named_parameters()}
    values = iter(other.values())
    monkeypatch.setattr("asa.dist.world", lambda: 2)
    monkeypatch.setattr("asa.dist.broadcast_", lambda tensor: tensor.copy_(next(values)))
    monkeypatch.setattr("asa.dist.any_", lambda flag: flag)
    engine = tiny_engine(tiny_module(asa=ASAConfig()))
    for name, p in engine.module.named_parameters():
        torch.testing.assert_close(p, other[name], msg=name)


@pytest.mark.parametrize("dropout", ["shared", "independent"])
def test_passes_that_share_their_dropout_say_so_to_attention_also_where_they_are_recomputed(
    dropout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def seen(now: Pass | None, *rest: Any) -> AbstractContextManager[None]:
        told.append(now is not None and now.same_dropout)
        return nullcontext()

    monkeypatch.setattr(dispatch, "one_kernel", seen)
    monkeypatch.setattr(cpu_attention, "SMALL", 2**40)
    config = MethodsConfig(asa=ASAConfig(dropout=dropout))  # type: ignore[arg-type]
    module = tiny_module(asa=config.asa, dropout=0.3).train()
    checkpoint_activations(module.model)
    METHODS["asa"](config).backward(tiny_engine(module), tiny_batch(), At(0, 0))
    assert told == (
        [True] * 4 * LAYERS if dropout == "shared" else [False] * 2 * LAYERS
    )  # two passes, or one over both


@pytest.mark.parametrize(("method", "told"), [("freelb", False), ("asa_freelb", True)])
def test_passes_that_attack_words_alone_leave_torch_its_fastest_kernel(method: str, told: bool) -> None:
    config = MethodsConfig()
    module = tiny_module(asa=config.asa).train()
    seen: list[bool] = []
    module.register_forward_pre_hook(lambda *_: seen.append(module.same_dropout))
    METHODS[method](config).backward(tiny_engine(module), tiny_batch(), At(0, 0))
    assert seen == [told] * config.freelb.passes


def test_on_a_gpu_one_kernel_draws_what_is_to_be_the_same() -> None:
    now, gpu = Pass(Perturb(), None, None, Left([], []), False, same_dropout=True), torch.device("cuda")
    with dispatch.one_kernel(now, 0.1, gpu):
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    for other, dropout in ((now._replace(same_dropout=False), 0.1), (None, 0.1), (now, 0.0)):
        with dispatch.one_kernel(other, dropout, gpu):
            assert torch.backends.cuda.flash_sdp_enabled()


def test_zeros_added_to_the_embeddings_change_nothing() -> None:
    engine, batch = tiny_engine(tiny_module()), tiny_batch()
    zeros = Perturb(embed_BLD=torch.zeros(ROWS, LENGTH, WIDTH))
    assert torch.equal(engine.forward(batch, zeros).logits, engine.forward(batch).logits)


def test_embed_is_added_to_the_word_embeddings_before_position_and_norm() -> None:
    module, batch = tiny_module("classification"), tiny_batch("classification")
    words_BLD = module.model.get_input_embeddings()(batch.inputs["input_ids"])
    rest = {name: value for name, value in batch.inputs.items() if name != "input_ids"}
    expected = module.model(**rest, inputs_embeds=words_BLD + delta()).logits
    found = module(batch, Perturb(embed_BLD=delta())).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert (found - module(batch).logits).abs().max() > 1e-3


def test_a_pass_that_fails_leaves_no_perturbation_behind() -> None:
    module, batch = tiny_module(), tiny_batch()
    before = module(batch).logits
    with pytest.raises(RequestError, match=r"^the model embeds words of shape .* the perturbation has \[\d+, \d+,"):
        module(batch, Perturb(embed_BLD=torch.ones(ROWS, LENGTH + 1, WIDTH)))
    assert torch.equal(module(batch).logits, before)


@pytest.mark.parametrize("attacked", [False, True])
def test_tap_sees_what_enters_every_block_and_leaves_the_last(attacked: bool) -> None:
    engine, batch = tiny_engine(tiny_module()), tiny_batch()
    perturb = Perturb(attend=attend_to(random_keeps(0))) if attacked else None
    seen: dict[int, Tensor] = {}
    engine.forward(batch, perturb, tap=lambda layer, h_BLD: seen.__setitem__(layer, h_BLD))
    assert list(seen) == list(range(LAYERS + 1))
    plain = engine.module.model(**batch.inputs, output_hidden_states=True).hidden_states
    same = [torch.equal(seen[layer], plain[layer]) for layer in seen]
    assert same == [True, not attacked, not attacked]


def train(engine: PlainEngine, first: int, steps: int) -> None:
    method = METHODS["asa"](MethodsConfig())
    for step in range(first, first + steps):
        torch.manual_seed(step)
        method.backward(engine, tiny_batch(seed=step), At(0, 0))
        engine.step()


def test_a_restored_engine_continues_bit_for_bit() -> None:
    one = tiny_engine(tiny_module(asa=ASAConfig(), dropout=0.2).train(), warmup=0.5)
    train(one, 0, 3)
    saved = one.full_state()
    two = tiny_engine(tiny_module(asa=ASAConfig(), dropout=0.2, seed=9).train(), warmup=0.5)
    for state in get_args(State):
        two.restore(state, one.parts(state))
    two.set_counters(one.counters())
    assert all(torch.equal(value, saved[name]) for name, value in two.full_state().items())
    train(one, 3, 3)
    train(two, 3, 3)
    last = one.full_state()
    assert any(not torch.equal(last[name], saved[name]) for name in saved)
    assert [name for name, value in two.full_state().items() if not torch.equal(value, last[name])] == []


def test_a_run_of_no_step_is_refused() -> None:
    """Its rate would be 0 from the first on."""
    with pytest.raises(RequestError, match=r"^steps = 0: allowed: whole numbers from 1"):
        PlainEngine(tiny_module(), OptimConfig(), steps=0, device=torch.device("cpu"))


def test_what_was_frozen_when_the_engine_was_made_is_not_left_out_without_a_word() -> None:
    module, batch = tiny_module(), tiny_batch()
    module.model.base_model.requires_grad_(False)
    engine = tiny_engine(module)
    engine.backward(task_loss(engine.forward(batch), batch))
    engine.step()
    module.model.base_model.requires_grad_(True)
    engine.backward(task_loss(engine.forward(batch), batch))
    with pytest.raises(RequestError, match=r"model\.\S+ was frozen, of .* or not there yet .*make the engine anew"):
        engine.step()


def test_embeddings_that_were_resized_since_are_refused() -> None:
    """transformers changes the numbers of the same parameter; torch's fused Adam writes past its averages."""
    model: Any = tiny_bert("classification")
    engine, batch = tiny_engine(TaskModel(model, "classification")), tiny_batch("classification")
    model.resize_token_embeddings(model.config.vocab_size + 1000)
    engine.backward(task_loss(engine.forward(batch), batch))
    with pytest.raises(RequestError, match=r"model\.\S*word_embeddings.* was frozen, of another size or not there"):
        engine.step()


def test_smarts_teacher_is_made_of_a_model_whose_encoder_is_compiled() -> None:
    """Whose head's last layer is its word embeddings."""
    model: Any = tiny_bert("mlm")
    model.bert = torch.compile(model.bert, backend="eager")
    engine, batch = tiny_engine(TaskModel(model, "mlm")), tiny_batch()
    torch._dynamo.reset()
    terms = METHODS["smart"](MethodsConfig()).backward(engine, batch, At(0))
    assert torch.isfinite(terms["loss"])
    assert engine.step().applied


def test_an_optimizer_in_the_place_of_the_engines_is_named() -> None:
    engine, batch = tiny_engine(tiny_module()), tiny_batch()
    engine.optimizer = torch.optim.SGD(engine.module.parameters(), lr=0.1)  # type: ignore[assignment]
    engine.backward(task_loss(engine.forward(batch), batch))
    with pytest.raises(RequestError, match=r"^engine.optimizer is SGD, which neither .* set it by OptimConfig$"):
        engine.step()


def test_a_group_that_a_user_has_added_is_the_models_part() -> None:
    engine, batch, extra = tiny_engine(tiny_module()), tiny_batch(), torch.nn.Parameter(torch.ones(3))
    engine.optimizer.add_param_group({"params": [extra]})
    engine.backward(task_loss(engine.forward(batch), batch))
    extra.grad = torch.full((3,), 100.0)
    stats = engine.step(norms=True)
    assert stats.model_norm is not None
    assert stats.model_norm > 100
    assert (extra < 1).all()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", ["asa", "smart"])
def test_what_torch_compile_puts_around_a_module_changes_no_name_and_no_group(name: str, inside: bool) -> None:
    def found(compiled: bool) -> tuple[list[str], list[tuple[str, int]], Tensor | float, bool]:
        model: Any = tiny_bert("classification")
        if compiled and inside:
            model = torch.compile(model, backend="eager")
        module: Any = TaskModel(model, "classification", ASAConfig() if name == "asa" else None)
        if compiled and not inside:
            module = torch.compile(module, backend="eager")
        engine, batch = tiny_engine(module), tiny_batch("classification")
        METHODS[name](MethodsConfig()).backward(engine, batch, At(0))
        stats, groups = engine.step(norms=True), engine.optimizer.param_groups
        engine.restore("weights", [(key, value.clone()) for key, value in engine.weights().items()])
        sizes = [(group["part"], len(group["params"])) for group in groups]
        return list(engine.weights()), sizes, stats.grad_norm, stats.adversary_norm is None

    torch._dynamo.reset()
    names, groups, norm, alone = found(compiled=True)
    expected = found(compiled=False)
    assert (names, groups, alone) == (expected[0], expected[1], expected[3])
    torch.testing.assert_close(norm, expected[2])


def test_the_norm_is_told_before_clipping_and_zero_turns_clipping_off() -> None:
    weights, norms = [], []
    for clip in (0.0, 1e-3):
        engine, batch = tiny_engine(tiny_module(), clip=clip, eps=1.0), tiny_batch()
        engine.backward(task_loss(engine.forward(batch), batch))
        norms.append(float(engine.step().grad_norm))
        weights.append(engine.full_state())
    assert norms[0] == norms[1] > 1e-3
    start = tiny_engine(tiny_module()).full_state()
    name = "model.bert.encoder.layer.0.output.dense.weight"
    moved = [(state[name] - start[name]).abs().max() for state in weights]
    assert moved[0] > 10 * moved[1]


def test_a_closure_makes_the_gradients_that_are_clipped_and_looked_at() -> None:
    """Lightning, for one, gives the optimizer its backward pass so."""
    module = tiny_module()
    weight = next(module.parameters())
    optimizer = ClippingAdamW(module, OptimConfig(clip=1.0, lr=0.1))
    for size in (100.0, math.nan, 100.0):

        def closure(size: float = size) -> Tensor:
            optimizer.zero_grad()
            loss = size * weight.flatten()[0]
            loss.backward()
            return loss

        before = weight.detach().clone()
        told = optimizer.step(closure).item()
        assert math.isnan(told) == optimizer.overflow == math.isnan(size)
        assert torch.equal(weight, before) == optimizer.overflow
        assert float(optimizer.grad_norm) == pytest.approx(size, nan_ok=True)
    assert weight.grad is not None
    assert float(weight.grad.norm()) == pytest.approx(1)


def test_a_scaler_beside_the_engine_is_refused() -> None:
    """It divided what nobody had multiplied: Adam's steps stay near alike, clipping, epsilon and decay do not."""
    module = tiny_module()
    optimizer = ClippingAdamW(module, OptimConfig())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))  # it begins with the first loss
    next(module.parameters()).sum().backward()
    with pytest.raises(RequestError, match="GradScaler divides gradients by a loss scale that no pass was given"):
        scaler.step(optimizer)
    optimizer.step()  # the scaler is left out
    scaler.unscale_(optimizer)
    with pytest.raises(RequestError, match="GradScaler"):
        scaler.step(optimizer)


def test_the_norm_of_many_numbers_is_whole() -> None:
    """torch's own is 0.13 % short on a CPU."""
    many = torch.randn(30_000, 800, generator=torch.Generator().manual_seed(0))
    for parts in ([many, many[0], many[0, 0]], [many.flatten()], [many.T], [many.bfloat16()], [many.double(), many]):
        expected = math.sqrt(sum(float(part.double().square().sum()) for part in parts))
        assert float(norm_of(parts)) == pytest.approx(expected, rel=1e-6)
    assert float(norm_of([])) == float(norm_of([many[:0], many[:0, 0]])) == 0


@pytest.mark.parametrize("method", ["vanilla", "asa", "smart"])
def test_a_model_in_double_precision_trains(method: str) -> None:
    single, double = (tiny_engine(tiny_module(asa=ASAConfig()).to(dtype)) for dtype in (torch.float32, torch.float64))
    norms = []
    for engine in (single, double):
        torch.manual_seed(0)
        METHODS[method](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
        norms.append(float(engine.step().grad_norm))
    assert norms[1] == pytest.approx(norms[0], rel=0.05)


def test_weights_that_are_loaded_are_those_of_the_next_pass_of_one_autocast() -> None:
    module, batch = tiny_module().eval(), tiny_batch()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        before = module(batch).logits.clone()
        load_parameters(module, {name: 2 * p for name, p in module.named_parameters()})
        after = module(batch).logits.clone()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        torch.testing.assert_close(after, module(batch).logits, rtol=0, atol=0)
    assert not torch.equal(before, after)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_cleared_and_changes_nothing(value: float) -> None:
    engine, calm = (tiny_engine(tiny_module(asa=ASAConfig()), warmup=0.5) for _ in range(2))
    for one in (engine, calm):
        train(one, 0, 1)
    engine.backward(engine.forward(tiny_batch()).logits.sum() * value)
    stats = engine.step(norms=True)
    assert not stats.applied
    assert not math.isfinite(float(stats.grad_norm))
    assert (stats.model_norm, stats.adversary_norm) == (None, None)
    assert gradients(engine.module) == {}
    assert engine.applied == 1
    for one in (engine, calm):
        train(one, 1, 2)
    assert all(torch.equal(value, calm.full_state()[name]) for name, value in engine.full_state().items())


def number(norm: Tensor | float | None) -> float:
    assert norm is not None
    return float(norm)


def test_the_norms_of_model_and_adversary_are_those_of_their_gradients_and_come_when_asked_for() -> None:
    asa = ASAConfig(reversal=1.0)
    engine = tiny_engine(tiny_module(asa=asa), clip=1e-3)
    METHODS["asa"](MethodsConfig(asa=asa)).backward(engine, tiny_batch(), At(0, 0))
    found = gradients(engine.module)
    parts = {
        part: torch.cat([g.flatten() for name, g in found.items() if name.startswith(part)])
        for part in ("model", "adv")
    }
    stats = engine.step(norms=True)
    assert number(stats.model_norm) == pytest.approx(float(parts["model"].norm()), rel=1e-5)
    assert number(stats.adversary_norm) == pytest.approx(float(parts["adv"].norm()), rel=1e-5)
    assert number(stats.adversary_norm) > 0
    METHODS["asa"](MethodsConfig(asa=asa)).backward(engine, tiny_batch(), At(0, 0))
    quiet = engine.step()
    assert (quiet.model_norm, quiet.adversary_norm) == (None, None)
    plain = tiny_engine(tiny_module())
    plain.backward(task_loss(plain.forward(tiny_batch()), tiny_batch()))
    alone = plain.step(norms=True)
    assert number(alone.model_norm) == pytest.approx(float(alone.grad_norm), rel=1e-6)
    assert alone.adversary_norm is None


def test_gradients_that_are_all_zero_have_norms_of_zero() -> None:
    engine = tiny_engine(tiny_module(asa=ASAConfig()))
    for p in engine.module.parameters():
        p.grad = torch.zeros_like(p)
    stats = engine.step(norms=True)
    assert (number(stats.model_norm), number(stats.adversary_norm)) == (0.0, 0.0)


def test_weight_decay_spares_vectors() -> None:
    engine = tiny_engine(tiny_module())
    matrices, vectors = engine.optimizer.param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.01, 0.0)
    assert all(p.ndim >= 2 for p in matrices["params"])
    assert all(p.ndim < 2 for p in vectors["params"])
    assert len(matrices["params"]) + len(vectors["params"]) == len(list(engine.module.parameters()))


@given(st.integers(1, 500), st.floats(0, 1), st.floats(1e-6, 1))
def test_the_rate_rises_to_its_peak_and_falls_to_zero(steps: int, warmup: float, lr: float) -> None:
    optim = OptimConfig(lr=lr, warmup=warmup)
    rates = [learning_rate(optim, step, steps) for step in range(steps)]
    turn = round(warmup * steps)
    assert max(rates) == pytest.approx(lr)
    assert all(rate > 0 for rate in rates)
    assert rates[:turn] == sorted(rates[:turn])
    assert rates[turn:] == sorted(rates[turn:], reverse=True)
    for step in (steps, steps + 5):
        with pytest.warns(UserWarning, match=f"after the last of steps={steps} has the rate 0"):
            assert learning_rate(optim, step, steps) == 0


def test_step_follows_the_schedule() -> None:
    engine, batch = tiny_engine(tiny_module(), lr=1e-3, warmup=0.2), tiny_batch()
    rates = []
    for _ in range(10):
        engine.backward(task_loss(engine.forward(batch), batch))
        rates.append(engine.step().lr)
    assert rates == [learning_rate(engine.optim, step, 10) for step in range(10)]
    assert rates[:3] == [5e-4, 1e-3, 1e-3]
