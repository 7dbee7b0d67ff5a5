"""Text data sets of the Hugging Face hub, or local folders in the same form, streamed by `datasets`."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from asa.errors import RequestError, WorkError
from asa.manifest import file_sha256

PREFIX = "hub:"


def is_hub(source: str) -> bool:
    return source.startswith(PREFIX)


def identity(source: str) -> dict[str, str]:
    """The data set's name and state: its commit on the hub, or the hashes of a local folder's files.

    Raises: as files.
    """
    name, _, _ = _spelt(source)
    if Path(name).is_dir():
        files = sorted(path for path in Path(name).rglob("*") if path.is_file())
        return {"name": source, "sha256": " ".join(map(file_sha256, files))}
    return {"name": source, "revision": _revision(name)}


def files(source: str) -> int:
    """How many files the data set has. Raises WorkError where the hub cannot be reached or has no such data set."""
    return _load(source).num_shards


def rows(source: str, file: int) -> Iterator[dict[str, Any]]:
    """The rows of one of its files. Raises WorkError as files."""
    data = _load(source)
    try:
        yield from data.shard(data.num_shards, file)
    except Exception as error:
        raise _unreachable(source, error) from None


@cache
def _load(source: str) -> Any:
    from datasets import load_dataset

    name, config, split = _spelt(source)
    revision = None if Path(name).is_dir() else _revision(name)
    try:
        data = load_dataset(name, config, split=split, revision=revision, streaming=True)
    # The library reaches the network by several others, each with exceptions of its own.
    except Exception as error:
        raise _unreachable(source, error) from None
    columns = data.column_names
    if columns and "text" not in columns:
        raise WorkError(f"{source} has the columns {', '.join(columns)}, but no text; name another data set")
    return data


@cache
def _revision(name: str) -> str:
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(name, timeout=20).sha or ""
    except Exception as error:
        raise _unreachable(name, error) from None


def _unreachable(source: str, error: Exception) -> WorkError:
    detail = " ".join(str(error).split())[:200]
    advice = "check the name and the network, or give files instead"
    return WorkError(f"{source} cannot be read ({type(error).__name__}: {detail}); {advice}")


def _spelt(source: str) -> tuple[str, str | None, str]:
    """hub:NAME[:CONFIG[:SPLIT]] -> name, config, split."""
    pieces = source.removeprefix(PREFIX).split(":")
    if not pieces[0] or len(pieces) > 3:
        raise RequestError(f"{source} names no data set; write hub:NAME[:CONFIG[:SPLIT]]")
    return pieces[0], pieces[1] if len(pieces) > 1 and pieces[1] else None, pieces[2] if len(pieces) > 2 else "train"
