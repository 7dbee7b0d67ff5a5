"""A loss that a model makes in its own forward is refused where it is another than the task's, and only there."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertForTokenClassification,
    ModernBertForMaskedLM,
    PreTrainedModel,
)

from asa.batch import IGNORE
from asa.errors import RequestError
from asa.integrations.own_loss import refuse_loss
from asa.integrations.tasks import kind_of
from asa.integrations.transformers import AdversarialTrainer
from asa.model import TaskModel
from tests.asa.conftest import tiny_bert
from tests.asa.encoders import tiny
from tests.integrations.trainers import arguments, assert_close, rows, weights

OWN = "makes a loss of its own"


def build(folder: Path, model: PreTrainedModel, method: str = "vanilla", **changes: Any) -> AdversarialTrainer:
    kind = kind_of(model)
    return AdversarialTrainer(model, arguments(folder, **changes), train_dataset=rows(kind, 64), method=method)  # type: ignore[arg-type]


def batch_of(model: PreTrainedModel, count: int = 16) -> dict[str, Tensor]:
    found = rows(kind_of(model), count)
    return {name: torch.stack([row[name] for row in found]) for name in found[0]}


def look(model: PreTrainedModel, inputs: dict[str, Tensor]) -> None:
    refuse_loss(TaskModel(model, kind_of(model)).train(), kind_of(model), inputs)


Loss = Callable[[Tensor, Tensor], Tensor]


def with_loss(base: Any, loss: Loss, changed: Callable[[Any], Any] = lambda output: output) -> Any:
    """A class of a user's own with this loss, and then with changed outputs."""

    class Own(base):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **inputs: Any) -> Any:
            output: Any = super().forward(input_ids, attention_mask, **inputs)
            if labels is not None:
                output = replace(output, loss=loss(output.logits, labels))
            return changed(output)

    return Own


def made(own: Any, kind: Any = "classification", knows_nothing: bool = False) -> Any:
    torch.manual_seed(0)
    config: Any = tiny_bert(kind).config
    model = own(config)
    if knows_nothing:
        nn.init.zeros_(model.classifier.weight)
    return model


def weighted(logits: Tensor, labels: Tensor) -> Tensor:
    """By class, as a user may have put weights into the model."""
    classes = logits.shape[-1]
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), torch.tensor([1.0, 3.0, 3.0])[:classes])


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.2)


OTHERS: dict[str, Loss] = {
    "weighted": weighted,
    "smoothed": smoothed,
    "doubled": lambda logits, labels: 2 * F.cross_entropy(logits, labels),
    "of shape 1": lambda logits, labels: 2 * F.cross_entropy(logits, labels).reshape(1),
}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_another_loss_is_refused_also_while_the_head_knows_nothing(name: str, bf16: bool, tmp_path: Path) -> None:
    """Then weights of classes change nothing but the gradient, and autocast gives a copy of the logits."""
    for knows_nothing in (False, True):
        model = made(with_loss(BertForSequenceClassification, OTHERS[name]), knows_nothing=knows_nothing)
        before = weights(model)
        with pytest.raises(RequestError, match=rf"^Own\.forward {OWN} \(\S+ (where the task's is|as the task's, but)"):
            build(tmp_path, model, "asa", bf16=bf16).train()
        assert_close(weights(model), before, atol=0)


@pytest.mark.parametrize("method", ["vanilla", "asa"])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_tasks_own_loss_is_not(method: str, bf16: bool, tmp_path: Path) -> None:
    trainer = build(tmp_path, made(with_loss(BertForSequenceClassification, F.cross_entropy)), method, bf16=bf16)
    trainer.train()
    assert trainer.state.global_step == 4


class LogProbs(BertForSequenceClassification):
    """What it calls logits are log probabilities, of which a softmax makes the same probabilities."""

    weight: Tensor | None = None

    def forward(  # type: ignore[override]
        self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **inputs: Any
    ) -> Any:
        output: Any = super().forward(input_ids, attention_mask, **inputs)
        logs = output.logits.log_softmax(-1)
        return replace(output, logits=logs, loss=None if labels is None else F.nll_loss(logs, labels, self.weight))


SAME: dict[str, Any] = {
    "of log probabilities": LogProbs,
    "with a copy of the logits": with_loss(
        BertForSequenceClassification, F.cross_entropy, lambda output: replace(output, logits=output.logits.clone())
    ),
    "of shape 1": with_loss(
        BertForSequenceClassification, lambda logits, labels: F.cross_entropy(logits, labels).reshape(1)
    ),
    "one for each row": with_loss(
        BertForSequenceClassification, lambda logits, labels: F.cross_entropy(logits, labels, reduction="none")
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_trains_as_the_tasks_loss_does_or_is_no_one_number_is_not(name: str) -> None:
    model = made(SAME[name])
    look(model, batch_of(model))


class Tupled(BertForSequenceClassification):
    """With labels it returns a tuple, of which Hugging Face's Trainer takes the first for the loss."""

    factor = 1.0
    given: Any = None

    def forward(self, labels: Any = None, **inputs: Any) -> Any:  # type: ignore[override]
        output: Any = super().forward(labels=labels, output_hidden_states=True, **inputs)
        return output if labels is None else self.given(self.factor * output.loss, output)


RETURNED: dict[str, Callable[[Tensor, Any], Any]] = {
    "a tuple": lambda loss, output: (loss, output.logits),
    "a list": lambda loss, output: [loss, output.logits],
    "a dict": lambda loss, output: {"loss": loss, "logits": output.logits},
    "states before": lambda loss, output: (loss, output.hidden_states, output.hidden_states[-1], output.logits),
}


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("name", RETURNED)
def test_a_loss_is_looked_at_however_it_is_returned(name: str, learns: bool) -> None:
    model = made(Tupled)
    model.requires_grad_(learns)
    model.given = RETURNED[name]
    look(model, batch_of(model))
    model.factor = 2.0
    with pytest.raises(RequestError, match=OWN):
        look(model, batch_of(model))


def test_a_loss_beside_no_logits_or_what_may_be_other_ones_is_not() -> None:
    model = made(Tupled)
    for given in (
        lambda loss, output: (loss, output.hidden_states[-1]),
        lambda loss, output: (loss,),
        lambda loss, output: (loss, output.hidden_states[-1][:, 0], output.logits),
    ):
        model.given = given
        look(model, batch_of(model))


def test_a_loss_of_log_probabilities_is_looked_at_behind_them() -> None:
    model = made(LogProbs, knows_nothing=True)
    model.weight = torch.tensor([1.0, 3.0, 3.0])
    with pytest.raises(RequestError, match=OWN):
        look(model, batch_of(model))


def test_weights_of_many_tokens_classes(tmp_path: Path) -> None:
    """Of each a small share of the loss, and while the head knows nothing only of its gradient."""
    model = made(with_loss(BertForTokenClassification, weighted), "token", knows_nothing=True)
    with pytest.raises(RequestError, match="as the task's, but its gradient is another"):
        build(tmp_path, model, per_device_train_batch_size=64).train()


def test_a_forward_that_was_put_on_the_model() -> None:
    model: Any = tiny_bert("classification")

    def forward(input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **inputs: Any) -> Any:
        output: Any = BertForSequenceClassification.forward(model, input_ids, attention_mask, labels=labels, **inputs)
        return output if labels is None else replace(output, loss=2 * output.loss)

    look(model, batch_of(model))
    model.forward = forward
    with pytest.raises(RequestError, match=OWN):
        look(model, batch_of(model))


def test_a_loss_function_that_was_put_on_the_model() -> None:
    """Which ModernBERT's masked LM asks, and BERT's does not."""
    for model in (tiny("bert"), tiny("modernbert")):
        inputs, function = batch_of(model), model.loss_function
        inputs.pop("token_type_ids")
        model.loss_function = lambda *args, function=function, **given: 3 * function(*args, **given)
        asked = isinstance(model, ModernBertForMaskedLM)
        if asked:
            with pytest.raises(RequestError, match=OWN):
                look(model, inputs)
        else:
            look(model, inputs)


class Changing(BertForSequenceClassification):
    """Of one's own, with Hugging Face's loss; it draws, and counts its passes."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("others", torch.zeros(()))
        self.register_buffer("prior", torch.ones(()).expand(3))  # which cannot be written
        self.register_buffer("mean", None)
        self.averages = nn.BatchNorm1d(3)

    def forward(  # type: ignore[override]
        self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **inputs: Any
    ) -> Any:
        self.passes += 1
        self.others = self.others + 1  # bound to another tensor
        output: Any = super().forward(input_ids, attention_mask, labels=labels, **inputs)
        self.mean = output.logits.detach().mean() if self.mean is None else self.mean
        self.averages(output.logits.detach() + torch.randn(()) + np.random.rand() + random.random())
        return output


def test_the_look_leaves_random_states_buffers_and_modes_as_they_were() -> None:
    torch.manual_seed(3)
    model: Any = made(Changing)
    inputs, before = batch_of(model), weights(model)
    task = TaskModel(model, "classification").train()
    draws = []
    for looks in (False, True):
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        if looks:
            refuse_loss(task, "classification", inputs)
        draws.append((torch.rand(()).item(), np.random.rand(), random.random()))
    assert draws[0] == draws[1]
    assert_close(weights(model), before, atol=0)
    assert model.mean is None
    assert model.training
    assert all(p.grad is None for p in model.parameters())


class Balancing(BertForSequenceClassification):
    """Its weights of classes follow what it sees, and lie in the graph of its loss."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("balance", torch.ones(3))

    def forward(  # type: ignore[override]
        self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **inputs: Any
    ) -> Any:
        output: Any = super().forward(input_ids, attention_mask, **inputs)
        if labels is None:
            return output
        self.balance += F.one_hot(labels, 3).sum(0)
        return replace(output, loss=F.cross_entropy(output.logits, labels, weight=self.balance))


def test_a_buffer_that_was_expanded_may_hold_what_equals_nothing() -> None:
    model = made(Changing)
    model.prior = torch.full((1,), torch.nan).expand(3)
    look(model, batch_of(model))
    assert model.prior.isnan().all()


def test_a_refusal_leaves_buffers_too() -> None:
    model: Any = made(Balancing, knows_nothing=True)
    with pytest.raises(RequestError, match=OWN):
        look(model, batch_of(model))
    assert torch.equal(model.balance, torch.ones(3))


class Unlabelled(BertForSequenceClassification):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, token_type_ids: Any = None) -> Any:  # type: ignore[override]
        return super().forward(input_ids, attention_mask, token_type_ids)


class Labelled(BertForSequenceClassification):
    def forward(self, labels: Any, **inputs: Any) -> Any:  # type: ignore[override]
        return super().forward(labels=labels, **inputs)


def test_a_forward_that_takes_no_labels_or_must_have_them(tmp_path: Path) -> None:
    trainer = build(tmp_path, made(Unlabelled), remove_unused_columns=False)
    trainer.train()
    assert trainer.state.global_step == 4
    with pytest.raises(RequestError, match=r"^Labelled\.forward cannot do without labels.* default None$"):
        build(tmp_path, made(Labelled), remove_unused_columns=False).train()


class Plain(BertForTokenClassification):
    def forward(self, **inputs: Any) -> Any:  # type: ignore[override]
        return super().forward(**inputs)


class Choice(BertForMultipleChoice):
    factor = 1.0

    def forward(self, **inputs: Any) -> Any:  # type: ignore[override]
        output: Any = super().forward(**inputs)
        return output if output.loss is None else replace(output, loss=self.factor * output.loss)


class PlainModernForMaskedLM(ModernBertForMaskedLM):  # by its name transformers chooses a loss
    factor = 1.0

    def forward(self, labels: Any = None, **inputs: Any) -> Any:  # type: ignore[override]
        output: Any = super().forward(labels=labels, **inputs)
        return output if labels is None else replace(output, loss=self.factor * output.loss)


def test_where_nothing_is_labelled_hugging_faces_loss_is_no_number() -> None:
    plain = made(Plain, "token")
    inputs = batch_of(plain)
    look(plain, {**inputs, "labels": torch.full_like(inputs["labels"], IGNORE)})


def test_answers_that_are_not_there_have_logits_for_both_losses() -> None:
    model = made(Choice, "choice")
    inputs = batch_of(model)
    inputs["attention_mask"][0, 1] = 0
    inputs["labels"][0] = 0
    look(model, inputs)
    model.factor = 2.0
    with pytest.raises(RequestError, match=OWN):
        look(model, inputs)


@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_modernbert_that_may_give_the_logits_of_masked_tokens_alone(sparse: bool, factor: float) -> None:
    config: Any = tiny("modernbert").config
    config.sparse_prediction = sparse
    torch.manual_seed(0)
    model = PlainModernForMaskedLM(config)
    model.factor = factor
    inputs = batch_of(model)
    inputs.pop("token_type_ids")
    if factor == 1:
        look(model, inputs)
    else:
        with pytest.raises(RequestError, match=OWN):
            look(model, inputs)
