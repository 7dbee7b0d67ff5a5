"""One run: determinism, selection, evaluation, what is recorded."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from asa import hf, record
from asa.errors import WorkError
from asa.losses import task_loss
from asa.methods import METHODS, At
from asa.methods.vanilla import Vanilla
from asa.model import Output
from finetune import loop, metrics
from finetune.config import FinetuneConfig
from finetune.loop import Run, build, steps_of
from finetune.metrics import evaluate
from finetune.sweep import sweep
from finetune.tasks import folder
from finetune.tasks.batches import encode, evaluation_batches
from tests.finetune.conftest import CLASSES, Make

CPU = torch.device("cpu")


def events(config: FinetuneConfig, name: str) -> list[dict[str, Any]]:
    return record.read(config.out / name / record.NAME)


def scores(config: FinetuneConfig, name: str) -> list[dict[str, Any]]:
    """Everything after the start line but the time."""
    return [{key: value for key, value in event.items() if key != "seconds"} for event in events(config, name)[1:]]


def test_the_same_seed_gives_the_same_metrics_and_another_seed_others(make: Make, tmp_path: Path) -> None:
    first = make(methods=["vanilla", "asa"], seeds=[0, 1])
    again = make(methods=["asa", "vanilla"], seeds=[1, 0], out=tmp_path / "again")
    sweep(first)
    sweep(again)
    for method in ("vanilla", "asa"):
        assert scores(first, f"tiny-{method}-0") == scores(again, f"tiny-{method}-0")
        assert scores(first, f"tiny-{method}-0") != scores(first, f"tiny-{method}-1")


def test_a_run_is_recorded_as_documented(make: Make) -> None:
    config = make(methods=["asa"], evals_per_epoch=2)
    sweep(config)
    start, *middle, end = events(config, "tiny-asa-0")
    assert {key: start[key] for key in ("stage", "model", "task", "method", "seed")} == {
        "stage": "finetune",
        "model": "tiny",
        "task": "colours",
        "method": "asa",
        "seed": 0,
    }
    assert start["config"]["optim"]["lr"] == 0.01
    trained = [event for event in middle if event["event"] == "train"]
    assert [event["step"] for event in trained] == [2, 4, 6]
    assert {"loss", "task", "asa", "penalty", "masked_share", "grad_norm", "lr"} <= trained[0].keys()
    assert len(trained[0]["masked_share"]) == 2
    dev = [event for event in middle if event["event"] == "eval"]
    assert [(event["step"], event["epoch"]) for event in dev] == [(2, 0.666667), (3, 1.0), (5, 1.666667), (6, 2.0)]
    assert {"split", "accuracy", "macro_f1", "loss"} <= dev[0].keys()
    assert {"dev_accuracy", "test_accuracy", "test_macro_f1", "seconds", "steps"} <= end.keys()


def test_a_log_line_holds_the_means_of_its_steps(make: Make, tmp_path: Path) -> None:
    each, mean = make(log_every=1), make(log_every=6, out=tmp_path / "mean")
    sweep(each)
    sweep(mean)
    singles = [event["loss"] for event in events(each, "tiny-vanilla-0") if event["event"] == "train"]
    (whole,) = [event["loss"] for event in events(mean, "tiny-vanilla-0") if event["event"] == "train"]
    assert whole == pytest.approx(sum(singles) / 6, rel=1e-6)


def test_the_colours_are_learnt(make: Make) -> None:
    config = make(epochs=20)
    sweep(config)
    assert events(config, "tiny-vanilla-0")[-1]["test_accuracy"] > 0.9


def test_test_is_scored_once_with_the_weights_of_the_best_dev_evaluation(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dev accuracies .2 .6 .6 .4: the second evaluation is selected, and its weights are what test sees."""
    config = make(epochs=4, max_steps=12)
    dev, weights = iter([0.2, 0.6, 0.6, 0.4]), []

    def fake(module: Any, data: Any, size: int, device: torch.device) -> dict[str, float]:
        weights.append(module.model.classifier.weight.detach().clone())
        return {"accuracy": next(dev, 0.5), "macro_f1": 0.0, "loss": 0.0}

    monkeypatch.setattr(loop, "evaluate", fake)
    sweep(config)
    end = events(config, "tiny-vanilla-0")[-1]
    assert (end["best_step"], end["best_epoch"], end["dev_accuracy"], end["test_accuracy"]) == (6, 2.0, 0.6, 0.5)
    assert len(weights) == 5
    assert torch.equal(weights[4], weights[1])
    assert not torch.equal(weights[4], weights[3])


def test_evaluation_is_the_clean_branch_in_eval_mode_whatever_the_batch_size(
    make: Make, task_folder: Path, model_folder: Path
) -> None:
    module = build(Run("tiny", "asa", 0), make(methods=["asa"]), CLASSES)
    data = encode(folder.load(task_folder).splits["dev"], hf.load_tokenizer(model_folder, "-"), 16)
    whole, parts = evaluate(module, data, 99, CPU), evaluate(module, data, 5, CPU)
    assert whole == pytest.approx(parts, rel=1e-5)
    (batch,) = evaluation_batches(data, 99)
    logits = module.model.eval()(**batch.inputs).logits.detach()
    right = (logits.argmax(-1) == batch.labels).float().mean()
    assert whole["accuracy"] == pytest.approx(float(right))
    assert whole["loss"] == pytest.approx(float(task_loss(Output(logits), batch)), rel=1e-5)


def test_macro_f1_counts_classes_nobody_guessed(make: Make, task_folder: Path, model_folder: Path) -> None:
    """Always the first of three equal classes: F1 is 1/2, 0, 0."""
    module = build(Run("tiny", "vanilla", 0), make(), CLASSES)
    with torch.no_grad():
        classifier = module.model.get_submodule("classifier")
        classifier.weight.zero_()  # type: ignore[operator]
        classifier.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))  # type: ignore[operator]
    data = encode(folder.load(task_folder).splits["dev"], hf.load_tokenizer(model_folder, "-"), 16)
    found = metrics.evaluate(module, data, 8, CPU)
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["macro_f1"] == pytest.approx(1 / 6)


def test_the_seed_decides_head_and_adversary_and_the_method_does_not_change_the_head(make: Make) -> None:
    config = make(methods=["vanilla", "asa"], seeds=[0, 1])
    heads = {
        run: build(run, config, CLASSES).model.get_parameter("classifier.weight")
        for run in (Run("tiny", "vanilla", 0), Run("tiny", "asa", 0), Run("tiny", "vanilla", 1))
    }
    a, b, c = heads.values()
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_an_exported_adversary_is_the_start_where_asked_for_and_there_is_one(
    make: Make, model_folder: Path, tmp_path: Path
) -> None:
    pretrained = tmp_path / "pretrained"
    shutil.copytree(model_folder, pretrained)
    adversary = build(Run("tiny", "asa", 7), make(), CLASSES).adversary
    assert adversary is not None
    adversary.save_pretrained(pretrained)
    config = make(models={"tiny": model_folder, "asa": pretrained}, methods=["asa"], adversary="exported", max_steps=1)
    for name, same in (("asa", True), ("tiny", False)):
        found = build(Run(name, "asa", 0), config, CLASSES).adversary
        assert found is not None
        pairs = zip(found.parameters(), adversary.parameters(), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs) == same
    sweep(config)
    assert [events(config, f"{name}-asa-0")[0]["adversary"] for name in ("asa", "tiny")] == ["exported", "fresh"]
    plain = make(models={"asa": pretrained}, adversary="exported", max_steps=1)
    sweep(plain)
    assert "adversary" not in events(plain, "asa-vanilla-0")[0]


@pytest.mark.parametrize(("epochs", "limit", "steps"), [(2, None, 6), (1.5, None, 5), (0.1, None, 1), (9, 4, 4)])
def test_steps(make: Make, epochs: float, limit: int | None, steps: int) -> None:
    assert steps_of(make(epochs=epochs, max_steps=limit), 24) == steps


def test_replays_pass_over_the_same_batch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int]]] = []

    class Twice(Vanilla):
        replays = 2

        def backward(self, engine: Any, batch: Any, at: At) -> Any:
            seen.append((at.replay, batch.labels.tolist()))
            return super().backward(engine, batch, at)

    monkeypatch.setitem(METHODS, "vanilla", lambda config: Twice())
    sweep(make(max_steps=2))
    assert [replay for replay, _ in seen] == [0, 1, 0, 1]
    assert seen[0][1] == seen[1][1]
    assert seen[2][1] == seen[3][1]
    assert seen[0][1] != seen[2][1]


def test_a_diverged_run_stops_with_a_line_and_stays_unfinished(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(Vanilla):
        def backward(self, engine: Any, batch: Any, at: At) -> Any:
            engine.backward(engine.forward(batch).logits.sum() * float("nan"))
            return super().backward(engine, batch, at)

    monkeypatch.setitem(METHODS, "vanilla", lambda config: Lost())
    config = make()
    with pytest.raises(WorkError, match=r"tiny-vanilla-0: loss or gradient of step 1 is not finite; lower --optim.lr"):
        sweep(config)
    assert not record.finished(config.out / "tiny-vanilla-0" / record.NAME)
