"""Masked batches a second from shards on disk: what the reader can feed to a device, with how many cores.

The shards are made anew, of random ids in rows that hold several documents, so that no download is needed; they are
read from the page cache, as they are in training once the first epoch has passed over them.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import pyarrow as pa
from datasets import Features, List, Value
from pydantic import Field
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from asa import manifest
from asa.config import config
from benchmarks.tables import Recorded, asked, save
from pretrain.data import TOKENIZER, Batches
from pretrain.masking import Masking

MASKINGS: tuple[Masking, ...] = ("token", "word", "span")
_SPECIAL = {"pad": 0, "cls": 1, "sep": 2, "mask": 3}
_VOCAB, _DOCUMENT, _FILE_ROWS = 30_522, 500, 65_536


@config
class ReaderConfig(Recorded):
    """Time the making of masked batches by one process, for each kind of masking."""

    rows: Annotated[int, Field(ge=1, le=100_000)] = 128
    """Rows of a batch of one process."""
    length: Annotated[int, Field(ge=16, le=8192)] = 256
    """Tokens a row."""
    world: Annotated[int, Field(ge=1, le=1024)] = 1
    """Processes that share a step: each reads all its rows and masks its own."""
    stored: Annotated[int, Field(ge=1, le=100_000_000)] = 262_144
    """Rows on disk; half a gigabyte a million rows of 256."""
    steps: Annotated[int, Field(ge=1)] = 100
    """Batches of each timed round."""
    rounds: Annotated[int, Field(ge=1)] = 5
    """Timed rounds; the kinds of masking take turns."""


def reader(argv: list[str]) -> None:
    """Tokens a second of the pre-training reader, one process."""
    request = asked(ReaderConfig, argv, "reader")
    with tempfile.TemporaryDirectory() as folder:
        make_shards(Path(folder), request.stored, request.length)
        text = report(request, measure(request, Path(folder)))
    print(text)
    save(request, "reader", argv, text)


def make_shards(folder: Path, rows: int, length: int) -> None:
    """Random rows in files of `_FILE_ROWS`, with a vocabulary of which a third of the tokens continue a word."""
    schema = Features({"input_ids": List(Value("uint16"), length=length)}).arrow_schema
    draw = np.random.default_rng(0)
    for first in range(0, rows, _FILE_ROWS):
        count = min(_FILE_ROWS, rows - first)
        ids_NL = draw.integers(4, _VOCAB, (count, length), dtype=np.uint16)
        ids_NL[draw.random((count, length)) < 1 / _DOCUMENT] = _SPECIAL["sep"]
        ids_NL[:, 0], ids_NL[:, -1] = _SPECIAL["cls"], _SPECIAL["sep"]
        column = pa.FixedSizeListArray.from_arrays(pa.array(ids_NL.reshape(-1)), length)
        with pa.ipc.new_stream(str(folder / f"train-{first:09d}.arrow"), schema) as writer:
            writer.write_batch(pa.record_batch([column], schema=schema))
    words = {f"{'##' if number % 3 == 1 else ''}{number}": number for number in range(_VOCAB)}
    backend = Tokenizer(models.WordPiece(words, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder / TOKENIZER)
    facts = {"vocab_size": _VOCAB, "special_ids": _SPECIAL, "length": length, "rows": {"train": rows, "heldout": 0}}
    manifest.write(folder, "shards", facts)


def measure(request: ReaderConfig, folder: Path) -> dict[str, list[float]]:
    """Tokens that reach one process in a second of processor time, for each kind of masking and round.

    The reader works on one thread, so that is what it gives with a core of its own, however busy the machine.
    """
    global_batch = request.rows * request.world
    readers = {kind: Batches(folder, 0, global_batch, 0.15, 0, request.world, kind) for kind in MASKINGS}
    found: dict[str, list[float]] = {kind: [] for kind in MASKINGS}
    for round_ in range(request.rounds + 1):
        for kind, batches in readers.items():
            began = time.process_time()
            for step in range(round_ * request.steps, (round_ + 1) * request.steps):
                batches.step(step, slots=1)
            if round_:  # the first one opens files and draws the order of the epoch
                found[kind].append(request.steps * request.rows * request.length / (time.process_time() - began))
    return found


def report(request: ReaderConfig, rates: dict[str, list[float]]) -> str:
    """Millions of tokens a second of one core, the median of the rounds with the least and the most."""
    heading = (
        f"batches of {request.rows} x {request.length} for one of {request.world} processes, {request.stored:,} rows on"
        f" disk; million tokens a second of one core, median (least to most)"
    )
    lines = [
        f"{kind:6s} {median(r) / 1e6:7.1f} ({min(r) / 1e6:.1f} to {max(r) / 1e6:.1f})" for kind, r in rates.items()
    ]
    return "\n".join([heading, *lines])
