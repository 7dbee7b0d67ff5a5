"""A tiny random BERT, its tokenizer and a task it can learn: the label is the row's marked word."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from asa import manifest, record
from asa.config import from_dict
from asa.methods import METHODS, OURS
from finetune.config import FinetuneConfig
from finetune.metrics import USUAL
from finetune.tasks.task import Kind, Split, Task

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "red", "green", "blue", *"abcdefgh"]
CLASSES = ["red", "green", "blue"]


@pytest.fixture(autouse=True)
def signal_as_it_was() -> Iterator[None]:
    """A command answers SIGTERM in a way of its own, in a process that here goes on to other tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def no_other_methods() -> Iterator[None]:
    """A method of a test's own stays in the registry, where other tests of all methods would meet it."""
    yield
    for name in METHODS.keys() - OURS:
        del METHODS[name]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with dropout on, so that its seeding matters."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def still_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without dropout, which any number of processes trains alike."""
    return write_model(tmp_path_factory.mktemp("still"), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def write_model(folder: Path, **shape: Any) -> Path:
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)
    torch.manual_seed(0)
    usual: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    usual |= {"max_position_embeddings": 32, "initializer_range": 0.2}
    config = BertConfig(vocab_size=len(WORDS), **(usual | shape))
    BertForMaskedLM(config).save_pretrained(folder)
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


Given = Callable[..., dict[str, Any]]
Make = Callable[..., FinetuneConfig]


@pytest.fixture
def given(tmp_path: Path, model_folder: Path, task_folder: Path) -> Given:
    """What one asks for to get one short run; keywords change it."""

    def build(**changes: Any) -> dict[str, Any]:
        values: dict[str, Any] = {
            "task": {"folder": task_folder},
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
        return values | changes

    return build


@pytest.fixture
def make(given: Given) -> Make:
    """The same as a config."""
    return lambda **changes: from_dict(FinetuneConfig, given(**changes))


def events(out: Path, run: str) -> list[dict[str, Any]]:
    """The record of run MODEL-METHOD-SEED of the one task below a sweep's folder."""
    (path,) = out.glob(f"*/{run}/{record.NAME}")
    return record.read(path)


def small_task(kind: Kind, rows: int = 24) -> Task:
    """A task of any kind in memory, with words of the tiny model."""
    splits = {name: _rows(kind, rows if name == "train" else rows // 2, at) for at, name in enumerate(NAMES)}
    labels = {"classification": CLASSES, "token": ["O", "B-x"]}.get(kind, [])
    return Task("small", kind, labels, USUAL[kind], splits, "0" * 64)


NAMES = ("train", "dev", "test")


def _rows(kind: Kind, count: int, offset: int) -> Split:
    texts: list[Any] = []
    labels: list[Any] = []
    for row in range(count):
        filler = ["abcdefgh"[(row * 5 + place * 3 + offset) % 8] for place in range(2 + row % 5)]
        label = (row + offset) % 3
        if kind == "token":
            texts.append((*filler, CLASSES[label]))
            labels.append([0] * len(filler) + [1])
        elif kind == "choice":
            texts.append(tuple((" ".join([*filler, colour]),) for colour in CLASSES[: 2 + row % 2]))
            labels.append(row % 2)
        else:
            texts.append((" ".join([*filler, CLASSES[label]]),))
            labels.append(float(label) if kind == "regression" else label)
    return Split([str(row) for row in range(count)], texts, labels)
