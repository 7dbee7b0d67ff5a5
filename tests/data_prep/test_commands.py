"""The commands end to end: exit codes, one-line errors, atomic output, equal bytes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from datasets import Dataset, concatenate_datasets
from transformers import AutoTokenizer

from asa.config import from_dict
from data_prep import extract
from data_prep.config import BuildConfig
from data_prep.leads import load, split_of
from tests.data_prep.asking import COMMANDS, one_line, run
from tests.data_prep.conftest import content

Argv = Callable[..., list[str]]


def test_same_input_same_bytes_for_any_number_of_workers(build_argv: Argv, tmp_path: Path) -> None:
    assert run("build", *build_argv("one")) == 0
    assert run("build", *build_argv("two", workers=2)) == 0
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert set(content(tmp_path / "one")) == {
        *(f"shards/{split}-0000{part}.arrow" for split in ("train", "heldout") for part in (0, 1)),
        *(
            f"shards/{name}"
            for name in ("manifest.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json")
        ),
        *(f"task/{name}" for name in ("manifest.json", "task.json", "train.jsonl", "dev.jsonl", "test.jsonl")),
    }


def test_manifest_and_no_leak_of_dev_and_test(build_argv: Argv, leads: Path, tmp_path: Path, model: Path) -> None:
    assert run("build", *build_argv()) == 0
    facts = json.loads((tmp_path / "out/shards/manifest.json").read_text())["facts"]
    banned = [lead for lead in load(leads) if split_of(lead) in ("dev", "test")]
    in_dump = [lead for lead in banned if int(lead.title.split()[1]) < 40]
    assert in_dump
    dropped = facts["documents"]["dropped"]
    assert dropped["in the task's dev or test split"] == len(banned) + len(in_dump)
    assert facts["documents"]["kept"] == 40 + 90 - len(banned) - len(in_dump)
    assert facts["length"] == 32
    assert [source["name"] for source in facts["sources"]] == ["wiki.xml.bz2", "leads.json"]
    tokenizer = AutoTokenizer.from_pretrained(model)
    stored = ""
    for split in ("train", "heldout"):
        files = sorted((tmp_path / "out/shards").glob(f"{split}-*.arrow"))
        rows = concatenate_datasets([Dataset.from_file(str(path)) for path in files])
        assert len(rows) == facts["rows"][split] > 0
        stored += " ".join(tokenizer.decode(row) for row in rows["input_ids"]).replace("[SEP] [CLS] ", "")
    kept = [lead for lead in load(leads) if split_of(lead) == "train"]
    openings = {lead.text[:60] for lead in kept}
    leaks = [lead.title for lead in banned if lead.text[:60] not in openings and lead.text in stored]
    assert not leaks


def test_up_to_date_then_refused_then_replaced(
    build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", *build_argv()) == 0
    before = content(tmp_path / "out")
    assert run("build", *build_argv(workers=2)) == 0
    assert "up to date" in capsys.readouterr().out
    assert run("build", *build_argv(length=16)) == 2
    assert "--overwrite true" in one_line(capsys)
    assert content(tmp_path / "out") == before
    assert run("build", *build_argv(length=16, overwrite="true")) == 0
    assert content(tmp_path / "out") != before
    assert not list(tmp_path.glob("*.partial"))


def test_a_missing_part_is_no_up_to_date_build(build_argv: Argv, tmp_path: Path) -> None:
    assert run("build", *build_argv()) == 0
    before = content(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "task")
    assert run("build", *build_argv()) == 2
    assert run("build", *build_argv(overwrite="true")) == 0
    assert content(tmp_path / "out") == before


def test_a_foreign_folder_is_never_replaced(build_argv: Argv, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    assert run("build", *build_argv(overwrite="true")) == 2
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_a_users_file_in_a_finished_folder_is_never_replaced(build_argv: Argv, tmp_path: Path) -> None:
    assert run("build", *build_argv()) == 0
    notes = tmp_path / "out" / "shards" / "notes.txt"
    notes.write_text("what I saw")
    assert run("build", *build_argv(length=16, overwrite="true")) == 2
    assert notes.read_text() == "what I saw"


def test_a_damaged_dump_leaves_nothing(
    build_argv: Argv, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump.write_bytes(dump.read_bytes()[:-30])
    assert run("build", *build_argv()) == 1
    assert "truncated" in one_line(capsys)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"dumps": "none.xml"}, "--dumps"),
        ({"dumps": "pyproject.toml"}, "must end in"),
        ({"documents": "nowhere"}, "--documents"),
        ({"leads": "none.json"}, "--leads"),
        ({"model": "nowhere"}, "--model"),
        ({"length": 4}, "8 <= length"),
        ({"length": 513}, "--length"),
        ({"heldout": 1.0}, "heldout < 1"),
        ({"workers": 0}, "--workers"),
        ({"shard": "00/2"}, "shard"),
        ({"lenght": 128}, "did you mean 'length'"),
        ({"dumps": "[]", "leads": "null"}, "nothing to build"),
        ({"length": 10**6}, "allowed: 8 <= length <= 65536"),
        ({"out": "a" * 300}, "is no place to write (File name too long); set another --out"),
        ({"dumps": "[]", "min_chars": 60}, "min_chars = 60, which --dumps alone is held to; leave --min_chars out"),
    ],
)
def test_wrong_requests(
    build_argv: Argv, flags: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", *build_argv(**flags)) == 2
    assert said in one_line(capsys)
    assert not list(tmp_path.glob("out*"))


def test_several_inputs_are_named_in_one_list_or_added(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("the old river " * 9)
    two.write_text("the new city " * 9)
    build = ["build", "--model", model, "--heldout", "0", "--out", tmp_path / "out"]
    for again in (["--dumps", two], [f"--dumps={two}"]):
        assert run(*build, "--dumps", one, *again) == 2
        assert one_line(capsys) == "error: --dumps is given twice; give all at once, --dumps '[A,B]'"
    assert run("text", one, "--inputs", two, "--out", tmp_path / "text") == 2
    assert "--inputs is given twice" in one_line(capsys)
    assert not list(tmp_path.glob("*/"))
    for inputs in ([f"[{one},{two}]"], [one, "--dumps+", two]):
        assert run(*build, "--dumps", *inputs) == 0  # the second time: up to date
    assert "documents kept: 2\n" in capsys.readouterr().out


def test_help_offers_no_file_that_lists_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", "--help") == 0
    said = capsys.readouterr().out
    assert "--dumps [ITEM,...]" in said
    assert "LIST_OF" not in said


def test_build_from_documents(dump: Path, model: Path, tmp_path: Path) -> None:
    assert run("text", dump, "--out", tmp_path / "text") == 0
    assert run("build", "--documents", tmp_path / "text", "--model", model, "--out", tmp_path / "out") == 0
    assert not (tmp_path / "out" / "task").exists()
    assert run("verify", tmp_path / "text") == 0


@pytest.mark.parametrize("argv", [["text"], ["text", "--out", "x"], ["verify"], ["verify", "a", "b"], ["nope"], []])
def test_wrong_usage(argv: list[str]) -> None:
    assert run(*argv) == 2


def test_ctrl_c_outside_the_parts_is_one_line(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(extract.sources, "parts", interrupted)
    assert run("text", dump, "--out", tmp_path / "out") == 130
    assert "interrupted" in one_line(capsys)


def test_text_part_out_of_range(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("text", dump, "--out", tmp_path / "out", "--shard", "2/2") == 2
    assert "--shard" in one_line(capsys)
    assert run("text", dump, "--out", tmp_path / "out", "--shard", "00/2") == 2
    assert "shard" in one_line(capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_print_config(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert run(command, "--print_config") == 0
    assert capsys.readouterr().out


def test_the_real_command_line(build_argv: Argv, tmp_path: Path) -> None:
    """As a process, spawned workers included."""
    command = [sys.executable, "-m", "data_prep"]
    built = subprocess.run([*command, "build", *build_argv(workers=2)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "documents kept" in built.stdout
    assert run("verify", tmp_path / "out") == 0


def test_the_quickstart_config_is_valid() -> None:
    config = from_dict(BuildConfig, yaml.safe_load(Path("configs/data/quickstart.yaml").read_text()))
    assert config.length == 128
