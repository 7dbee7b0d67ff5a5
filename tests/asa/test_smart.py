"""SMART's two terms, its teacher, and that its perturbation is an adversary's; the divergences of its relatives."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from asa import perturb
from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch
from asa.engine import State
from asa.errors import RequestError
from asa.losses import divergence, task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.ball import room
from asa.methods.r3f import R3F, R3FConfig
from asa.methods.r_drop import RDrop, RDropConfig
from asa.methods.smart import SMART, SMARTConfig
from asa.methods.smart_released import SMARTReleased, SMARTReleasedConfig
from asa.methods.smoothness import SmoothConfig, apart, learned, towards
from asa.methods.vat import VAT, VATConfig
from asa.model import TaskModel
from asa.signal import Perturb
from tests.asa.conftest import KINDS, VOCAB, gradients, tiny_batch, tiny_bert, tiny_module
from tests.asa.test_methods import Watched

# C classes, N units

LOUD = SMARTConfig(radius=0.05, noise=0.05, step_size=0.02)


def update(method: SMART, engine: Watched, batch: Batch) -> dict[str, Tensor]:
    terms = method.backward(engine, batch, At(0, 0))
    engine.step()
    method.after_step(engine)
    return terms


@pytest.mark.parametrize("kind", KINDS)
def test_the_divergence_is_both_kls_over_the_labelled_units_or_the_squared_error(kind: Any) -> None:
    batch = tiny_batch(kind)
    one, other = (tiny_module(kind, seed=seed)(batch).logits.detach() for seed in (0, 1))
    if kind == "regression":
        expected = (one - other).square().sum()
        only = expected
    else:
        p_NC, q_NC = (x.flatten(0, -2).log_softmax(-1) for x in (one, other))
        used = batch.labels.flatten() != IGNORE
        kl = [
            F.kl_div(b, a, reduction="none", log_target=True).sum(-1)[used].sum()
            for a, b in ((p_NC, q_NC), (q_NC, p_NC))
        ]
        expected, only = kl[0] + kl[1], kl[0]
    outs = [tiny_module(kind, seed=seed)(batch) for seed in (0, 1)]
    clean, reached = (out.logits.detach() for out in outs)
    torch.testing.assert_close(apart(clean, reached, batch), expected / batch.total_labels)
    torch.testing.assert_close(towards(clean, reached, batch), only / batch.total_labels)
    at_once = [*(task_loss(out, batch) for out in outs), expected / batch.total_labels]
    torch.testing.assert_close(list(learned(outs[0], outs[1], batch)), at_once)


def test_the_loss_is_task_smoothness_and_distance_from_the_teacher() -> None:
    engine, batch, method = Watched(tiny_module()), tiny_batch(), SMART(replace(LOUD, weight=2.0, proximal=3.0))
    for _ in range(2):
        update(method, engine, batch)
    teacher, student = method._teacher, tiny_module()
    assert teacher is not None
    student.load_state_dict(engine.module.state_dict())
    terms = method.backward(engine, batch, At(0, 0))
    out = student(batch)
    clean, guide = out.logits, teacher(batch).logits.detach()
    attacked = student(batch, Perturb(embed_BLD=engine.deltas[-1])).logits
    parts = [task_loss(out, batch), 2 * apart(clean, attacked, batch), 3 * apart(guide, clean, batch)]
    torch.testing.assert_close([terms[name] for name in ("task", "smooth", "proximal")], [p.detach() for p in parts])
    torch.stack(parts).sum().backward()
    for name, value in gradients(student).items():
        torch.testing.assert_close(gradients(engine.module)[name], value, rtol=1e-4, atol=1e-6, msg=name)
    assert terms["proximal"] > 1e-4


def test_the_teacher_is_the_moving_average_of_the_weights_quick_for_a_tenth_of_the_updates() -> None:
    engine, method = Watched(tiny_module()), SMART(replace(LOUD, beta_early=0.5, beta_late=0.9))
    expected = engine.full_state()
    assert update(method, engine, tiny_batch(seed=0))["proximal"] < 1e-9
    for step in range(1, 5):
        beta = 0.5 if step == 1 else 0.9  # of ten updates the first is early
        expected = {name: beta * value + (1 - beta) * engine.full_state()[name] for name, value in expected.items()}
        state = method.state_dict()
        assert state.pop("updates") == step
        assert state.keys() == expected.keys()
        for name, value in state.items():
            torch.testing.assert_close(value, expected[name], msg=name)
        update(method, engine, tiny_batch(seed=step))


class HalfEngine(Watched):
    """A model in bf16 with its weights in fp32 behind it, as under DeepSpeed."""

    def __init__(self) -> None:
        super().__init__(tiny_module())
        self.masters = {name: p.detach().clone() for name, p in self.module.named_parameters()}
        self.module.bfloat16()

    def parts(self, state: State) -> Iterator[tuple[str, Tensor]]:
        yield from self.masters.items()


def test_the_teacher_averages_the_weights_behind_a_half_precision_model() -> None:
    engine, method = HalfEngine(), SMART(replace(LOUD, weight=0.0, beta_early=0.5))
    method.backward(engine, tiny_batch(), At(0, 0))
    before = {name: master.clone() for name, master in engine.masters.items()}
    for master in engine.masters.values():
        master += 1e-4  # less than bf16 resolves in most of them
    method.after_step(engine)
    teacher = method.state_dict()
    for name, value in before.items():
        torch.testing.assert_close(teacher[name], value + 5e-5, rtol=0, atol=1e-6, msg=name)


def test_the_teacher_has_no_dropout_and_takes_no_random_number_from_the_model() -> None:
    engine, batch = Watched(tiny_module(dropout=0.3).train()), tiny_batch()
    method = SMART(LOUD)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    guides = [method._guide(engine, batch) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*guides)
    torch.testing.assert_close(guides[0], engine.module.eval()(batch).logits)
    assert method._teacher is not None
    assert {p.dtype for p in method._teacher.parameters()} == {torch.float32}


def test_a_teacher_that_is_no_copy_is_refused() -> None:
    """Of a head put in by hand, or layers cut off, the model's config knows nothing; the teacher's would be random."""
    for change in ("head", "layers"):
        module, batch = tiny_module(kind="classification"), tiny_batch("classification")
        model: Any = module.model
        if change == "head":
            model.classifier = nn.Sequential(nn.Linear(model.config.hidden_size, 4), nn.Linear(4, 3))
        else:
            model.bert.encoder.layer = model.bert.encoder.layer[:1]
        with pytest.raises(RequestError, match=r"does not describe this model \(model\..*set smart\.proximal to 0"):
            update(SMART(SMARTConfig()), Watched(module), batch)
        update(SMART(SMARTConfig(proximal=0)), Watched(module), batch)


def test_a_model_with_two_names_for_a_part_has_no_teacher() -> None:
    module = tiny_module(kind="classification")
    module.model.also = module.model.classifier
    with pytest.raises(RequestError, match=r"this model \(a model of this class and config has no also\); set smart"):
        update(SMART(SMARTConfig()), Watched(module), tiny_batch("classification"))


class Asks(BertForSequenceClassification):
    """Of one's own, and made of more than a config."""

    def __init__(self, config: Any, extra: int) -> None:
        super().__init__(config)
        self.extra = extra


def test_a_model_that_its_config_does_not_make_has_no_teacher() -> None:
    config: Any = tiny_bert("classification").config
    averaging: Any = BertForSequenceClassification(config)
    averaging.dropout = nn.BatchNorm1d(config.hidden_size)  # whose running averages an update does not bring over
    batch = tiny_batch("classification")
    for model, said in ((averaging, r"dropout\.running_mean"), (Asks(config, 1), "extra")):
        engine = Watched(TaskModel(model, "classification"))
        with pytest.raises(RequestError, match=rf"does not describe this model \(.*{said}.*set smart\.proximal to 0"):
            update(SMART(SMARTConfig()), engine, batch)
        update(SMART(SMARTConfig(proximal=0)), engine, batch)


def test_the_teacher_shares_what_the_model_shares() -> None:
    """Resizing ties the bias of a head that has embeddings of its own; a model made by the config does not."""
    torch.manual_seed(0)
    shape = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    shape.tie_word_embeddings = False
    model = BertForMaskedLM(shape)
    model.resize_token_embeddings(VOCAB)
    names = [name for name, _ in TaskModel(model, "mlm").named_parameters()]
    assert [name for name, _ in TaskModel(model, "mlm").twin().named_parameters()] == names
    update(SMART(SMARTConfig()), Watched(TaskModel(model, "mlm")), tiny_batch("mlm"))


def test_either_term_can_be_left_out_with_its_cost() -> None:
    batch = tiny_batch()
    engine = Watched(tiny_module())
    terms = update(SMART(SMARTConfig(weight=0.0)), engine, batch)
    assert (set(terms), len(engine.deltas)) == ({"loss", "task", "proximal"}, 0)
    method = SMART(SMARTConfig(proximal=0.0))
    terms = update(method, Watched(tiny_module()), batch)
    assert set(terms) == {"loss", "task", "smooth"}
    assert list(method.state_dict()) == ["updates"]


def test_a_restored_teacher_is_saved_again_also_before_the_first_batch_has_met_it() -> None:
    first, second = SMART(SMARTConfig()), SMART(SMARTConfig())
    update(first, Watched(tiny_module()), tiny_batch())
    state = {name: value.clone() for name, value in first.state_dict().items()}
    second.load_state_dict(state)
    assert second.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in second.state_dict().items())


@pytest.mark.parametrize("kind", ["classification", "regression", "mlm"])
def test_its_perturbation_changes_the_prediction_far_more_than_noise_in_the_same_ball(kind: Any) -> None:
    batch, module = tiny_batch(kind), tiny_module(kind)
    engine = Watched(module)
    torch.manual_seed(0)
    terms = SMART(SMARTConfig(radius=1e-2, noise=1e-2, step_size=1.0, proximal=0.0)).backward(engine, batch, At(0, 0))
    clean = module(batch).logits
    drawn = []
    for seed in range(10):
        torch.manual_seed(seed)
        signs = perturb.gaussian(room(engine, batch), 1.0).sign() * 1e-2
        drawn.append(apart(clean, module(batch, Perturb(embed_BLD=signs)).logits, batch).item())
    assert terms["smooth"].item() > 2 * max(drawn)


def test_vat_reaches_further_than_a_random_direction_of_its_length() -> None:
    batch, module = tiny_batch(), tiny_module()
    engine = Watched(module)
    torch.manual_seed(0)
    terms = VAT(VATConfig(radius=0.1, distance=0.05)).backward(engine, batch, At(0, 0))
    where, clean = room(engine, batch), module(batch).logits.detach()
    drawn = []
    for seed in range(10):
        torch.manual_seed(seed)
        delta = perturb.direction(perturb.gaussian(where, 1.0), where, "l2") * 0.1
        drawn.append(towards(clean, module(batch, Perturb(embed_BLD=delta)).logits, batch).item())
    assert terms["smooth"].item() > 2 * max(drawn)


def test_vat_learns_towards_a_prediction_that_stays() -> None:
    engine, batch, student = Watched(tiny_module()), tiny_batch(), tiny_module()
    terms = VAT(VATConfig(weight=2.0, radius=0.5)).backward(engine, batch, At(0, 0))
    out, attacked = student(batch), student(batch, Perturb(embed_BLD=engine.deltas[-1]))
    task, smooth = task_loss(out, batch), 2 * towards(out.logits.detach(), attacked.logits, batch)
    torch.testing.assert_close([terms["task"], terms["smooth"]], [task.detach(), smooth.detach()])
    assert smooth > 1e-3
    (task + smooth).backward()
    for name, value in gradients(student).items():
        torch.testing.assert_close(gradients(engine.module)[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_r_drop_compares_two_dropout_masks() -> None:
    engine, batch = Watched(tiny_module(dropout=0.3).train()), tiny_batch("mlm")
    torch.manual_seed(4)
    terms = RDrop(RDropConfig(weight=3.0)).backward(engine, batch, At(0, 0))
    torch.manual_seed(4)
    one, other = engine.module(batch), engine.module(batch)
    task = (task_loss(one, batch) + task_loss(other, batch)) / 2
    smooth = 1.5 * apart(one.logits, other.logits, batch)
    torch.testing.assert_close([terms["task"], terms["smooth"]], [task.detach(), smooth.detach()])
    assert smooth > 1e-3


def test_r3f_compares_with_noise() -> None:
    engine, batch, student = Watched(tiny_module()), tiny_batch("mlm"), tiny_module()
    terms = R3F(R3FConfig(weight=3.0, noise=0.3)).backward(engine, batch, At(0, 0))
    clean, noisy = student(batch), student(batch, Perturb(embed_BLD=engine.deltas[-1]))
    task, smooth = task_loss(clean, batch), 3 * apart(clean.logits, noisy.logits, batch)
    torch.testing.assert_close([terms["task"], terms["smooth"]], [task.detach(), smooth.detach()])
    assert smooth > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_r_drop_is_asas_divergence_of_two_passes_with_nothing_masked(kind: Any) -> None:
    engine, batch = Watched(tiny_module(kind, dropout=0.3).train()), tiny_batch(kind)
    torch.manual_seed(4)
    smooth = RDrop(RDropConfig()).backward(engine, batch, At(0, 0))["smooth"]
    torch.manual_seed(4)
    one, other = engine.module(batch), engine.module(batch)
    expected = divergence(one, other, batch, ASAConfig())
    torch.testing.assert_close(smooth, expected["asa_token" if kind == "mlm" else "asa"].detach())
    assert smooth > 1e-3


def test_vats_direction_stays_where_the_gradient_is_zero_or_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ascend = Watched(tiny_module("classification")), Watched.ascend

    def spoilt(self: Watched, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        (gradient_RLD,) = ascend(self, *args, **kwargs)
        gradient_RLD[0, 1, 0] = torch.inf
        gradient_RLD[1] = 0
        return (gradient_RLD,)

    monkeypatch.setattr(Watched, "ascend", spoilt)
    options = VATConfig(radius=0.2, distance=0.05)
    VAT(options).backward(engine, tiny_batch("classification"), At(0, 0))
    start, found = (delta / size for delta, size in zip(engine.deltas, (0.05, 0.2), strict=True))
    torch.testing.assert_close(found[:2], start[:2])
    assert (found[2] - start[2]).norm() > 0.1


def test_as_released_a_token_whose_gradient_overflowed_takes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ascend = Watched(tiny_module("classification")), Watched.ascend

    def overflow(self: Watched, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        (gradient_RLD,) = ascend(self, *args, **kwargs)
        gradient_RLD[0, 1, 0] = torch.inf
        return (gradient_RLD,)

    monkeypatch.setattr(Watched, "ascend", overflow)
    terms = SMARTReleased(SMARTReleasedConfig(noise=0.1)).backward(engine, tiny_batch("classification"), At(0, 0))
    start, moved = engine.deltas
    torch.testing.assert_close(moved[0, 1], start[0, 1] / start[0, 1].abs().max(), rtol=1e-3, atol=1e-4)
    assert moved.isfinite().all()
    assert terms["loss"].isfinite()


@pytest.mark.parametrize(
    "build",
    [lambda: SmoothConfig(noise=0.0), lambda: SMARTConfig(noise=0.0), lambda: VATConfig(distance=0.0)],
    ids=["alum", "smart", "vat"],
)
def test_a_start_from_which_nothing_can_climb_is_refused(build: Any) -> None:
    with pytest.raises(ValidationError, match=r"noise|greater than 0"):
        build()
    assert SmoothConfig(noise=0.0, weight=0.0).noise == SmoothConfig(noise=0.0, dropout="independent").noise


@pytest.mark.parametrize("name", ["smart", "alum"])
def test_without_weight_the_divergence_and_its_passes_are_left_out(name: str) -> None:
    engine, batch = Watched(tiny_module()), tiny_batch()
    options = MethodsConfig(smart=SMARTConfig(weight=0.0, proximal=0.0), alum=SmoothConfig(weight=0.0))
    terms = METHODS[name](options).backward(engine, batch, At(0, 0))
    assert terms.keys() == {"loss", "task"}
    assert not engine.deltas
