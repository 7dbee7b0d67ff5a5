"""Descriptions -> tasks: labels, answers, which rows train, choose and are scored, and what is refused."""

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from asa.config import from_dict
from asa.errors import RequestError, WorkError
from cli import given as given_keys
from finetune.config import FinetuneConfig
from finetune.tasks import places
from finetune.tasks import spec as specs
from finetune.tasks.facts import task_line
from finetune.tasks.load import load, trainable
from finetune.tasks.split import _literal, arranged, held_out, repeated, taken, thinned
from finetune.tasks.task import Label, Split, Task

ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [{"a": f"first {n}", "b": "two", "y": ("no", "yes")[n % 2]} for n in range(40)],
    "regression": [{"a": f"first {n}", "b": "two", "y": n / 4} for n in range(40)],
    "tokens": [{"a": f"word{n} and more", "y": "B-x O O"} for n in range(40)],
    "choice": [{"a": f"first {n}", "b": json.dumps(["left", "right"]), "y": "AB"[n % 2]} for n in range(40)],
}
TEXT = {"tokens": ["a"]}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".tsv":
        path.write_text(
            "".join("\t".join(map(str, line)) + "\n" for line in [list(rows[0]), *[r.values() for r in rows]])
        )
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def task(request: dict[str, Any] | None = None, **keys: Any) -> Task:
    """A task of one's own."""
    config = from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "out", "task": keys, **(request or {})})
    return load(config.task, config)


def standard(name: str, data: Path | None, **request: Any) -> Task:
    values = {"models": {"m": "m"}, "out": "out", "tasks": [name], "data": data, **request}
    return load(specs.named(name), from_dict(FinetuneConfig, values))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "t.csv", ROWS["classification"])


@pytest.mark.parametrize("kind", ROWS)
def test_own_data_is_the_same_task_in_every_format(tmp_path: Path, kind: str) -> None:
    found = []
    for ending in ("csv", "tsv", "jsonl", "parquet"):
        path = write(tmp_path / f"t.{ending}", ROWS[kind])
        keys = {"train": [path], "dev": [path], "text": TEXT.get(kind, ["a", "b"]), "label": "y", "kind": kind}
        loaded = task(**keys)
        found.append((loaded.kind, loaded.labels, loaded.metrics, loaded.splits))
    assert all(other == found[0] for other in found[1:])
    assert {name: len(split) for name, split in found[0][3].items()} == {"train": 36, "dev": 4, "test": 40}


def test_of_parquet_every_column_that_a_task_names_is_read_and_no_other(tmp_path: Path) -> None:
    row = {"q": {"stem": "why?"}, "topic": "rain", "b": ["x", "y"], "y": 1, "id": "i", "part": "p"}
    path = write(tmp_path / "t.parquet", [row, {**row, "q": {"stem": "again?"}}])
    far = pa.array([2**60] * 2, pa.timestamp("ms"))  # a date that Python does not have
    parquet.write_table(parquet.read_table(path).append_column("far", far), path)
    keys: dict[str, Any] = {"kind": "choice", "text": ["q.stem"], "choices": ["b"], "label": "y", "test": [path]}
    keys |= {"form": ["{q.stem} ({topic})", "{answer}"], "first_of": "id", "subsets": "part"}
    assert task(**keys).splits["p"] == (["0"], [(("why? (rain)", "x"), ("why? (rain)", "y"))], [1])
    with pytest.raises(RequestError, match=r"t.parquet:1: column 'far' holds a timestamp\[ms\] .* --task.test"):
        task(**{**keys, "first_of": "far"})
    with pytest.raises(RequestError, match="no column 'z', only 'q', 'topic', 'b', 'y', 'id', 'part', 'far'"):
        task(**{**keys, "label": "z"})


def test_lists_inside_a_task_are_given_by_commas_as_those_outside(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--task.train", "a,1.csv", "--task.text", "#1 String,#2 String", "--task.labels=no,yes", "--out", "o"]
    argv += ["--models.m", "m"]
    found = given_keys(FinetuneConfig, argv, "run")["task"]
    argv[4] = "--task.labels=[no, 1]"
    assert given_keys(FinetuneConfig, argv, "run")["task"]["labels"] == ("no", "1")
    with pytest.raises(SystemExit):
        given_keys(FinetuneConfig, ["--config", "task: {labels: [yes sir, no]}", *argv], "run")
    assert "(yes, no, on and off are truths in YAML: put them in quotes)" in capsys.readouterr().err
    assert found == {"train": (Path("a,1.csv"),), "text": ("#1 String", "#2 String"), "labels": ("no", "yes")}


@pytest.mark.parametrize(
    ("values", "keys", "labels"),
    [
        (["no", "yes", "no"], {}, [0, 1, 0]),
        (["no", "yes", "no"], {"labels": ["yes", "no"]}, [1, 0, 1]),
        (["0.0", "1.0", "0"], {"labels": ["no", "yes"]}, [0, 1, 0]),
        (["10", "9", "10"], {}, [1, 0, 1]),
        (["-0.0", "1", "0"], {}, [0, 1, 0]),
        (["n", "yes", "n"], {"labels": ["no", "yes"], "spellings": {"n": "no"}}, [0, 1, 0]),
        (["1", "0.5", "-2"], {"kind": "regression"}, [1.0, 0.5, -2.0]),
        (["1.0", "1.5", "2.0"], {"labels": ["1.0", "1.5", "2.0"]}, [0, 1, 2]),
        (["1", "1.5", "2"], {"labels": ["2.0", "1.5", "1.0"]}, [2, 1, 0]),
        (["1", "0.0", "1.0"], {"labels": ["0.0", "0.5", "1.0"]}, [2, 0, 2]),
        (["-1", "1", "-1.0"], {"labels": ["1", "-1"]}, [1, 0, 1]),
        (["1.0", "2", "1"], {"spellings": {"1.0": "z ", " 2.0": "y"}}, [1, 0, 1]),
    ],
)
def test_labels_are_names_or_numbers(
    tmp_path: Path, values: list[str], keys: dict[str, Any], labels: list[Any]
) -> None:
    path = write(tmp_path / "t.csv", [{"text": f"{n}", "label": value} for n, value in enumerate(values)])
    assert task(test=[path], **keys).splits["test"].labels == labels


@pytest.mark.parametrize(
    ("label", "answers", "right"),
    [
        ("B", {"b": ["x", "y", "z"]}, 1),
        (2, {"b": ["x", "y", "z"]}, 2),
        ("z", {"b": ["x", "y", "z"]}, 2),
        ("1", {"b": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]}, 0),
        ("2", {"b": {"text": ["x", "y"], "label": ["1", "2"]}}, 1),
        ("c", {"b": "x", "c": "y", "d": "z"}, 2),
        (2, {"b": ["x", "y", "2"]}, 2),
        (0, {"b": ["x", "y", "0"]}, 0),
    ],
)
def test_the_right_answer_is_a_number_a_letter_a_text_or_its_own_name(
    tmp_path: Path, label: Any, answers: dict[str, Any], right: int
) -> None:
    path = write(tmp_path / "t.jsonl", [{"a": "why?", **answers, "y": label}])
    found = task(test=[path], kind="choice", text=["a"], choices=list(answers), label="y")
    assert found.splits["test"].labels == [right]
    assert found.splits["test"].texts[0][:2] == (("why?", "x"), ("why?", "y"))


def test_blank_cells_behind_the_answers_are_none(tmp_path: Path) -> None:
    table = [{"q": "one?", "a": "x", "b": "y", "c": "z", "y": 2}, {"q": "two?", "a": "x", "b": "y", "c": " ", "y": 1}]
    keys: dict[str, Any] = {"kind": "choice", "text": ["q"], "choices": ["a", "b", "c"], "label": "y"}
    found = task(test=[write(tmp_path / "t.csv", table)], **keys)
    assert [[answer[1] for answer in row] for row in found.splits["test"].texts] == [["x", "y", "z"], ["x", "y"]]
    for changed, said in (
        ({"y": 2}, r"t.csv:2: label '2', allowed: 0 to 1, A to B or the text of an answer"),
        ({"a": ""}, r"t.csv:2: column 'a' is blank, but 'b' behind it holds an answer; .* --task.choices"),
        ({"b": ""}, r"t.csv:2: columns 'a', 'b', 'c' hold 1 answers, wanted: two or more"),
    ):
        with pytest.raises(RequestError, match=said):
            task(test=[write(tmp_path / "t.csv", [{**table[1], **changed}])], **keys)


def test_a_form_says_what_the_encoder_reads(tmp_path: Path) -> None:
    row = {"q": {"stem": "why?"}, "topic": "rain", "b": ["x", "y"], "y": 0}
    path = write(tmp_path / "t.jsonl", [row])
    keys = {"test": [path], "kind": "choice", "text": ["q.stem"], "choices": ["b"], "label": "y"}
    assert task(**keys, form=["Q: {q.stem} ({topic})", "A: {answer}"]).splits["test"].texts == [
        (("Q: why? (rain)", "A: x"), ("Q: why? (rain)", "A: y"))
    ]


def test_python_bytes_repeated_dialogues_and_missing_labels(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "b'caf\\xc3\\xa9'", "label": "0"}, {"id": 1, "text": "x", "label": "1"}]
    path = write(
        tmp_path / "t.jsonl", [*rows, {"id": 2, "text": "y", "label": ""}, {"id": 3, "text": "z", "label": "1"}]
    )
    found = task(test=[path], literals=True, first_of="id", broken="mend")
    assert found.splits["test"].texts == [("café",), ("z",)]
    assert found.facts["dropped"] == {"test": 1}
    assert found.facts["joined"] == {}
    assert task_line(found) == "own: test 2; left out, without a label, a text or a part of their columns: 1 of test"
    with pytest.raises(RequestError, match=r"t.jsonl:3: no label in column 'label'; .* --task.broken mend"):
        task(test=[path])


def test_a_null_text_of_a_labelled_row_is_one_that_is_not_there(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": f"{n}", "label": n % 2} for n in range(4)]
    odd = [{"text": None, "label": 1}, {"text": float("nan"), "label": 0}, {"text": " ", "label": 0}]
    path = write(tmp_path / "t.jsonl", [*rows, *odd])
    with pytest.raises(RequestError, match=r"t.jsonl:5: no text in column 'text'; .* --task.broken mend"):
        task(test=[path])
    found = task(test=[path], broken="mend")
    assert found.splits["test"].texts == [("0",), ("1",), ("2",), ("3",), ("",)]
    assert found.facts["dropped"] == {"test": 2}
    inner: list[dict[str, Any]] = [{"q": {"stem": row["text"]}, "label": row["label"]} for row in rows]
    nested = write(tmp_path / "n.jsonl", [*inner, {"q": {"stem": None}, "label": 1}, {"q": None, "label": 0}])
    assert task(test=[nested], text=["q.stem"], broken="mend").facts["dropped"] == {"test": 2}
    nothing = write(tmp_path / "none.jsonl", [{"text": None, "label": n} for n in range(4)])
    with pytest.raises(RequestError, match=r"no row of .*none.jsonl has a text; give others, or set --task.text$"):
        task(test=[nothing], broken="mend")
    unlabelled = write(tmp_path / "u.jsonl", [{"text": "x"}, {"text": None}])
    with pytest.raises(RequestError, match=r"u.jsonl:2: no text in column 'text'; .* --task.text$"):
        task(test=[path], submit=[unlabelled], broken="mend")  # whose rows all have an answer


@pytest.mark.parametrize(
    ("metrics", "dev", "blind"),
    [
        (["f1"], [0, 0], "the rows that choose are all of class 0, by which f1 is 0 whatever is learnt"),
        (["f1"], [1, 1], None),
        (["matthews", "f1"], [1, 1], "all of class 1, by which matthews is 0"),
        (["accuracy", "f1"], [0, 0], None),
        (["matthews"], [0, 1], None),
    ],
)
def test_rows_by_which_no_epoch_can_be_chosen_are_told(
    metrics: list[str], dev: list[int], blind: str | None, tmp_path: Path
) -> None:
    rows = [{"text": word, "label": n % 2} for n, word in enumerate(["u", "v", "w", "x"])]
    few = [{"text": f"d{n}", "label": label} for n, label in enumerate(dev)]
    files: dict[str, Any] = {name: [write(tmp_path / f"{name}.jsonl", rows)] for name in ("train", "test")}
    files["dev"] = [write(tmp_path / "dev.jsonl", few)]
    line = task_line(task(**files, labels=["0", "1"], metrics=metrics))
    assert "whatever is learnt" not in line if blind is None else blind in line


def test_numbers_that_are_all_one_are_told(tmp_path: Path) -> None:
    """Their correlations are 0."""
    rows = [{"text": word, "label": n / 2} for n, word in enumerate(["u", "v", "w", "x"])]
    one = [{"text": f"d{n}", "label": 2.5} for n in range(3)]
    files: dict[str, Any] = {name: [write(tmp_path / f"{name}.jsonl", rows)] for name in ("train", "dev")}
    line = task_line(task(**files, test=[write(tmp_path / "test.jsonl", one)], kind="regression"))
    assert "; the rows of test are all of the label 2.5, by which pearson is 0 whatever is learnt" in line
    assert "whatever" not in task_line(task(**files, test=files["dev"], kind="regression"))


FEW = "fewer than 20 rows of dev and of test, whose scores tell little"


def test_what_a_score_says_little_of_is_told(tmp_path: Path) -> None:
    """Texts of several labels, as annotators that nobody has counted together leave them, and splits of few rows."""
    rows = [{"text": f"{n % 20}", "label": "no" if n in (3, 5, 25) else "yes"} for n in range(40)]
    files: dict[str, Any] = {name: [write(tmp_path / f"{name}.jsonl", rows)] for name in ("train", "dev", "test")}
    line = task_line(task(**files))
    assert "; training rows whose text has another label in another row: 2, of 1 texts" in line
    assert "fewer" not in line
    few = [write(tmp_path / "few.jsonl", rows[:19])]
    assert task_line(task(train=few, dev=few, test=few)).endswith(f"; {FEW}")
    line = task_line(task(train=files["train"], dev=few, test=files["test"]))
    assert line.endswith("; fewer than 20 rows of dev, whose scores tell little")


def test_a_label_that_no_training_row_has_is_told(tmp_path: Path) -> None:
    """Its score is the untrained head's."""
    rows = [{"text": word, "label": n % 2} for n, word in enumerate(["u", "v", "w", "x"])]
    files: dict[str, Any] = {name: [write(tmp_path / f"{name}.jsonl", rows)] for name in ("train", "dev", "test")}
    assert "; labels of no training row: a;" in task_line(task(**files, labels=["0", "1", "a"]))
    assert "no training row" not in task_line(task(**files))


def test_classes_that_look_like_spellings_of_one_are_told(tmp_path: Path) -> None:
    def said(*labels: str, **keys: Any) -> str:
        files: dict[str, Any] = {}
        for name in ("train", "dev", "test"):
            rows = [{"text": f"{name} {word}", "label": word} for word in labels]
            files[name] = [write(tmp_path / f"{name}.jsonl", rows)]
        return task_line(task(**files, **keys)).removesuffix(f"; {FEW}").partition("; ")[2]

    begin = "classes that look like spellings of one (--task.spellings): "
    names = ["yes", "Yes", "007", "7", "-01", "-1", "GROSS", "gro\u00df", "7a", "07a", "10", "1"]
    assert said(*names) == f"{begin}-01 and -1, 007 and 7, GROSS and gro\u00df and 1 more"
    assert said("yes", "Yes", "no") == f"{begin}Yes and yes"
    assert said("yes", "Yes", "no", spellings={"yes": "Yes"}) == ""


def test_rows_without_any_text_are_told(tmp_path: Path) -> None:
    rows = [{"a": a, "b": b, "label": n % 2} for n, (a, b) in enumerate([("", " "), ("x", ""), ("", "y"), ("x", "y")])]
    found = task(test=[write(tmp_path / "t.jsonl", rows)], text=["a", "b"])
    assert task_line(found) == "own: test 4; without any text: 1 of test"
    keys: dict[str, Any] = {"kind": "choice", "text": ["q"], "choices": ["b"], "label": "y"}
    for question, answers, blank in (("why?", ["x", "y"], {}), (" ", ["x", " "], {}), (" ", ["", " "], {"test": 1})):
        path = write(tmp_path / "c.jsonl", [{"q": question, "b": answers, "y": 0}])
        assert task(test=[path], **keys).facts["blank"] == blank


@pytest.mark.parametrize("word", [None, ["b"], {"c": 1}, math.nan, True, 1.5])
def test_a_word_that_is_no_text_is_refused(tmp_path: Path, word: Any) -> None:
    good = {"text": ["in", 1999], "label": ["O", "B-x"]}
    path = write(tmp_path / "t.jsonl", [good, {"text": ["a", word], "label": ["O", "B-x"]}])
    with pytest.raises(RequestError, match=r"t\.jsonl:2: word 1 \(from 0\) of column 'text' is .*; mend it or set"):
        task(test=[path], kind="tokens")
    assert task(test=[write(path, [good])], kind="tokens").splits["test"].texts == [("in", "1999")]


@pytest.mark.parametrize("value", [" ", None, math.nan, ["O", None]])
def test_a_value_that_is_none_is_no_label(tmp_path: Path, value: Any) -> None:
    kind = "tokens" if isinstance(value, list) else "classification"
    good = [["O", "B-x"], ["B-x", "O"]] if kind == "tokens" else ["a", "b"]
    texts = [{"text": f"row {n}", "label": label} for n, label in enumerate([*good, value])]
    path = write(tmp_path / "t.jsonl", texts)
    assert task(test=[path], kind=kind, broken="mend").facts["dropped"] == {"test": 1}
    with pytest.raises(RequestError, match=r"t.jsonl:3: no label"):
        task(test=[path], kind=kind)
    del texts[2]["label"]  # as JSON's writers leave out what is null
    assert task(test=[write(path, texts)], kind=kind, broken="mend").facts["dropped"] == {"test": 1}
    with pytest.raises(RequestError, match=r"t.jsonl:3: no column 'label'"):
        task(test=[path], kind=kind)
    bare = write(tmp_path / "bare.jsonl", texts[2:])
    with pytest.raises(RequestError, match=r"no row of .*bare.jsonl has a label in column 'label'"):
        task(train=[path], dev=[bare], kind=kind, broken="mend")


def test_lists_in_a_cell_are_json_and_a_word_may_be_a_bracket(tmp_path: Path) -> None:
    texts = [{"text": '["in", "New York"]', "label": '["O", "B-x"]'}, {"text": "[ in", "label": "O B-x"}]
    texts += [{"text": "[ 1 ]", "label": "O O O"}, {"text": '[ "a", "b" ]', "label": "O O"}]
    path = write(tmp_path / "t.csv", texts)
    assert task(test=[path], kind="tokens").splits["test"].texts == [
        ("in", "New York"),
        ("[", "in"),
        ("[", "1", "]"),
        ("a", "b"),
    ]
    for wrong in ({"text": "['in' 'Rome']", "label": "O O"}, {"text": "in Rome", "label": "[ O"}):
        with pytest.raises(RequestError, match=r"t.csv:2: column '\w+' holds .*wanted: a list"):
            task(test=[write(path, [wrong, texts[0]])], kind="tokens")


def test_classes_of_the_rows_have_no_numbers(tmp_path: Path) -> None:
    train = write(tmp_path / "t.csv", [{"text": f"{n}", "label": ("no", "yes")[n % 2]} for n in range(20)])
    test = write(tmp_path / "o.csv", [{"text": "x", "label": 1}])
    with pytest.raises(RequestError, match=r"o.csv:2: label '1', allowed: no, yes; .* --task.labels"):
        task(train=[train], test=[test])
    assert task(train=[train], test=[test], labels=["no", "yes"]).splits["test"].labels == [1]


def test_a_class_is_one_however_its_accents_are_spelt(tmp_path: Path) -> None:
    joined, apart = "caf\u00e9", "cafe\u0301"
    spelt = [joined, apart, "bar"]
    train = write(tmp_path / "t.csv", [{"text": f"{n}", "label": spelt[n % 3]} for n in range(30)])
    test = write(tmp_path / "o.csv", [{"text": "x", "label": label} for label in spelt])
    keys: Any
    for keys in ({}, {"labels": ["bar", apart]}, {"labels": ["bar", "pub"], "spellings": {apart: "pub"}}):
        found = task(train=[train], test=[test], **keys)
        assert len(found.labels) == 2
        assert found.splits["test"].labels == [1, 1, 0]
    with pytest.raises(RequestError, match=r"each named once; set --task\.labels"):
        task(train=[train], test=[test], labels=["bar", joined, apart])


@pytest.mark.parametrize("name", ["../out", "n/a", "", "train", "x" * 101])
def test_a_split_is_named_as_a_file_may_be(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "t.csv", [{"text": str(n), "label": n % 2, "part": name} for n in range(4)])
    with pytest.raises(RequestError, match=f"column 'part' has .*value '{re.escape(name)}', .*--task.subsets"):
        task(test=[path], subsets="part")
    with pytest.raises(RequestError, match=f"'{re.escape(name)}', "):
        task(test=[path], extra={name: [path]})


def test_a_file_is_named_once_in_a_split(table: Path) -> None:
    twice = (table, table)
    splits: dict[str, dict[str, Any]] = {"train": {"train": twice}, "dev": {"train": (table,), "dev": twice}}
    for key, split in (splits | {"extra.hard": {"train": (table,), "extra": {"hard": twice}}}).items():
        with pytest.raises(RequestError, match=rf"task\.{key} names \S+ twice; leave it out once, by --task\.{key}$"):
            task(**split)
    link = table.parent / "link.csv"
    link.symlink_to(table)
    with pytest.raises(RequestError, match=r"names \S+link\.csv twice"):
        task(train=(table, link))


def test_scores_of_two_splits_have_not_one_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"text": str(n), "label": n % 2, "part": "macro"} for n in range(4)])
    keys: dict[str, Any] = {"test": [path], "metrics": ["macro_f1", "f1"]}
    with pytest.raises(RequestError, match=r"splits 'test' and 'test_macro' .* a score test_macro_f1; .*--task.extra"):
        task(**keys, extra={"test_macro": [path]})
    assert task(**keys, subsets="part").splits.keys() == {"test", "macro"}
    assert task(**keys, extra={"train_macro": [path]}).metrics == ("macro_f1", "f1")
    blind = write(tmp_path / "blind.csv", [{"text": str(n)} for n in range(4)])
    assert task(**keys, extra={"test_macro": [blind]}).splits["test_macro"].labels is None
    assert task(test=[path], metrics=["f1", "f1"]).metrics == ("f1", "f1")


def test_classes_may_be_longer_numbers_than_python_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"text": str(n), "label": ("7", "1" * 5000)[n % 2]} for n in range(4)])
    assert task(test=[path]).labels == ["1" * 5000, "7"]


def test_numbers_of_which_there_is_one_are_nothing_to_learn(tmp_path: Path) -> None:
    same, other = (
        write(tmp_path / f"{name}.csv", [{"text": f"{name}{n}", "label": n * step} for n in range(20)])
        for name, step in (("same", 0), ("other", 1))
    )
    keys: dict[str, Any] = {"kind": "regression", "train": [other], "dev": [other], "test": [same]}
    assert task(**keys).kind == "regression"
    single = write(tmp_path / "one.csv", [{"text": "one", "label": 1.5}])
    assert len(task(**{**keys, "dev": [single]}).splits["dev"]) == 1
    assert task(kind="regression", dev=[same]).splits["test"].labels == [0.0] * 20
    for name in ("train", "dev"):
        with pytest.raises(
            RequestError, match=rf"same.csv:2: column 'label' of {name} has one number only, 0.0; .*{name}"
        ):
            task(**{**keys, name: [same]})


def test_a_subset_may_be_named_by_a_number(tmp_path: Path) -> None:
    for ending in ("csv", "jsonl"):
        path = write(tmp_path / f"t.{ending}", [{"text": str(n), "label": n % 2, "part": n % 3} for n in range(9)])
        assert {"0", "1", "2"} < task(test=[path], subsets="part").splits.keys()


@pytest.mark.parametrize(
    ("files", "compat", "held"),
    [
        (["train"], False, ["dev", "test"]),
        (["train"], True, ["dev", "test"]),
        (["train", "test"], False, ["dev"]),
        (["train", "test"], True, []),
        (["train", "dev", "test"], True, []),
    ],
)
def test_what_is_held_out_of_training_rows_is_known(files: list[str], compat: bool, held: list[str]) -> None:
    config = from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "out", "paper_compat": compat})
    assert taken(files, config) == held
    found = arranged({name: nine(name) for name in files}, [], config)
    assert [name for name in ("dev", "test") if str(found[name].texts[0][0]).startswith("train")] == held


def nine(name: str) -> Split:
    """Rows whose texts begin with the name."""
    labels: list[Label] = [0] * 9
    return Split([str(n) for n in range(9)], [(f"{name} {n}",) for n in range(9)], labels)


def test_rows_of_other_tasks_count_among_the_training_rows_that_are_drawn() -> None:
    config = from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "out", "train_rows": 6})
    parts = [nine(name) for name in "abcd"]
    found = arranged(dict(zip(("train", "dev", "test"), parts, strict=False)), parts[3:], config)
    assert len(found["train"]) == 6
    assert {text[0][0] for text in found["train"].texts} <= {"a", "d"}


def test_subsets_are_of_the_rows_that_are_scored_and_not_of_those_that_choose(tmp_path: Path) -> None:
    def path(name: str) -> Path:
        rows = [{"text": f"{name} {n}", "label": n % 2, "part": f"p{n % 2}"} for n in range(8)]
        return write(tmp_path / f"{name}.jsonl", rows)

    found = task(train=[path("train")], dev=[path("dev")], test=[path("test")], subsets="part")
    assert found.splits["p1"].texts == [(f"test {n}",) for n in (1, 3, 5, 7)]


def test_subsets_and_further_files_are_scored_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"text": str(n), "label": n % 2, "part": "xyy"[n % 3]} for n in range(9)])
    bare = write(tmp_path / "bare.csv", [{"text": "a"}])
    found = task(test=[path], extra={"again": [path], "bare": [bare]}, submit=[bare], subsets="part")
    assert {name: len(split) for name, split in found.splits.items()} == {
        "test": 9,
        "submit": 1,
        "again": 9,
        "bare": 1,
        "x": 3,
        "y": 6,
    }
    assert {name for name, split in found.splits.items() if split.labels} == {"test", "again", "x", "y"}
    with pytest.raises(RequestError, match=r"task 'own' has no training rows, .* scored; set --task\.train"):
        trainable(found, from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "out"}))


def test_parts_of_rows_that_are_held_out_cannot_be_scored_apart(table: Path) -> None:
    with pytest.raises(RequestError, match=r"task.subsets are parts of a file that is scored; .* --task.test"):
        task(train=[table], text=["a"], label="y", subsets="b")


def test_rows_of_a_test_server_have_a_first_line_of_their_own(tmp_path: Path) -> None:
    """The names that labelled files go without are not theirs, whichever of them it is."""
    labelled, blind = tmp_path / "t.tsv", tmp_path / "blind.tsv"
    labelled.write_text("".join(f"row {n}\t{n % 2}\n" for n in range(4)))
    blind.write_text("index\ttext\n7\tasked\n")
    found = task(test=[labelled], submit=[blind], extra={"submit-b": [blind]}, header=["text", "label"])
    assert found.splits["submit"] == found.splits["submit-b"] == (["0"], [("asked",)], None)


def test_rows_have_their_numbers_in_the_file_also_where_some_are_left_out(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 0}, {"text": "b", "label": None}, {"text": "c", "label": 1}]
    found = task(test=[write(tmp_path / "t.jsonl", rows)], broken="mend")
    assert found.splits["test"].ids == ["0", "2"]


def test_rows_that_choose_do_not_train_where_all_training_rows_are_another_tasks(pairs: Path, tmp_path: Path) -> None:
    rows = [{"a": "one", "b": "two", "y": "yes"}, {"a": "x", "b": "y", "y": "no"}]
    dev, test = write(tmp_path / "dev.csv", rows), write(tmp_path / "test.csv", [rows[1], {**rows[1], "y": "yes"}])
    same = {"labels": ["not_duplicate", "duplicate"], "spellings": {"no": "not_duplicate", "yes": "duplicate"}}
    found = task({"data": pairs}, dev=[dev], test=[test], text=["a", "b"], label="y", also=["qqp"], **same)
    assert found.splits["train"].texts == [("cut here", "two")]
    assert found.facts["seen"] == {"qqp": 1}


def test_a_part_of_a_published_set_is_told_of_added_rows_too(pairs: Path) -> None:
    (pairs / "paws_qqp").rename(pairs / "paws_qqp_677")
    (pairs / "qqp_20k").mkdir()
    (pairs / "qqp_20k" / "quora-dev.csv").write_text("sentence1,sentence2,is_duplicate\na,b,1\nc,d,0\n")
    (pairs / "QQP" / "train.tsv").unlink()
    found = standard("paws-qqp", pairs, paper_compat=True)
    assert found.facts["partial"] == "the 677 scored pairs alone; qqp: 20,212 of its rows train and are scored"


@pytest.mark.parametrize(
    ("files", "request_", "sizes"),
    [
        (("train", "dev", "test"), {}, {"train": 40, "dev": 40, "test": 40}),
        (("train", "dev"), {}, {"train": 36, "dev": 4, "test": 40}),
        (("train", "test"), {"holdout": 0.25}, {"train": 30, "dev": 10, "test": 40}),
        (("train",), {}, {"train": 32, "dev": 4, "test": 4}),
        (("train", "dev"), {"paper_compat": True}, {"train": 40, "dev": 40, "test": 40}),
        (("train", "dev"), {"train_rows": 7}, {"train": 7, "dev": 4, "test": 40}),
        (("test",), {}, {"test": 40}),
    ],
)
def test_who_trains_who_chooses_who_is_scored(
    table: Path, files: tuple[str, ...], request_: dict[str, Any], sizes: dict[str, int]
) -> None:
    found = task(request_, **{name: [table] for name in files}, text=["a"], label="y")
    assert {name: len(split) for name, split in found.splits.items()} == sizes
    assert found.facts["rows"] == sizes


UNIQUE = st.lists(st.text(max_size=5), min_size=3, max_size=60, unique=True)


@given(UNIQUE, st.floats(0.01, 0.6), st.randoms(use_true_random=False))
def test_held_out_rows_follow_from_their_content_and_no_row_is_lost(
    texts: list[str], share: float, random: Any
) -> None:
    split = Split([str(n) for n in range(len(texts))], [(text,) for text in texts], [*map(len, texts)])
    rest, held = held_out(split, share)
    assert sorted(rest.texts + held.texts) == sorted(split.texts)
    assert all(
        len(text[0]) == label
        for part in (rest, held)
        for text, label in zip(part.texts, part.labels or [], strict=True)
    )
    order = random.sample(range(len(texts)), len(texts))
    moved = Split(*[[column[at] for at in order] for column in split])  # type: ignore[index]
    assert set(held_out(moved, share)[1].texts) == set(held.texts)
    assert set(thinned(split, 2).texts) == set(thinned(moved, 2).texts)
    assert thinned(split, 2).ids == sorted(thinned(split, 2).ids, key=int)
    assert repeated(held, rest) == 0


ANY = st.text(st.characters(max_codepoint=127) | st.sampled_from("éß中ж\u00a0\u200b\u2028\ue000\ufeff"), max_size=8)


@given(st.recursive(ANY, lambda parts: st.lists(parts, min_size=1, max_size=3).map(tuple), max_leaves=4))
def test_rows_are_told_apart_by_their_repr_but_not_by_that_of_one_python(content: Any) -> None:
    assert _literal(content) == repr(content)
    new, never = "\U0001fae8", "\ufdd0"  # of Unicode 15, which Python 3.12 knows and 3.11 escapes; of no Unicode
    assert _literal((new, never)) == f"('{new}', '{never}')"


def test_at_most_a_thousand_rows_are_held_out_and_too_few_are_refused() -> None:
    split = Split([""] * 30_000, [(str(n),) for n in range(30_000)], None)
    assert len(held_out(split, 0.1)[1]) == 1000
    with pytest.raises(RequestError, match=r"1 training rows left \(1 different\), too few"):
        held_out(thinned(split, 1), 0.1)


def test_sentences_of_two_words_are_held_out_as_any_others() -> None:
    """Their first word is no segment that rows share."""
    texts = [("New", f"c{n}") if n % 2 else ("in", "the", f"c{n}") for n in range(400)]
    held = held_out(Split([""] * 400, texts, [[0] * len(text) for text in texts]), 0.1)[1]
    assert 10 < sum(len(text) == 2 for text in held.texts) < 30


def test_where_few_groups_hold_nearly_all_rows_they_are_not_what_is_held_out() -> None:
    """Else those of the one small group would be all that is scored."""
    groups = [f"g{n % 5}" for n in range(2980)] + ["small"] * 20
    split = Split([""] * 3000, [(group, str(n)) for n, group in enumerate(groups)], None)
    assert 280 <= len(held_out(split, 0.1)[1]) <= 300


def test_the_hash_covers_bytes_and_what_is_made_of_them(table: Path) -> None:
    keys: dict[str, Any] = {"train": [table], "dev": [table], "text": ["a", "b"], "label": "y"}
    first = task(**keys).sha256
    assert task(**keys).sha256 == first
    others = [task(**{**keys, "text": ["a"]}), task(**keys, metrics=["f1"]), task({"holdout": 0.2}, **keys)]
    table.write_text(table.read_text().replace("first 7", "first seven"))
    assert len({first, *(other.sha256 for other in others), task(**keys).sha256}) == 5


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        ([{"a": "x", "label": 0}], {}, r"t.jsonl:1: no column 'text', only 'a', 'label'; mend it or set --task.text"),
        ([{}], {}, r"t.jsonl:1: no column 'label', the row has none; mend it or set --task.label"),
        ([{"text": "x", "label": "1_01"}], {"kind": "regression"}, r"t.jsonl:1: label '1_01' is no number"),
        ([{"text": "x", "y": 0}], {}, r"t.jsonl:1: no column 'label', only 'text', 'y'; .* --task.label"),
        ([{"text": 5, "label": 0}], {}, r"t.jsonl:1: column 'text' holds 5, which is no text; .* --task.text"),
        (
            [{"text": "x", "label": "c"}],
            {"labels": ["a", "b"]},
            r"t.jsonl:1: label 'c', allowed: a, b; .* --task.labels",
        ),
        ([{"text": "x", "label": 2}], {"labels": ["a", "b"]}, r"label 2, allowed: a, b"),
        (
            [{"text": "x", "label": "1.45"}, {"text": "y", "label": 3}],
            {},
            r"t.jsonl: column 'label' has 2 numbers such as 1.45 for classes; set --task.kind regression, or",
        ),
        ([{"text": "x", "label": "a"}] * 2, {}, r"column 'label' has one class only, 'a'; .* --task.label"),
        ([{"text": "x", "label": True}], {"kind": "regression"}, r"t.jsonl:1: label True is no number"),
        ([{"text": "x", "label": "high"}], {"kind": "regression"}, r"t.jsonl:1: label 'high' is no number"),
        ([{"text": "x", "label": "nan"}], {"kind": "regression"}, r"label 'nan' is no number"),
        (
            [{"text": "x", "label": 1e39}],
            {"kind": "regression"},
            r"t.jsonl:1: label 1e\+39, allowed: -1e\+15 to 1e\+15, whose squared errors fp32 holds; .* --task.label",
        ),
        ([{"text": "x", "label": -1e19}], {"kind": "regression"}, r"t.jsonl:1: label -1e\+19, allowed: -1e\+15 to"),
        ([{"text": "x", "label": 10**400}], {"kind": "regression"}, r"t.jsonl:1: label 10+, allowed: -1e\+15 to"),
        ([{"text": "x y", "label": "O"}], {"kind": "token"}, r"t.jsonl:1: 2 words, 1 labels; .* --task.label"),
        ([{"text": 5, "label": "O"}], {"kind": "token"}, r"wanted: a list, or words between spaces"),
        ([{"text": "x", "label": 0}], {"kind": "choice"}, r"kind choice has no column of answers; set --task.choices"),
        (
            [{"text": "x", "b": ["y"], "label": 0}],
            {"kind": "choice", "choices": ["b"]},
            r"a list of two texts or more",
        ),
        (
            [{"text": "x", "b": ["y", "z"], "label": 2}],
            {"kind": "choice", "choices": ["b"]},
            r"label 2, allowed: 0 to 1, A to B or the text of an answer",
        ),
        (
            [{"text": "x", "b": ["4", "2", "3"], "label": "2"}],
            {"kind": "choice", "choices": ["b"]},
            r"label '2' is the number of answer 2 and the text of answer 1 \(from 0\)",
        ),
        (
            [{"text": "x", "b": ["y", "z"], "label": 0}],
            {"kind": "choice", "choices": ["b"], "form": ["{text}"]},
            r"task.form has no {answer}",
        ),
        ([{"text": "x", "label": 0}], {"text": ["a", "b", "c"]}, r"3 columns, allowed: one, or two of a pair"),
        (
            [{"text": "x", "label": 0}],
            {"form": ["{text"]},
            r"task.form has '{text', allowed: columns in .* --task.form",
        ),
        ([{"text": "x", "label": 0}], {"form": ["{text}", "}"]}, r"task.form has '}', allowed"),
        (
            [{"text": "x", "label": 0}],
            {"form": ["text"]},
            r"task.form is 'text', which reads no column; .* --task.form",
        ),
        (
            [{"text": "x", "label": 0}, {"text": "half \ud83d", "label": 1}],
            {},
            r"t.jsonl:2: a text holds \\ud83d, half of a character, which UTF-8 cannot encode; .* --task.text",
        ),
        ([{"text": "x", "label": "\ud83d"}], {}, r"t.jsonl:1: a label holds \\ud83d, half of .* --task.label"),
        ([{"text": "x", "label": {"name": "a"}}], {}, r"t.jsonl:1: label {'name': 'a'}, allowed: a name or a number"),
        (
            [{"text": "x", "label": ["a"]}],
            {},
            r"t.jsonl:1: label \['a'\], allowed: a name or a number; .* --task.label",
        ),
        ([{"text": ["x"], "label": [["O"]]}], {"kind": "token"}, r"t.jsonl:1: label \['O'\], allowed"),
        ([{"text": ["x", "\udc00"], "label": ["O", "O"]}], {"kind": "token"}, r"t.jsonl:1: a text holds \\udc00"),
        (
            [{"text": "x", "b": ["y", "\ud83d"], "label": 0}],
            {"kind": "choice", "choices": ["b"]},
            r"t.jsonl:1: a text holds \\ud83d",
        ),
        ([{"text": "x", "label": 0}], {"text": ["a", "b"], "kind": "token"}, r"2 columns, kind token wants that of"),
        ([{"text": "b'x", "label": 0}], {"literals": True}, r"is no Python bytes literal; .* --task.literals false"),
        (
            [{"text": "x", "label": n} for n in (0, 1)],
            {"metrics": ["bleu"]},
            r"'bleu', allowed for kind classification",
        ),
        ([{"text": "x", "label": n} for n in (0, 1)], {"subsets": "part"}, r"has no column 'part'; set --task.subsets"),
        ([], {}, r"t.jsonl has no rows; fill it or set --task.test"),
        (
            [{"text": "x", "label": n} for n in (0, 1)],
            {"kind": "regression", "labels": ["0", "1"]},
            r"task.labels is 0, 1, kind regression has no classes; leave it out",
        ),
        ([{"text": "x", "label": n} for n in (0, 1)], {"extra": {"dev": ["x"]}}, r"task.extra names 'dev'"),
        (
            [{"text": "x", "b": ["y", "z"], "label": n} for n in (0, 1)],
            {"choices": ["b"]},
            r"task.choices is set, which kind classification does not read, only choice; .* --task.kind",
        ),
        ([{"text": "x", "label": "O"}], {"kind": "token", "form": ["{text}"]}, r"task.form is set, which kind token"),
        (
            [{"text": "x", "label": 1}],
            {"kind": "regression", "spellings": {"one": "1"}},
            r"task.spellings is set, which kind regression does not read, only classification, token",
        ),
        (
            [{"text": "x", "b": ["y", "z"], "label": 1}],
            {"kind": "choice", "choices": ["b"], "spellings": {"C": "B"}},
            r"task.spellings is set, which kind choice does not read",
        ),
        ([{"text": "x", "label": "O"}], {"kind": "token", "literals": True}, r"task.literals is set, which kind token"),
        (
            [{"text": "x", "label": 1}],
            {"kind": "regression", "ranked": "1"},
            r"task.ranked is set, which kind",
        ),
        ([{"text": "x", "label": 1}], {"header": ["a"]}, r"task.header is set, which no file .* csv, tsv; .*format"),
        ([{"text": "x", "label": 1}], {"entry": "a"}, r"task.entry is set, which no file .* json; .* --task.format"),
        (
            [{"text": f"{n // 2}", "b": f"{n}", "label": n % 2} for n in range(4)],
            {"text": ["text", "b"], "ranked": "1", "metrics": ["f1"]},
            r"metrics: 'f1', allowed for kind choice: accuracy; set --task.metrics",
        ),
        (
            [{"text": f"{n}"} for n in (0, 1)],
            {"label": "text"},
            "task.label is 'text', which is a column of task.text",
        ),
        (
            [{"text": "x", "label": n} for n in (0, 1)],
            {"form": ["{text} {label}"]},
            "task.label is 'label', which is a column of task.form",
        ),
        (
            [{"text": "x", "label": "b", "b": ["a", "b"]}],
            {"kind": "choice", "choices": ["b"], "form": ["{label} {answer}"]},
            "task.label is 'label', which is a column of task.form",
        ),
        (
            [{"text": "x", "label": "b", "b": ["a", "b"]}],
            {"kind": "choice", "choices": ["b"], "text": ["text", "label"]},
            "task.label is 'label', which is a column of task.text",
        ),
        (
            [{"text": "x", "label": n} for n in (0, 1)],
            {"subsets": "text", "extra": {"x": ["t.jsonl"]}},
            "no file t.jsonl; set --task.extra.x",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path: Path, rows: list[Any], keys: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.jsonl", rows)
    with pytest.raises(RequestError, match=message) as caught:
        task(test=[path], **keys)
    assert "\n" not in str(caught.value)


def test_a_label_of_bytes_is_no_class(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [{"text": "x", "label": b"no"}, {"text": "y", "label": b"yes"}])
    with pytest.raises(RequestError, match=r"t.parquet:1: label b'no', allowed: a name or a number; .* --task.label"):
        task(test=[path])


def test_a_label_may_be_the_text_of_an_answer_or_of_rows_without_labels(tmp_path: Path) -> None:
    rows = [{"q": f"{n}", "a": "left", "b": "right"} for n in range(4)]
    path = write(tmp_path / "t.jsonl", rows)
    for columns in ({"text": ["q"], "choices": ["a", "b"]}, {"text": ["q", "a", "b"]}):
        keys: dict[str, Any] = {"kind": "choice", "label": "b", "test": [path], **columns}
        found = task(**keys)
        assert found.splits["test"].labels == [1, 1, 1, 1]
    form = {"text": ["q"], "form": ["{q} {answer}"]}  # {answer} is every answer, not a column
    raced = write(tmp_path / "r.jsonl", [{"q": f"{n}", "options": ["x", "y"], "answer": "AB"[n % 2]} for n in range(4)])
    keys = {"kind": "choice", "choices": ["options"], "label": "answer", "test": [raced], **form}
    assert task(**keys).splits["test"].labels == [0, 1, 0, 1]
    assert len(task(submit=[path], labels=["no", "yes"], text=["q"], label="q").splits["submit"]) == 4
    with pytest.raises(RequestError, match=r"task.label is 'q'"):
        task(submit=[path], test=[path], text=["q"], label="q")


def test_the_encoder_reads_no_label_of_further_rows_or_of_the_hub(tmp_path: Path) -> None:
    rows = write(tmp_path / "t.jsonl", [{"text": f"{n}", "label": n % 2} for n in range(4)])
    wrong = {"form": ["{text} {label}"]}
    for more in ({"extra": {"x": [rows]}}, {"hub": {"path": str(tmp_path), "splits": {"train": "train"}}}):
        with pytest.raises(
            RequestError, match=r"task.label is 'label', which is a column of task.form too; set --task"
        ):
            task(**wrong, **more)


def test_a_key_that_stands_twice_in_a_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 0, "label": 1}\n')
    other = tmp_path / "t.json"
    other.write_text('[{"text": "a", "label": 0},\n{"text": "b",\n"label": {"x": 1, "x": 1}}]')
    with pytest.raises(RequestError, match=r"t.json:2: key 'x' stands twice in \{"):
        task(test=[other])
    with pytest.raises(RequestError, match=r"t.jsonl:2: key 'label' stands twice in \{\"text\": \"b\", \"label\": 1\}"):
        task(test=[path])


@pytest.mark.parametrize("labels", [["+1", "-1"], ["0.5", "1.5"]])
def test_a_label_is_no_number_of_a_class_beside_classes_that_are_numbers(tmp_path: Path, labels: list[str]) -> None:
    path = write(tmp_path / "t.jsonl", [{"text": "x", "label": labels[0]}, {"text": "y", "label": 1}])
    with pytest.raises(RequestError, match=rf"t.jsonl:2: label 1, allowed: {re.escape(', '.join(labels))}; .*labels"):
        task(test=[path], labels=labels)


def test_a_key_that_stands_twice_is_found_at_any_depth(tmp_path: Path) -> None:
    answers = (
        '{"q": "a", "b": [{"text": "x", "label": "A"}, [{"text": "y", "label": "B", "label": "A"}]], "label": "A"}'
    )
    path = tmp_path / "t.jsonl"
    path.write_text(answers)
    where = r"stands twice in \{\"text\": \"y\", \"label\": \"A\"\}"
    with pytest.raises(RequestError, match=rf"t.jsonl:1: key 'label' {where}"):
        task(test=[path], kind="choice", text=["q"], choices=["b"])
    entries = tmp_path / "e.json"
    entries.write_text('{"rows": [{"text": "x", "label": 0}, {"text": "y", "label": 1, "label": 0}]}')
    with pytest.raises(RequestError, match=r"e.json:2: key 'label' stands twice"):
        task(test=[entries], entry="rows")
    entries.write_text('{"rows": [{"text": "x", "label": 0}], "rows": [{"text": "y", "label": 1}]}')
    with pytest.raises(RequestError, match=r"e.json:1: key 'rows' stands twice"):
        task(test=[entries], entry="rows")
    dream = tmp_path / "d.json"
    dream.write_text('[[["M: hi"], [{"question": "q", "choice": ["a", "b"], "answer": "a", "answer": "b"}], "1"]]')
    with pytest.raises(RequestError, match=r"d.json:1: key 'answer' stands twice"):
        task(test=[dream], format="dream", kind="choice", text=["question"], choices=["choice"], label="answer")


@pytest.mark.parametrize("label", [{}, {"y": "O B-x"}])
def test_words_without_labels_are_predicted(tmp_path: Path, label: dict[str, Any]) -> None:
    train = write(tmp_path / "t.jsonl", ROWS["tokens"])
    blind = write(tmp_path / "s.jsonl", [{"a": "in Rome", **label}])
    found = task(test=[train], submit=[blind], kind="token", text=["a"], label="y")
    assert found.splits["submit"].labels is None
    assert found.splits["submit"].texts == [("in", "Rome")]
    assert len(found.splits["test"].labels or []) == len(ROWS["tokens"])
    plain = tmp_path / "s.conll"
    plain.write_text("in\nRome\n\nat\nhome\n")
    labelled = tmp_path / "t.conll"
    labelled.write_text("in O\nRome B-x\n")
    found = task(test=[labelled], extra={"more": [plain]}, kind="token", text=["words"])
    assert found.splits["more"].labels is None


def test_a_label_behind_a_first_row_without_is_refused(tmp_path: Path) -> None:
    test = write(tmp_path / "t.jsonl", [{"text": "x", "label": n % 2} for n in range(4)])
    more = write(tmp_path / "m.jsonl", [{"text": "x"}, {"text": "y", "label": None}, {"text": "z", "label": 1}])
    with pytest.raises(RequestError, match=r"m.jsonl:3: a label in column 'label', which the first row has not; mend"):
        task(test=[test], extra={"more": [more]})
    assert task(test=[test], submit=[more]).splits["submit"].labels is None


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_blank_line_between_rows_of_one_column_is_refused(tmp_path: Path, ending: str) -> None:
    test = write(tmp_path / "t.jsonl", [{"text": "x", "label": n % 2} for n in range(4)])
    path = tmp_path / f"s.{ending}"
    path.write_text("\ntext\nfirst\n\nthird\n")
    with pytest.raises(RequestError, match=rf"s.{ending}:4: a blank line among rows of one column; leave it out"):
        task(test=[test], submit=[path])
    path.write_text("text\nfirst\nthird\n\n\n")
    assert task(test=[test], submit=[path]).splits["submit"].ids == ["0", "1"]


def test_mend_leaves_out_what_is_null_of_every_kind(tmp_path: Path) -> None:
    inner = [{"text": "x", "meta": {"label": n % 2}} for n in range(4)]
    path = write(tmp_path / "i.jsonl", [*inner, {"text": "y", "meta": {}}, {"text": "y", "meta": None}, {"text": "y"}])
    assert task(test=[path], label="meta.label", broken="mend").facts["dropped"] == {"test": 3}
    with pytest.raises(RequestError, match=r"i.jsonl:5: no column 'meta.label'"):
        task(test=[path], label="meta.label")
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "choice": ({"q": "why", "b": ["x", "y"], "label": 0}, {"text": ["q"], "choices": ["b"]}),
        "token": ({"q": ["x", "y"], "label": ["O", "B"]}, {"text": ["q"]}),
        "classification": ({"q": "x", "label": "a"}, {"form": ["Q: {q}"], "text": ["q"], "labels": ["a", "b"]}),
    }
    for kind, (row, keys) in kinds.items():
        path = write(tmp_path / f"{kind}.jsonl", [row, {**row, "q": None}])
        assert task(test=[path], kind=kind, broken="mend", **keys).facts["dropped"] == {"test": 1}
        with pytest.raises(RequestError, match=r"jsonl:2: no text in column 'q'; .* --task.broken mend"):
            task(test=[path], kind=kind, **keys)


def test_names_are_given_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"text": "x", "label": n % 2} for n in range(4)])
    sheet = tmp_path / "s.csv"
    sheet.write_text("text,label,,\nx,a,,\ny,b,,\n")
    assert task(test=[sheet]).splits["test"].texts == [("x",), ("y",)]
    sheet.write_text("x,a,-,-\ny,b,-,-\n")
    assert len(task(test=[sheet], header=["text", "label", "_", "_"]).splits["test"]) == 2
    sheet.write_text("text,label,,\nx,a,,\ny,b,,\n")
    columns = [pa.array(["x", "y"]), pa.array(["a", "b"]), pa.array([1, 2]), pa.array([3, 4])]
    parquet.write_table(pa.Table.from_arrays(columns, names=["text", "label", "", ""]), tmp_path / "s.parquet")
    assert task(test=[tmp_path / "s.parquet"]).splits["test"].texts == [("x",), ("y",)]
    inner = write(
        tmp_path / "p.jsonl", [{"text": "x", "label": 0, "m": {"s": "u"}}, {"text": "y", "label": 1, "m": {}}]
    )
    with pytest.raises(RequestError, match=r"p.jsonl:2: no column 'm.s'"):
        task(test=[inner], subsets="m.s")
    for keys, told_ in (
        ({"test": [sheet], "header": ["text", "text", "label", "x"]}, r"task\.header is text, .*each once; set --task"),
        ({"test": [path], "also": ["qqp", "qqp"]}, r"task\.also = .*an entry is given twice, allowed: each once"),
        ({"test": [path], "labels": ["0", "1", " "]}, r"task\.labels is 0, 1,  , allowed: .*each named once; set"),
        ({"test": [path], "labels": ["1", "1.0"]}, r"task\.labels is 1, 1.0, allowed: .*each named once; set"),
    ):
        with pytest.raises(RequestError, match=told_):
            task(**keys)
    rows = write(tmp_path / "c.jsonl", [{"q": "?", "b": [{"text": t, "label": "A"} for t in "xy"], "label": "A"}])
    with pytest.raises(RequestError, match=r"c.jsonl:1: label 'A' is the name of two answers; .* --task.choices"):
        task(test=[rows], kind="choice", text=["q"], choices=["b"])
    numbers = [{"text": "x", "label": 1.0}, {"text": "y", "label": 2.0}]
    rows = write(tmp_path / "n.jsonl", [{"q": "?", "b": numbers, "label": 2.0}, {"q": "?", "b": numbers, "label": "1"}])
    found = task(test=[rows], kind="choice", text=["q"], choices=["b"])
    assert found.splits["test"].labels == [1, 0]


def test_a_list_that_an_object_holds_is_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"rows": [{"text": "x", "label": 0}]}')
    with pytest.raises(RequestError, match=r"t.json:1: JSON .*, wanted: a list \(of an object .* by --task.entry\)"):
        task(test=[path])


def test_a_column_of_numbers_named_as_classes_is_told_briefly(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"text": "x", "label": n} for n in range(100)])
    other = write(tmp_path / "o.jsonl", [{"text": "x", "label": 0.123}])
    with pytest.raises(RequestError, match=r"o.jsonl:1: label 0.123, allowed: .* and 80 more"):
        task(train=[path], test=[other])


def test_swapped_columns_are_told(tmp_path: Path) -> None:
    long = "a class name that is long enough to be taken for a text by its length"
    path = write(tmp_path / "t.jsonl", [{"text": f"{n % 3}", "label": f"{n} {long}"} for n in range(60)])
    other = write(tmp_path / "o.jsonl", [{"text": "x", "label": "y"}])
    with pytest.raises(
        RequestError, match=r"label 'y', allowed: .*… and 40 more; are label and text swapped\?"
    ) as told:
        task(train=[path], test=[other])
    assert len(str(told.value)) < 1600
    with pytest.raises(RequestError, match=r"60 training rows left \(3 different\), .* another --task.text"):
        task(train=[path])
    few = write(tmp_path / "f.jsonl", [{"text": f"{n}", "label": f"{long} {n % 3}"} for n in range(60)])
    with pytest.raises(RequestError, match=rf"label 'y', allowed: {long} 0, {long} 1, {long} 2; mend it"):
        task(train=[few], test=[other])


@pytest.mark.parametrize("text", ["text;label\nx;0\n", "text;label\na, b;0\n", '"text";"label"\n"a, b";0\n'])
def test_semicolons_are_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(RequestError, match=r"\(parted by semicolons\? allowed: commas or tabs\)"):
        task(test=[tmp_path / "s.csv"])


def test_what_a_task_folder_or_the_hub_has_of_its_own_is_not_given_beside_it(task_folder: Path, table: Path) -> None:
    assert task(folder=task_folder, name="mine", recipe={"batch": 7}).name == "mine"
    with pytest.raises(RequestError, match=r"task\.kind is set beside task\.folder, which has its own; leave one"):
        task(folder=task_folder, kind="regression")
    hub = {"path": "a/b", "splits": {"train": "train"}}
    with pytest.raises(RequestError, match=r"task\.train is set beside task\.hub, which has its own rows; leave one"):
        task(hub=hub, train=[table])
    with pytest.raises(RequestError, match=r"task\.header is set beside task\.hub, which has its own rows; leave one"):
        task(hub=hub, header=["a", "b"])
    with pytest.raises(RequestError, match="task 'own' is on the hub, not in a folder; leave --data out"):
        task({"data": table.parent}, hub=hub)
    with pytest.raises(RequestError, match=r"hub\.revision = v1, but .* is a folder here.*; leave hub\.revision out"):
        task(hub=hub | {"path": str(table.parent), "revision": "v1"})
    with pytest.raises(RequestError, match=r"'\.\./x', which cannot name a split; .*; set --task.hub.splits"):
        task(hub=hub | {"splits": {"../x": "train"}})
    assert len(task({"data": table.parent}, hub=hub, train=[table], text=["a", "b"], label="y").splits) == 3


def test_a_part_of_a_published_set_is_told(table: Path) -> None:
    keys: dict[str, Any] = {"test": [table], "text": ["a", "b"], "label": "y"}
    assert task_line(task(**keys, partial="half of it")).endswith("; not the whole published set: half of it")
    assert "published set" not in task_line(task(**keys))
    parts = {"qnli": "glue_qnli_dev_only", "qnli-ranked": "glue_qnli_dev_only", "qqp": "qqp_20k", "anli": "anli_dev"}
    for name, place in {
        **parts,
        "hellaswag": "hellaswag_val_text",
        "paws-wiki": "paws_wiki_final",
        "paws-qqp": "paws_qqp_677",
        "hans": "hans",
    }.items():
        assert {str(source.at) for source in specs.named(name).sources if source.keys.get("partial")} == {place}


def test_no_files_and_no_place_are_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"task 'own' has no files; give --task\.train FILE"):
        task()
    with pytest.raises(
        RequestError, match=r"task 'sst2' has no files: there is no .*SST-2/train.tsv, no .*; set --data"
    ):
        standard("sst2", tmp_path)
    with pytest.raises(RequestError, match=r"no task 'sst3'; did you mean 'sst2'\? set --tasks to some of "):
        specs.named("sst3")
    with pytest.raises(RequestError, match="task 'paws-qqp' is not on the hub; set --data"):
        standard("paws-qqp", None)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"labels": ["a"]}, "task.labels is a, allowed: two classes or more, each named once; set --task.labels"),
        ({"labels": ["a", "b", "a"]}, "task.labels is a, b, a, allowed"),
        ({"labels": ["a", "b"], "spellings": {"A": "c"}}, "task.spellings names class 'c', allowed"),
        ({}, "no file of task 'own' has labels; give --task.train, or the classes by --task.labels"),
    ],
)
def test_classes_that_are_none_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        task(submit=[write(tmp_path / "t.csv", [{"text": "x"}])], **keys)


def test_a_standard_task_says_where_its_rows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "STANDARD", tmp_path)
    monkeypatch.setattr(places, "STANDARD", tmp_path)
    (tmp_path / "people.yaml").write_text("train: [gone.csv]\n")
    with pytest.raises(
        RequestError, match=r"people.yaml: no file gone.csv; add sources: \[\{at: FOLDER\}\] for --data"
    ):
        standard("people", tmp_path)
    with pytest.raises(RequestError, match=r"^no file gone.csv; set --task.train"):
        task(name="people", train=["gone.csv"])
    table = write(tmp_path / "t.csv", [{"text": f"{n}", "label": n % 2} for n in range(20)])
    with pytest.raises(RequestError, match=r"people.yaml: no file gone.csv; add sources"):
        task(train=[table], also=["people"])
    with pytest.raises(RequestError, match=r"^task.label is 'text'"):
        task(name="people", train=[table], label="text")
    (tmp_path / "people.yaml").write_text(f"train: [{table}]\nform: ['{{text}} {{label}}']\n")
    with pytest.raises(RequestError, match=r"people.yaml: task.label is 'label', which is a column of task.form too"):
        task(train=[table], also=["people"])
    (tmp_path / "people.yaml").write_text("train: [gone.csv]\nsources: [{at: x}]\nlabel: text\n")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "gone.csv").touch()
    with pytest.raises(
        RequestError, match=r"people.yaml: task.label is 'text', which is a column of task.text too; set label$"
    ):
        standard("people", tmp_path)


def test_a_message_about_a_standard_task_names_data(tmp_path: Path) -> None:
    (tmp_path / "RTE").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "RTE" / f"{split}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n")
    with pytest.raises(RequestError, match=r"RTE/train.tsv:2: label 'maybe', allowed: entailment, not_.* set --data"):
        standard("rte", tmp_path)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A data folder with PAWS-QQP and QQP as they are published, the latter with a row cut in two."""
    (tmp_path / "paws_qqp").mkdir()
    lines = "".join(f"{n}\tb'left {n}'\tb'right'\t{n % 2}\n" for n in range(20))
    for name in ("train", "dev_and_test"):
        (tmp_path / "paws_qqp" / f"{name}.tsv").write_text(f"id\tsentence1\tsentence2\tlabel\n{lines}")
    (tmp_path / "QQP").mkdir()
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    for name in ("train", "dev", "test"):
        (tmp_path / "QQP" / f"{name}.tsv").write_text(f"{head}1\t1\t2\tone\ttwo\t1\n2\t3\t4\tcut\nhere\ttwo\t0\n")
    return tmp_path


def test_paper_compat_adds_rows_chooses_on_the_scored_ones_and_changes_the_main_score(pairs: Path) -> None:
    plain, compat = (standard("paws-qqp", pairs, paper_compat=flag) for flag in (False, True))
    assert (len(plain.splits["train"]), len(plain.splits["dev"])) == (18, 2)
    assert compat.splits["train"].texts[-2:] == [("one", "two"), ("cut here", "two")]
    assert len(compat.splits["train"]) == 22
    assert compat.splits["dev"] == compat.splits["test"] == plain.splits["test"]
    assert standard("qqp", pairs, paper_compat=True).metrics == ("f1", "accuracy")


def test_only_tasks_of_a_kind_are_trained_on_together(pairs: Path, table: Path) -> None:
    keys: dict[str, Any] = {"train": [table], "dev": [table], "label": "y", "also": ["qqp"]}
    request = {"data": pairs}
    with pytest.raises(
        RequestError, match="'qqp' is of kind classification with 2 segments, 'own' of classification with 1"
    ):
        task(request, **keys, text=["a"])
    with pytest.raises(
        RequestError, match="task 'qqp' has the classes not_duplicate, duplicate, 'own' no, yes; mend --task"
    ):
        task(request, **keys, text=["a", "b"])
    same = {"labels": ["not_duplicate", "duplicate"], "spellings": {"no": "not_duplicate", "yes": "duplicate"}}
    found = task(request, **keys, text=["a", "b"], **same)
    assert len(found.splits["train"]) == 38
    assert [Path(name).name for name in found.facts["files"]] == ["t.csv", "train.tsv"]
    assert found.facts["joined"] == {"qqp": 1}
    seen = write(table.with_name("seen.csv"), [{"a": "one", "b": "two", "y": "yes"}, *ROWS["classification"]])
    again = task(request, **{**keys, "dev": [seen]}, text=["a", "b"], **same)
    assert (len(again.splits["train"]), again.facts["seen"]) == (37, {"qqp": 1})
    assert "left out of the added rows, as they choose or are scored: 1 of qqp" in task_line(again)


def test_a_split_of_another_configuration_of_the_hub_is_read(tmp_path: Path) -> None:
    """RACE's schools, ARC-Challenge beside ARC-Easy."""
    configs = ""
    for config in ("all", "high"):
        rows = [{"article": "a", "question": f"{config} {n}", "options": ["x", "y"], "answer": "A"} for n in range(20)]
        write(tmp_path / f"{config}.parquet", rows)
        files = "".join(
            f"  - {{split: {split}, path: {config}.parquet}}\n" for split in ("train", "validation", "test")
        )
        configs += f"- config_name: {config}\n  data_files:\n{files}"
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    spec = specs.named("race")
    assert spec.hub is not None
    splits = {name: theirs for name, theirs in spec.hub.splits.items() if name != "middle"}
    request = from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "out", "tasks": ["race"]})
    found = load(replace(spec, hub=replace(spec.hub, path=str(tmp_path), splits=splits)), request)
    assert [found.splits[name].texts[1][0] for name in ("test", "high")] == [("a", "all 1 x"), ("a", "high 1 x")]


def test_the_hub_form_of_a_task_is_read_from_a_local_repository(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        answers = {"text": ["x", "y"], "label": ["A", "B"]}
        rows = [
            {"id": str(n), "question": f"{split} {n}", "choices": answers, "answerKey": "AB"[n % 2]} for n in range(20)
        ]
        write(tmp_path / f"{split}.parquet", rows)
    config = from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "out", "tasks": ["csqa"]})
    spec = specs.named("csqa")
    assert spec.hub is not None
    local = from_dict(specs.HubSource, {"path": str(tmp_path), "splits": spec.hub.splits, "keys": spec.hub.keys})
    found = load(replace(spec, hub=local), config)
    assert {name: len(split) for name, split in found.splits.items()} == {
        "train": 18,
        "dev": 2,
        "test": 20,
        "submit": 20,
    }
    assert found.splits["test"].texts[0] == (("Q: validation 0", "A: x"), ("Q: validation 0", "A: y"))
    assert found.splits["test"].labels == [0, 1] * 10
    missing = from_dict(specs.HubSource, {"path": str(tmp_path), "splits": {"train": "none"}})
    with pytest.raises(WorkError, match=re.escape(f"no split 'none' of {tmp_path} from the hub")):
        load(replace(spec, hub=missing), config)
