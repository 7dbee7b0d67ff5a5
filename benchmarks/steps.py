"""The three training steps that are compared: our vanilla MLM, our ASA MLM and Hugging Face's own masked-LM step."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, PreTrainedConfig

from asa import hf
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel

MASK_SHARE = 0.15
VANILLA, ASA, STOCK = "vanilla", "asa", "stock"
PAIRS = ((ASA, VANILLA), (VANILLA, STOCK), (ASA, STOCK))
Backward = Callable[[], Any]

# B rows, L length, M masked positions of a row


def mlm_batch(rows: int, length: int, vocab: int) -> Batch:
    """Full rows of random ids, the same for every step compared; round(0.15 * length) masked positions in each."""
    ids_BL = torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(0))
    masked = round(MASK_SHARE * length)
    places_M = torch.arange(masked) * length // masked
    positions = (torch.arange(rows)[:, None] * length + places_M).flatten()
    return Batch(
        kind="mlm",
        inputs={"input_ids": ids_BL, "attention_mask": torch.ones_like(ids_BL)},
        labels=ids_BL.flatten()[positions],
        positions=positions,
        total_rows=rows,
        total_labels=rows * masked,
    )


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


def task_model(shape: PreTrainedConfig, name: str) -> TaskModel:
    """Our module for the step `name`, weights random: a step's cost does not depend on them."""
    model = AutoModelForMaskedLM.from_config(shape)
    return TaskModel(model, "mlm", ASAConfig(tau=0.1) if name == ASA else None)


def our_backward(engine: Any, name: str, batch: Batch) -> Backward:
    """Forward and backward of our method `name` on `engine`."""
    method = METHODS[name](MethodsConfig(asa=ASAConfig(tau=0.1)))
    return lambda: method.backward(engine, batch, At(0, 0))


def stock_backward(model: torch.nn.Module, batch: Batch) -> Backward:
    """Forward and backward as Hugging Face does them: the head runs on every position."""
    labels_BL = batch.inputs["input_ids"]
    return lambda: model(**batch.inputs, labels=labels_BL).loss.backward()


def ratios(costs: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """What one step costs relative to another, for the PAIRS."""
    return {(one, other): costs[one] / costs[other] for one, other in PAIRS}


def show(pair: tuple[str, str]) -> str:
    return "/".join(pair).replace(ASA, "ASA")
