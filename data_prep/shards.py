"""Documents -> rows of exactly `length` token ids in Arrow files that `datasets` memory-maps.

A row is [CLS] text [SEP] text [SEP] ...: a document that does not fit continues in the next row, and every row begins
with [CLS] and ends with [SEP]. Two rows may end in [PAD]: the last of a file, and one in which a document ends so
close to the end that a single id is left, too little for a token and its [SEP].
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Features, List, Value
from datasets.arrow_writer import ArrowWriter

from asa.errors import WorkError
from data_prep.leads import share_of
from data_prep.parallel import batches
from data_prep.text import Document
from data_prep.tokenizer import Encoder, Special

COLUMN = "input_ids"
SPLITS = ("train", "heldout")
_ROWS_PER_WRITE = 1_000
_DOCUMENTS_PER_CALL = 256


def file_name(split: str) -> str:
    return f"{split}-00000.arrow"


class Packer:
    """Documents' ids in, full rows out; `last` gives the padded rest."""

    def __init__(self, length: int, special: Special) -> None:
        self.length, self.special = length, special
        self.row = [special.cls]

    def add(self, ids: list[int]) -> Iterator[list[int]]:
        start = 0
        while start < len(ids):
            # One place stays free for the [SEP] that closes the piece.
            room = self.length - 1 - len(self.row)
            if room < 1:
                yield self._close()
                continue
            self.row += [*ids[start : start + room], self.special.sep]
            start += room
        if len(self.row) == self.length:
            yield self._close()

    def last(self) -> Iterator[list[int]]:
        if len(self.row) > 1:
            yield self._close()

    def _close(self) -> list[int]:
        row = self.row + [self.special.pad] * (self.length - len(self.row))
        self.row = [self.special.cls]
        return row


class SplitWriter:
    """One split's Arrow file. Rows are written in fixed groups, so equal rows give equal bytes."""

    def __init__(self, path: Path, encoder: Encoder, length: int) -> None:
        self.packer = Packer(length, encoder.special)
        self.features = Features({COLUMN: List(Value(encoder.dtype.name), length=length)})
        self.dtype, self.length = encoder.dtype, length
        self.writer = ArrowWriter(path=str(path), features=self.features)
        self.waiting: list[list[int]] = []
        self.rows = self.tokens = self.documents = 0

    def add(self, ids: list[int]) -> None:
        self.documents += 1
        self.tokens += len(ids)
        self._keep(self.packer.add(ids))

    def close(self) -> None:
        self._keep(self.packer.last())
        if self.waiting:
            self._write()
        self.writer.finalize()

    def _keep(self, rows: Iterable[list[int]]) -> None:
        for row in rows:
            self.waiting.append(row)
            if len(self.waiting) == _ROWS_PER_WRITE:
                self._write()

    def _write(self) -> None:
        ids = pa.array(np.asarray(self.waiting, dtype=self.dtype).reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(ids, self.length)
        self.writer.write_table(pa.Table.from_arrays([column], schema=self.features.arrow_schema))
        self.rows += len(self.waiting)
        self.waiting = []


def is_heldout(title: str, share: float) -> bool:
    """By title, so that an article and its lead fall on the same side."""
    return share_of("heldout", title) < share


def write(
    documents: Iterable[Document], encoder: Encoder, folder: Path, *, length: int, heldout: float, dropped: Counter[str]
) -> dict[str, Any]:
    """Write both splits to `folder` and return the facts of the manifest (the caller writes it, last).

    Args: dropped is read after the documents have been, since their source counts into it.
    Raises: WorkError when no training row came out.
    """
    with ExitStack() as stack:
        writers = {split: SplitWriter(folder / file_name(split), encoder, length) for split in SPLITS}
        for writer in writers.values():
            stack.callback(writer.writer.close)
        for batch in batches(documents, _DOCUMENTS_PER_CALL):
            for document, ids in zip(batch, encoder.encode([d.text for d in batch]), strict=True):
                if ids:
                    writers["heldout" if is_heldout(document.title, heldout) else "train"].add(ids)
                else:
                    dropped["no tokens"] += 1
        for writer in writers.values():
            writer.close()
    if not writers["train"].rows:
        raise WorkError(f"no document was left to train on (dropped: {dict(dropped)}); give more text by --dumps")
    return _facts(writers, encoder, length, dropped)


def _facts(writers: dict[str, SplitWriter], encoder: Encoder, length: int, dropped: Counter[str]) -> dict[str, Any]:
    return {
        "length": length,
        "vocab_size": encoder.vocab_size,
        "dtype": encoder.dtype.name,
        "rows": {split: writer.rows for split, writer in writers.items()},
        "tokens": {split: writer.tokens for split, writer in writers.items()},
        "documents": {
            "kept": sum(writer.documents for writer in writers.values()),
            "heldout": writers["heldout"].documents,
            "dropped": dict(sorted(dropped.items())),
        },
        "special_ids": encoder.special._asdict(),
    }
