"""A compared model on a task, and attacks on its rows."""

from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from asa.batch import Batch
from asa.errors import RequestError
from asa.model import TaskModel
from asa.perturb import Room
from asa.signal import Perturb
from finetune.attack import Look, Worst, attack
from finetune.evaluation_config import RobustnessConfig
from finetune.labels import label_map, refuse_map
from finetune.predictions import predict
from finetune.saved import Saved, device, encoded, length_of, module_of
from finetune.tasks.batches import Encoded
from finetune.tasks.task import Task

# C classes or choices, D width of the word embeddings, E examples, L length, R sequences


class Subject(NamedTuple):
    """A compared model on a task. right: numbers of the rows that it classifies right."""

    name: str
    saved: Saved
    module: TaskModel
    data: Encoded
    right: set[int]


def places_of(name: str, saved: Saved, task: Task, config: RobustnessConfig) -> list[int]:
    """For each class of the model the task's; of kind choice none.

    Raises: RequestError for a model of another kind, other classes or shorter rows than asked for.
    """
    flag = f"--models.{name}"
    if saved.kind != task.kind:
        raise RequestError(f"{saved.folder} is for kind {saved.kind}, {task.name} is {task.kind}; set {flag}")
    length_of(saved, config.length, flag)
    if task.kind != "classification":
        refuse_map(config.map, task.name, task.kind)
        return []
    places = label_map(saved.labels, task.labels, config.map, str(saved.folder))
    if len(places) > len(task.labels):
        raise RequestError(f"{saved.folder} has not the classes {', '.join(task.labels)} alone; set {flag}")
    return places


def prepare(name: str, saved: Saved, task: Task, config: RobustnessConfig) -> Subject:
    """The model with the rows in its own tokens and its own numbers of the classes. Raises: as places_of."""
    flag, places = f"--models.{name}", places_of(name, saved, task, config)
    module = module_of(saved, device(), flag).requires_grad_(False)
    data = encoded(saved, task, config.split, config.length, flag)
    assert data.labels is not None
    if places:
        data = replace(data, labels=torch.tensor([places.index(int(label)) for label in data.labels]))
    found = predict(module, data, config.batch, device())
    found.check(f"a prediction of {saved.folder} is not finite; give another by {flag}")
    assert data.labels is not None
    right = {row for row, label in enumerate(found.labels) if label == int(data.labels[row])}
    return Subject(name, saved, module, data, right)


def attacked(subject: Subject, rows: np.ndarray, radius_E: np.ndarray, config: RobustnessConfig, title: str) -> Worst:
    """All rows, batch by batch, on the CPU."""
    module, data, found = subject.module, subject.data, list[Worst]()
    width = cast(nn.Embedding, module.model.get_input_embeddings()).embedding_dim
    firsts = range(0, len(rows), config.batch)
    for first in tqdm(firsts, desc=f"{subject.name}, {title}", leave=False, disable=None):
        these = slice(first, first + config.batch)
        batch = data.batch(rows[these]).to(device())
        room = Room(~batch.pad_BL, len(rows[these]), width)
        radius = torch.tensor(radius_E[these], dtype=torch.float32, device=device())
        seed = (config.seed, first)
        worst = attack(_look(module, batch), room, radius, config.steps, config.step_size, config.starts, seed)
        found.append(Worst(*(tensor.cpu() for tensor in worst)))
    return Worst(*(torch.cat(parts, dim=-1) for parts in zip(*found, strict=True)))


def _look(module: TaskModel, batch: Batch) -> Look:
    """Cross entropy and rightness of a batch."""

    def look(delta_RLD: Tensor) -> tuple[Tensor, Tensor]:
        log_EC = module(batch, Perturb(embed_BLD=delta_RLD)).log_probs
        return -log_EC.gather(1, batch.labels.unsqueeze(1)).squeeze(1), log_EC.argmax(1) == batch.labels

    return look
