"""Which models of a sweep share tokenized rows, and how long these are kept."""

import gc
import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from asa.errors import RequestError
from finetune.sweep import Sweep
from tests.finetune.conftest import Given, small_task


def copied(folder: Path, to: Path, **settings: Any) -> Path:
    """A model's folder whose tokenizer has other settings."""
    shutil.copytree(folder, to)
    said = json.loads((to / "tokenizer_config.json").read_text())
    (to / "tokenizer_config.json").write_text(json.dumps({**said, **settings}))
    return to


def test_models_share_a_tokenizer_if_it_reads_all_texts_alike(given: Given, tmp_path: Path) -> None:
    asked = given()
    base = asked["models"]["tiny"]
    models = {
        "base": base,
        "same": copied(base, tmp_path / "same", model_max_length=77),
        "marks": copied(base, tmp_path / "marks", split_special_tokens=True),
        "left": copied(base, tmp_path / "left", truncation_side="left"),
        "python": copied(base, tmp_path / "python", tokenizer_class="BertweetTokenizer"),
    }
    (tmp_path / "python/vocab.txt").write_text("red 1\n")
    (tmp_path / "python/bpe.codes").write_text("#\n")
    work = Sweep({**asked, "models": models})
    found = {name: work._tokenizer(name) for name in models}
    assert not isinstance(found["python"], PreTrainedTokenizerFast)
    assert found["same"] is found["base"]
    assert len({id(one) for one in found.values()}) == 4


def test_a_tokenizer_that_cannot_tell_words_is_refused_before_anything_is_trained(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = given()
    slow = copied(asked["models"]["tiny"], tmp_path / "python", tokenizer_class="BertweetTokenizer")
    (slow / "vocab.txt").write_text("red 1\n")
    (slow / "bpe.codes").write_text("#\n")
    monkeypatch.setattr("finetune.sweep.tasks_of", lambda config: {"small": small_task("token")})
    with pytest.raises(RequestError, match="BertweetTokenizer cannot tell the words"):
        Sweep({**asked, "models": {**asked["models"], "slow": slow}})


def test_rows_are_made_once_for_each_length_and_forgotten_with_their_task(given: Given) -> None:
    work = Sweep(given())
    work.tasks["other"] = work.tasks["colours"]
    tokenizer = work._tokenizer("tiny")
    rows = [work._rows("colours")(tokenizer, length)["train"] for length in (16, 4, 16)]
    assert rows[0] is rows[2]
    assert [int(one.lengths.max()) for one in rows] == [9, 4, 9]
    kept = [weakref.ref(one) for one in rows]
    del rows
    work._rows("other")(tokenizer, 16)
    gc.collect()
    assert [one() for one in kept] == [None] * 3
