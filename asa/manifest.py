"""Completeness is a file written last: a folder without manifest.json is unfinished and nothing reads it.

The manifest lists every file of the folder with its size and sha256, and the facts the reader needs. Shards and
checkpoints use the same form.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asa.errors import RequestError, WorkError

NAME = "manifest.json"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(folder: Path, kind: str, facts: dict[str, Any]) -> None:
    """Hash and fsync every file below `folder`, then put the manifest in place by one rename."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != NAME):
        fsync(path)
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    text = json.dumps({"kind": kind, "facts": facts, "files": files}, indent=1, sort_keys=True)
    partial = folder / (NAME + ".partial")
    partial.write_text(text + "\n")
    fsync(partial)
    partial.rename(folder / NAME)
    fsync(folder)


def read(folder: Path, kind: str, flag: str) -> dict[str, Any]:
    """The facts of a complete folder, its files present with the right sizes (contents unread).

    Args: flag is the command-line flag that named the folder, for the message.
    Raises: RequestError when there is no such folder, no manifest, or it is of another kind;
        WorkError when a listed file is missing or has another size.
    """
    return _read(folder, kind, flag)["facts"]


def verify(folder: Path, kind: str, flag: str) -> dict[str, Any]:
    """As `read`, and every byte is hashed. Raises WorkError naming the first damaged file."""
    content = _read(folder, kind, flag)
    for name, entry in content["files"].items():
        if file_sha256(folder / name) != entry["sha256"]:
            raise WorkError(f"{folder / name} is damaged: its sha256 is not the one in {NAME}; make the folder anew")
    return content["facts"]


def _read(folder: Path, kind: str, flag: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise RequestError(f"no folder {folder}; give an existing one with {flag}")
    if not (folder / NAME).is_file():
        raise RequestError(f"{folder} has no {NAME}, so it is no finished {kind} folder; remake it or set {flag}")
    try:
        content = json.loads((folder / NAME).read_text())
        found = content["kind"]
    except (ValueError, KeyError, TypeError):
        raise WorkError(f"{folder / NAME} is damaged: it is no manifest; make the folder anew") from None
    if found != kind:
        raise RequestError(f"{folder} holds {found}, not {kind}; set {flag}")
    for name, entry in content["files"].items():
        path = folder / name
        if not path.is_file():
            raise WorkError(f"{folder} lacks {name}, which its {NAME} lists; restore it or make the folder anew")
        if path.stat().st_size != entry["bytes"]:
            raise WorkError(f"{path} has not the {entry['bytes']} bytes that {NAME} lists; make the folder anew")
    return content


def fsync(path: Path) -> None:
    """Force a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replaceable(folder: Path, kind: str, flag: str) -> None:
    """Raises RequestError where something stands at `folder` that is not a finished folder of `kind`."""
    if folder.exists() and not ((folder / NAME).is_file() and _read(folder, kind, flag)):
        raise RequestError(f"{folder} exists and holds no {kind}, so it is not replaced; set another {flag}")


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A fresh sibling folder that becomes `folder` on success and vanishes on any exception."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for path in partial.rglob("*"):
        fsync(path)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    fsync(folder.parent)
