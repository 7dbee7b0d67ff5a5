"""Words for which --length leaves no place: they are counted, told, and scored as what no model has looked at."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from finetune.evaluation_config import ScoreConfig
from finetune.loop import train
from finetune.predictions import load_predictions
from finetune.score import score_all
from finetune.sweep import sweep
from finetune.tasks.batches import encode
from tests.finetune.conftest import Given, events

LENGTH = 8  # of which [CLS] and [SEP] take two


FIRST = {"train": "a", "dev": "b", "test": "c"}  # words of splits, whose rows are then no other's
TOLD = "words beyond --length 8, not trained on and scored as O ({}): 8 of train, 8 of dev, 6 of test"


def cut_task(folder: Path, row: str) -> dict[str, Any]:
    """A task of kind token whose rows are all the same one, but for each split's first word."""
    own: dict[str, Any] = {"name": "own", "kind": "token", "text": ["words"], "label": "tags", "metrics": ["accuracy"]}
    for split, count in (("train", 4), ("dev", 4), ("test", 3)):
        own[split] = [str(folder / f"{split}.jsonl")]
        mine = row.replace('"a"', f'"{FIRST[split]}"', 1)
        (folder / f"{split}.jsonl").write_text(f"{mine}\n" * count)
    return own


@pytest.mark.parametrize("outside", ["O", "x"])
def test_words_beyond_the_length_are_counted_told_and_scored_as_o(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str], outside: str
) -> None:
    """Of each row's eight words the last two are cut off: g, whose label is `outside`, and red, whose label is y."""
    row = json.dumps({"words": [*"abcdefg", "red"], "tags": [outside] * 7 + ["y"]})
    sweep(given(task=cut_task(tmp_path, row), length=LENGTH, max_steps=1, batch=4))
    assert f"own: {TOLD.format('tiny')}" in capsys.readouterr().out.splitlines()
    lines = events(tmp_path / "runs", "tiny-vanilla-0")
    assert lines[0]["task_facts"]["cut"] == {"train": 8, "dev": 8, "test": 6}
    these = load_predictions(tmp_path / "runs/own/tiny-vanilla-0/predictions/test.npz")
    (guesses, *_), names = these.predictions.labels, these.labels
    assert isinstance(guesses, list)
    assert len(guesses) == 6
    hits = sum(names[guess] == outside for guess in guesses) + (outside == "O")
    assert lines[-1]["test_accuracy"] == pytest.approx(hits / 8)


def test_splits_are_encoded_once_for_models_that_read_alike_when_the_first_run_is_made_and_told_once(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("finetune.sweep.encode", lambda *rest: (seen.append("encode"), encode(*rest))[1])
    monkeypatch.setattr("finetune.sweep.train", lambda *rest: (seen.append("train"), train(*rest))[1])
    asked = given(task=cut_task(tmp_path, json.dumps({"words": [*"abcdefg", "red"], "tags": ["O"] * 7 + ["y"]})))
    other = shutil.copytree(asked["models"]["tiny"], tmp_path / "other")
    said = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps({**said, "truncation_side": "left"}))
    models = {**dict.fromkeys(("one", "two"), asked["models"]["tiny"]), "other": other}
    sweep({**asked, "models": models, "seeds": [0, 1], "length": LENGTH, "max_steps": 1, "batch": 4})
    assert seen == [*["encode"] * 3, "train", "train"] + [*["encode"] * 3, "train"] + ["train"] * 3
    told = [line for line in capsys.readouterr().out.splitlines() if "beyond" in line]
    assert told == [f"own: {TOLD.format(name)}" for name in models]


def test_words_without_a_token_are_counted_and_told(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = json.dumps({"words": ["a", "", "b", "\u2003"], "tags": ["x", "y", "x", "y"]})
    sweep(given(task=cut_task(tmp_path, row), length=LENGTH, max_steps=1, batch=4))
    told = "own: words without a token, read as unknown (tiny): 8 of train, 8 of dev, 6 of test"
    assert told in capsys.readouterr().out.splitlines()
    assert events(tmp_path / "runs", "tiny-vanilla-0")[0]["task_facts"]["unread"] == {"train": 8, "dev": 8, "test": 6}


def test_words_of_a_task_that_a_model_is_scored_on_are_told(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = cut_task(tmp_path, json.dumps({"words": ["a", "", *"bcdefg"], "tags": ["x", "y"] * 4}))
    sweep(given(task=task, length=LENGTH, max_steps=1, batch=4, save_model=True))
    capsys.readouterr()
    asked: dict[str, Any] = {"models": (tmp_path / "runs/own/tiny-vanilla-0",), "out": tmp_path / "out", "task": task}
    score_all(ScoreConfig(**asked))
    told = [line for line in capsys.readouterr().out.splitlines() if "words" in line]
    assert told == [
        "own: words beyond --length 8, scored as O (own-tiny-vanilla-0): 6 of test",
        "own: words without a token, read as unknown (own-tiny-vanilla-0): 3 of test",
    ]


def test_nothing_is_told_where_everything_has_a_place(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(given(max_steps=1))
    printed = capsys.readouterr().out
    assert "beyond" not in printed
    assert "without a token" not in printed
    assert "cut" not in events(tmp_path / "runs", "tiny-vanilla-0")[0]["task_facts"]
