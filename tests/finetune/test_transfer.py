"""Transfer on the published sets: runs of GLUE tasks scored on the sets that were made to be hard for them.

The runs' weights are replaced by ones whose predictions are known: a class for rows with a certain word, another for
the rest. So every score follows from the files, which are read here in another way than by the loader.
"""

import csv
import json
import lzma
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from asa import manifest, record
from asa.errors import RequestError
from finetune.__main__ import score
from finetune.predictions import FOLDER, load_predictions
from finetune.sweep import sweep
from tests.finetune.conftest import write_model

pytestmark = pytest.mark.skipif("ASA_DATA" not in os.environ, reason="ASA_DATA names no folder of published task files")
DATA = Path(os.environ.get("ASA_DATA", ""))
HANS = "hans/hans_regen.tsv.xz"
WORD = "in"
LENGTH = 256  # more tokens than any row has: none is cut

CLASSES = {
    "rte": ("entailment", "not_entailment"),
    "qqp": ("not_duplicate", "duplicate"),
    "sst2": ("negative", "positive"),
}


class Row(NamedTuple):
    """A row of a published file. part: its subset, test where there are none."""

    text: str
    label: str
    part: str = "test"


def hans(data: Path) -> list[Row]:
    with lzma.open(data / HANS, "rt") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [Row(f"{row['sentence1']} {row['sentence2']}", row["label"], row["heuristic"]) for row in rows]


def paws() -> list[Row]:
    lines = (DATA / "paws_qqp_677" / "dev_and_test.tsv").read_text().splitlines()[1:]
    return [Row(line, ("not_duplicate", "duplicate")[int(line[-1])]) for line in lines]


def adversarial(entry: str, *names: str) -> list[Row]:
    """AdvGLUE's rows of a task. Args: names, its classes by the file's numbers."""
    rows = json.loads((DATA / "advglue_dev" / "dev.json").read_text())[entry]
    texts = [" ".join(str(row[key]) for key in row if key not in ("idx", "label")) for row in rows]
    return [Row(text, names[row["label"]]) for text, row in zip(texts, rows, strict=True)]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the long files with few of their rows: each 25th, the same number of every heuristic."""
    root = tmp_path_factory.mktemp("few")
    long = [path for folder in ("glue_rte", "glue_sst2", "qqp_20k") for path in (DATA / folder).glob("*.[ct]sv")]
    for name in (HANS, *(path.relative_to(DATA) for path in long)):
        (root / name).parent.mkdir(exist_ok=True)
        opened = lzma.open if name == HANS else open
        with opened(DATA / name, "rt") as file, opened(root / name, "wt") as short:
            short.writelines(line for at, line in enumerate(file) if at % 25 == 0)
    return root


@pytest.fixture(scope="module")
def runs(few: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By task a run of one step, its model replaced by one that says the task's second class where WORD is in a row."""
    root = tmp_path_factory.mktemp("transfer")
    (root / "model").mkdir()
    start = write_model(root / "model", num_hidden_layers=1, max_position_embeddings=LENGTH)
    words = start / "tokenizer.json"
    words.write_text(words.read_text().replace('"red"', f'"{WORD}"'))
    keys: dict[str, Any] = {"tasks": list(CLASSES), "data": few, "models": {"tiny": start}, "methods": ["vanilla"]}
    keys |= {"seeds": [0], "out": root / "runs", "max_steps": 1, "length": 32, "train_rows": 8, "batch": 8}
    sweep({**keys, "eval_batch": 1024, "save_model": True})
    found = {task: root / "runs" / task / "tiny-vanilla-0" for task in CLASSES}
    for run in found.values():
        spot(run / "model")
    return found


def spot(folder: Path) -> None:
    """Make the saved model say its second class where the tokenizer's word 5 is in a row, else its first."""
    facts = manifest.read(folder, "model", "--models")
    model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        for name, values in model.named_parameters():
            values.zero_()
            if name.endswith("LayerNorm.weight"):
                values.fill_(1)
            elif re.search(r"(self\.value|attention\.output\.dense|pooler\.dense)\.weight", name):
                values.copy_(torch.eye(len(values)))  # what any token has reaches all, attention being even
        model.get_parameter("bert.embeddings.word_embeddings.weight")[5, 0] = 1
        model.get_parameter("classifier.weight")[1, 0] = 2
        model.get_parameter("classifier.bias")[0] = 1
    model.save_pretrained(folder)
    manifest.write(folder, "model", facts)


def accuracies(rows: list[Row], second: str) -> dict[str, float]:
    """In whole and of each subset: the share of rows that are of the second class just where they have WORD."""
    right = [(WORD in re.findall(r"\w+", row.text)) == (row.label == second) for row in rows]
    names = {"test", *(row.part for row in rows)}
    parts = {name: [ok for ok, row in zip(right, rows, strict=True) if name in ("test", row.part)] for name in names}
    return {f"{name}_accuracy": sum(found) / len(found) for name, found in parts.items()}


def scored(
    run: Path, task: str, out: Path, *flags: str, data: Path = DATA
) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """What the command makes: its folder, and the record's start and end line."""
    asked = ["--tasks", task, "--data", str(data), "--out", str(out), "--length", str(LENGTH), "--batch", "1000"]
    score([str(run), *asked, *flags])
    (path,) = out.glob(f"{task}/*/{record.NAME}")
    start, end = record.read(path)
    return path.parent, start, end


def check(
    run: Path, task: str, rows: list[Row], classes: Mapping[str, str], out: Path, data: Path = DATA
) -> dict[str, Any]:
    """Score, and compare with the file's rows; the end line. Args: classes, those of the run -> those of the task."""
    folder, start, end = scored(run, task, out, data=data)
    trained = run.parent.name
    assert folder.name == f"{trained}-tiny-vanilla-0"
    assert (start["trained_on"], start["task"], start["classes"]) == (trained, task, classes)
    expected = accuracies(rows, list(classes.values())[1])
    assert {name: end[name] for name in end if name.endswith("accuracy")} == pytest.approx(expected)
    counts = Counter(part for row in rows for part in {"test", row.part})
    kept = {path.stem: load_predictions(path) for path in (folder / FOLDER).iterdir()}
    assert {name: len(these.ids) for name, these in kept.items()} == counts
    gold = kept["test"].gold
    assert gold is not None
    assert [kept["test"].labels[int(label)] for label in gold] == [row.label for row in rows]  # type: ignore[arg-type]
    return end


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rte_to_hans_in_whole_and_by_heuristic(whole: bool, few: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    data = DATA if whole else few
    rows = hans(data)
    assert len(rows) == (30_000 if whole else 1_200)
    classes = {"entailment": "entailment", "not_entailment": "non-entailment"}
    end = check(runs["rte"], "hans", rows, classes, tmp_path, data)
    heuristics = ("constituent", "lexical_overlap", "subsequence")
    found = [end[f"{name}_accuracy"] for name in heuristics]
    assert len(set(found)) == 3
    assert end["test_accuracy"] == pytest.approx(sum(found) / 3), "each has as many rows"


@pytest.mark.parametrize(
    ("trained", "task", "entry"), [("rte", "advglue-rte", "rte"), ("sst2", "advglue-sst2", "sst2")]
)
def test_glue_to_its_attacked_rows(trained: str, task: str, entry: str, runs: dict[str, Path], tmp_path: Path) -> None:
    names = CLASSES[trained]
    check(runs[trained], task, adversarial(entry, *names), {name: name for name in names}, tmp_path)


def test_qqp_to_paws_with_f1_of_the_duplicates(runs: dict[str, Path], tmp_path: Path) -> None:
    rows = paws()
    end = check(runs["qqp"], "paws-qqp", rows, {name: name for name in CLASSES["qqp"]}, tmp_path)
    said = [WORD in re.findall(r"\w+", row.text) for row in rows]
    are = [row.label == "duplicate" for row in rows]
    both = sum(a and b for a, b in zip(said, are, strict=True))
    assert end["test_f1"] == pytest.approx(2 * both / (sum(said) + sum(are)))


def test_classes_go_by_their_names_unless_they_are_mapped(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has 2 classes \(.*\), the task 3 \(.*\); leave the task out"):
        scored(runs["rte"], "advglue-mnli", tmp_path)
    turned = ("--map.entailment", "not_entailment", "--map.not_entailment", "entailment")
    _, start, end = scored(runs["rte"], "advglue-rte", tmp_path, *turned)
    assert start["classes"] == {"entailment": "not_entailment", "not_entailment": "entailment"}
    expected = accuracies(adversarial("rte", *CLASSES["rte"]), "entailment")
    assert end["test_accuracy"] == pytest.approx(expected["test_accuracy"])
