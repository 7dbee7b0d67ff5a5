"""Models whose layers PEFT has wrapped: by a stand-in of its wrapper, and by PEFT where it is installed."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asa.errors import RequestError
from asa.integrations.refusals import tell_wrapped
from asa.integrations.tasks import classes_of
from asa.integrations.transformers import AdversarialTrainer
from tests.asa.conftest import tiny_bert
from tests.integrations.test_runs import old_bert
from tests.integrations.trainers import arguments, assert_close, logged, rows


class Adapted(nn.Module):
    """As PEFT wraps a layer, its fields out of reach."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) * self.scale


class Whole(nn.Module):
    """As PEFT wraps a layer that is trained whole."""

    def __init__(self, original_module: nn.Module) -> None:
        super().__init__()
        self.original_module = original_module

    def forward(self, x: Tensor) -> Tensor:
        return self.original_module(x)


def wrapped_bert(folder: Path) -> Any:
    model: Any = old_bert(folder)
    torch.manual_seed(3)
    for layer in model.bert.encoder.layer:
        layer.attention.self.query = Adapted(layer.attention.self.query)
    return model


def test_it_is_told_to_be_saved_by_peft(tmp_path: Path) -> None:
    model: Any = tiny_bert("classification")
    model.classifier = Adapted(model.classifier)
    trainer = AdversarialTrainer(model, arguments(tmp_path), train_dataset=rows("classification", 4), method="vanilla")
    with pytest.warns(UserWarning, match=r"PEFT's, under which from_pretrained finds no weights; save with"):
        trainer.save_model(str(tmp_path / "saved"))
    model._hf_peft_config_loaded = True  # transformers' own adapters, saved as such
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell_wrapped(model, "saved")


@pytest.mark.filterwarnings("ignore:.*has names of PEFT's")
def test_a_run_goes_on_where_the_weights_have_old_names(tmp_path: Path) -> None:
    def trainer(folder: Path) -> AdversarialTrainer:
        args = arguments(folder, max_steps=4, save_strategy="steps", save_steps=2)
        model = wrapped_bert(tmp_path / "old")
        return AdversarialTrainer(model, args, train_dataset=rows("classification", 16), method="asa")

    through, again = trainer(tmp_path / "through"), trainer(tmp_path / "again")
    through.train()
    checkpoint = tmp_path / "through" / "checkpoint-2"
    again.train(resume_from_checkpoint=str(checkpoint))
    assert_close(dict(again.model.state_dict()), dict(through.model.state_dict()), atol=0)


@pytest.mark.filterwarnings("ignore:.*has names of PEFT's")
def test_the_best_weights_come_back_under_old_names(tmp_path: Path) -> None:
    often: dict[str, Any] = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "eval_steps": 1}
    args = arguments(
        tmp_path, **often, max_steps=2, load_best_model_at_end=True, metric_for_best_model="early", learning_rate=0.1
    )
    seen: list[dict[str, Tensor]] = []

    def early(_: object) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
        return {"early": -len(seen)}

    trainer = AdversarialTrainer(
        wrapped_bert(tmp_path / "old"),
        args,
        train_dataset=rows("classification", 16),
        eval_dataset=rows("classification", 4),
        method="vanilla",
        compute_metrics=early,
    )
    trainer.train()
    name = "bert.encoder.layer.0.attention.output.LayerNorm.weight"
    assert not torch.equal(seen[0][name], seen[1][name])
    assert_close(dict(trainer.model.state_dict()), seen[0], atol=0)


@pytest.mark.parametrize("wrapper", [Adapted, Whole])
def test_wrapped_word_embeddings_are_perturbed(wrapper: Any, tmp_path: Path) -> None:
    def attacked(name: str) -> float:
        model: Any = tiny_bert("classification", seed=2)
        if name == "wrapped":
            model.bert.embeddings.word_embeddings = wrapper(model.bert.embeddings.word_embeddings)
        args = arguments(tmp_path / name, max_steps=1)
        trainer = AdversarialTrainer(model, args, train_dataset=rows("classification", 16), method="freelb")
        trainer.train()
        (loss,) = logged(trainer, "attacked")
        return loss

    assert attacked("wrapped") == pytest.approx(attacked("bare"), rel=1e-6)


@pytest.mark.parametrize("wrapper", [Adapted, Whole])
def test_a_wrapped_head_has_as_many_labels(wrapper: Any) -> None:
    model: Any = tiny_bert("classification")
    labels = classes_of(model, "classification")
    model.classifier = wrapper(model.classifier)
    assert labels is not None
    assert classes_of(model, "classification") == labels


@pytest.mark.filterwarnings("ignore:.*has names of PEFT's")
def test_peft_itself(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")

    def lora(*layers: str) -> Any:
        model = old_bert(tmp_path / "old")
        torch.manual_seed(3)
        config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=list(layers))
        return peft.get_peft_model(model, config).get_base_model()

    def trained(model: Any, name: str, method: str, again: str | None = None) -> dict[str, Tensor]:
        args = arguments(tmp_path / name, max_steps=4, save_strategy="steps", save_steps=2)
        trainer = AdversarialTrainer(model, args, train_dataset=rows("classification", 16), method=method)
        trainer.train(resume_from_checkpoint=again)
        return dict(model.state_dict())

    through = trained(lora("query", "value"), "through", "asa")
    again = trained(lora("query", "value"), "again", "asa", str(tmp_path / "through" / "checkpoint-2"))
    assert_close(again, through, atol=0)
    words = lora("word_embeddings")
    before = {name: value.clone() for name, value in words.state_dict().items()}
    moved = {name for name, value in trained(words, "words", "freelb").items() if not torch.equal(value, before[name])}
    assert moved
    assert all("lora_" in name or "modules_to_save" in name for name in moved)
    wrong = [row | {"labels": torch.tensor(9)} for row in rows("classification", 8)]
    trainer = AdversarialTrainer(
        lora("query"), arguments(tmp_path / "wrong", max_steps=1), train_dataset=wrong, method="vanilla"
    )
    with pytest.raises(RequestError, match="a label is 9"):
        trainer.train()
