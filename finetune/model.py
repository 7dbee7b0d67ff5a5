"""A run's module and engine: built from a Hugging Face folder, saved as one."""

import copy
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from asa import dist, fused, hf, manifest
from asa.adversary import FILE as ADVERSARY_FILE
from asa.dist import seed_all
from asa.engine import Engine, PlainEngine, load_parameters
from asa.methods import METHODS
from asa.model import TaskModel
from asa.places import refusal_told
from asa.portable import save_model as save_portable
from asa.portable import save_tokenizer
from asa.tokenizer import for_words, load_tokenizer
from finetune.config import FinetuneConfig
from finetune.run import Run
from finetune.tasks.task import Kind, Task

HEAD, ADVERSARY, DROPOUT = range(3)  # one random stream each, keyed by (seed, stream, step)
HEADS: dict[Kind, Any] = {
    "classification": AutoModelForSequenceClassification,
    "regression": AutoModelForSequenceClassification,
    "token": AutoModelForTokenClassification,
    "choice": AutoModelForMultipleChoice,
}


def build(run: Run, config: FinetuneConfig, task: Task) -> tuple[TaskModel, list[str]]:
    """The model with a head for the task, and its adversary where the method has one; what is new follows from the
    seed. Also the names of the parameters that are new: a head is taken over where the folder has one of the same
    shape, as a checkpoint of another task may.

    Raises: RequestError where the folder cannot be loaded or lacks weights of the encoder, or its exported adversary
        does not fit the method.
    """
    seed_all(run.seed, HEAD, 0)
    model, new = _load(config.models[run.model], f"--models.{run.model}", task)
    seed_all(run.seed, ADVERSARY, 0)
    module = TaskModel(model, task.kind, config.asa if METHODS[run.method](config).uses_adversary else None)
    if module.adversary is not None and exported_adversary(run, config):
        module.adversary.load_pretrained(config.models[run.model])
    return module, new


def _load(folder: Path, flag: str, task: Task) -> tuple["transformers.PreTrainedModel", list[str]]:
    classes = task.labels or ["score"]
    with hf.loading(folder, flag, f"as a model for a {task.kind} task"):  # the family may have no such head
        model, info = HEADS[task.kind].from_pretrained(
            folder,
            num_labels=len(classes),
            id2label=dict(enumerate(classes)),
            label2id={name: index for index, name in enumerate(classes)},
            # The folder's is of another task. Of regression a pipeline would squash the score by a sigmoid without it;
            # else Hugging Face goes by the classes.
            problem_type="regression" if task.kind == "regression" else None,
            ignore_mismatched_sizes=True,
            **hf.LOADED,
        )
    new = hf.new_weights(info)
    hf.check_encoder(model, new, folder, flag)
    return model, new


def exported_adversary(run: Run, config: FinetuneConfig) -> bool:
    """Whether the run, if its method has adversaries, takes those of the model's folder."""
    return config.adversary == "exported" and (config.models[run.model] / ADVERSARY_FILE).is_file()


def engine_of(config: FinetuneConfig, module: TaskModel, updates: int) -> Engine:
    """What trains the module. Args: updates of the whole run."""
    device = device_of(config)
    fused.leave_out(os.environ)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ["LOCAL_RANK"] = str(device.index)  # DeepSpeed's own way to know it
    if config.engine == "plain":
        return PlainEngine(module, config.optim, updates, device)
    from asa.zero import DeepSpeedEngine  # its import takes seconds

    if not dist.active():
        dist.init(device.type == "cuda", launched=False)
    return DeepSpeedEngine(module, config.optim, updates, device, config.zero, config.precision, micro(config))


def micro(config: FinetuneConfig) -> int:
    """Rows per forward pass of a process at most."""
    share = -(-config.batch // dist.world())
    return min(config.micro_batch or share, share)


def device_of(config: FinetuneConfig) -> torch.device:
    """The GPU of this rank, or of this worker where it has the run to itself; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", max(dist.rank(), config.worker) % torch.cuda.device_count())


def save_model(engine: Engine, source: Path, folder: Path, facts: dict[str, Any]) -> None:
    """An ordinary Hugging Face folder: the engine's weights, with the tokenizer of the model they came from and, where
    the method has any, the adversaries beside them. All ranks must call it."""
    weights = engine.full_state()
    dist.on_main(lambda: _write(_whole(engine.module, weights), source, folder, facts))


def _whole(module: TaskModel, weights: dict[str, Tensor]) -> TaskModel:
    """A module of the same shape in fp32 with these weights; an engine may have spread its own over the ranks."""
    with torch.random.fork_rng(devices=[]):
        model = type(module.model)(copy.deepcopy(module.model.config)).float()
        whole = TaskModel(model, module.kind, module.adversary.config if module.adversary is not None else None)
    load_parameters(whole, weights)
    return whole


def _write(module: TaskModel, source: Path, folder: Path, facts: dict[str, Any]) -> None:
    with refusal_told(folder), manifest.staging(folder) as partial:
        tokenizer = load_tokenizer(source, "--models")
        with hf.quiet():
            save_portable(module.model, partial)
        save_tokenizer(for_words(tokenizer) if module.kind == "token" else tokenizer, partial, module.model)
        if module.adversary is not None:
            module.adversary.save_pretrained(partial)
        manifest.write(partial, "model", facts)
