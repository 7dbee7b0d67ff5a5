"""What is saved is read by transformers 4 too, and by ours as if save_pretrained had written it."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
)

from asa.portable import save_model, save_tokenizer
from asa.tokenizer import reader_sha256
from tests.asa.conftest import tiny_tokenizer

SMALL: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "max_position_embeddings": 24}


def load(folder: Path) -> Any:
    auto: Any = AutoTokenizer
    return auto.from_pretrained(folder)


def settings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "tokenizer_config.json").read_text())


def test_a_tokenizer_has_a_class_that_transformers_4_knows(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "theirs")
    save_tokenizer(tokenizer, tmp_path / "ours")
    assert settings(tmp_path / "theirs")["tokenizer_class"] == "TokenizersBackend"
    assert settings(tmp_path / "ours")["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert reader_sha256(load(tmp_path / "ours")) == reader_sha256(load(tmp_path / "theirs"))


def test_added_tokens_have_the_name_that_both_know(tmp_path: Path) -> None:
    tokenizer: Any = tiny_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["[E1]", "[E2]"]})
    tokenizer.save_pretrained(tmp_path / "theirs")
    save_tokenizer(tokenizer, tmp_path / "ours")
    assert settings(tmp_path / "theirs")["extra_special_tokens"] == ["[E1]", "[E2]"]
    found = settings(tmp_path / "ours")
    assert found["additional_special_tokens"] == ["[E1]", "[E2]"]
    assert "extra_special_tokens" not in found
    ours, theirs = load(tmp_path / "ours"), load(tmp_path / "theirs")
    assert ours("one [E2] two")["input_ids"] == theirs("one [E2] two")["input_ids"]
    assert ours.all_special_tokens == theirs.all_special_tokens


@pytest.mark.parametrize(("told", "expected"), [(None, 24), (7, 7)])
def test_texts_are_cut_to_what_the_model_takes_where_nobody_says_to_what(
    told: int | None, expected: int, tmp_path: Path
) -> None:
    tokenizer: Any = tiny_tokenizer()
    if told:
        tokenizer.model_max_length = told
    save_tokenizer(tokenizer, tmp_path, BertForMaskedLM(BertConfig(**SMALL)))
    assert load(tmp_path).model_max_length == expected


def test_relative_positions_set_no_length(tmp_path: Path) -> None:
    shape = DebertaV2Config(**SMALL, relative_attention=True, position_biased_input=False)
    save_tokenizer(tiny_tokenizer(), tmp_path, DebertaV2ForMaskedLM(shape))
    assert load(tmp_path).model_max_length >= 10**20


def test_bases_of_rotary_positions_have_both_names(tmp_path: Path) -> None:
    bases = {"full_attention": 160_000.0, "sliding_attention": 20_000.0}
    rope: Any = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    model = ModernBertForMaskedLM(ModernBertConfig(**SMALL, pad_token_id=0, rope_parameters=rope))
    model.save_pretrained(tmp_path / "theirs")
    save_model(model, tmp_path / "ours")
    found = json.loads((tmp_path / "ours/config.json").read_text())
    assert (found["global_rope_theta"], found["local_rope_theta"]) == (160_000.0, 20_000.0)
    assert AutoConfig.from_pretrained(tmp_path / "ours").rope_parameters == rope
    without = {key: value for key, value in found.items() if not key.endswith("_rope_theta")}
    assert without == json.loads((tmp_path / "theirs/config.json").read_text())
