"""Whole runs of AdversarialTrainer: it learns, logs, evaluates, saves, resumes, as Trainer does."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import AutoModelForSequenceClassification, PreTrainedModel, TrainingArguments

from asa.adversary import FILE, Adversaries, ASAConfig
from asa.errors import RequestError
from asa.integrations.passes import Means
from asa.integrations.transformers import METHOD_FILE, AdversarialTrainer
from asa.methods import METHODS, MethodsConfig
from asa.model import TaskModel
from tests.asa.conftest import tiny_bert
from tests.integrations.trainers import ONE_STEP, arguments, assert_close, logged, rows, two_epochs, weights

ARGUMENTS = {field.name for field in fields(TrainingArguments)}
FILES = ("model.safetensors", FILE, METHOD_FILE)
STATEFUL = [name for name in ONE_STEP if METHODS[name](MethodsConfig()).state_dict()]


def old_bert(folder: Path) -> PreTrainedModel:
    """A model that came with the names of BERT's first releases, under which it is saved again."""
    tiny_bert("classification", dropout=0.1).save_pretrained(folder)
    file = folder / "model.safetensors"
    state = {name.replace("Norm.weight", "Norm.gamma"): value for name, value in load_file(file).items()}
    state = {name.replace("Norm.bias", "Norm.beta"): value for name, value in state.items()}
    save_file(state, file, metadata={"format": "pt"})
    return AutoModelForSequenceClassification.from_pretrained(folder)


METHODS_AND_NAMES = [(name, "new") for name in ("vanilla", "asa", "freelb", *STATEFUL)] + [("asa", "old")]


@pytest.mark.parametrize(("method", "names"), METHODS_AND_NAMES)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(method: str, names: str, tmp_path: Path) -> None:
    def trainer(folder: Path) -> AdversarialTrainer:
        args = arguments(folder, max_steps=5, gradient_accumulation_steps=2, save_strategy="steps", save_steps=3)
        model = old_bert(tmp_path / "old") if names == "old" else tiny_bert("classification", dropout=0.1)
        return AdversarialTrainer(model, args, train_dataset=rows("classification", 18), method=method)

    through = trainer(tmp_path / "through")
    through.train()
    torch.rand(7)  # whatever else the new process draws before it resumes
    again = trainer(tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "through" / "checkpoint-3"))
    left, right = (tmp_path / name / "checkpoint-5" for name in ("through", "again"))
    assert any("LayerNorm.gamma" in name for name in load_file(left / FILES[0])) == (names == "old")
    for file in FILES:
        assert (left / file).exists() == (file != FILE or again.adversary is not None)
        assert not (left / file).exists() or (left / file).read_bytes() == (right / file).read_bytes()
    one, two = (torch.load(folder / "optimizer.pt")["state"] for folder in (left, right))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[p][name], two[p][name]) for p in one for name in one[p])
    assert logged(again, "loss") == logged(through, "loss")


def test_it_learns_and_logs_its_terms_beside_the_loss(tmp_path: Path) -> None:
    data = rows("classification", 64)
    for row in data:
        row["labels"] = (row["input_ids"][1] > 20).long()
    trainer = AdversarialTrainer(
        tiny_bert("classification", dropout=0.1),
        arguments(tmp_path, max_steps=120, per_device_train_batch_size=16, adam_epsilon=1e-8),
        train_dataset=data,
        eval_dataset=data,
        method="asa",
        compute_metrics=lambda found: {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()},
    )
    assert trainer.evaluate()["eval_accuracy"] < 0.7
    start = weights(trainer.adversary)
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > 0.9
    assert any(not torch.equal(value, start[name]) for name, value in weights(trainer.adversary).items())
    sums = [sum(terms) for terms in zip(*(logged(trainer, name) for name in ("task", "asa", "penalty")), strict=True)]
    assert len(sums) == 120
    assert sums == pytest.approx(logged(trainer, "loss"), rel=1e-5)
    assert len(logged(trainer, "masked_share")) == 120
    assert all(0 <= share <= 1 for share in logged(trainer, "masked_share"))


def test_a_log_line_holds_the_means_since_the_last(tmp_path: Path) -> None:
    each = two_epochs("token", "asa", tmp_path, gradient_accumulation_steps=2)
    third = two_epochs("token", "asa", tmp_path, gradient_accumulation_steps=2, logging_steps=3)
    for name in ("loss", "task", "asa", "penalty", "masked_share"):
        values = logged(each, name)
        means = [sum(values[:3]) / 3, sum(values[3:]) / 3]
        assert logged(third, name) == pytest.approx(means, rel=1e-5)


def test_a_term_that_some_steps_lack_is_its_mean_over_those_that_had_it() -> None:
    means = Means()
    for terms in ({"task": 1.0}, {"task": 2.0, "asa": 0.5}, {"task": 3.0}, {"task": 4.0, "asa": 0.25}):
        for _ in range(2):  # micro-batches
            means.add({name: torch.tensor(value) for name, value in terms.items()})
        means.step()
    assert means.drain() == {"task": 5.0, "asa": 0.75}


def test_a_masked_share_that_is_none_is_refused_when_it_is_told() -> None:
    means = Means()
    for _ in range(2):  # micro-batches whose method does not divide by total_rows
        means.add({"masked_share": torch.tensor([0.2, 0.7]), "task": torch.tensor(3.0)})
        means.step()
    assert means.drain() == pytest.approx({"masked_share": 0.45, "task": 3.0})
    means.add({"masked_share": torch.tensor(0.25)})
    means.step()
    assert means.drain() == {"masked_share": 0.25}
    means.add({"masked_share": torch.tensor([0.2, 1.4])})
    means.step()
    with pytest.raises(RequestError, match=r"^masked_share = 1.4, which is no share of pairs"):
        means.drain()


def test_evaluation_and_prediction_run_the_plain_model(tmp_path: Path) -> None:
    data: Any = rows("classification", 6)
    trainer = AdversarialTrainer(tiny_bert("classification"), arguments(tmp_path), train_dataset=data, method="asa")
    trainer.train()
    trainer.save_model()
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    inputs = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    with torch.no_grad():
        expected = plain(**inputs)
    predicted = trainer.predict(data)
    torch.testing.assert_close(torch.tensor(predicted.predictions), expected.logits, rtol=0, atol=1e-6)
    assert predicted.metrics is not None
    assert predicted.metrics["test_loss"] == pytest.approx(float(expected.loss), abs=1e-6)


def test_a_saved_folder_is_an_ordinary_model_with_its_adversary_beside(tmp_path: Path) -> None:
    trainer = AdversarialTrainer(
        tiny_bert("classification"), arguments(tmp_path), train_dataset=rows("classification", 8), method="asa"
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert_close(weights(again), weights(trainer.model), atol=0)
    adversary = TaskModel(again, "classification", ASAConfig()).adversary
    assert isinstance(adversary, Adversaries)
    adversary.load_pretrained(tmp_path / "saved")
    assert_close(weights(adversary), weights(trainer.adversary), atol=0)
    assert not any("adversary" in name for name in load_file(tmp_path / "saved" / "model.safetensors"))
    plain = AdversarialTrainer(
        tiny_bert("classification"), arguments(tmp_path), train_dataset=rows("classification", 8), method="vanilla"
    )
    plain.save_model(str(tmp_path / "saved"))
    assert not (tmp_path / "saved" / FILE).exists(), "another model's"


def test_a_saved_regression_says_that_it_is_one_as_trainers_does(tmp_path: Path) -> None:
    model = tiny_bert("regression")
    assert model.config.problem_type is None
    trainer = AdversarialTrainer(model, arguments(tmp_path), train_dataset=rows("regression", 4), method="vanilla")
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert json.loads((tmp_path / "saved/config.json").read_text())["problem_type"] == "regression"


@pytest.mark.parametrize("names", ["new", "old"])
def test_the_best_model_comes_back_with_its_adversary(names: str, tmp_path: Path) -> None:
    args = arguments(
        tmp_path,
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="early",
        greater_is_better=False,
    )
    steps: list[int] = []
    trainer = AdversarialTrainer(
        old_bert(tmp_path / "old") if names == "old" else tiny_bert("classification"),
        args,
        train_dataset=rows("classification", 16),
        eval_dataset=rows("classification", 4),
        method="asa",
        # The second evaluation is the best one.
        compute_metrics=lambda found: {"early": steps.append(0) or abs(len(steps) - 2)},
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    assert_close(weights(trainer.model), weights(saved), atol=0)
    best = load_file(tmp_path / "checkpoint-2" / FILE)
    assert_close(weights(trainer.adversary), best, atol=0)
    last = load_file(tmp_path / "checkpoint-4" / FILE)
    assert any(not torch.equal(value, last[name]) for name, value in best.items())


def test_activation_checkpointing_changes_nothing_and_is_never_reentrant(tmp_path: Path) -> None:
    def trainer(**changes: Any) -> AdversarialTrainer:
        model = tiny_bert("classification", dropout=0.1)
        args = arguments(tmp_path, **changes)
        return AdversarialTrainer(model, args, train_dataset=rows("classification", 16), method="asa")

    plain = trainer()
    plain.train()
    # Older releases of transformers have the argument by its former name.
    name = next(name for name in ("activation_checkpointing", "gradient_checkpointing") if name in ARGUMENTS)
    saving = trainer(**{name: True})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        saving.train()
    assert_close(weights(saving.model), weights(plain.model))
    assert_close(weights(saving.adversary), weights(plain.adversary))
    reentrant = trainer(**{name: True, f"{name}_kwargs": {"use_reentrant": True}})
    with pytest.raises(RequestError, match="use_reentrant=False"):
        reentrant.train()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_stays_near_fp32(precision: str, tmp_path: Path) -> None:
    def losses(**changes: Any) -> list[float]:
        args = arguments(tmp_path, learning_rate=1e-3, **changes)
        trainer = AdversarialTrainer(
            tiny_bert("classification"), args, train_dataset=rows("classification", 16), method="asa"
        )
        trainer.train()
        assert trainer.adversary is not None
        assert all(p.dtype == torch.float32 for p in trainer.adversary.parameters())
        return logged(trainer, "task")

    assert losses(**{precision: True}) == pytest.approx(losses(), rel=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_it_trains_and_resumes_on_a_gpu(precision: str, tmp_path: Path) -> None:
    def trainer() -> AdversarialTrainer:
        args = arguments(tmp_path, use_cpu=False, save_strategy="steps", save_steps=2, **{precision: True})
        model = tiny_bert("classification", dropout=0.1)
        return AdversarialTrainer(model, args, train_dataset=rows("classification", 16), method="asa")

    through, again = trainer(), trainer()
    through.train()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert through.adversary is not None
    assert {p.device.type for module in (through.model, through.adversary) for p in module.parameters()} == {"cuda"}  # type: ignore[union-attr]
    assert logged(again, "task") == pytest.approx(logged(through, "task"), rel=1e-3)


class Endless(IterableDataset[dict[str, Tensor]]):
    """The rows of an epoch, whose number nobody is told."""

    def __init__(self, data: list[dict[str, Tensor]]) -> None:
        self.data = data

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self.data)


def test_the_losses_of_a_window_that_was_cut_short_are_not_logged(tmp_path: Path) -> None:
    """The last of an epoch's five micro-batches makes no step. At a rate of nearly nothing all epochs are alike."""
    args = arguments(tmp_path, max_steps=6, gradient_accumulation_steps=2, learning_rate=1e-9)
    data = Endless(rows("classification", 20))
    trainer = AdversarialTrainer(tiny_bert("classification"), args, train_dataset=data, method="vanilla")
    mean = trainer.train().training_loss
    for name in ("loss", "task"):
        losses = logged(trainer, name)
        assert losses == pytest.approx(3 * losses[:2], rel=1e-5)
        assert mean == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_a_second_training_starts_the_method_anew(tmp_path: Path) -> None:
    trainer = AdversarialTrainer(
        tiny_bert("classification"),
        arguments(tmp_path, max_steps=3),
        train_dataset=rows("classification", 12),
        method="asa_sparse",
    )
    for _ in range(2):
        trainer.train()
        assert [line["step"] for line in trainer.state.log_history if "asa" in line] == [2]


def test_model_init_builds_a_fresh_model_and_adversary_for_each_training(tmp_path: Path) -> None:
    trainer = AdversarialTrainer(
        args=arguments(tmp_path, max_steps=2),
        train_dataset=rows("classification", 8),
        model_init=lambda: tiny_bert("classification"),
        method="asa",
    )
    trainer.train()
    first, adversary = weights(trainer.model), weights(trainer.adversary)
    trainer.train()
    assert_close(weights(trainer.model), first, atol=0)
    assert_close(weights(trainer.adversary), adversary, atol=0)
