"""Rows -> batches, as a pure function of (seed, step): the same rows and masks for any number of processes."""

from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray

from asa import manifest
from asa.ahead import Ahead
from asa.batch import Batch
from asa.errors import RequestError, WorkError
from pretrain.masking import Ids, MaskedRows, Masking, Rule, Special, mask_rows
from pretrain.words import words_of

# N rows of the shards, G rows of the global batch, L length

ORDER, MASKS = 0, 1  # streams of random numbers
TOKENIZER = "tokenizer"  # folder in the shards


class Rows:
    """Memory-mapped rows of one split ("train" or "heldout"); indexing copies just the rows asked for.

    Of the files that the manifest lists: another one beside them is none of the data.
    Raises: WorkError where they have not the rows that the manifest says.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self.parts: list[NDArray[np.unsignedinteger]] = []
        for name in manifest.files(folder, "shards", "--data"):
            if not fnmatch(name, f"{split}-*.arrow"):
                continue
            table = Dataset.from_file(str(folder / name)).data.table
            for chunk in table.column("input_ids").chunks:
                values = chunk.flatten().to_numpy(zero_copy_only=True)
                self.parts.append(values.reshape(len(chunk), -1))
        self.ends = np.cumsum([0, *map(len, self.parts)])
        said = manifest.read(folder, "shards", "--data")["rows"][split]
        if len(self) != said:
            raise WorkError(
                f"{folder} has {len(self)} {split} rows, of which its {manifest.NAME} says {said}; make the folder anew"
            )

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, indices_G: NDArray[np.integer]) -> Ids:
        """The rows at `indices_G` in the type they are stored in."""
        parts_G = np.searchsorted(self.ends, indices_G, side="right") - 1
        inside_G = indices_G - self.ends[parts_G]
        rows = [self.parts[part][row] for part, row in zip(parts_G.tolist(), inside_G.tolist(), strict=True)]
        return np.stack(rows)


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
        cached = self._cached  # read once: another thread may replace it
        if cached is None or cached[0] != epoch:
            cached = self._cached = (epoch, _generator(self.seed, ORDER, epoch).permutation(self.rows))
        return cached[1]


class Batches:
    """The masked micro-batches of one rank."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        global_batch: int,
        share: float,
        rank: int,
        world: int,
        masking: Masking = "token",
    ) -> None:
        facts = manifest.read(folder, "shards", "--data")
        special = Special(vocab=facts["vocab_size"], **facts["special_ids"])
        if special.pad in (special.sep, special.mask):  # attention leaves out padding, by its id
            raise RequestError(
                f"{folder} was made by a tokenizer with one id for padding and for the ends of texts or masked tokens;"
                " make rows anew by another one and set --data"
            )
        words = None if masking == "token" else words_of(folder / TOKENIZER, special.vocab)
        self.rule = Rule(special, share, words, spans=masking == "span")
        self.length: int = facts["length"]
        self.train = Rows(folder, "train")
        self.heldout = Rows(folder, "heldout")
        self.order = Order(len(self.train), seed, global_batch)
        self.seed, self.rank, self.world = seed, rank, world
        self._ahead = Ahead(self._make)

    def step(self, step: int, slots: int) -> list[Batch]:
        """This rank's micro-batches of a step, the step after it being made ready meanwhile. Rows go to slots first,
        then to ranks."""
        return self._ahead(step, slots)

    def rows(self, step: int, slots: int) -> list[NDArray[np.int64]]:
        """Numbers of the training rows in this rank's micro-batches of a step."""
        order_G = self.order(step)
        return [order_G[places] for places in self._places(slots)]

    def _places(self, slots: int) -> list[NDArray[np.int64]]:
        """Where this rank's micro-batches lie in a global batch."""
        size = self.order.global_batch // (slots * self.world)
        firsts = [(slot * self.world + self.rank) * size for slot in range(slots)]
        return [np.arange(first, first + size) for first in firsts]

    def _make(self, step: int, slots: int) -> list[Batch]:
        ids_GL = self.train[self.order(step)]
        mine = np.concatenate(self._places(slots))
        size = len(mine) // slots
        masked = mask_rows(ids_GL, self.rule, _generator(self.seed, MASKS, step), mine)
        return [_batch(masked, slice(k * size, (k + 1) * size), len(ids_GL), self.rule) for k in range(slots)]

    def heldout_batches(self, limit: int, size: int) -> list[Batch]:
        """`limit` held-out rows at even distances, masked the same in every run, in this rank's batches of `size`.

        Every rank gets as many batches as the others, padded with empty ones (no label), since ZeRO-3 gathers
        parameters together in every forward.
        """
        rows = min(limit, len(self.heldout))
        places = np.arange(rows) * len(self.heldout) // max(1, rows)  # of every source, whatever their order
        masked = mask_rows(self.heldout[places], self.rule, _generator(0, MASKS, 0))
        firsts = range(0, rows, size)
        rounds = -(-len(firsts) // self.world)
        slices = [slice(first, min(first + size, rows)) for first in firsts]
        slices += [slice(0, 0)] * (rounds * self.world - len(slices))
        return [_batch(masked, piece, rows, self.rule) for piece in slices[self.rank :: self.world]]


def _generator(seed: int, stream: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, stream, index))))


def _batch(masked: MaskedRows, rows: slice, total_rows: int, rule: Rule) -> Batch:
    if rows.stop == rows.start:
        return _empty(masked, total_rows)
    chosen_bL = masked.chosen_RL[rows]
    ids_bL = _tensor(masked.ids_RL[rows])
    return Batch(
        kind="mlm",
        inputs={"input_ids": ids_bL, "attention_mask": (ids_bL != rule.special.pad).long()},
        labels=_tensor(masked.labels_RL[rows][chosen_bL]),
        positions=torch.from_numpy(np.flatnonzero(chosen_bL)),
        total_rows=total_rows,
        total_labels=masked.total_labels,
    )


def _empty(masked: MaskedRows, total_rows: int) -> Batch:
    """One row without a label."""
    ids_1L = _tensor(masked.ids_RL[:1])
    nothing = torch.zeros(0, dtype=torch.long)
    inputs = {"input_ids": ids_1L, "attention_mask": torch.ones_like(ids_1L)}
    return Batch("mlm", inputs, nothing, total_rows, masked.total_labels, positions=nothing)


def _tensor(ids: Ids) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64))
