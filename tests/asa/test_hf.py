"""Hugging Face folders: what is refused, what a vocabulary's hash sees, heads that a checkpoint lacks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

from asa import hf
from asa.errors import RequestError
from asa.tokenizer import load_tokenizer, vocab_sha256
from tests.asa.conftest import tiny_bert, tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    tiny_bert().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_hash_differs_for_other_words_other_order_and_other_special_tokens() -> None:
    tokenizers = [tiny_tokenizer(), tiny_tokenizer(("one", "two")), tiny_tokenizer(("two", "one", "three"))]
    tokenizers.append(tiny_tokenizer())
    tokenizers[-1].mask_token = "one"
    assert len({vocab_sha256(tokenizer) for tokenizer in tokenizers}) == 4


def test_the_hash_outlives_saving_and_loading(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    assert vocab_sha256(load_tokenizer(folder, "--model")) == vocab_sha256(tokenizer)


def test_a_complete_model_passes(folder: Path) -> None:
    hf.check_model(folder, "--model")


@pytest.mark.parametrize(
    ("file", "message"), [("config.json", "no config.json.*--start"), ("model.safetensors", "no weights.*--start")]
)
def test_an_incomplete_model_is_refused(folder: Path, file: str, message: str) -> None:
    (folder / file).unlink()
    with pytest.raises(RequestError, match=message):
        hf.check_model(folder, "--start")


def test_an_unsupported_family_is_refused_by_its_name(folder: Path) -> None:
    shape = json.loads((folder / "config.json").read_text()) | {"model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(shape))
    with pytest.raises(RequestError, match=r"'gpt2' is not supported; give one of .*bert.* by --start"):
        hf.check_model(folder, "--start")


def test_a_folder_without_a_fast_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no tokenizer\.json.*--start"):
        load_tokenizer(tmp_path, "--start")


def test_a_model_with_its_head_loads_whole(folder: Path) -> None:
    model, new = hf.load_mlm(folder, seed=0)
    expected = BertForMaskedLM.from_pretrained(folder).state_dict()
    assert new == []
    assert [name for name, p in model.state_dict().items() if not torch.equal(p, expected[name])] == []


def test_a_missing_head_is_named_and_drawn_from_the_seed(folder: Path, tmp_path: Path) -> None:
    headless: Any = tiny_bert().base_model
    headless.save_pretrained(tmp_path / "headless")
    runs = [hf.load_mlm(tmp_path / "headless", seed) for seed in (1, 1, 2)]
    assert runs[0][1]
    assert all(name.startswith("cls.") for name in runs[0][1])
    drawn = [run[0].state_dict()["cls.predictions.transform.dense.weight"] for run in runs]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_new_model_has_the_shape_of_the_folder(folder: Path) -> None:
    shapes = {name: p.shape for name, p in hf.new_mlm(folder).state_dict().items()}
    assert shapes == {name: p.shape for name, p in tiny_bert().state_dict().items()}
