"""`verify` finds every damage, in one line: bytes, files, rows, the vocabulary."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from asa import manifest
from asa.errors import WorkError
from cli import guard
from data_prep.check import _check_ids, verify
from data_prep.config import TokenizerConfig, VerifyConfig
from data_prep.train_tokenizer import train_tokenizer
from tests.data_prep.asking import one_line, run
from tests.data_prep.conftest import content, save_tokenizer

Argv = Callable[..., list[str]]


def flips(path: Path, draw: random.Random) -> Iterator[bytes]:
    """The file with one byte changed, again and again; in manifests, whose every byte means something, more often."""
    good = path.read_bytes()
    for place in draw.sample(range(len(good)), 200 if path.name == manifest.NAME else 8):
        yield good[:place] + bytes([good[place] ^ draw.randint(1, 255)]) + good[place + 1 :]


def test_a_changed_byte_is_found_wherever_it_is(
    build_argv: Argv, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", *build_argv("whole")) == 0
    assert run("build", *build_argv("part", shard="0/2")) == 0
    assert run("text", dump, "--out", tmp_path / "text") == 0
    draw = random.Random(0)
    for folder in (tmp_path / "whole", tmp_path / "part", tmp_path / "text"):
        check = VerifyConfig(folder=folder)
        assert guard(lambda check=check: verify(check)) == 0
        capsys.readouterr()
        for path in (folder / name for name in content(folder)):
            good = path.read_bytes()
            for bad in flips(path, draw):
                path.write_bytes(bad)
                assert guard(lambda check=check: verify(check)) == 1, (path, bad)
                assert str(folder) in one_line(capsys)
            path.write_bytes(good)
        assert guard(lambda check=check: verify(check)) == 0


def test_verify_finds_damage(build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", *build_argv()) == 0
    assert run("verify", tmp_path / "out") == 0
    assert capsys.readouterr().out.count("ok: ") == 2
    shards, arrow = tmp_path / "out/shards", "train-00000.arrow"
    good = (shards / arrow).read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for damage in (bytes(flipped), good[:-8], None):
        (shards / arrow).unlink()
        if damage is not None:
            (shards / arrow).write_bytes(damage)
        assert run("verify", shards) == 1
        assert arrow in one_line(capsys)
        (shards / arrow).write_bytes(good)
    (shards / "manifest.json").unlink()
    assert run("verify", shards) == 2
    assert "manifest.json" in one_line(capsys)
    assert run("verify", tmp_path / "none") == 2


def test_a_build_without_one_of_its_folders(
    build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("build", *build_argv()) == 0
    assert run("build", *build_argv("alone", leads="null")) == 0
    assert run("verify", tmp_path / "alone") == 0
    capsys.readouterr()
    for name, said in (("task", "task/manifest.json"), ("shards", "shards/manifest.json")):
        (out / name).rename(tmp_path / name)
        assert run("verify", out) == 1
        assert said in one_line(capsys)
        (tmp_path / name).rename(out / name)
    shutil.copytree(out / "task", tmp_path / "alone/task")
    assert run("verify", tmp_path / "alone") == 1, "a task that is not of these rows"
    assert "not of these rows" in one_line(capsys)


def test_a_manifest_of_an_older_version(build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", *build_argv()) == 0
    path = tmp_path / "out/shards/manifest.json"
    unsigned = {key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"}
    path.write_text(json.dumps(unsigned, indent=1, sort_keys=True) + "\n")
    capsys.readouterr()
    assert run("verify", tmp_path / "out") == 1
    assert "older version" in one_line(capsys)


def test_facts_are_compared_with_rows_and_tokenizer(
    build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where the manifest is sound in itself."""
    assert run("build", *build_argv()) == 0
    folder = tmp_path / "out/shards"
    facts = manifest.read(folder, "shards", "DIR")
    special = {**facts["special_ids"], "mask": facts["special_ids"]["sep"]}
    capsys.readouterr()
    for key, value, said in (
        ("rows", {"train": 1, "heldout": 1}, " has "),
        ("length", 16, " has "),
        ("vocab_size", 5, " has "),
        ("special_ids", special, "special_ids"),
        ("encoder_sha256", "0", "encoder_sha256"),
    ):
        manifest.write(folder, "shards", {**facts, key: value})
        assert run("verify", folder) == 1
        assert said in one_line(capsys)


@pytest.mark.parametrize(("last", "fits"), [(9, True), (10, False)])
def test_the_last_id_is_one_below_the_size_of_the_vocabulary(last: int, fits: bool) -> None:
    facts = {"dtype": "uint16", "length": 2, "vocab_size": 10, "special_ids": {"cls": 1}}
    with nullcontext() if fits else pytest.raises(WorkError, match="has the id 10, the vocabulary ends at 9"):
        _check_ids(Path("rows"), np.array([1, last], np.uint16), 1, facts)


def test_a_damaged_tokenizer_of_a_model(
    build_argv: Argv, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", *build_argv()) == 0
    cut = shutil.copytree(model, tmp_path / "cut")
    (cut / "tokenizer.json").write_text((model / "tokenizer.json").read_text()[:500])
    capsys.readouterr()
    assert run("verify", tmp_path / "out", "--model", cut) == 2
    assert "damaged tokenizer" in one_line(capsys)
    assert run("build", *build_argv("other", model=cut)) == 2
    assert "damaged tokenizer" in one_line(capsys)


def test_another_vocabulary_is_found(
    build_argv: Argv, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", *build_argv()) == 0
    assert run("verify", tmp_path / "out", "--model", model) == 0
    other = save_tokenizer(tmp_path / "other", extra_words=3)
    capsys.readouterr()
    assert run("verify", tmp_path / "out", "--model", other) == 1
    assert str(other) in one_line(capsys)
    assert run("verify", tmp_path / "out", "--model", tmp_path) == 2


def test_documents_have_no_vocabulary_to_compare(
    dump: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("text", dump, "--out", tmp_path / "text") == 0
    capsys.readouterr()
    assert run("verify", tmp_path / "text", "--model", model) == 2
    assert "leave out --model" in one_line(capsys)


def test_a_tokenizer_that_was_swapped_is_found(
    build_argv: Argv, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where somebody has written a fitting manifest to it."""
    assert run("build", *build_argv()) == 0
    folder = tmp_path / "out/shards"
    facts = manifest.read(folder, "shards", "DIR")
    save_tokenizer(folder / "tokenizer", extra_words=3)
    capsys.readouterr()
    assert run("verify", folder) == 1
    assert "tokenizer" in one_line(capsys)
    manifest.write(folder, "shards", facts)
    assert run("verify", folder) == 1
    assert "vocabulary" in one_line(capsys)


def test_a_trained_tokenizer_is_verified(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("text", dump, "--out", tmp_path / "text") == 0
    (tmp_path / "own.jsonl").write_text("\n".join(f'{{"text": "word{n:x} {n * n:x} and so on"}}' for n in range(2000)))
    assert run("text", tmp_path / "own.jsonl", "--min_chars", 1, "--out", tmp_path / "numbers") == 0
    folders = [tmp_path / "text", tmp_path / "numbers"]
    train_tokenizer(TokenizerConfig(documents=folders, out=tmp_path / "tokenizer", vocab_size=300))
    assert run("verify", tmp_path / "tokenizer") == 0
    assert "tokenizer" in capsys.readouterr().out
    path = tmp_path / "tokenizer/tokenizer.json"
    path.write_text(path.read_text().replace("word", "w0rd", 1))
    assert run("verify", tmp_path / "tokenizer") == 1
    assert "tokenizer.json" in one_line(capsys)
