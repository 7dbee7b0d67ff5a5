"""Tables land in one file per benchmark, machine and day, and tell nothing of where they were made."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest
import torch

from asa.errors import RequestError, WorkError
from benchmarks.tables import _SETTINGS, Recorded, _without_folders, asked, machine, save

TODAY = date.today().isoformat()


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the environment that titles would have."""
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        monkeypatch.delenv(name)


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


def test_what_the_environment_sets_of_speed_and_memory_makes_another_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Recorded(results=tmp_path), "memory", [], "plain")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("LD_PRELOAD", "/a/b/libjemalloc.so")
    save(Recorded(results=tmp_path), "memory", [], "preloaded")
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    assert "plain" in text
    assert "`LD_PRELOAD=libjemalloc.so OMP_NUM_THREADS=2 python -m benchmarks memory`" in text


def test_tables_that_come_at_once_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: save(Recorded(results=tmp_path), "memory", [str(n)], f"table {n}."), range(40)))
    (file,) = tmp_path.iterdir()
    assert all(f"table {n}." in file.read_text() for n in range(40))


def test_results_that_can_be_no_folder_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="file is no folder; set another --results"):
        asked(Recorded, ["--results", str(tmp_path / "file" / "x")], "flops")


def test_the_machine_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200 (NVL)")
    assert machine() == "nvidia-h200-nvl"


def test_nothing_is_written_where_none_is_wanted_or_possible(tmp_path: Path) -> None:
    save(Recorded(results=None), "memory", [], "table")
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match=r"\.md cannot be written: File exists; mend that and set --results"):
        save(Recorded(results=tmp_path / "file"), "memory", [], "table")
