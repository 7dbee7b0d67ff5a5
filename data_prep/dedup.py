"""The command `dedup`: folders of documents -> one folder without exact and near duplicates, order kept.

Three stages, each a file at a time: hash every document; compare the hashes (minhash.py); copy the documents that stay.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asa import manifest
from asa.config import sha256_of
from asa.errors import WorkError
from data_prep import minhash, stored
from data_prep.config import DedupConfig
from data_prep.extract import count_up, print_documents
from data_prep.finished import identity, is_up_to_date
from data_prep.parts import Part
from data_prep.workspace import Workspace, discard, workspace

EXACT, NEAR = "exact duplicate", "near duplicate"


def dedup(config: DedupConfig) -> None:
    """Write OUT/documents-*.jsonl and the manifest. Raises RequestError or WorkError for bad inputs."""
    before = [manifest.read(folder, "documents", "INPUT")["documents"] for folder in config.inputs]
    settings = replace(config, inputs=[Path()], out=Path(), workers=1, overwrite=False)
    made_from = identity(sha256_of(settings), [folder / manifest.NAME for folder in config.inputs])
    made_from |= {"shard": "0/1", "minhash": minhash.ALGORITHM}
    if is_up_to_date(config.out, {"documents": config.out}, made_from, config.overwrite):
        discard(config.out, made_from)
        return
    files = stored.files(config.inputs, "INPUT")
    with workspace(config.out, made_from, config.overwrite) as space:
        counts = _without_duplicates(config, files, space)
        facts = {**count_up([*before, counts]), "kept": counts["kept"]}
        manifest.write(space.out, "documents", {"documents": facts, **made_from})
    print_documents(facts["kept"], facts["dropped"])
    print(f"written to {config.out}")


def _without_duplicates(config: DedupConfig, files: list[Path], space: Workspace) -> dict[str, Any]:
    hashes = space.root / "hashes"
    parts = [Part(f"{number:06d}", path.stat().st_size, (number, path)) for number, path in enumerate(files)]
    hashed = space.run("hash", partial(hash_part, config.near < 1), parts, hashes, config.workers)
    found = minhash.find(hashes, len(parts), config.near)
    for name, flags in found._asdict().items():
        np.save(space.root / f"{name}.npy", flags)
    starts = np.cumsum([0, *(part["documents"] for part in hashed)]).tolist()
    parts = [
        part._replace(task=(*part.task, start, stop))
        for part, start, stop in zip(parts, starts[:-1], starts[1:], strict=True)
    ]
    return count_up(space.run("copy", partial(copy_part, space.root), parts, space.out, config.workers))


def hash_part(near: bool, task: tuple[int, Path], folder: Path) -> dict[str, Any]:
    """The hashes of one file's documents; with `near` their signatures too."""
    number, path = task
    texts, signatures = [], []
    with path.open(encoding="utf-8") as file:
        for place, line in enumerate(file, 1):
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise WorkError(f"{path}, line {place}, is no document ({error}); make the folder anew") from None
            texts.append(minhash.text_hash(text))
            if near:
                signatures.append(minhash.signature(text))
    minhash.save(folder, number, texts, signatures)
    return {"documents": len(texts)}


def copy_part(root: Path, task: tuple[int, Path, int, int], folder: Path) -> dict[str, Any]:
    """Copy the lines of one file that are no duplicates: documents `start` to `stop` of all."""
    number, path, start, stop = task
    exact, near = (np.load(root / f"{name}.npy", mmap_mode="r")[start:stop] for name in ("exact", "near"))
    with path.open("rb") as source, (folder / f"documents-{number:06d}.jsonl").open("wb") as target:
        for line, gone in zip(source, exact | near, strict=True):
            if not gone:
                target.write(line)
    counts = {EXACT: int(exact.sum()), NEAR: int(near.sum())}
    return {"kept": stop - start - sum(counts.values()), "dropped": {key: n for key, n in counts.items() if n}}
