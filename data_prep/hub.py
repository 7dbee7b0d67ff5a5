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
    """The data set's name and state: its commit on the hub, or a local folder's files by name, which may tell a
    split, and hash.

    Raises: as files.
    """
    name, _, _ = spelt(source)
    if Path(name).is_dir():
        files = sorted(path for path in Path(name).rglob("*") if path.is_file())
        return {
            "name": label(source),
            "sha256": " ".join(f"{path.relative_to(name).as_posix()} {file_sha256(path)}" for path in files),
        }
    return {"name": label(source), "revision": _revision(name)}


def label(source: str) -> str:
    """The source as it is named in manifests and ids: a local folder without the folders it lies in."""
    name, config, split = spelt(source)
    name = Path(name).name if Path(name).is_dir() else name
    return PREFIX + ":".join([name, config or "", split])


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

    name, config, split = spelt(source)
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


def spelt(source: str) -> tuple[str, str | None, str]:
    """hub:NAME[:CONFIG[:SPLIT]] -> name (a local folder's is its whole path), config, split.

    Raises: RequestError for another form.
    """
    name, config, split, *more = [*source.removeprefix(PREFIX).split(":"), "", ""]
    if not name or any(more):
        raise RequestError(f"{source} names no data set; write hub:NAME[:CONFIG[:SPLIT]]")
    return str(Path(name).resolve()) if Path(name).is_dir() else name, config or None, split or "train"
