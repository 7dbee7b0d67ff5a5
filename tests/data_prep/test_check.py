"""`verify` and the vocabulary: the rows' own, and the one they are to be trained with."""

from collections.abc import Callable
from pathlib import Path

import pytest

from asa import manifest
from data_prep.config import TokenizerConfig
from data_prep.train_tokenizer import train_tokenizer
from tests.data_prep.conftest import save_tokenizer
from tests.data_prep.test_commands import one_line, run

Argv = Callable[..., list[str]]


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
