"""A tiny random BERT, its tokenizer and a task it can learn: the label is the row's marked word."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from asa import manifest
from asa.config import from_dict
from finetune.config import FinetuneConfig

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "red", "green", "blue", *"abcdefgh"]
CLASSES = ["red", "green", "blue"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with dropout on, so that its seeding matters."""
    folder = tmp_path_factory.mktemp("model")
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    BertForMaskedLM(shape).save_pretrained(folder)
    return folder


def write_task(folder: Path, rows: int = 24, **facts: Any) -> Path:
    """A task folder with `rows` training rows and half as many in dev and test."""
    folder.mkdir(parents=True)
    for offset, (split, count) in enumerate((("train", rows), ("dev", rows // 2), ("test", rows // 2))):
        with (folder / f"{split}.jsonl").open("w") as file:
            for index in range(count):
                label = (index + offset) % 3
                filler = " ".join("abcdefgh"[(index * 5 + place * 3 + offset) % 8] for place in range(2 + index % 5))
                row = {"id": f"{split}{index}", "text": f"{filler} {CLASSES[label]}", "label": label}
                file.write(json.dumps(row) + "\n")
    task = {"name": "colours", "kind": "classification", "labels": CLASSES, **facts}
    (folder / "task.json").write_text(json.dumps(task))
    manifest.write(folder, "task", task)
    return folder


@pytest.fixture
def task_folder(tmp_path: Path) -> Path:
    return write_task(tmp_path / "task")


Make = Callable[..., FinetuneConfig]


@pytest.fixture
def make(tmp_path: Path, model_folder: Path, task_folder: Path) -> Make:
    """A config of one short run; keywords change it."""

    def build(**changes: Any) -> FinetuneConfig:
        values: dict[str, Any] = {
            "task": task_folder,
            "models": {"tiny": model_folder},
            "methods": ["vanilla"],
            "seeds": [0],
            "out": tmp_path / "runs",
            "length": 16,
            "batch": 8,
            "epochs": 2,
            "log_every": 2,
            "optim": {"lr": 0.01},
        }
        return from_dict(FinetuneConfig, values | changes)

    return build
