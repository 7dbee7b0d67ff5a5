"""python -m data_prep COMMAND: the command lines of the data stage.

Imports are inside the commands: worker processes import this file again and need none of it.
"""

import signal

import interrupts


def main() -> None:
    from cli import main

    # Batch systems send it; it ends the work as Ctrl-C does.
    signal.signal(signal.SIGTERM, interrupts.interrupt)
    commands = [build, text, dedup, merge, sample, verify, inspect, tokenizer]
    main({command.__name__: command for command in commands}, "data_prep")


def build(argv: list[str]) -> None:
    """Dumps and leads -> training rows and a labelled task."""
    from cli import parse
    from data_prep.build import build
    from data_prep.config import BuildConfig

    build(parse(BuildConfig, argv, "data_prep build"))


def text(argv: list[str]) -> None:
    """INPUT ... --out DIR: dumps and other text -> plain-text documents."""
    from cli import parse
    from data_prep.config import TextConfig
    from data_prep.extract import text

    text(parse(TextConfig, argv, "data_prep text", positional="inputs"))


def dedup(argv: list[str]) -> None:
    """DIR ... --out DIR: documents -> documents without exact and near duplicates."""
    from cli import parse
    from data_prep.config import DedupConfig
    from data_prep.dedup import dedup

    dedup(parse(DedupConfig, argv, "data_prep dedup", positional="inputs"))


def merge(argv: list[str]) -> None:
    """PART ... --out DIR: what --shard made on many machines -> the whole."""
    from cli import parse
    from data_prep.config import MergeConfig
    from data_prep.merge import merge

    merge(parse(MergeConfig, argv, "data_prep merge", positional="parts"))


def sample(argv: list[str]) -> None:
    """Fetch the small assets of the quickstart."""
    from cli import parse
    from data_prep.config import SampleConfig
    from data_prep.sample import sample

    sample(parse(SampleConfig, argv, "data_prep sample"))


def verify(argv: list[str]) -> None:
    """DIR: check a finished folder against its manifest."""
    from cli import parse
    from data_prep.check import verify
    from data_prep.config import VerifyConfig

    verify(parse(VerifyConfig, argv, "data_prep verify", positional="folder"))


def inspect(argv: list[str]) -> None:
    """DIR: rows as text, document lengths, what was dropped."""
    from cli import parse
    from data_prep.config import InspectConfig
    from data_prep.inspect import inspect

    inspect(parse(InspectConfig, argv, "data_prep inspect", positional="folder"))


def tokenizer(argv: list[str]) -> None:
    """DIR ... --out HF_DIR: train a vocabulary on documents."""
    from cli import expect_no_gpu, parse
    from data_prep.config import TokenizerConfig
    from data_prep.train_tokenizer import train_tokenizer

    request = parse(TokenizerConfig, argv, "data_prep tokenizer", positional="documents")
    expect_no_gpu()
    train_tokenizer(request)


if __name__ == "__main__":
    main()
