"""How the files of a task of one's own are named on the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from asa.config import from_dict
from asa.errors import RequestError
from cli import parse
from finetune.config import FinetuneConfig
from finetune.tasks.load import load
from finetune.tasks.spec import TaskConfig


@pytest.mark.parametrize(
    ("named", "read"),
    [
        ("a.csv,b.csv", ["a.csv", "b.csv"]),
        ("a.csv, b.csv", ["a.csv", "b.csv"]),
        ("[a.csv, b.csv]", ["a.csv", "b.csv"]),
        ("with,comma.csv", ["with,comma.csv"]),
        ("a.csv,with,comma.csv", None),  # which of the commas parts two names is nobody's guess
    ],
)
def test_files_are_named_with_commas_between(
    named: str, read: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv", "with,comma.csv"):
        rows = [f"{name[0]} row {n},{'yes' if n % 2 else 'no'}" for n in range(20)]
        Path(name).write_text("\n".join(["text,label", *rows]))
    request = ["--models.m", "m", "--out", "o", "--task.train", named, "--task.extra.more", named]
    asked = parse(FinetuneConfig, request, "prog")
    if read is None:
        with pytest.raises(RequestError, match=r"no file with; set --task\.train"):
            load(asked.task, asked)
        return
    assert [str(path) for path in asked.task.train] == read
    assert [str(path) for path in asked.task.extra["more"]] == read
    assert [Path(file).name for file in load(asked.task, asked).facts["files"]] == read


def test_a_list_may_be_longer_than_a_files_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., FinetuneConfig]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"training-rows-{number:02d}.csv" for number in range(30)]
    for name in names:
        Path(name).write_text(f"text,label\n{name} a,yes\n{name} b,no\n")
    asked = make(task={"train": ",".join(names)})
    assert [Path(file).name for file in load(asked.task, asked).facts["files"]] == names
    asked = make(task={"train": "n" * 300})
    with pytest.raises(RequestError, match=r"no file n{300}; set --task\.train"):
        load(asked.task, asked)


def test_an_empty_name_between_commas_is_refused() -> None:
    with pytest.raises(RequestError, match="a name between commas is empty, allowed: FILE or FILE,FILE"):
        from_dict(TaskConfig, {"train": ["a.csv,"]})
