"""A build that is killed, runs out of space or is shared by machines gives the bytes of one that was left in peace."""

import bz2
import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep import sources
from tests.data_prep.conftest import prose
from tests.data_prep.test_commands import content, one_line, run

Argv = Callable[..., list[str]]
PARTS = 24


@pytest.fixture
def corpus(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments, but for --out, of a build from PARTS files of documents."""
    lines = [json.dumps({"title": f"Article {n}", "text": prose(n, 200) * 8}) for n in range(50 * PARTS)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(sources, "_SMALLEST", (tmp_path / "own.jsonl").stat().st_size // PARTS + 1)
    assert run("text", tmp_path / "own.jsonl", "--out", tmp_path / "text") == 0
    assert len(list((tmp_path / "text").glob("*.jsonl"))) == PARTS
    return ["--documents", str(tmp_path / "text"), "--model", str(model), "--length", "32", "--workers", "2"]


def start(corpus: list[str], out: Path, **options: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "data_prep", "build", *corpus, "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]


def kill_after(process: subprocess.Popen, marks: Path, finished: int, delay: float) -> None:
    """SIGKILL once `finished` parts are done and `delay` seconds have passed, unless it has ended by then."""
    deadline = time.monotonic() + 120
    while process.poll() is None and len(list(marks.glob("*.json"))) < finished:
        assert time.monotonic() < deadline, "no progress in two minutes"
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def check_kills(corpus: list[str], tmp_path: Path, kills: int) -> None:
    draw = random.Random(kills)
    marks = tmp_path / "rough.partial/marks/rows"
    assert run("build", *corpus, "--workers", "1", "--out", tmp_path / "calm") == 0
    targets = sorted(draw.randrange(PARTS + 1) for _ in range(kills))
    for target in targets:
        kill_after(start(corpus, tmp_path / "rough"), marks, target, draw.uniform(0, 0.03))
        if (tmp_path / "rough").exists():
            break  # it was faster than the signal
        assert len(list(marks.glob("*.json"))) >= min(target, PARTS)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "rough.partial/out/shards").glob("*.arrow")}
    assert run("build", *corpus, "--out", tmp_path / "rough") == 0
    assert content(tmp_path / "rough") == content(tmp_path / "calm")
    assert not list(tmp_path.glob("*.partial"))
    done = [path.name for path, before in kept.items() if mtime(tmp_path / "rough/shards" / path.name) == before]
    assert len(done) >= len(kept) - 4, "a part that is finished is not made again"


def mtime(path: Path) -> int:
    return path.stat().st_mtime_ns


def test_killed_twice_and_started_again(corpus: list[str], tmp_path: Path) -> None:
    check_kills(corpus, tmp_path, kills=2)


@pytest.mark.reliability
def test_killed_twenty_times_and_started_again(corpus: list[str], tmp_path: Path) -> None:
    check_kills(corpus, tmp_path, kills=20)


def test_no_space_left(corpus: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit on the size of a file stands in for a full disk: some parts fit, one does not."""
    sizes = sorted(path.stat().st_size for path in (tmp_path / "text").glob("*.jsonl"))
    limit = sizes[len(sizes) // 2] // 4
    full = start(corpus, tmp_path / "out", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    _, said = full.communicate(timeout=120)
    assert full.returncode == 1
    assert len(said.strip().splitlines()) == 1, said
    assert "run the same command again" in said
    assert not (tmp_path / "out").exists()
    assert run("build", *corpus, "--out", tmp_path / "out") == 0
    assert run("build", *corpus, "--out", tmp_path / "calm") == 0
    assert content(tmp_path / "out") == content(tmp_path / "calm")


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
    other = build_argv("other", **flags, shard="1/3", length=16)
    assert run("build", *other) == 0
    capsys.readouterr()
    assert run("merge", paths[0], tmp_path / "other", paths[2], "--out", tmp_path / "more") == 2
    assert "config_sha256" in one_line(capsys)
    assert run("build", *build_argv("more", shard="3/3")) == 2
    assert "--shard" in one_line(capsys)
    assert not (tmp_path / "more").exists()


def test_documents_of_their_own_rows(build_argv: Argv, tmp_path: Path) -> None:
    assert run("build", *build_argv(packing="single", leads="null")) == 0
    facts = json.loads((tmp_path / "out/shards/manifest.json").read_text())["facts"]
    assert sum(facts["rows"].values()) == facts["documents"]["kept"]
    assert facts["tokens_cut"] > 0
