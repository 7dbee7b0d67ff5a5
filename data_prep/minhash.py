"""Signatures of documents, and which documents are duplicates by them.

Two documents are near duplicates when the share of word five-grams they have in common (Jaccard), estimated from 128
minimal hashes, reaches a threshold. Compared are only documents that agree in a band of six hashes: of pairs with a
share of 0.8, 99.8 % do; of 0.7, 93 %. In each group that agrees, every document is compared with the first one, so the
time is linear, and the outcome a function of the documents and their order.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rensa.rensa import RMinHash

from asa.scripts import UNSPACED
from streams import bar

# N documents of a part, H hashes of a signature, B bands
HASHES, BANDS, BAND_HASHES = 128, 21, 6
ALGORITHM = f"rensa R-MinHash {RMinHash.ALGORITHM_VERSION}, {HASHES} hashes, {BANDS} bands, words 3"
_GRAM = 5
_SEED = 1
# Characters of scripts without spaces stand for words.
_CHARACTER = re.compile(f"[{UNSPACED}]")
_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
# Above this many characters a word, a text is in another script without spaces, and so is a word beside them.
_LONG_WORDS = 20
_PAIRS_AT_ONCE = 2**16
_MIX = np.uint64(0x9E3779B97F4A7C15)

Flags = NDArray[np.bool_]


class Duplicates(NamedTuple):
    """For every document, in order, whether an earlier one has the same text, or nearly the same."""

    exact: Flags
    near: Flags


def signature(text: str) -> list[int]:
    """The minimal hashes (H, 32 bits each) of a text's word five-grams."""
    words = _WORD.findall(text.lower())
    if len(text) > _LONG_WORDS * len(words):
        words = list("".join(words))
    elif _CHARACTER.search(text):
        words = [part for word in words for part in (word if len(word) > _LONG_WORDS else (word,))]
    grams = {" ".join(words[start : start + _GRAM]) for start in range(max(1, len(words) - _GRAM + 1))}
    sketch = RMinHash(num_perm=HASHES, seed=_SEED)
    sketch.update(list(grams))
    return sketch.digest()


def save(folder: Path, number: int, texts: list[int], signatures: list[list[int]]) -> None:
    """Write the hashes of one part's documents: their texts, and unless there are none, signatures and bands."""
    save_array(folder / f"texts-{number:06d}.npy", np.array(texts, np.uint64))
    if signatures:
        signatures_NH = np.array(signatures, np.uint32)
        save_array(folder / f"signatures-{number:06d}.npy", signatures_NH)
        save_array(folder / f"bands-{number:06d}.npy", _bands(signatures_NH))


def save_array(path: Path, array: NDArray[Any]) -> None:
    """As np.save into the file itself, whose error on a full disk does not say what it is."""
    content = io.BytesIO()
    np.save(content, array)
    path.write_bytes(content.getbuffer())


def _bands(signatures_NH: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """One number for the hashes of each band (B, N): a band is read for all parts at a time."""
    bands = signatures_NH[:, : BANDS * BAND_HASHES].reshape(-1, BANDS, BAND_HASHES).astype(np.uint64)
    mixed = np.zeros(bands.shape[:2], np.uint64)
    for index in range(BAND_HASHES):
        mixed = (mixed ^ bands[:, :, index]) * _MIX
        mixed ^= mixed >> np.uint64(29)
    return np.ascontiguousarray(mixed.T)


def find(folder: Path, parts: int, threshold: float) -> Duplicates:
    """The duplicates among the documents of `parts` parts saved in `folder`; threshold 1 looks for exact ones alone.

    Takes about 120 bytes of memory a document.
    """
    texts = [np.load(folder / f"texts-{number:06d}.npy") for number in range(parts)]
    exact = _repeated(np.concatenate([np.zeros(0, np.uint64), *texts]))
    near = np.zeros_like(exact)
    filled = [number for number in range(parts) if (folder / f"bands-{number:06d}.npy").is_file()]
    if threshold < 1 and filled:
        signatures = _Signatures(folder, filled)
        for band in bar("comparing", BANDS, "band", iterable=range(BANDS), delay=5):
            keys = np.concatenate([_load(folder, "bands", number)[band] for number in filled])
            for first, other in _pairs(keys, ~(exact | near)):
                near[other[signatures.likeness(first, other) >= threshold]] = True
    return Duplicates(exact, near)


def _load(folder: Path, name: str, number: int) -> NDArray[np.unsignedinteger]:
    return np.load(folder / f"{name}-{number:06d}.npy", mmap_mode="r")


def _repeated(keys: NDArray[np.uint64]) -> Flags:
    """Which keys stood before."""
    order = np.argsort(keys, kind="stable")
    repeated = np.zeros(len(keys), bool)
    repeated[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return repeated


def _pairs(keys: NDArray[np.uint64], alive: Flags) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Every living document whose key a living one before it has, with the first one of that key; in pieces."""
    members = np.flatnonzero(alive)
    members = members[np.argsort(keys[members], kind="stable")]
    found = keys[members]
    starts = np.concatenate([[True], found[1:] != found[:-1]]) if len(found) else np.zeros(0, bool)
    first = members[np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))]
    first, other = first[~starts], members[~starts]
    for start in range(0, len(first), _PAIRS_AT_ONCE):
        yield first[start : start + _PAIRS_AT_ONCE], other[start : start + _PAIRS_AT_ONCE]


class _Signatures:
    """The signatures of all parts, on disk."""

    def __init__(self, folder: Path, parts: list[int]) -> None:
        self.parts = [_load(folder, "signatures", number) for number in parts]
        self.starts = np.cumsum([0, *(len(part) for part in self.parts)])

    def likeness(self, first: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.float64]:
        """The estimated Jaccard index of each pair."""
        return (self._rows(first) == self._rows(other)).mean(axis=1)

    def _rows(self, documents: NDArray[np.int64]) -> NDArray[np.uint32]:
        rows_NH = np.empty((len(documents), HASHES), np.uint32)
        part = np.searchsorted(self.starts, documents, side="right") - 1
        for number in np.unique(part):
            here = part == number
            rows_NH[here] = self.parts[number][documents[here] - self.starts[number]]
        return rows_NH
