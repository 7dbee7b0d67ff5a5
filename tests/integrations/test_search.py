"""hyperparameter_search: every trial is the run that its settings give alone, and what no trial gets is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS
from transformers.trainer_utils import HPSearchBackend

from asa.errors import RequestError
from asa.integrations.transformers import AdversarialTrainer
from tests.asa.conftest import tiny_bert
from tests.integrations.trainers import arguments, rows

Found = dict[str, Tensor] | RequestError
SHAPE: Any = tiny_bert("classification").config
SHAPE.hidden_dropout_prob = 0.1


def model() -> BertForSequenceClassification:
    """Drawn from torch's own generator, as it stands, with dropout."""
    return BertForSequenceClassification(SHAPE)


def searching(folder: Path, model_init: Callable[..., Any] = model, **changes: Any) -> AdversarialTrainer:
    args = arguments(folder, **({"max_steps": 2} | changes))
    data = rows("classification", 16)
    return AdversarialTrainer(args=args, model_init=model_init, train_dataset=data, method="asa")


def trained(trainer: AdversarialTrainer, trial: Any = None) -> dict[str, Tensor]:
    trainer.train(trial=trial)
    adversary = trainer.adversary
    assert adversary is not None
    return {**trainer.model.state_dict(), **adversary.state_dict(prefix="adversary.")}


class Backend:
    """Runs what hp_space gives for trial 0, 1 and so on, as Optuna with `catch=(RequestError,)`, which is not asked
    for here."""

    def __init__(self) -> None:
        self.found: list[Found] = []

    def ensure_available(self) -> None:
        """There is nothing to install."""

    def run(self, trainer: AdversarialTrainer, n_trials: int, direction: str) -> None:
        for number in range(n_trials):
            try:
                self.found.append(trained(trainer, SimpleNamespace(number=number, params={})))
            except RequestError as error:
                self.found.append(error)


@pytest.fixture
def backend() -> Iterator[Backend]:
    found = Backend()
    known = patch("transformers.integrations.hp_params", lambda trial: trial.params)  # which are of Optuna's own class
    with known, patch.dict(ALL_HYPERPARAMETER_SEARCH_BACKENDS, {HPSearchBackend.OPTUNA: lambda: found}):
        yield found


def search(backend: Backend, trainer: AdversarialTrainer, *trials: dict[str, Any]) -> list[Found]:
    trainer.hyperparameter_search(lambda trial: trials[trial.number], n_trials=len(trials), backend="optuna")
    return backend.found


SETTINGS: list[dict[str, Any]] = [
    {"seed": 5, "learning_rate": 1e-3, "per_device_train_batch_size": 2},
    {"seed": 6, "weight_decay": 0.5, "max_grad_norm": 1e-3},
    {"learning_rate": 1e-2},  # and all else as before the search
]


def test_a_trial_is_the_run_that_its_settings_give_alone(backend: Backend, tmp_path: Path) -> None:
    found = search(backend, searching(tmp_path), *SETTINGS)
    for weights, settings in zip(found, SETTINGS, strict=True):
        torch.testing.assert_close(weights, trained(searching(tmp_path, **settings)), rtol=0, atol=0)


def test_a_refused_trial_costs_the_next_ones_nothing(backend: Backend, tmp_path: Path) -> None:
    wrong = [{"label_smoothing_factor": 0.1}, {"bf16": True}]
    first, second, third = search(backend, searching(tmp_path), *wrong, {"learning_rate": 1e-2})
    assert isinstance(first, RequestError)
    assert "label_smoothing_factor = 0.1" in str(first)
    assert isinstance(second, RequestError)
    torch.testing.assert_close(third, trained(searching(tmp_path, learning_rate=1e-2)), rtol=0, atol=0)


def test_a_search_leaves_nothing_to_the_next(backend: Backend, tmp_path: Path) -> None:
    trainer = searching(tmp_path)
    search(backend, trainer, {"weight_decay": 0.5, "seed": 7}, {"label_smoothing_factor": 0.1})
    *_, found = search(backend, trainer, {"learning_rate": 1e-2})
    torch.testing.assert_close(found, trained(searching(tmp_path, learning_rate=1e-2)), rtol=0, atol=0)


def test_what_a_trial_has_is_asked_once(backend: Backend, tmp_path: Path) -> None:
    rates = iter([1e-3, 1e-2])
    trainer = searching(tmp_path)
    trainer.hyperparameter_search(lambda _: {"learning_rate": next(rates)}, n_trials=2, backend="optuna")
    for weights, rate in zip(backend.found, (1e-3, 1e-2), strict=True):
        torch.testing.assert_close(weights, trained(searching(tmp_path, learning_rate=rate)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tau": 0.5}, "hp_space has 'tau', a setting of the method, which no trial gets; leave it out"),
        ({"asa.tau": 0.5}, "hp_space has 'asa.tau', a setting of the method"),
        ({"asa": {"tau": 0.5}}, "hp_space has 'asa.tau', a setting of the method"),
        ({"outside.size": 0.5}, "hp_space has 'outside.size', a setting of the method"),
        ({"smart.radius": 0.5}, "hp_space has 'smart.radius', a setting of the method"),
        ({"bf16": True}, "bf16 = True in a trial: a trainer computes in the precision it was made with; leave it out"),
        (
            {"save_steps": 0.5},
            "save_steps = 0.5 in a trial would be 0, of the type it has in the trainer's arguments; give it there as a",
        ),
    ],
)
def test_what_no_trial_gets_is_refused(given: dict[str, Any], told: str, backend: Backend, tmp_path: Path) -> None:
    (found,) = search(backend, searching(tmp_path), given)
    assert isinstance(found, RequestError)
    assert told in str(found)


def test_what_model_init_may_read_is_not_refused(backend: Backend, tmp_path: Path) -> None:
    (found,) = search(backend, searching(tmp_path, lambda trial: model()), {"dropout": 0.3, "seed": 5.5})
    assert not isinstance(found, RequestError)
