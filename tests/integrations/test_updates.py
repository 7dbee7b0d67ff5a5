"""What AdversarialTrainer's updates are: Trainer's own for vanilla, the same however a step is cut, our engine's."""

import copy
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch, Kind
from asa.engine import Engine, PlainEngine
from asa.integrations import transformers as drop_in
from asa.integrations.passes import AcceleratedPasses
from asa.integrations.tasks import Totals, to_batch, totals
from asa.integrations.transformers import AdversarialTrainer
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.asa_sparse import ASASparseConfig
from asa.methods.smart import SMART, SMARTConfig
from asa.methods.vanilla import Vanilla
from asa.methods.vat import VATConfig
from asa.model import TaskModel
from asa.optim import OptimConfig
from tests.asa.conftest import CPU, KINDS, tiny_batch, tiny_bert, tiny_module
from tests.asa.encoders import tiny
from tests.integrations.trainers import EPS, LR, ONE_STEP, arguments, assert_close, logged, rows, two_epochs, weights


@pytest.mark.parametrize(
    ("family", "kind"), [("bert", kind) for kind in KINDS] + [("deberta-v2", "classification"), ("deberta-v2", "mlm")]
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_vanilla_trains_as_the_stock_trainer_does(
    family: str, kind: Kind, dropout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is left out of the last block draws no dropout.
    monkeypatch.setattr(TaskModel, "whole", dropout > 0)
    model = tiny(family, kind, dropout=dropout)
    data: Any = rows(kind, 14)
    stock = Trainer(copy.deepcopy(model), arguments(tmp_path), train_dataset=data)
    stock.train()
    ours = AdversarialTrainer(model, arguments(tmp_path), train_dataset=data, method="vanilla")
    ours.train()
    assert len(logged(ours, "loss")) == 4
    for name in ("loss", "grad_norm", "learning_rate"):
        assert logged(ours, name) == pytest.approx(logged(stock, name), rel=1e-6, abs=1e-6)
    assert_close(weights(ours.model), weights(stock.model))


def test_autocast_around_training_sees_the_weights_of_each_step(tmp_path: Path) -> None:
    """It keeps what it has made of weights until it ends: the stock Trainer goes on with the first ones."""
    found = []
    for around in (True, False):
        with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
            found.append(
                logged(two_epochs("classification", "vanilla", tmp_path, bf16=True, learning_rate=1e-2), "loss")
            )
    assert found[0] == found[1]
    assert found[0][-1] < found[0][0]


def test_autocast_around_training_sees_weights_that_are_put_back(tmp_path: Path) -> None:
    """The best ones at the end, and those of a checkpoint that is gone on from after an evaluation of others."""
    save = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 1, "save_steps": 1, "max_steps": 3}
    save |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    found = []
    for around in (True, False):
        # The worst model is the best here, and so not the last one.
        settings = arguments(tmp_path / str(around), bf16=True, learning_rate=3e-2, **save)
        with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
            trainer = on_rows(settings, seed=0)
            trainer.train()
            best = trainer.evaluate()["eval_loss"]
            again = on_rows(settings, seed=5)
            again.evaluate()
            again.train(resume_from_checkpoint=str(tmp_path / str(around) / "checkpoint-1"))
        assert best == max(logged(trainer, "eval_loss")) > logged(trainer, "eval_loss")[-2]
        found.append([best, *logged(again, "loss")])
    assert found[0] == found[1]


def test_smarts_teacher_is_in_the_types_of_the_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it begins as the model."""
    proximal: list[float] = []
    real = SMART.backward

    def noted(self: SMART, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        terms = real(self, engine, batch, at)
        proximal.append(terms["proximal"].item())
        return terms

    monkeypatch.setattr(SMART, "backward", noted)
    options = MethodsConfig(smart=SMARTConfig(radius=0.05, step_size=0.05, noise=0.05))
    settings = arguments(tmp_path, bf16=True, learning_rate=3e-2, max_steps=2)
    model, data = tiny_bert("classification", dropout=0.0), rows("classification", 12)
    AdversarialTrainer(model, settings, train_dataset=data, method="smart", options=options).train()  # type: ignore[arg-type]
    assert proximal[0] == 0 < proximal[1]


def on_rows(settings: TrainingArguments, seed: int) -> AdversarialTrainer:
    data: Any = rows("classification", 12)
    model = tiny_bert("classification", seed=seed)
    return AdversarialTrainer(model, settings, train_dataset=data, eval_dataset=data, method="vanilla")


@pytest.mark.parametrize(
    ("method", "kind"),
    [("asa", "mlm"), ("asa", "token"), ("asa", "regression"), ("vanilla", "mlm"), ("random_mask", "classification")],
)
def test_accumulation_leaves_the_update_as_it_is(method: str, kind: Kind, tmp_path: Path) -> None:
    whole = two_epochs(kind, method, tmp_path / "whole", per_device_train_batch_size=8)
    cut = two_epochs(kind, method, tmp_path / "cut", per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert len(logged(cut, "loss")) == 6
    for name in ("loss", "grad_norm", "task"):
        assert logged(cut, name) == pytest.approx(logged(whole, name), rel=1e-5)
    assert_close(weights(cut.model), weights(whole.model))
    assert_close(weights(cut.adversary), weights(whole.adversary))


class Seeded(AdversarialTrainer):
    """Draws that depend on the step alone."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        torch.manual_seed(self.state.global_step)
        return super().training_step(*args, **kwargs)


@pytest.mark.parametrize(
    ("method", "kind"), [("asa", kind) for kind in KINDS] + [(method, "classification") for method in ONE_STEP]
)
def test_the_updates_are_those_of_our_own_engine(method: str, kind: Kind, tmp_path: Path) -> None:
    # reversal 1 makes the adversary's gradient the larger one, so that clipping without it would show; at a distance of
    # 1e-3 VAT's direction is half made of rounding, at 0.1 in a millionth, which few draws show in the weights.
    options = MethodsConfig(asa=ASAConfig(reversal=1.0), vat=VATConfig(distance=1.0))
    data = rows(kind, 12)
    args = arguments(tmp_path, max_steps=3, train_sampling_strategy="sequential", optim="adamw_torch_fused")
    trainer = Seeded(tiny_bert(kind, dropout=0.1), args, train_dataset=data, method=method, options=options)
    module = TaskModel(tiny_bert(kind, dropout=0.1), kind, options.asa if trainer.adversary is not None else None)
    if module.adversary is not None:
        module.adversary.load_state_dict(weights(trainer.adversary))
    trainer.train()
    engine = PlainEngine(module.train(), OptimConfig(lr=LR, warmup=0.0, eps=EPS), steps=3, device=CPU)
    ours, norms = METHODS[method](options), []
    for step in range(3):
        inputs = {name: torch.stack([row[name] for row in data[4 * step : 4 * step + 4]]) for name in data[0]}
        torch.manual_seed(step)
        ours.backward(engine, whole_step(kind, inputs), At(0, 0))
        norms.append(float(engine.step().grad_norm))
        ours.after_step(engine)
    assert max(norms) > 1
    assert logged(trainer, "grad_norm") == pytest.approx(norms, rel=1e-5)
    assert_close(weights(trainer.model), weights(module.model))
    assert_close(weights(trainer.adversary), weights(module.adversary))


def whole_step(kind: Kind, inputs: dict[str, Tensor]) -> Batch:
    units = inputs["labels"].numel() if kind == "regression" else int((inputs["labels"] != IGNORE).sum())
    return to_batch(kind, inputs, Totals(inputs["input_ids"].flatten(0, -2).shape[0], units))


@pytest.mark.parametrize(
    "method", ["asa", "random_mask", "smart", "smart_released", "alum", "vat", "r3f", "r_drop", "asa_sparse"]
)
def test_a_divergence_does_not_depend_on_which_rows_have_labels(method: str) -> None:
    found: list[dict[str, Tensor]] = []
    for labels in ([0, 2, 1, 0], [0, IGNORE, IGNORE, IGNORE], [IGNORE] * 4):
        inputs = tiny_batch("classification", rows=4).inputs | {"labels": torch.tensor(labels)}
        adversary = ASAConfig() if method.startswith("asa") else None
        engine = PlainEngine(tiny_module("classification", adversary, dropout=0.1), OptimConfig(), steps=1, device=CPU)
        torch.manual_seed(5)
        batch = to_batch("classification", inputs, totals("classification", [inputs]))
        options = MethodsConfig(asa_sparse=ASASparseConfig(every=1, share=0.5))
        terms = METHODS[method](options).backward(engine, batch, At(0, 0))
        found.append({name: value for name, value in terms.items() if name not in ("loss", "task")})
    assert found[0].keys() & {"asa", "smooth"}
    for terms in found[1:]:
        torch.testing.assert_close(terms, found[0])


class Recorder(Vanilla):
    """Vanilla training that writes down how it is called."""

    calls: list[Any]

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        self.calls.append((at.slot, at.replay, len(batch.labels), batch.total_rows, batch.total_labels))
        return super().backward(engine, batch, at)

    def after_step(self, engine: Engine) -> None:
        self.calls.append(("step", engine.steps))


def test_a_method_is_called_once_a_micro_batch_and_told_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    recorder.calls = []
    monkeypatch.setitem(drop_in.METHODS, "recorder", lambda options: recorder)
    two_epochs("classification", "recorder", tmp_path, gradient_accumulation_steps=2)
    epoch = [(0, 0, 4, 8, 8), (1, 0, 4, 8, 8), ("step", 6)] * 2 + [(0, 0, 4, 4, 4), ("step", 6)]
    assert recorder.calls == epoch * 2


def test_a_method_is_not_told_of_updates_that_overflowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(Vanilla, "after_step", lambda *_: told.append(trainer.state.global_step))
    data: Any = rows("classification", 16)
    trainer = AdversarialTrainer(tiny_bert("classification"), arguments(tmp_path), train_dataset=data, method="vanilla")
    skipped = property(lambda _: trainer.state.global_step in (1, 2))  # as of fp16's loss scale, on a GPU
    monkeypatch.setattr(Accelerator, "optimizer_step_was_skipped", skipped)
    trainer.train()
    assert told == [0, 3]


def test_an_adversary_that_is_frozen_stands_still(tmp_path: Path) -> None:
    class Freeze(TrainerCallback):
        def on_step_end(self, *args: Any, **given: Any) -> None:
            if trainer.state.global_step == 2:
                trainer.adversary.requires_grad_(False)
                found.append(weights(trainer.adversary))

    found: list[dict[str, Tensor]] = []
    trainer: Any = AdversarialTrainer(
        tiny_bert("classification"),
        arguments(tmp_path, weight_decay=0.5),
        train_dataset=rows("classification", 8),
        method="asa",
        callbacks=[Freeze()],
    )
    before = weights(trainer.adversary)
    trainer.train()
    assert any(not torch.equal(value, found[0][name]) for name, value in before.items())
    assert_close(weights(trainer.adversary), found[0], atol=0)


def test_gradients_of_a_window_that_was_cut_short_do_not_reach_the_next(tmp_path: Path) -> None:
    trainer = AdversarialTrainer(
        tiny_bert("classification"), arguments(tmp_path), train_dataset=rows("classification", 8), method="asa"
    )
    trainer.train()
    batches, _ = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, CPU)
    trainer.training_step(trainer.model, batches[0])  # type: ignore[arg-type]  # the model is set
    assert any(p.grad is not None and p.grad.any() for p in trainer.model.parameters())  # type: ignore[union-attr]
    trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, CPU)
    assert trainer.adversary is not None
    for module in (trainer.model, trainer.adversary):
        assert all(p.grad is None or not p.grad.any() for p in module.parameters())  # type: ignore[union-attr]


def test_asking_on_after_the_data_have_ended_clears_nothing(tmp_path: Path) -> None:
    """Of data without a length the Trainer asks for as many windows as there are steps; each took milliseconds."""
    data: Any = rows("classification", 4)
    trainer = AdversarialTrainer(tiny_bert("classification"), arguments(tmp_path), train_dataset=data, method="asa")
    assert trainer.get_batch_samples(iter(()), 1, torch.device("cpu")) == ([], None)
    assert trainer.adversary is not None
    assert all(p.grad is None for p in trainer.adversary.parameters())


def test_a_model_that_takes_no_mask_is_given_none(tmp_path: Path) -> None:
    class NoMask(BertForSequenceClassification):
        def forward(self, input_ids: Any = None, labels: Any = None) -> Any:  # type: ignore[override]
            return super().forward(input_ids, labels=labels)

    data: Any = [{name: row[name] for name in ("input_ids", "labels")} for row in rows("classification", 8)]
    config: Any = tiny_bert("classification").config
    model = NoMask(config)
    for method in ("vanilla", "asa", "yopo"):
        trainer = AdversarialTrainer(model, arguments(tmp_path, max_steps=1), train_dataset=data, method=method)
        assert trainer.train().global_step == 1


def test_answers_that_a_question_does_not_have_are_no_rows() -> None:
    """Else the price of attention would depend on how the collator pads."""
    inputs = {**tiny_batch("choice").inputs, "labels": tiny_batch("choice").labels}
    filled = {
        name: torch.cat([value, torch.zeros_like(value[:, :1])], 1) if value.dim() == 3 else value
        for name, value in inputs.items()
    }
    assert totals("choice", [inputs]) == totals("choice", [filled]) == Totals(6, 3)
    del filled["attention_mask"]
    assert totals("choice", [filled]) == Totals(9, 3)


@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_of_an_attack_are_of_the_loss_itself_however_it_is_scaled(scaled: bool) -> None:
    """In fp16 small ones would vanish."""
    scaler = SimpleNamespace(scale=lambda loss: 8 * loss)
    accelerator: Any = SimpleNamespace(device=CPU, scaler=scaler, autocast=nullcontext)
    noise = torch.ones(3, requires_grad=True)
    (found,) = AcceleratedPasses(tiny_module(), 1, accelerator).ascend((noise**2).sum(), [noise], scaled=scaled)
    assert torch.equal(found, torch.full((3,), 2.0))
