"""Tiny Trainer runs on the CPU: data of every kind, arguments, weights to compare."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from asa.batch import IGNORE, Kind
from asa.integrations.transformers import AdversarialTrainer
from asa.methods import METHODS, MethodsConfig
from asa.methods.random_mask import RandomMaskConfig
from tests.asa.conftest import tiny_batch, tiny_bert

LR = 1e-2
# A large one keeps Adam from turning rounding noise of near-zero gradients into whole steps.
EPS = 1e-3
# Masks that draw nothing: what is drawn depends on how rows are cut into micro-batches.
NO_DRAWS = MethodsConfig(random_mask=RandomMaskConfig(strategy="magnitude"))
ONE_STEP = [name for name, build in METHODS.items() if build(MethodsConfig()).replays == 1]


def rows(kind: Kind, count: int, seed: int = 1) -> list[dict[str, Tensor]]:
    """What a tokenized data set holds: one dict per example, padded to one length, with its own number of labels."""
    batch = tiny_batch(kind, seed, count)
    labels = batch.labels
    if batch.positions is not None:
        labels = torch.full_like(batch.inputs["input_ids"], IGNORE)
        labels.view(-1)[batch.positions] = batch.labels
    columns = {**batch.inputs, "labels": labels}
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "learning_rate": LR,
        "adam_epsilon": EPS,
        "weight_decay": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    return TrainingArguments(**(values | changes))


def weights(module: nn.Module | None) -> dict[str, Tensor]:
    return {} if module is None else {name: p.detach().clone() for name, p in module.state_dict().items()}


def logged(trainer: Any, name: str) -> list[float]:
    return [line[name] for line in trainer.state.log_history if name in line]


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(
            value, expected[name], rtol=0, atol=atol, msg=lambda text, name=name: f"{name} {text}"
        )


def two_epochs(kind: Kind, method: str, folder: Path, **changes: Any) -> AdversarialTrainer:
    """Two epochs of 20 rows: with 8 per step the last step of each has 4."""
    args = arguments(folder, num_train_epochs=2, max_steps=-1, **changes)
    trainer = AdversarialTrainer(tiny_bert(kind), args, train_dataset=rows(kind, 20), method=method, options=NO_DRAWS)
    trainer.train()
    return trainer
