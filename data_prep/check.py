"""Verify what this stage wrote: every byte hashed, every Arrow file opened and compared with its manifest."""

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from asa import manifest
from asa.errors import RequestError, WorkError
from asa.tokenizer import load_tokenizer, vocab_sha256
from data_prep.config import VerifyConfig
from data_prep.shards import COLUMN, PART, SPLITS
from data_prep.tokenizer import Vocabulary

KINDS = ("shards", "task", "documents", "tokenizer", PART, "export")
SPELT = ("shards", "tokenizer", PART)  # with a vocabulary
_FLAG = "DIR"


def verify(config: VerifyConfig) -> None:
    """Check a folder of this stage, or a build that holds rows and a task; one line for each.

    Raises: RequestError where there is no finished folder, or with `model` none that has a vocabulary; WorkError naming
        the first damaged or missing file or, with `model`, the vocabulary that is not the rows'.
    """
    kinds = {folder: manifest.kind_of(folder, _FLAG) for folder in _finished(config.folder)}
    if config.model and not set(kinds.values()) & set(SPELT):
        raise RequestError(f"{config.folder} holds {', '.join(kinds.values())}: no vocabulary; leave out --model")
    for folder, kind in kinds.items():
        if kind not in KINDS:
            raise RequestError(f"{folder} holds {kind}, which is not checked here; give {_FLAG} of {', '.join(KINDS)}")
        facts = manifest.verify(folder, kind, _FLAG)
        what = f"{folder}, {kind}"
        if kind in ("shards", PART):
            what += f", {_check_rows(folder, facts):,} rows of {facts['length']} ids"
        if kind in SPELT:
            _check_vocabulary(folder, facts, config.model)
        print(f"ok: {what}")


def _finished(folder: Path) -> list[Path]:
    """The folder itself, or the rows and the task of a build inside it."""
    rows, task = folder / "shards", folder / "task"
    if (folder / manifest.NAME).exists() or not (rows.is_dir() or task.is_dir()):
        return [folder]
    if not (rows / manifest.NAME).is_file():
        raise WorkError(f"{folder} lacks {rows.name}/{manifest.NAME}; restore it or make the folder anew")
    made_with = manifest.read(rows, manifest.kind_of(rows, _FLAG), _FLAG).get("task_sha256")
    path = task / manifest.NAME
    if made_with != (manifest.file_sha256(path) if path.is_file() else None):
        raise WorkError(f"{path} is damaged, missing or not of these rows; restore it or make the folder anew")
    return [rows, task] if made_with else [rows]


def _check_vocabulary(folder: Path, facts: dict[str, Any], model: Path | None) -> None:
    beside = folder / "tokenizer" if (folder / "tokenizer").is_dir() else folder
    own = Vocabulary(beside, facts.get("length", 1), _FLAG)
    for name, found in own.facts().items():
        if found != facts.get(name, found):
            raise WorkError(f"{beside} is not the vocabulary that {folder} was made with: its {name} is {found}")
    if model and (found := vocab_sha256(load_tokenizer(model, "--model"))) != own.vocab_sha256:
        made_with = own.vocab_sha256[:12]
        raise WorkError(f"{folder} was made with the vocabulary {made_with}, {model} has {found[:12]}; set --model")


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
