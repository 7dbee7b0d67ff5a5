"""When a finished folder is just what would be made, when it may be replaced, when it must be left alone."""

import importlib.metadata
from pathlib import Path
from typing import Any

from asa import manifest
from asa.errors import RequestError, WorkError

# Raised whenever the same input would give other documents or rows than before.
RECIPE = 1


def identity(config_sha256: str, files: list[Path]) -> dict[str, Any]:
    """What decides the output's bytes: settings, rules, the markup parser and the contents of the inputs."""
    return {
        "config_sha256": config_sha256,
        "recipe": RECIPE,
        "parser": f"mwparserfromhell {importlib.metadata.version('mwparserfromhell')}",
        "sources": [{"name": path.name, "sha256": manifest.file_sha256(path)} for path in files],
    }


def is_up_to_date(out: Path, parts: dict[str, Path], expected: dict[str, Any], overwrite: bool) -> bool:
    """Whether `out` is just what would be made; False where it may be made.

    Args: parts are the folders with a manifest, `out` or inside it, by kind; the first one's facts must hold
        `expected`.
    Raises: RequestError when `out` holds anything else and must be left alone; WorkError when it is damaged.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    kind, first = next(iter(parts.items()))
    if not _is_ours(out, first):
        raise RequestError(f"{out} is there and is no finished {kind}; remove it or set another --out")
    try:
        facts = [manifest.read(folder, kind, "--out") for kind, folder in parts.items()]
    except (RequestError, WorkError):
        if overwrite:
            return False
        raise
    if all(facts[0].get(key) == value for key, value in expected.items()):
        print(f"up to date: {out}")
        return True
    if overwrite:
        return False
    raise RequestError(f"{out} was made from other inputs or settings; set --overwrite true or another --out")


def _is_ours(out: Path, first: Path) -> bool:
    """Whether everything in `out` is of this stage's making, so that replacing it loses nothing of others."""
    names = {"documents.jsonl", manifest.NAME} if out == first else {"shards", "task"}
    return out.is_dir() and {path.name for path in out.iterdir()} <= names and (first / manifest.NAME).is_file()
