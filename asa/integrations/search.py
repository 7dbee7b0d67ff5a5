"""A Trainer whose hyperparameter_search gives every trial the arguments that it has, and no others."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from transformers import set_seed, trainer_utils
from transformers.trainer_utils import HPSearchBackend

from asa.config import flat
from asa.errors import RequestError
from asa.integrations.base import TypedTrainer
from asa.methods import MethodsConfig

GROUPS = {field.name for field in fields(MethodsConfig)}


class SearchingTrainer(TypedTrainer):
    """Trainer but for its search."""

    _unsearched: Mapping[str, Any] = {}  # the arguments as they were before a search
    _begun: Any = None  # the trial whose arguments are in place

    def hyperparameter_search(self, *args: Any, **keywords: Any) -> Any:
        """Trainer's own, but that every trial is the run that its settings give alone; docs/trainer.md has what of a
        trial is refused."""
        self._unsearched = {field.name: getattr(self.args, field.name) for field in fields(self.args)}
        try:
            return super().hyperparameter_search(*args, **keywords)
        finally:
            self._unset()

    def _unset(self) -> None:
        for name, value in self._unsearched.items():
            setattr(self.args, name, value)

    def begin_trial(self, trial: Any, settings: Mapping[str, Any]) -> None:
        """Take a trial's arguments before its model is made: Trainer does so after it, and the model would be drawn and
        judged by the trial before's. What the trial leaves out is as it was before the search."""
        seed, space = self.args.seed, self.hp_space
        self._unset()
        given = space(trial) if self.hp_search_backend == HPSearchBackend.OPTUNA else trial
        self.hp_space: Callable[[Any], Any] = lambda _: given  # the user's is asked once
        try:
            super()._hp_search_setup(trial)
        finally:
            self.hp_space = space
        self._begun = trial
        refuse_trial(self, given, settings)
        if self.args.seed != seed:
            set_seed(self.args.seed)

    def _hp_search_setup(self, trial: Any) -> None:
        if trial is None or trial is not self._begun:
            super()._hp_search_setup(trial)
        self._begun = None


def refuse_trial(trainer: "SearchingTrainer", given: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raises RequestError for what a trial of hyperparameter_search is told and does not get. Args: given, what it is
    told; settings, the method's by their dotted keys."""
    for found in _wrong_trial(trainer, given, settings):
        raise RequestError(found)


def _wrong_trial(trainer: "SearchingTrainer", given: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    own = set(settings)
    utils: Any = trainer_utils
    if not utils.number_of_arguments(trainer.model_init):  # else they may be the model's, of which Trainer's log warns
        own |= {key.rpartition(".")[2] for key in settings}
    computed = trainer.accelerator.mixed_precision
    for name, value in flat(dict(given)).items():  # a method's settings may be told by groups
        got = getattr(trainer.args, name, None)
        if (name in own or name.partition(".")[0] in GROUPS) and not hasattr(trainer.args, name):
            yield (
                f"hp_space has {name!r}, a setting of the method, which no trial gets; leave it out, and make a trainer"
                " with its own options= for each value"
            )
        elif name in ("bf16", "fp16") and got != (computed == name):
            yield (
                f"{name} = {value} in a trial: a trainer computes in the precision it was made with; leave it out of"
                " hp_space"
            )
        # Ray's own space draws seeds between whole numbers.
        elif name != "seed" and isinstance(value, int | float) and isinstance(got, int | float) and got != value:
            yield (
                f"{name} = {value} in a trial would be {got}, of the type it has in the trainer's arguments; give it"
                f" there as a {type(value).__name__}, or search {type(got).__name__} alone"
            )
