"""Rows -> batches, as a pure function of (seed, step): the same samples and masks for any number of processes."""

from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray

from asa import manifest
from asa.batch import Batch
from pretrain.masking import MaskedRows, Special, mask_rows

# N rows of the shards, G rows of the global batch, L length

ORDER, MASKS = 0, 1  # streams of random numbers


class Rows:
    """Memory-mapped rows of one split ("train" or "heldout"); indexing copies just the rows asked for."""

    def __init__(self, folder: Path, split: str) -> None:
        self.parts: list[NDArray[np.unsignedinteger]] = []
        for path in sorted(folder.glob(f"{split}-*.arrow")):
            table = Dataset.from_file(str(path)).data.table
            for chunk in table.column("input_ids").chunks:
                values = chunk.flatten().to_numpy(zero_copy_only=True)
                self.parts.append(values.reshape(len(chunk), -1))
        self.ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, indices_G: NDArray[np.integer]) -> NDArray[np.int64]:
        parts_G = np.searchsorted(self.ends, indices_G, side="right")
        starts = np.concatenate(([0], self.ends[:-1]))
        rows = [self.parts[p][i - starts[p]] for p, i in zip(parts_G, indices_G, strict=True)]
        return np.stack(rows).astype(np.int64)


class Order:
    """Which rows a step reads: epoch after epoch, each in its own permutation."""

    def __init__(self, rows: int, seed: int, global_batch: int) -> None:
        self.rows = rows
        self.seed = seed
        self.global_batch = global_batch
        self._cached: tuple[int, NDArray[np.int64]] | None = None

    def __call__(self, step: int) -> NDArray[np.int64]:
        """The G row indices of a step."""
        places_G = np.arange(step * self.global_batch, (step + 1) * self.global_batch)
        epochs_G, inside_G = np.divmod(places_G, self.rows)
        return np.concatenate([self._epoch(int(e))[inside_G[epochs_G == e]] for e in np.unique(epochs_G)])

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, _generator(self.seed, ORDER, epoch).permutation(self.rows))
        return self._cached[1]


class Batches:
    """The masked micro-batches of one rank."""

    def __init__(self, folder: Path, seed: int, global_batch: int, share: float, rank: int, world: int) -> None:
        facts = manifest.read(folder, "shards", "--data")
        self.special = Special(vocab=facts["vocab_size"], **facts["special_ids"])
        self.train = Rows(folder, "train")
        self.heldout = Rows(folder, "heldout")
        self.order = Order(len(self.train), seed, global_batch)
        self.length: int = facts["length"]
        self.seed, self.share, self.rank, self.world = seed, share, rank, world

    def step(self, step: int, slots: int) -> list[Batch]:
        """This rank's micro-batches of a step. Rows go to slots first, then to ranks."""
        ids_GL = self.train[self.order(step)]
        masked = mask_rows(ids_GL, self.share, self.special, _generator(self.seed, MASKS, step))
        return [_batch(masked, self._mine(len(ids_GL), slot, slots), self.special) for slot in range(slots)]

    def _mine(self, rows: int, slot: int, slots: int) -> slice:
        size = rows // (slots * self.world)
        first = (slot * self.world + self.rank) * size
        return slice(first, first + size)

    def heldout_batches(self, limit: int, size: int) -> list[Batch]:
        """The first `limit` held-out rows, masked the same in every run, in this rank's batches of `size`.

        Every rank gets as many batches as the others, padded with empty ones (no label), since ZeRO-3 gathers
        parameters together in every forward.
        """
        rows = min(limit, len(self.heldout))
        ids_NL = self.heldout[np.arange(rows)]
        masked = mask_rows(ids_NL, self.share, self.special, _generator(0, MASKS, 0))
        firsts = range(0, rows, size)
        rounds = -(-len(firsts) // self.world)
        slices = [slice(first, min(first + size, rows)) for first in firsts]
        slices += [slice(0, 0)] * (rounds * self.world - len(slices))
        return [_batch(masked, piece, self.special) for piece in slices[self.rank :: self.world]]


def _generator(seed: int, stream: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, stream, index))))


def _batch(masked: MaskedRows, rows: slice, special: Special) -> Batch:
    if rows.stop == rows.start:
        return _empty(masked)
    chosen_bL = masked.chosen_GL[rows]
    ids_bL = torch.from_numpy(masked.ids_GL[rows].copy())
    return Batch(
        kind="mlm",
        inputs={"input_ids": ids_bL, "attention_mask": (ids_bL != special.pad).long()},
        labels=torch.from_numpy(masked.labels_GL[rows][chosen_bL]),
        positions=torch.from_numpy(np.flatnonzero(chosen_bL)),
        total_rows=len(masked.ids_GL),
        total_labels=int(masked.chosen_GL.sum()),
    )


def _empty(masked: MaskedRows) -> Batch:
    """One row without a label."""
    ids_1L = torch.from_numpy(masked.ids_GL[:1].copy())
    nothing = torch.zeros(0, dtype=torch.long)
    inputs = {"input_ids": ids_1L, "attention_mask": torch.ones_like(ids_1L)}
    totals = (len(masked.ids_GL), int(masked.chosen_GL.sum()))
    return Batch("mlm", inputs, nothing, total_rows=totals[0], total_labels=totals[1], positions=nothing)
