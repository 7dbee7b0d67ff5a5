"""A build that is killed, runs out of space or is shared by machines gives the bytes of one that was left in peace."""

import bz2
import glob
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from data_prep import sources
from tests.data_prep.asking import one_line, run
from tests.data_prep.conftest import content, prose

Argv = Callable[..., list[str]]
PARTS = 24


class Corpus(NamedTuple):
    """The arguments, but for --out, of a build with two workers from PARTS files; the bytes that it gives."""

    argv: list[str]
    calm: dict[str, bytes]

    def start(self, out: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "data_prep", "build", *self.argv, "--out", str(out)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"title": f"Article {n}", "text": prose(n, 200) * 8}) for n in range(50 * PARTS)]
    (folder / "own.jsonl").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_SMALLEST", (folder / "own.jsonl").stat().st_size // PARTS + 1)
        assert run("text", folder / "own.jsonl", "--out", folder / "text") == 0
    assert len(list((folder / "text").glob("*.jsonl"))) == PARTS
    argv = ["--documents", str(folder / "text"), "--model", str(model), "--length", "32", "--workers", "2"]
    assert run("build", *argv, "--workers", "1", "--out", folder / "calm") == 0
    return Corpus(argv, content(folder / "calm"))


def kill_at(process: subprocess.Popen[str], marks: Path, finished: int, inside: bool) -> None:
    """SIGKILL once `finished` parts are done and, with `inside`, files of another one are being written."""
    deadline = time.monotonic() + 300
    while process.poll() is None:
        # Not by pathlib, which raises where a folder vanishes while it looks.
        done, making = len(glob.glob(f"{marks}/*.json")), glob.glob(f"{marks}/*/*")
        if done > finished or (done == finished and (making or not inside)):
            break
        assert time.monotonic() < deadline, "no progress in five minutes"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def check_kills(corpus: Corpus, tmp_path: Path, kills: int) -> None:
    draw = random.Random(kills)
    root = tmp_path / "rough.partial"
    marks = root / "marks/rows"
    for target in sorted(draw.randrange(PARTS) for _ in range(kills)):
        kill_at(corpus.start(tmp_path / "rough"), marks, target, inside=draw.random() < 0.7)
        if (tmp_path / "rough").exists():
            break  # it was faster than the signal
        assert len(list(marks.glob("*.json"))) >= target, "what is finished stays"
    finished = {name for mark in marks.glob("*.json") for name in json.loads(mark.read_text())["files"]}
    before = {name: (root / "out/shards" / name).stat().st_mtime_ns for name in finished}
    assert run("build", *corpus.argv, "--out", tmp_path / "rough") == 0
    assert content(tmp_path / "rough") == corpus.calm
    assert not root.exists()
    after = {name: (tmp_path / "rough/shards" / name).stat().st_mtime_ns for name in before}
    assert after == before, "a part that is finished is not made again"


def test_killed_twice_and_started_again(corpus: Corpus, tmp_path: Path) -> None:
    check_kills(corpus, tmp_path, kills=2)


@pytest.mark.reliability
def test_killed_twenty_times_and_started_again(corpus: Corpus, tmp_path: Path) -> None:
    check_kills(corpus, tmp_path, kills=20)


@pytest.fixture
def small_disk(tmp_path: Path, corpus: Corpus) -> Iterator[Path]:
    """A disk with room for half of the rows."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = sum(map(len, corpus.calm.values())) // 2
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"no small disk can be mounted here: {mount.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(corpus: Corpus, small_disk: Path) -> None:
    full = corpus.start(small_disk / "out")
    _, said = full.communicate(timeout=300)
    assert full.returncode == 1
    line = said.strip().splitlines()[-1]  # a slow disk has progress bars before it
    assert "out.partial" in line
    assert "cannot be written: " in line
    assert "No space left on device" in line
    assert "free some space" in line
    assert "run the same command again" in line
    assert not (small_disk / "out").exists()
    assert list((small_disk / "out.partial/marks/rows").glob("*.json")), "what fitted is kept"
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    assert run("build", *corpus.argv, "--out", small_disk / "out") == 0
    assert content(small_disk / "out") == corpus.calm


def test_machines_share_a_build(
    build_argv: Argv, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dump, documents and leads, in three parts that merge joins to the bytes of one machine."""
    monkeypatch.setattr(sources, "_SMALLEST", 2_000)
    (tmp_path / "wiki.xml").write_bytes(bz2.decompress(dump.read_bytes()))
    assert run("text", tmp_path / "wiki.xml", "--out", tmp_path / "text") == 0
    flags = {"dumps": tmp_path / "wiki.xml", "documents": tmp_path / "text"}
    assert run("build", *build_argv("whole", **flags)) == 0
    names = [f"part{index}" for index in range(3)]
    for index, name in enumerate(names):
        assert run("build", *build_argv(name, **flags, shard=f"{index}/3")) == 0
    paths = [tmp_path / name for name in names]
    assert all(len(list((path / "shards").glob("train-*.arrow"))) > 1 for path in paths)
    assert run("verify", paths[0]) == 0
    assert run("merge", *reversed(paths), "--out", tmp_path / "merged") == 0
    assert content(tmp_path / "merged") == content(tmp_path / "whole")
    capsys.readouterr()
    for given, said in (
        (paths[:2], "2/3"),
        ([*paths, paths[0]], "given twice"),
        ([paths[0], tmp_path / "whole"], "PART"),
    ):
        assert run("merge", *given, "--out", tmp_path / "more") == 2
        assert said in one_line(capsys)
    for path in paths[:2]:
        task = (path / "task").rename(tmp_path / "task")
        assert run("merge", *paths, "--out", tmp_path / "more") == 2
        assert f"{path.name}/task" in one_line(capsys)
        task.rename(path / "task")
    other = build_argv("other", **flags, shard="1/3", length=16)
    assert run("build", *other) == 0
    capsys.readouterr()
    assert run("merge", paths[0], tmp_path / "other", paths[2], "--out", tmp_path / "more") == 2
    assert "config_sha256" in one_line(capsys)
    assert run("build", *build_argv("half", **flags, shard="1/2")) == 0
    capsys.readouterr()
    assert run("merge", *paths, tmp_path / "half", "--out", tmp_path / "more") == 2
    assert "all must be of 3" in one_line(capsys)
    assert run("build", *build_argv("more", shard="3/3")) == 2
    assert "--shard" in one_line(capsys)
    assert not (tmp_path / "more").exists()


def test_a_machine_without_a_part_of_the_work_has_an_empty_share(build_argv: Argv, tmp_path: Path) -> None:
    """One dump and the leads are two parts."""
    assert run("build", *build_argv("whole")) == 0
    for index in range(4):
        assert run("build", *build_argv(f"part{index}", shard=f"{index}/4")) == 0
    assert run("merge", *(tmp_path / f"part{index}" for index in range(4)), "--out", tmp_path / "merged") == 0
    assert content(tmp_path / "merged") == content(tmp_path / "whole")


def test_documents_of_their_own_rows(build_argv: Argv, tmp_path: Path) -> None:
    assert run("build", *build_argv(packing="single", leads="null")) == 0
    facts = json.loads((tmp_path / "out/shards/manifest.json").read_text())["facts"]
    assert sum(facts["rows"].values()) == facts["documents"]["kept"]
    assert facts["tokens_cut"] > 0


def test_text_that_leaves_no_row_leaves_nothing_that_refuses_the_mended_request(
    build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few.txt").write_text("Too short.\n")
    assert run("build", *build_argv(dumps=tmp_path / "few.txt", leads="null")) == 1
    assert "no document was left to train on (dropped: {'too short': 1}); give more text" in one_line(capsys)
    (tmp_path / "alike.jsonl").write_text(f'{{"title": "A", "text": "{prose(1, 200)}"}}\n' * 3)
    assert run("build", *build_argv(dumps=tmp_path / "alike.jsonl", leads="null", heldout="0.999999")) == 1
    said = "no document was left to train on: all 3 are held out, those of one title together; give them titles of"
    assert said in one_line(capsys)
    assert not list(tmp_path.glob("out*"))
