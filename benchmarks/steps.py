"""The training steps that are compared: our methods', Hugging Face's and the slow twin's, on MLM or classification."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from asa import hf
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.config import did_you_mean
from asa.errors import RequestError
from asa.methods import METHODS, Method, MethodsConfig
from asa.model import TaskModel
from benchmarks.twin import Twin

MASK_SHARE = 0.15
VANILLA, ASA, STOCK, TWIN, ALL = "vanilla", "asa", "stock", "twin", "all"
PEERS = (STOCK, TWIN)
PAIRS = ((ASA, VANILLA), (VANILLA, STOCK), (ASA, STOCK))
OPTIONS = MethodsConfig(asa=ASAConfig.pretraining())
COUNTS = {"freelb": "passes", "pgd": "ascents", "smart": "ascents"}  # what N is in the step freelb-N
MOST = 100
Backward = Callable[[], Any]
Task = Literal["mlm", "classification"]


def _known(name: str) -> str:
    allowed = [*METHODS, *PEERS, ALL]
    kind, dash, count = name.partition("-")
    if dash and kind in COUNTS and count.isascii() and count.isdecimal() and 1 <= int(count) <= MOST:
        return name
    if name not in allowed:
        hint = did_you_mean(difflib.get_close_matches(name, allowed, n=1))
        counted = ", ".join(f"{kind}-N" for kind in COUNTS)
        raise ValueError(f"no step {name!r}; {hint}allowed: {', '.join(allowed)}, {counted} with N 1 to {MOST}")
    return name


StepName = Annotated[str, AfterValidator(_known)]  # a method, one with N passes or ascents, a peer, or every method

# B rows, L length, M masked positions of a row


def task_batch(task: Task, rows: int, length: int, vocab: int) -> Batch:
    """Full rows of random ids, the same for every step compared; for mlm round(0.15 * length) masked positions each."""
    ids_BL = torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids_BL, "attention_mask": torch.ones_like(ids_BL)}
    if task == "classification":
        return Batch(task, inputs, torch.arange(rows) % 2, total_rows=rows, total_labels=rows)
    masked = round(MASK_SHARE * length)
    places_M = torch.arange(masked) * length // masked
    positions = (torch.arange(rows)[:, None] * length + places_M).flatten()
    labels = ids_BL.flatten()[positions]
    return Batch(task, inputs, labels, total_rows=rows, total_labels=rows * masked, positions=positions)


def bert_config(layers: int, width: int, attention: str) -> PreTrainedConfig:
    """BERT's shape at any size: heads of 64, an inner width of 4 * width."""
    shape = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
    )
    shape._attn_implementation = attention
    return shape


def folder_config(folder: Path, attention: str) -> PreTrainedConfig:
    """The shape of the model in a Hugging Face folder. Raises RequestError where there is none that we support."""
    hf.check_model(folder, "--model")
    return AutoConfig.from_pretrained(folder, attn_implementation=attention)


def bare_model(shape: PreTrainedConfig, task: Task) -> PreTrainedModel:
    """Hugging Face's model, weights random: a step's cost does not depend on them."""
    family = AutoModelForMaskedLM if task == "mlm" else AutoModelForSequenceClassification
    return family.from_config(shape)


def task_model(shape: PreTrainedConfig, name: str, task: Task) -> TaskModel:
    """Our module for the step `name`."""
    return TaskModel(bare_model(shape, task), task, OPTIONS.asa if method_of(name).uses_adversary else None)


def check_twin(shape: PreTrainedConfig) -> None:
    """Raises RequestError for another family than BERT, of which alone there is a slow twin."""
    if shape.model_type != "bert":
        raise RequestError(f"step twin is a BERT, not {shape.model_type!r}; leave it out of --methods, or set --model")


def twin_model(shape: PreTrainedConfig, task: Task) -> Twin:
    """The slow twin, weights random. Raises RequestError for another family than BERT."""
    check_twin(shape)
    return Twin(bare_model(shape, task), OPTIONS.asa.tau)  # type: ignore[arg-type]  # check_twin knows it for a BERT's


def method_of(name: str) -> Method:
    kind, _, count = name.partition("-")
    if not count:
        return METHODS[name](OPTIONS)
    settings = replace(getattr(OPTIONS, kind), **{COUNTS[kind]: int(count)})
    return METHODS[kind](replace(OPTIONS, **{kind: settings}))


def cycle(name: str) -> int:
    """Optimizer steps after which a method's costs repeat."""
    return OPTIONS.asa_sparse.every if name == "asa_sparse" else 1


def stock_loss(model: torch.nn.Module, batch: Batch) -> Tensor:
    """A forward as Hugging Face does it: a masked LM's head runs on every position."""
    labels = batch.inputs["input_ids"] if batch.kind == "mlm" else batch.labels
    return model(**batch.inputs, labels=labels).loss


def names_of(asked: Sequence[str]) -> list[str]:
    """The steps asked for, each once, `all` written out."""
    return list(dict.fromkeys(name for one in asked for name in (METHODS if one == ALL else [one])))


def ratios(costs: Mapping[str, float], pairs: Sequence[tuple[str, str]] = PAIRS) -> dict[tuple[str, str], float]:
    """What one step costs relative to another, for the pairs of which both are there."""
    return {(one, other): costs[one] / costs[other] for one, other in pairs if one in costs and other in costs}


def show(pair: tuple[str, str]) -> str:
    return "/".join(pair).replace(ASA, "ASA")
