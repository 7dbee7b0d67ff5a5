"""Tables land in one file per benchmark, machine and day, and tell nothing of where they were made."""

from datetime import date
from pathlib import Path

import pytest
import torch

from asa.errors import WorkError
from benchmarks.tables import Recorded, _without_folders, machine, save

TODAY = date.today().isoformat()


def test_a_table_takes_the_place_of_the_same_commands(tmp_path: Path) -> None:
    request = Recorded(results=tmp_path / "new")
    save(request, "memory", ["--batch", "8"], "one\n")
    save(request, "memory", ["--batch", "16"], "two")
    save(request, "memory", ["--batch", "8"], "three")
    (file,) = (tmp_path / "new").iterdir()
    assert file.name == f"memory_{machine()}_{TODAY}.md"
    text = file.read_text()
    assert text.startswith(f"# memory, {machine()}, {TODAY}\n\n## `python -m benchmarks memory --batch 16` (")
    assert text.count("--batch 8`") == 1
    assert "one" not in text.replace("--", "")
    assert text.index("two") < text.index("three")
    save(request, "memory", ["--batch", "8"], "four")
    assert "three" not in file.read_text()


def test_another_models_table_stays(tmp_path: Path) -> None:
    for folder in ("a", "b", "a"):
        save(Recorded(results=tmp_path), "memory", ["--model", f"/{folder}/m"], f"of {folder}")
    (file,) = tmp_path.iterdir()
    assert file.read_text().count("--model m`") == 2


@pytest.mark.parametrize(
    ("word", "left"),
    [
        ("{a: /home/u/m, b: /x/y z/n}", "{a: m, b: n}"),
        ("{a:/home/u/m}", "{a:m}"),
        ("file:///a/b", "b"),
        ("--model=~/x/y", "--model=y"),
        ("~u/x", "x"),
        ("//a/b", "b"),
        ("python /a/b.py --to '/c/d e/f'", "python b.py --to 'f'"),
        ("assets/bert-tiny", "assets/bert-tiny"),
        ("../m", "../m"),
        ("https://host/x", "https://host/x"),
    ],
)
def test_a_path_is_its_last_part(word: str, left: str) -> None:
    assert _without_folders(word) == left


def test_folders_of_this_machine_are_left_out(tmp_path: Path) -> None:
    argv = ["--data", "/a/b/data", "--plot=/c/d/x.png", "--models", "[/e/f/m]", "--model", "assets/bert-tiny"]
    save(Recorded(results=tmp_path), "step-time", argv, "table")
    (file,) = tmp_path.iterdir()
    assert "--data data --plot=x.png --models '[m]' --model assets/bert-tiny`" in file.read_text()


def test_the_machine_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200 (NVL)")
    assert machine() == "nvidia-h200-nvl"


def test_nothing_is_written_where_none_is_wanted_or_possible(tmp_path: Path) -> None:
    save(Recorded(results=None), "memory", [], "table")
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match=r"\.md cannot be written: File exists; mend that and set --results"):
        save(Recorded(results=tmp_path / "file"), "memory", [], "table")
