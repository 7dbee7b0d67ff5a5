"""Verify what this stage wrote: every byte hashed, every Arrow file opened and compared with its manifest."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from asa import manifest
from asa.errors import RequestError, WorkError
from asa.hf import load_tokenizer, vocab_sha256
from data_prep.config import VerifyConfig
from data_prep.shards import COLUMN, PART, SPLITS

KINDS = ("shards", "task", "documents", "tokenizer", PART)


def verify(config: VerifyConfig) -> None:
    """Check a folder of this stage, or a build that holds several; one line for each.

    Raises: RequestError where there is no finished folder; WorkError naming the first damaged file or, with `model`,
        the vocabulary that is not the rows'.
    """
    for folder in _finished(config.folder):
        kind = _kind(folder)
        facts = manifest.verify(folder, kind, "DIR")
        what = f"{folder}, {kind}"
        if kind in ("shards", PART):
            what += f", {_check_rows(folder, facts):,} rows of {facts['length']} ids"
        if kind in ("shards", "tokenizer", PART):
            _check_vocabulary(folder, facts, config.model)
        print(f"ok: {what}")


def _check_vocabulary(folder: Path, facts: dict[str, Any], model: Path | None) -> None:
    own = folder / "tokenizer" if (folder / "tokenizer").is_dir() else folder
    for other in filter(None, (own, model)):
        found = vocab_sha256(load_tokenizer(other, "--model"))
        if found != facts["tokenizer_sha256"]:
            expected = facts["tokenizer_sha256"][:12]
            raise WorkError(f"{folder} was made with the vocabulary {expected}, {other} has {found[:12]}; set --model")


def _finished(folder: Path) -> list[Path]:
    """The folder itself, or the parts of a build inside it."""
    parts = [folder / name for name in ("shards", "task") if (folder / name).is_dir()]
    return [folder] if (folder / manifest.NAME).is_file() or not parts else parts


def _kind(folder: Path) -> str:
    path = folder / manifest.NAME
    if not path.is_file():
        return KINDS[0]  # manifest.verify says what is missing
    try:
        kind = json.loads(path.read_text())["kind"]
    except (ValueError, KeyError, TypeError):
        raise WorkError(f"{path} is damaged: it is not a manifest; make the folder anew") from None
    if kind not in KINDS:
        raise RequestError(f"{folder} holds {kind}, which this command cannot check; give DIR of {', '.join(KINDS)}")
    return kind


def _check_rows(folder: Path, facts: dict[str, Any]) -> int:
    for split in SPLITS:
        paths = sorted(folder.glob(f"{split}-*.arrow"))
        rows = sum(_check_file(path, facts) for path in paths)
        if rows != facts["rows"][split]:
            raise WorkError(f"{folder} has {rows} {split} rows, its manifest says {facts['rows'][split]}")
    return sum(facts["rows"].values())


def _check_file(path: Path, facts: dict[str, Any]) -> int:
    try:
        table = Dataset.from_file(str(path)).data.table
    except (OSError, ValueError) as error:
        raise WorkError(f"{path} does not open ({error}); make the folder anew") from None
    for chunk in table.column(COLUMN).chunks:
        _check_ids(path, chunk.flatten().to_numpy(), len(chunk), facts)
    return table.num_rows


def _check_ids(path: Path, ids: np.ndarray, rows: int, facts: dict[str, Any]) -> None:
    if ids.dtype.name != facts["dtype"] or ids.size != rows * facts["length"]:
        raise WorkError(f"{path} has not the manifest's {facts['length']} ids of {facts['dtype']} a row")
    if rows == 0:
        return
    if ids.max() >= facts["vocab_size"]:
        raise WorkError(f"{path} has the id {ids.max()}, the vocabulary ends at {facts['vocab_size'] - 1}")
    if (ids.reshape(rows, -1)[:, 0] != facts["special_ids"]["cls"]).any():
        raise WorkError(f"{path} has a row that does not begin with [CLS]; make the folder anew")
