"""Duplicates: the command `dedup`, and the same as an option of `build`."""

import glob
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_prep import minhash, sources
from data_prep.leads import load, split_of
from tests.data_prep.asking import one_line, run
from tests.data_prep.conftest import content, dump_xml, page_xml, prose
from tests.data_prep.test_extract import facts, rows

Argv = Callable[..., list[str]]
GONE = {"exact duplicate": 5, "near duplicate": 5}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SMALLEST", 5_000)


def variant(number: int, changed: int) -> str:
    """A text of 400 words that no other has; `changed` of them replaced."""
    words = [f"w{number}x{index}" for index in range(400)]
    return " ".join([*(f"new{index}" for index in range(changed)), *words[changed:]])


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """Twenty texts; of some an exact copy, a copy with a few other words, one with many other words."""
    texts = [("first", n, 0) for n in range(20)] + [("exact", n, 0) for n in range(5)]
    texts += [("near", n, 20) for n in range(5, 10)] + [("far", n, 200) for n in range(10, 15)]
    pages = (page_xml(f"{kind} {n}", variant(n, changed), index) for index, (kind, n, changed) in enumerate(texts))
    (tmp_path / "wiki.xml").write_text(dump_xml(*pages))
    assert run("text", tmp_path / "wiki.xml", "--out", tmp_path / "text") == 0
    assert len(list((tmp_path / "text").glob("*.jsonl"))) > 5
    return tmp_path / "text"


@pytest.mark.parametrize(("near", "gone"), [(0.8, {"exact": 5, "near": 5}), (1, {"exact": 5})])
def test_duplicates_go_and_the_first_stays(repeated: Path, tmp_path: Path, near: float, gone: dict[str, int]) -> None:
    assert run("dedup", repeated, "--out", tmp_path / "out", "--near", near) == 0
    kinds = [row["title"].split()[0] for row in rows(tmp_path / "out")]
    assert kinds == ["first"] * 20 + (["near"] * 5 if near == 1 else []) + ["far"] * 5
    expected = {f"{kind} duplicate": count for kind, count in gone.items()}
    assert facts(tmp_path / "out")["documents"] == {"kept": len(kinds), "dropped": expected}


def test_no_result_takes_the_place_of_its_input(
    argv: Argv, repeated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, part = content(repeated), next(iter(sorted(repeated.glob("*.jsonl"))))
    for command in (
        ("dedup", repeated, "--out", repeated),
        ("dedup", repeated, "--out", tmp_path),
        ("text", part, "--out", repeated, "--min_chars", 60),
        ("build", *argv(documents=repeated, out=repeated)),
    ):
        assert run(*command, "--overwrite", "true") == 2
        assert "is, or holds, the input" in one_line(capsys)
    assert content(repeated) == before


def test_dedup_of_a_file_without_documents_among_others(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Too short.\n")
    (tmp_path / "b.txt").write_text(f"{prose(1, 90)}\n")
    assert run("text", tmp_path / "a.txt", tmp_path / "b.txt", "--out", tmp_path / "text") == 0
    assert [path.stat().st_size > 0 for path in sorted((tmp_path / "text").glob("*.jsonl"))] == [False, True]
    assert run("dedup", tmp_path / "text", "--out", tmp_path / "out") == 0
    assert facts(tmp_path / "out")["documents"] == {"kept": 1, "dropped": {"too short": 1}}


def test_dedup_is_the_same_for_any_number_of_workers(repeated: Path, tmp_path: Path) -> None:
    assert run("dedup", repeated, "--out", tmp_path / "one") == 0
    assert run("dedup", repeated, "--out", tmp_path / "two", "--workers", 2) == 0
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_several_folders_in_the_order_given(repeated: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text(f"{variant(3, 0)}\n\n{prose(1, 90)}\n")
    assert run("text", tmp_path / "more.txt", "--out", tmp_path / "more") == 0
    assert run("dedup", tmp_path / "more", repeated, "--out", tmp_path / "out") == 0
    found = rows(tmp_path / "out")
    assert [row["id"].partition(":")[0] for row in found[:2]] == ["more.txt", "more.txt"]
    assert "first 3" not in {row["title"] for row in found}
    assert run("dedup", tmp_path / "nowhere", "--out", tmp_path / "x") == 2


@pytest.fixture
def argv(repeated: Path, model: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of a `build` without duplicates, from documents or from the dump they were made of."""

    def flags(out: str, *more: object, dump: bool = False, documents: Path = repeated) -> list[str]:
        given = ["--dumps", tmp_path / "wiki.xml"] if dump else ["--documents", documents]
        known = ["--model", model, "--length", 32, "--heldout", 0.2, "--dedup", 0.8, "--out", tmp_path / out]
        return [str(word) for word in (*given, *known, *more)]

    return flags


def arrows(out: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(out / "shards").items() if name.endswith(".arrow")}


def test_a_build_without_duplicates(argv: Argv, repeated: Path, tmp_path: Path) -> None:
    """From the dump, from its documents, or from what `dedup` leaves of those, with any number of workers."""
    assert run("build", *argv("out")) == 0
    made = facts(tmp_path / "out/shards")
    assert made["documents"]["kept"] == 25
    assert made["documents"]["dropped"] == GONE
    assert made["minhash"].startswith("rensa")
    assert run("build", *argv("two", "--workers", 2, dump=True)) == 0
    assert arrows(tmp_path / "two") == arrows(tmp_path / "out")
    assert run("dedup", repeated, "--out", tmp_path / "alone") == 0
    assert run("build", *argv("after", "--dedup", "null", documents=tmp_path / "alone")) == 0
    assert "minhash" not in facts(tmp_path / "after/shards")
    assert arrows(tmp_path / "after") == arrows(tmp_path / "out")


def test_equal_texts_alone_and_leads_among_them(argv: Argv, repeated: Path, leads: Path, tmp_path: Path) -> None:
    given = json.loads(leads.read_text())
    given["A lead"] = {"title": "A lead", "extract": variant(1, 0), "description": "", "topic": "Uncategorized"}
    leads.write_text(json.dumps(given))
    assert run("build", *argv("out", "--dedup", 1, "--leads", leads)) == 0
    dropped = facts(tmp_path / "out/shards")["documents"]["dropped"]
    assert dropped["exact duplicate"] == 6


@pytest.mark.parametrize(("near", "changed", "gone"), [("null", 0, 1), ("null", 1, 0), ("0.8", 1, 1), ("0.8", 300, 0)])
def test_texts_of_the_tasks_dev_and_test_splits_are_kept_out_of_the_rows(
    near: str, changed: int, gone: int, model: Path, leads: Path, tmp_path: Path
) -> None:
    """Also where they come without the title, as text of one's own does; with `dedup` what is nearly theirs, too."""
    given = json.loads(leads.read_text())
    for number, lead in enumerate(given.values()):
        lead["extract"] = variant(number, 0)
    leads.write_text(json.dumps(given))
    chosen = next(number for number, one in enumerate(load(leads)) if split_of(one) == "test")
    own = tmp_path / "own.txt"
    own.write_text(f"{variant(chosen, changed).replace(' ', chr(10), 3)}\n\n{prose(5, 200)}\n")
    flags = ["--dumps", own, "--leads", leads, "--model", model, "--length", 32, "--heldout", 0.2]
    assert run("build", *flags, "--dedup", near, "--out", tmp_path / "out") == 0
    made = facts(tmp_path / "out/shards")["documents"]
    tested = sum(split_of(lead) in ("dev", "test") for lead in load(leads))
    assert made["kept"] == len(load(leads)) - tested + 2 - gone
    assert sum(made["dropped"].values()) == tested + gone


def test_characters_stand_for_words_among_spaced_ones_of_another_script() -> None:
    """As in Chinese with names and numbers in it."""
    han = [chr(0x4E00 + 7 * number % 5000) for number in range(300)]
    mixed = ["".join(han[start : start + 12]) + f" Name{start} " for start in range(0, 300, 12)]
    changed = [part.replace(part[5], "\u9f98") if place % 6 == 0 else part for place, part in enumerate(mixed)]
    one, other = (minhash.signature("".join(parts)) for parts in (mixed, changed))
    equal = sum(mine == theirs for mine, theirs in zip(one, other, strict=True)) / len(one)
    assert 0.8 < equal < 0.95


def test_a_text_in_capitals_is_the_same() -> None:
    text = variant(1, 0)
    assert minhash.signature(text.upper()) == minhash.signature(text)


def test_the_share_from_which_documents_are_duplicates_is_one(tmp_path: Path) -> None:
    signatures = [minhash.signature(variant(1, changed)) for changed in (0, 35)]
    share = float(np.equal(*map(np.array, signatures)).mean())
    minhash.save(tmp_path, 0, [0, 1], signatures)
    assert minhash.find(tmp_path, 1, share).near.tolist() == [False, True]
    assert minhash.find(tmp_path, 1, share + 0.001).near.tolist() == [False, False]


@pytest.mark.parametrize("length", [45, 300])
@pytest.mark.parametrize("script", [0x61, 0xA980])
def test_what_stands_without_spaces_beside_characters_is_no_single_word(script: int, length: int) -> None:
    """As letters of DNA, or Javanese, in a Chinese text: the sentence around them makes no duplicates."""
    chosen = np.random.default_rng(0)
    start = "".join(chr(0x4E00 + number) + "\uff0c" * (number % 8 == 7) for number in range(length))
    texts = [
        start + "".join(chr(script + letter) for letter in chosen.integers(0, 20, 2 * length + 500)) for _ in range(2)
    ]
    one, other = map(minhash.signature, texts)
    assert sum(mine == theirs for mine, theirs in zip(one, other, strict=True)) < 0.5 * len(one)


def test_machines_cannot_share_it(argv: Argv, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("build", *argv("out", "--shard", "0/2")) == 2
    assert "--dedup needs all documents" in one_line(capsys)
    assert run("build", *argv("out", "--dedup", 0.5)) == 2
    assert "0.7 <= dedup <= 1" in one_line(capsys)


@pytest.mark.parametrize("stage", [pytest.param("hash", marks=pytest.mark.reliability), "rows"])
def test_killed_and_started_again(stage: str, argv: Argv, tmp_path: Path) -> None:
    assert run("build", *argv("calm")) == 0
    out = tmp_path / "rough"
    process = subprocess.Popen([sys.executable, "-m", "data_prep", "build", *argv("rough", "--workers", 2)])
    # Not by pathlib, which raises where a folder vanishes while it looks.
    while not glob.glob(f"{out}.partial/marks/{stage}/*.json") and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert run("build", *argv("rough")) == 0
    assert content(out) == content(tmp_path / "calm")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_an_array_that_does_not_fit_says_what_is_wrong(tmp_path: Path) -> None:
    """np.save alone says how many numbers were written, and neither why nor where."""
    with pytest.raises(OSError, match="No space left on device"):
        minhash.save_array(Path("/dev/full"), np.zeros(9999))
    minhash.save_array(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    assert np.load(tmp_path / "a.npy", mmap_mode="r").tolist() == [[0, 1, 2], [3, 4, 5]]
