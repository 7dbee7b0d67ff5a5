"""A tiny BERT with its tokenizer, and shards built from a tiny dump by the real data stage."""

import bz2
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from asa import record
from data_prep.build import build
from data_prep.config import BuildConfig
from pretrain.config import PretrainConfig
from tests.data_prep.conftest import dump_xml, page_xml, prose, save_tokenizer

LENGTH = 24


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def losses(run: Path) -> list[tuple[int, float]]:
    """The steps and losses that a run has recorded."""
    return [(event["step"], event["loss"]) for event in record.read(run / record.NAME) if event["event"] == "train"]


def make_model(folder: Path, extra_words: int = 0) -> Path:
    """A Hugging Face folder of about 20k parameters, dropout on."""
    from transformers import AutoTokenizer

    save_tokenizer(folder, extra_words)
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=1 + max(AutoTokenizer.from_pretrained(folder).get_vocab().values()),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        pad_token_id=0,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("data")
    dump = folder / "wiki.xml.bz2"
    pages = [page_xml(f"Article {n}", f"'''{prose(n)}'''", n) for n in range(40)]
    dump.write_bytes(bz2.compress(dump_xml(*pages).encode()))
    build(BuildConfig(out=folder / "built", model=model, dumps=[dump], length=LENGTH, heldout=0.2))
    return folder / "built" / "shards"


@pytest.fixture
def request_(model: Path, shards: Path, tmp_path: Path) -> PretrainConfig:
    """Six steps of ASA, two micro-batches each, in one process."""
    return PretrainConfig(
        data=shards,
        model=model,
        out=tmp_path / "run",
        method="asa",
        steps=6,
        global_batch=8,
        micro_batch=4,
        log_every=1,
        eval_every=3,
        eval_rows=9,
        save_every=2,
    )
