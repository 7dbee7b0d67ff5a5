"""Duplicates among files of documents, found in two steps: every file is hashed, as a part; all hashes are compared."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep import minhash, stored
from data_prep.parts import Part
from data_prep.text import text_hash
from data_prep.workspace import Workspace

EXACT, NEAR = "exact duplicate", "near duplicate"


class Flags(NamedTuple):
    """Which documents of a file are duplicates: the places `start` to `stop` of the arrays in `folder`."""

    folder: Path
    start: int
    stop: int

    def reasons(self) -> list[str]:
        """For each document of the file, in order, why it goes; empty for one that stays."""
        exact, near = (np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in minhash.Duplicates._fields)
        here = slice(self.start, self.stop)
        return np.where(exact[here], EXACT, np.where(near[here], NEAR, "")).tolist()


def find(space: Workspace, files: list[Path], near: float, workers: int) -> list[Flags]:
    """The duplicates among all documents of `files`, for each file; of two the first one in their order stays.

    Args: near is the share of word five-grams in common from which documents are duplicates; at 1 only equal texts are.
    Raises: WorkError where a file holds something else than documents.
    """
    hashes = space.root / "hashes"
    parts = [Part(f"{number:06d}", path.stat().st_size, (number, path)) for number, path in enumerate(files)]
    hashed = space.run("hash", partial(hash_part, near < 1), parts, hashes, workers)
    for name, flags in minhash.find(hashes, len(parts), near)._asdict().items():
        minhash.save_array(space.root / f"{name}.npy", flags)
    ends = np.cumsum([0, *(part["documents"] for part in hashed)]).tolist()
    return [Flags(space.root, start, stop) for start, stop in pairwise(ends)]


def hash_part(near: bool, task: tuple[int, Path], folder: Path) -> dict[str, Any]:
    """The hashes of one file's documents; with `near` their signatures too."""
    number, path = task
    texts, signatures = [], []
    for document in stored.read(path):
        texts.append(text_hash(document.text))
        if near:
            signatures.append(minhash.signature(document.text))
    minhash.save(folder, number, texts, signatures)
    return {"documents": len(texts)}
