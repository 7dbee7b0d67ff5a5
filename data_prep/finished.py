"""When a finished folder is just what would be made, when it may be replaced, when it must be left alone."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from asa import manifest
from asa.errors import RequestError, WorkError
from asa.places import check_folder
from data_prep import hub
from data_prep.parts import bytes_bar
from data_prep.workspace import discard

# Raised whenever the same input would give other documents or rows than before.
RECIPE = 16
_CHUNK = 2**22
# What may stand in a finished folder of a kind, as patterns of names; every other kind is a build's.
_OURS = {
    "documents": ("documents-*.jsonl", manifest.NAME),
    "tokenizer": ("*.json", "*.safetensors"),
}
_BUILDS = ("shards", "task")


def identity(config_sha256: str, sources: Sequence[Path | str]) -> dict[str, Any]:
    """What decides the output's bytes: settings, rules and the contents of the inputs (files, hub data sets)."""
    return {"config_sha256": config_sha256, "recipe": RECIPE, "sources": list(_hashed(list(map(str, sources))))}


def _hashed(sources: list[str]) -> Iterator[dict[str, str]]:
    total = sum(Path(source).stat().st_size for source in sources if not hub.is_hub(source))
    with bytes_bar("hashing the inputs", total) as progress:
        for source in sources:
            if hub.is_hub(source):
                yield hub.identity(source)
                continue
            digest = hashlib.sha256()
            with Path(source).open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    progress.update(len(chunk))
            yield {"name": Path(source).name, "sha256": digest.hexdigest()}


def is_up_to_date(out: Path, parts: dict[str, Path], expected: dict[str, Any], overwrite: bool) -> bool:
    """Whether `out` is just what would be made, then without what a killed run left beside it; False: make it.

    Args: parts are the folders with a manifest, `out` or inside it, by kind; the first one's facts must hold
        `expected`.
    Raises: RequestError when `out` holds anything else and must be left alone; WorkError when it is damaged.
    """
    if not os.path.lexists(out):
        check_folder(out, "--out")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    kind, first = next(iter(parts.items()))
    if not (first / manifest.NAME).is_file():
        raise RequestError(f"{out} is there and is no finished {kind}; remove it or set another --out")
    try:
        facts = [manifest.read(folder, kind, "--out") for kind, folder in parts.items()]
    except (RequestError, WorkError) as error:
        # A build that lacks its task may be made anew; with its manifest there, one folder is of another kind.
        if not overwrite or (isinstance(error, RequestError) and first == out):
            raise
    else:
        if all(facts[0].get(key) == value for key, value in expected.items()):
            print(f"up to date: {out}")
            discard(out, expected)
            return True
        if not overwrite:
            raise RequestError(f"{out} was made from other inputs or settings; set --overwrite true or another --out")
    _refuse_strangers(out, kind)
    return False


def _refuse_strangers(out: Path, kind: str) -> None:
    """Raise RequestError for a file in or below `out` that is not of this stage's making: replacing `out` would lose
    it."""
    manifests = [path for path in (out / manifest.NAME, *out.glob(f"*/{manifest.NAME}")) if path.is_file()]
    known = {path.parent / name for path in manifests for name in (manifest.NAME, *_listed(path))}
    for path in sorted(out.rglob("*")):
        ours = any(fnmatch(path.relative_to(out).parts[0], pattern) for pattern in _OURS.get(kind, _BUILDS))
        if not (ours and path in known) and (path.is_symlink() or not path.is_dir()):
            advice = "move it or set another --out"
            raise RequestError(f"{path} is no file of finished {kind}, so it is not replaced; {advice}")


def _listed(path: Path) -> list[str]:
    """The files that a manifest lists, none where it is damaged."""
    try:
        return list(json.loads(path.read_text())["files"])
    except (ValueError, KeyError, TypeError):
        return []
