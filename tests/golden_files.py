"""Reading golden files: the model, the batch and the gradients that a released program had, and how far off ours
are.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch, Kind
from asa.engine import load_parameters
from asa.model import TaskModel

Golden = dict[str, Tensor]


def read(path: Path) -> tuple[Golden, dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference relative to the largest expected value."""
    return relative((ours.double() - theirs.double()).abs().max().item(), theirs.abs().max().item())


def relative(difference: float, scale: float) -> float:
    """`difference` / `scale`; 0 where both are zero. NaN on either side stays NaN, which passes no check."""
    if difference == 0 and scale == 0:
        return 0.0
    return difference / scale if scale else difference * math.inf


def build(meta: dict[str, str], kind: Kind, asa: ASAConfig | None = None) -> TaskModel:
    classes: dict[Kind, Any] = {
        "classification": BertForSequenceClassification,
        "regression": BertForSequenceClassification,
        "choice": BertForMultipleChoice,
        "token": BertForTokenClassification,
    }
    shape = json.loads(meta["config"]) | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    labels = 1 if kind == "choice" else int(meta.get("num_labels") or shape["num_labels"])
    return TaskModel(classes[kind](BertConfig(**shape | {"num_labels": labels})), kind, asa)


def batch_of(golden: Golden, kind: Kind) -> Batch:
    labels = golden["labels"]
    inputs = {name: golden[name].long() for name in ("input_ids", "attention_mask", "token_type_ids")}
    rows = inputs["input_ids"].flatten(0, -2).shape[0]
    units = int((labels != IGNORE).sum()) if kind == "token" else labels.shape[0]
    labels = labels if kind == "regression" else labels.long()
    return Batch(kind=kind, inputs=inputs, labels=labels, total_rows=rows, total_labels=units)


def load_weights(module: TaskModel, golden: Golden) -> None:
    load_parameters(module, _ours(golden, "param."))


def gradient_errors(module: TaskModel, golden: Golden) -> dict[str, float]:
    """Per parameter, relative to the largest gradient of its layer's weight and bias.

    Some biases (of attention keys: softmax sees no shift) have gradient zero but for rounding, and so no scale.
    """
    theirs = _ours(golden, "grad.")
    scales: dict[str, Tensor] = {}
    for name, gradient in theirs.items():
        layer = name.rpartition(".")[0]
        scales[layer] = torch.maximum(scales.get(layer, gradient.new_zeros(())), gradient.abs().max())
    errors = {}
    for name, p in module.named_parameters():
        ours = torch.zeros_like(p) if p.grad is None else p.grad
        difference, scale = (ours - theirs[name]).abs().max(), scales[name.rpartition(".")[0]]
        errors[f"grad {name}"] = relative(difference.item(), scale.item())
    return errors


def _ours(golden: Golden, prefix: str) -> Golden:
    """The file's tensors under `prefix`, by our parameters' names."""
    return {_our_name(name.removeprefix(prefix)): t for name, t in golden.items() if name.startswith(prefix)}


def _our_name(name: str) -> str:
    head, found, tail = name.partition("bert.encoder.adversary.")
    return f"adversary.{tail}" if found and not head else f"model.{name}"
