"""The commands text and merge, end to end."""

import bz2
import errno
import fcntl
import json
import os
from pathlib import Path

import pytest

from data_prep import sources, stored
from tests.data_prep.asking import one_line, run
from tests.data_prep.conftest import content, dump_xml


def rows(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def facts(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())["facts"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SMALLEST", 5_000)


@pytest.fixture
def plain(dump: Path) -> Path:
    path = dump.with_name("plain.xml")
    path.write_bytes(bz2.decompress(dump.read_bytes()))
    return path


def test_every_page_is_kept_or_counted(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("text", plain, "--out", tmp_path / "out") == 0
    assert "documents kept: 40" in capsys.readouterr().out
    found = rows(tmp_path / "out")
    assert [row["title"] for row in found] == [f"Article {n}" for n in range(40)]
    assert found[0]["text"].split("\n\n")[1] == "See"
    dropped = {"redirect": 1, "disambiguation": 1, "not in the main namespace": 1, "too short": 1}
    assert facts(tmp_path / "out")["documents"] == {"kept": 40, "dropped": dropped}
    assert len(list((tmp_path / "out").glob("documents-*.jsonl"))) > 3
    assert run("verify", tmp_path / "out") == 0


def test_shards_merge_into_the_bytes_of_one_run(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("text", plain, "--out", tmp_path / "whole", "--workers", 2) == 0
    shards = [tmp_path / f"s{index}" for index in range(3)]
    for index, shard in enumerate(shards):
        assert run("text", plain, "--out", shard, "--shard", f"{index}/3") == 0
    assert run("merge", *reversed(shards), "--out", tmp_path / "out") == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    before = content(shards[1])
    assert run("merge", *shards, "--out", shards[1], "--overwrite", "true") == 2
    assert "is one of the parts" in one_line(capsys)
    assert content(shards[1]) == before
    assert run("merge", *shards, "--out", tmp_path / "out") == 0
    assert "up to date" in capsys.readouterr().out


def test_parts_that_are_no_whole(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    assert run("text", plain, "--out", a, "--shard", "0/2") == 0
    assert run("text", plain, "--out", b, "--shard", "1/2", "--min_chars", 50) == 0
    assert run("text", plain, "--out", c, "--shard", "2/3") == 0
    out = ("--out", tmp_path / "out")
    for argv, said in (
        ((a,), "shard 1/2 is missing"),
        ((a, a), "shard 0/2 is given twice"),
        ((a, b), "differs from"),
        ((a, c), "all must be of 2"),
        ((tmp_path,), "has no manifest.json"),
    ):
        assert run("merge", *argv, *out) == 2
        assert said in one_line(capsys)
    assert not (tmp_path / "out").exists()


def test_one_part_of_the_documents_does_not_pass_for_all(
    plain: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "part"
    assert run("text", plain, "--out", part, "--shard", "0/2") == 0
    for argv in (("build", "--documents", part, "--model", model), ("dedup", part), ("tokenizer", part)):
        assert run(*argv, "--out", tmp_path / "out") == 2
        assert "is part 0/2" in (line := one_line(capsys))
        assert "merge" in line
    assert not list(tmp_path.glob("out*"))


def test_files_that_no_manifest_lists_are_neither_read_nor_replaced(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, stray = tmp_path / "one", tmp_path / "one" / "documents-notes.jsonl"
    assert run("text", plain, "--out", one) == 0
    stray.write_text('{"id": "1", "title": "x", "text": "my notes"}\n')
    assert stray not in stored.files([one], "INPUT")
    for command in ("merge", "dedup"):
        assert run(command, one, "--out", tmp_path / command) == 0
        assert not (tmp_path / command / stray.name).exists()
        assert all(row["text"] != "my notes" for row in rows(tmp_path / command))
    capsys.readouterr()
    assert run("text", plain, "--out", one, "--min_chars", 50, "--overwrite", "true") == 2
    assert stray.name in one_line(capsys)
    stray.rename(tmp_path / "notes")
    assert run("text", plain, "--out", one, "--min_chars", 50, "--overwrite", "true") == 0


def test_a_lock_that_the_system_refuses_is_told_as_that(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert run("text", plain, "--out", tmp_path / "out") == 1
    assert "No locks available" in (line := one_line(capsys))
    assert "another run" not in line


def test_an_out_that_is_a_link_stays_one(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    for flags in ((), ("--min_chars", 50, "--overwrite", "true")):
        assert run("text", plain, "--out", tmp_path / "out", *flags) == 0
        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "disk" / "manifest.json").is_file()
    assert not list(tmp_path.glob("*.partial"))


def test_a_damaged_part_is_not_merged(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("text", plain, "--out", tmp_path / "a") == 0
    path = next((tmp_path / "a").glob("*.jsonl"))
    damaged = path.read_bytes().replace(b"river", b"rover", 1)
    path.write_bytes(damaged)
    assert run("merge", tmp_path / "a", "--out", tmp_path / "out") == 1
    assert path.name in one_line(capsys)
    assert not list(tmp_path.glob("out*"))


def test_a_damaged_dump_leaves_nothing(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain.write_bytes(plain.read_bytes()[:-30])
    assert run("text", plain, "--out", tmp_path / "out") == 1
    assert "truncated" in one_line(capsys)
    assert not list(tmp_path.glob("out*"))


def test_a_dump_without_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wiki.xml").write_text(dump_xml())
    assert run("text", tmp_path / "wiki.xml", "--out", tmp_path / "out") == 1
    assert "no pages" in one_line(capsys)
    assert not list(tmp_path.glob("out*")), "what would refuse the mended request"


def test_documents_that_are_all_dropped_are_no_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.txt").write_text("")
    assert run("text", tmp_path / "few.txt", "--out", tmp_path / "out") == 1
    assert "no text in it" in one_line(capsys)
    (tmp_path / "few.txt").write_text("Too short.\n")
    assert run("text", tmp_path / "few.txt", "--out", tmp_path / "out") == 1
    assert one_line(capsys).endswith(
        "(every one was dropped: 1 too short); give a pages-articles dump or text, or lower --min_chars"
    )
    assert not list(tmp_path.glob("out*"))
    for part in (0, 1):
        out = tmp_path / f"part{part}"
        assert run("text", tmp_path / "few.txt", "--out", out, "--shard", f"{part}/2") == 0, "others may have some"
    capsys.readouterr()
    assert run("merge", tmp_path / "part0", tmp_path / "part1", "--out", tmp_path / "out") == 1
    assert "no part has a document" in one_line(capsys)
    assert not list(tmp_path.glob("out*"))
