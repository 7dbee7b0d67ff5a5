"""The published files themselves: every row is there, and every task trains or is scored."""

import os
from pathlib import Path
from typing import Any

import pytest

from asa import record
from asa.config import from_dict
from asa.errors import RequestError
from finetune import sweep
from finetune.config import FinetuneConfig
from finetune.tasks.load import load, trainable
from finetune.tasks.spec import named
from finetune.tasks.split import thinned
from finetune.tasks.task import Task

pytestmark = pytest.mark.skipif("ASA_DATA" not in os.environ, reason="ASA_DATA names no folder of published task files")
TINY = 6  # rows of each split that are trained on or scored here

# Rows by split. Where a file stands for two splits (held out), they add up to what its publisher states.
ROWS: dict[str, dict[str, int]] = {
    "sst2": {"train": 66_349, "dev": 1_000, "test": 872, "submit": 1_821},
    "cola": {"train": 7_696, "dev": 855, "test": 1_043, "submit": 1_063},
    "mrpc": {"train": 3_301, "dev": 367, "test": 408, "submit": 1_725},
    "stsb": {"train": 5_174, "dev": 575, "test": 1_500, "submit": 1_379},
    "qqp": {"train": 18_212, "dev": 1_000, "test": 1_000},
    "qnli-ranked": {"train": 1_103, "dev": 123, "test": 136},
    "qnli": {"train": 4_425, "dev": 492, "test": 546, "submit": 5_463},
    "rte": {"train": 2_241, "dev": 249, "test": 277, "submit": 3_000},
    "wnli": {"train": 571, "dev": 64, "test": 71, "submit": 146},
    "wnli-ranked": {"train": 205, "dev": 23, "test": 25},
    "ax": {"submit": 1_104},
    "anli": {"train": 1_800, "dev": 200, "test": 1_198},
    "paws-qqp": {"test": 677},
    "paws-wiki": {"train": 7_200, "dev": 800, "test": 8_000},
    "hans": {"test": 30_000, "constituent": 10_000, "lexical_overlap": 10_000, "subsequence": 10_000},
    "advglue-sst2": {"test": 148},
    "advglue-qqp": {"test": 78},
    "advglue-mnli": {"test": 121},
    "advglue-mnli-mm": {"test": 162},
    "advglue-qnli": {"test": 148},
    "advglue-rte": {"test": 81},
    "sick": {"train": 4_500, "dev": 500, "test": 4_927},
    "sick-relatedness": {"train": 4_500, "dev": 500, "test": 4_927},
    "wnut17": {"train": 3_394, "dev": 1_009, "test": 1_287},
    "dream": {"train": 6_116, "dev": 2_040, "test": 2_041},
    "hellaswag": {"train": 8_138, "dev": 904, "test": 1_000},
    "arc-easy": {"train": 2_026, "dev": 225, "test": 2_376},
    "arc-challenge": {"train": 1_007, "dev": 112, "test": 1_172},
    "arc-mtl": {"train": 8_102, "dev": 225, "test": 2_376, "challenge": 1_172},
    "csqa": {"train": 8_767, "dev": 974, "test": 1_221},
    "openbookqa": {"train": 4_461, "dev": 496, "test": 500},
}


def request(name: str, **keys: Any) -> dict[str, Any]:
    return {"tasks": [name], "data": os.environ["ASA_DATA"], "models": {"m": "m"}, "out": "out", **keys}


def loaded(name: str, **keys: Any) -> Task:
    return load(named(name), from_dict(FinetuneConfig, request(name, **keys)))


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_there_and_a_few_are_trained_on(
    name: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = loaded(name)
    assert {split: len(rows) for split, rows in task.splits.items()} == ROWS[name]
    if "train" not in task.splits:
        with pytest.raises(
            RequestError, match=rf"task '{name}' has no training rows, .* scored; leave it out of --tasks"
        ):
            trainable(task, from_dict(FinetuneConfig, request(name)))
        return
    few = {split: thinned(rows, TINY) for split, rows in task.splits.items()}
    monkeypatch.setattr(sweep, "load", lambda *_: Task(task.name, task.kind, task.labels, task.metrics, few, "0" * 64))
    keys = {"models": {"m": model_folder}, "methods": ["vanilla"], "seeds": [0], "out": tmp_path, "length": 32}
    sweep.sweep(request(name, **keys, batch=TINY, max_steps=2))
    end = record.read(tmp_path / name / "m-vanilla-0" / record.NAME)[-1]
    assert end["event"] == "end"
    assert {f"test_{metric}" for metric in task.metrics} <= set(end)


def test_texts_and_labels_are_those_of_the_files() -> None:
    """One row of each form, as the papers' encoders read it."""
    assert str(loaded("mrpc").splits["test"].texts[0][1]).startswith('"The foodservice pie business does not fit our')
    assert str(loaded("paws-qqp").splits["test"].texts[1][0]).startswith("The guy I 'm dating never texts me")
    answers = loaded("csqa").splits["test"].texts[0]
    assert [answer[1] for answer in answers][:2] == ["A: bank", "A: library"]
    assert {answer[0][:23] for answer in answers} == {"Q: A revolving door is c"[:23]}
    assert {len(row) for row in loaded("arc-easy").splits["train"].texts} == {3, 4, 5}
    assert loaded("anli").facts["classes"]["test"] == {"entailment": 402, "neutral": 400, "contradiction": 396}
    assert loaded("wnut17").facts["classes"]["test"]["B-person"] == 429


def test_the_papers_quirks() -> None:
    assert len(loaded("dream", paper_compat=True).splits["train"]) == 3_869
    assert loaded("wnut17", paper_compat=True).metrics[0] == "token_f1"
    compat = loaded("paws-qqp", paper_compat=True)
    assert (len(compat.splits["train"]), len(compat.splits["dev"]), len(compat.splits["test"])) == (20_212, 677, 677)
