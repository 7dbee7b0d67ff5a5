"""Documents -> rows of exactly `length` token ids in Arrow files that `datasets` memory-maps.

packed: a row is [CLS] text [SEP] text [SEP] ...: a document that does not fit continues in the next row, and every row
begins with [CLS] and ends with [SEP]. Two rows may end in [PAD]: the last of a file, and one in which a document ends
so close to the end that a single id is left, too little for a token and its [SEP].
single: a row is [CLS] text [SEP] and [PAD], one document each, cut where it is longer.

A part of the input becomes a file for each split; worker processes import nothing heavier than Arrow.
"""

from collections import Counter
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_prep.duplicates import Flags
from data_prep.encode import Encoder
from data_prep.leads import share_of
from data_prep.stored import read
from data_prep.text import IN_TASK, Document, text_key, title_key

# N rows of a block, L length

Packing = Literal["packed", "single"]
Ids = NDArray[np.unsignedinteger]
Counts = dict[str, Any]  # nested dictionaries of numbers
COUNTED = ("rows", "tokens", "documents", "tokens_cut")
COLUMN = "input_ids"
SPLITS = ("train", "heldout")
PART = "part of shards"  # the kind of a folder made with --shard, which only `merge` reads
_ROWS_PER_BLOCK = 4096
_NONE = dict.fromkeys(SPLITS, 0)
# What a share without a part of the work has made.
NOTHING: Counts = {
    "rows": _NONE,
    "tokens": _NONE,
    "documents": {"kept": 0, "heldout": 0, "dropped": {}, "lengths": {}},
    "tokens_cut": 0,
}


class Recipe(NamedTuple):
    """How every part becomes rows.

    schema: the Arrow schema of a file, serialised. kept_out: the title_key of documents that must not come through;
    kept_out_texts: the text_key of some.
    """

    tokenizer: Path
    schema: bytes
    pad: int
    cls: int
    sep: int
    length: int
    packing: Packing
    heldout: float
    kept_out: frozenset[str]
    kept_out_texts: frozenset[int]


class Rows:
    """The rows of one split of a part: documents' ids in, an Arrow file out. Without a row there is no file."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe
        self.schema = pa.ipc.read_schema(pa.py_buffer(recipe.schema))
        dtype = self.schema.field(COLUMN).type.value_type.to_pandas_dtype()
        self.block_NL = np.full((_ROWS_PER_BLOCK, recipe.length), recipe.pad, dtype)
        self.row, self.place = 0, 1
        self.writer: pa.RecordBatchStreamWriter | None = None
        self.rows = self.tokens = self.documents = self.cut = 0

    def add(self, ids: Ids) -> None:
        """Put a document of at least one token into this row and the next ones."""
        single = self.recipe.packing == "single"
        kept = ids[: self.recipe.length - 2] if single else ids
        self.documents += 1
        self.tokens += len(kept)
        self.cut += len(ids) - len(kept)
        self._fill(kept)
        if single or self.place == self.recipe.length:
            self._end_row()

    def close(self) -> None:
        """Write what is left."""
        if self.place > 1:
            self._end_row()
        self._write()
        if self.writer:
            self.writer.close()

    def _fill(self, ids: Ids) -> None:
        start = 0
        while start < len(ids):
            # One place stays free for the [SEP] that closes the piece.
            piece = ids[start : start + self.recipe.length - 1 - self.place]
            if not len(piece):
                self._end_row()
                continue
            end = self.place + len(piece)
            self.block_NL[self.row, self.place : end] = piece
            self.block_NL[self.row, end] = self.recipe.sep
            self.place = end + 1
            start += len(piece)

    def _end_row(self) -> None:
        self.row, self.place = self.row + 1, 1
        if self.row == _ROWS_PER_BLOCK:
            self._write()

    def _write(self) -> None:
        """One Arrow batch of the rows that are full: blocks have a fixed size, so equal rows give equal bytes."""
        if not self.row:
            return
        self.writer = self.writer or pa.ipc.new_stream(str(self.path), self.schema)
        self.block_NL[: self.row, 0] = self.recipe.cls
        # Not by pa.array, which imports pandas: a quarter of a second and 40 MB for each worker.
        block = pa.py_buffer(self.block_NL[: self.row])
        ids = pa.Array.from_buffers(
            self.schema.field(COLUMN).type.value_type, self.row * self.recipe.length, [None, block]
        )
        rows = pa.FixedSizeListArray.from_arrays(ids, self.recipe.length)
        self.writer.write_batch(pa.record_batch([rows], schema=self.schema))
        self.rows += self.row
        self.block_NL[:] = self.recipe.pad
        self.row = 0


def is_heldout(title: str, share: float) -> bool:
    """By title, so that an article and its lead fall on the same side."""
    return share_of("heldout", title) < share


def write_part(recipe: Recipe, task: tuple[str, Path, Flags | None], folder: Path) -> Counts:
    """Write the rows of one file of documents, but for its duplicates, to `folder`; a part's work (see parts.Work).

    Returns: rows and tokens by split; documents kept, held out, dropped by reason, and by length, where the key k
        counts those of 2^(k-1) to 2^k - 1 tokens; tokens cut off.
    Raises: WorkError where the file holds something else than documents.
    """
    name, path, flags = task
    encoder = _encoder(recipe.tokenizer)
    splits = {split: Rows(folder / f"{split}-{name}.arrow", recipe) for split in SPLITS}
    dropped: Counter[str] = Counter()
    lengths: Counter[str] = Counter()
    for document, duplicate in zip(read(path), flags.reasons() if flags else repeat(""), strict=flags is not None):
        ids = encoder.encode(document.text)
        if reason := _reason(document, ids, recipe) or duplicate:
            dropped[reason] += 1
            continue
        lengths[str(len(ids).bit_length())] += 1
        splits["heldout" if is_heldout(document.title, recipe.heldout) else "train"].add(ids)
    for rows in splits.values():
        rows.close()
    return {
        "rows": {split: rows.rows for split, rows in splits.items()},
        "tokens": {split: rows.tokens for split, rows in splits.items()},
        "documents": {
            "kept": sum(rows.documents for rows in splits.values()),
            "heldout": splits["heldout"].documents,
            "dropped": dict(dropped),
            "lengths": dict(lengths),
        },
        "tokens_cut": sum(rows.cut for rows in splits.values()),
    }


def total(counts: list[Counts]) -> Counts:
    """The sums of counts of the same form; a key that only some have counts as 0 in the others."""
    keys = sorted({key for one in counts for key in one})
    found = {key: [one[key] for one in counts if key in one] for key in keys}
    return {key: total(values) if isinstance(values[0], dict) else sum(values) for key, values in found.items()}


def _reason(document: Document, ids: Ids, recipe: Recipe) -> str:
    """Why a document becomes no row; empty for one that does."""
    if title_key(document.title) in recipe.kept_out:
        return IN_TASK
    if recipe.kept_out_texts and text_key(document.text) in recipe.kept_out_texts:
        return IN_TASK
    return "" if len(ids) else "no tokens"


@cache
def _encoder(path: Path) -> Encoder:
    """One for each process: it has met the words of earlier parts."""
    return Encoder(path)
