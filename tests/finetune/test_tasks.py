"""Task folders, as data preparation writes them."""

import json
from pathlib import Path

import pytest

from asa import manifest
from asa.config import from_dict
from asa.errors import RequestError, WorkError
from finetune.config import FinetuneConfig
from finetune.tasks import folder
from finetune.tasks.load import load
from tests.finetune.conftest import write_task


def test_a_folder_names_its_task_unless_the_request_does(task_folder: Path) -> None:
    for given, name in (({}, "colours"), ({"name": "mine"}, "mine")):
        values = {"models": {"m": "m"}, "out": "out", "task": {"folder": task_folder, **given}}
        config = from_dict(FinetuneConfig, values)
        assert load(config.task, config).name == name


def test_a_folder_is_thinned_and_its_test_rows_choose_where_asked_for(task_folder: Path) -> None:
    values = {"models": {"m": "m"}, "out": "out", "task": {"folder": task_folder}}
    config = from_dict(FinetuneConfig, {**values, "train_rows": 5, "paper_compat": True})
    task = load(config.task, config)
    assert task.facts["rows"] == {"train": 5, "dev": 12, "test": 12}
    assert task.splits["dev"] == task.splits["test"]
    other = from_dict(FinetuneConfig, {**values, "train_rows": 4, "paper_compat": True})
    assert len({load(config.task, config).sha256, load(other.task, other).sha256, folder.load(task_folder).sha256}) == 3


@pytest.mark.parametrize("label", [3, -1, "1", 1.0, True, None])
def test_a_label_out_of_range_is_named_with_its_line(tmp_path: Path, label: object) -> None:
    task = write_task(tmp_path / "wrong")
    with (task / "dev.jsonl").open("a") as file:
        file.write(json.dumps({"id": "x", "text": "a", "label": label}) + "\n")
    manifest.write(task, "task", {})
    with pytest.raises(RequestError, match=r"dev.jsonl:13: label .* allowed: 0 <= label < 3; .* --task"):
        folder.load(task)


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    task = write_task(tmp_path / "wrong")
    (task / "test.jsonl").write_text('{"id": "1", "text": "a", "label": 0}\n{"id": "2"}\n')
    manifest.write(task, "task", {})
    with pytest.raises(RequestError, match=r"test.jsonl:2: no JSON object in UTF-8 with text and label"):
        folder.load(task)


def test_half_a_character_is_named_with_its_line(tmp_path: Path) -> None:
    task = write_task(tmp_path / "wrong")
    (task / "test.jsonl").write_text(
        '{"id": "1", "text": "a \\ud83d\\ude00", "label": 0}\n{"text": "\\ud83d", "label": 0}\n'
    )
    manifest.write(task, "task", {})
    with pytest.raises(RequestError, match=r"test.jsonl:2: text '\\ud83d' holds half of a character"):
        folder.load(task)


def test_a_task_without_manifest_is_refused(task_folder: Path) -> None:
    (task_folder / manifest.NAME).unlink()
    with pytest.raises(RequestError, match=r"no manifest.json.*--task"):
        folder.load(task_folder)


def test_a_changed_byte_is_found(task_folder: Path) -> None:
    content = (task_folder / "dev.jsonl").read_text()
    (task_folder / "dev.jsonl").write_text(content.replace("red", "rad"))
    with pytest.raises(WorkError, match=r"dev.jsonl is damaged"):
        folder.load(task_folder)


def test_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="kind 'regression', allowed: 'classification'"):
        folder.load(write_task(tmp_path / "other", kind="regression"))


WRONG: dict[str, tuple[str, str]] = {
    "cut": ("{", r"task.json is no JSON"),
    "list": ("[]", r"task.json has no 'name'"),
    "path": ('{"name": "../x", "kind": "classification", "labels": ["a", "b"]}', r"name '../x', allowed: up to 100"),
    "number": ('{"name": "x", "kind": "classification", "labels": 3}', r"labels 3, allowed: two names or more"),
    "numbers": ('{"name": "x", "kind": "classification", "labels": [0, 1]}', r"labels \[0, 1\], allowed: two names"),
    "twice": ('{"name": "x", "kind": "classification", "labels": ["a", "a"]}', r"labels .*, allowed: each once"),
    "spaced": ('{"name": "x", "kind": "classification", "labels": ["a ", "a"]}', r"labels .*, allowed: each once"),
    "blank": ('{"name": "x", "kind": "classification", "labels": [" ", "a"]}', r"labels .*, allowed: names that are"),
    "half": ('{"name": "x", "kind": "classification", "labels": ["\\ud83d", "a"]}', r"labels .*, allowed: names that"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_folder_says_of_itself_is_checked(tmp_path: Path, wrong: str) -> None:
    task = write_task(tmp_path / "wrong")
    text, said = WRONG[wrong]
    (task / "task.json").write_text(text)
    manifest.write(task, "task", {})
    with pytest.raises(RequestError, match=said + ".*--task.folder"):
        folder.load(task)


def test_a_row_in_another_encoding_is_named(tmp_path: Path) -> None:
    task = write_task(tmp_path / "wrong")
    (task / "dev.jsonl").write_bytes('{"text": "caf\u00e9", "label": 0}\n'.encode("latin-1"))
    manifest.write(task, "task", {})
    with pytest.raises(RequestError, match=r"dev.jsonl:1: no JSON object in UTF-8"):
        folder.load(task)


def test_rows_are_numbered_from_nought_as_those_of_other_files(task_folder: Path) -> None:
    assert folder.load(task_folder).splits["dev"].ids == [str(number) for number in range(12)]
