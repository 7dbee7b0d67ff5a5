"""Standard tasks in the shape of their publishers' downloads: folder and file names, columns, labels."""

import json
from pathlib import Path
from typing import Any

import pytest

from asa.config import from_dict
from asa.errors import RequestError
from finetune.config import FinetuneConfig
from finetune.tasks.checks import check_keys
from finetune.tasks.load import load
from finetune.tasks.places import _changed
from finetune.tasks.spec import STANDARD, TaskConfig, named
from finetune.tasks.task import Task

N = 6  # rows of a file


def tsv(head: str, row: str) -> str:
    """N rows; # in a row is its number."""
    return "\n".join([head, *(row.replace("#", str(n)) for n in range(N))]) + "\n"


def jsonl(row: dict[str, Any]) -> str:
    return "".join(json.dumps(row).replace("#", str(n)) + "\n" for n in range(N))


GLUE = ("index\tsentence1\tsentence2\tlabel", "#\tleft #\tright\tentailment")
NLI = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
NLI_ROW = "#\t1\t1\tfiction\t( a )\t( b )\t(ROOT)\t(ROOT)\tleft #\tright"
ANLI = jsonl({"uid": "#", "context": "left #", "hypothesis": "right", "label": "c", "reason": ""})
ANSWERS = {"stem": "why #?", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]}
SCIENCE = jsonl({"id": "#", "question": ANSWERS, "answerKey": "2"})
SWAG = {
    "ind": 1,
    "activity_label": "Skating",
    "ctx_a": "",
    "ctx_b": "",
    "ctx": "She #",
    "endings": ["x", "y"],
    "label": 1,
}
RACE = {"id": "#", "article": "Text #.", "questions": ["q?"], "options": [["x", "y"]], "answers": ["B"]}
PAWS = tsv("id\tsentence1\tsentence2\tlabel", "#\tleft #\tright\t1")
HANS = (
    "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpairID\theuristic",
    "non-entailment\t(\tleft #\tright\tex#\tsub",
)

FILES: dict[str, dict[str, str]] = {
    "mnli": {
        **{
            f"MNLI/{name}.tsv": tsv(
                f"{NLI}\tsentence1\tsentence2\tlabel1\tgold_label", f"{NLI_ROW}\tneutral\tcontradiction"
            )
            for name in ("train", "dev_matched", "dev_mismatched")
        },
        **{
            f"MNLI/{name}.tsv": tsv(f"{NLI}\tsentence1\tsentence2", NLI_ROW)
            for name in ("test_matched", "test_mismatched")
        },
    },
    "rte": {f"glue_data/RTE/{name}.tsv": tsv(*GLUE) for name in ("train", "dev", "test")},
    "ax": {"diagnostic/diagnostic.tsv": tsv("index\tsentence1\tsentence2", "#\tleft #\tright")},
    "anli": {f"anli_v1.0/R{n}/{name}.jsonl": ANLI for n in (1, 2, 3) for name in ("train", "dev", "test")},
    "paws-wiki": {f"final/{name}.tsv": PAWS for name in ("train", "dev", "test")},
    "hans": {"hans/heuristics_evaluation_set.txt": tsv(*HANS)},
    "hellaswag": {f"hellaswag/data/hellaswag_{name}.jsonl": jsonl(SWAG) for name in ("train", "val", "test")},
    "arc-easy": {f"ARC-V1-Feb2018-2/ARC-Easy/ARC-Easy-{name}.jsonl": SCIENCE for name in ("Train", "Dev", "Test")},
    "openbookqa": {f"OpenBookQA-V1-Sep2018/Data/Main/{name}.jsonl": SCIENCE for name in ("train", "dev", "test")},
    "csqa": {f"csqa/{name}.jsonl": SCIENCE for name in ("train_rand_split", "dev_rand_split")}
    | {"csqa/test_rand_split_no_answers.jsonl": jsonl({"id": "#", "question": ANSWERS})},
    "race": {
        f"RACE/{name}/{school}/{n}.txt": json.dumps(RACE).replace("#", str(n))
        for name in ("train", "dev", "test")
        for school in ("middle", "high")
        for n in range(N)
    },
}


@pytest.mark.parametrize("name", sorted(path.stem for path in STANDARD.glob("*.yaml")))
@pytest.mark.parametrize("compat", [False, True])
def test_every_key_of_a_standard_task_is_read_wherever_its_rows_are(name: str, compat: bool) -> None:
    task = named(name)
    for place in (*task.sources, *([task.hub] if task.hub else [])):
        check_keys(_changed(task, place.keys, compat), standard=True)


SHE_Y = ("Skating: She 0", "y")
SHAPES: dict[str, tuple[dict[str, int], Any, Any]] = {
    "mnli": ({"train": 5, "dev": 1, "test": 6, "submit": 6, "mm": 6} | {"submit-mm": 6}, ("left 0", "right"), 2),
    "rte": ({"train": 5, "dev": 1, "test": 6, "submit": 6}, ("left 0", "right"), 0),
    "ax": ({"submit": 6}, ("left 0", "right"), None),
    "anli": ({"train": 18, "dev": 18, "test": 18, "r1": 6, "r2": 6, "r3": 6}, ("left 0", "right"), 2),
    "paws-wiki": ({"train": 6, "dev": 6, "test": 6}, ("left 0", "right"), 1),
    "hans": ({"test": 6, "sub": 6}, ("left 0", "right"), 1),
    "hellaswag": ({"train": 5, "dev": 1, "test": 6, "submit": 6}, (("Skating: She 0", "x"), SHE_Y), 1),
    "arc-easy": ({"train": 6, "dev": 6, "test": 6}, (("why 0?", "x"), ("why 0?", "y")), 1),
    "openbookqa": ({"train": 6, "dev": 6, "test": 6}, (("why 0?", "x"), ("why 0?", "y")), 1),
    "csqa": ({"train": 5, "dev": 1, "test": 6, "submit": 6}, (("Q: why 0?", "A: x"), ("Q: why 0?", "A: y")), 1),
    "race": (
        {"train": 12, "dev": 12, "test": 12, "middle": 6, "high": 6},
        (("Text 0.", "q? x"), ("Text 0.", "q? y")),
        1,
    ),
}  # fmt: skip


def downloaded(folder: Path, name: str, **changes: Any) -> Task:
    for path, text in FILES[name].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    values = {"models": {"m": "m"}, "out": "out", "tasks": [name], "data": folder, **changes}
    return load(named(name), from_dict(FinetuneConfig, values))


def test_hellaswag_as_the_paper_read_it_has_no_activity(tmp_path: Path) -> None:
    task = downloaded(tmp_path, "hellaswag", paper_compat=True)
    assert task.splits["test"].texts[0] == (("She 0", "x"), ("She 0", "y"))


@pytest.mark.parametrize("name", FILES)
def test_a_download_is_read_as_it_comes(tmp_path: Path, name: str) -> None:
    task = downloaded(tmp_path, name)
    sizes, text, label = SHAPES[name]
    assert {split: len(rows) for split, rows in task.splits.items()} == sizes
    first = task.splits.get("test", task.splits.get("submit"))
    assert first is not None
    assert first.texts[0] == text
    assert (first.labels[0] if first.labels else None) == label
    assert first.ids[0] == "0"
    assert len(task.facts["files"]) == len(FILES[name])


def test_a_recipe_for_a_place_or_the_papers_alone_is_refused() -> None:
    """It would not be taken: what a run is settled by is the task before its place is known."""
    recipe = {"recipe": {"batch": 7}}
    for keys, compat in ((recipe, {}), ({}, recipe), ({"paper_compat": recipe}, {})):
        with pytest.raises(RequestError, match=r"task 'x' has a recipe of its own for a place or for the papers"):
            _changed(TaskConfig(name="x", paper_compat=compat), keys, False)
