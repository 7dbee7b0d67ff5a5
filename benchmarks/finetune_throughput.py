"""Rows a second of fine-tuning with ASA on real SST-2 sentences, as our loop batches them and as the papers' code does.

Our loop pads a batch to its longest row and, with buckets, puts rows of like length in one. The released program pads
every row to the maximal length. Every case trains on the very same rows, in batches that take turns, so that a busy
machine slows all alike.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from tqdm import tqdm

from asa.batch import Batch
from asa.config import config, from_dict
from asa.errors import RequestError
from asa.tokenizer import load_tokenizer
from benchmarks.fused import attention
from benchmarks.steps import ASA, TWIN, VANILLA, bert_config
from benchmarks.tables import Recorded, asked, save
from benchmarks.updates import trainer, wait
from finetune.config import FinetuneConfig
from finetune.tasks.batches import STRETCH, Encoded, encode, training_rows
from finetune.tasks.load import load
from finetune.tasks.spec import named

TASK = "sst2"


@config
class ThroughputConfig(Recorded):
    """Time fine-tuning steps on real SST-2 rows: ASA with and without length buckets, and the slow twin."""

    data: Path
    """Folder that holds the files of the standard tasks, a folder each."""
    tokenizer: Path = Path("assets/bert-tiny")
    """Hugging Face folder of a BERT tokenizer, at most 30,522 words."""
    layers: Annotated[int, Field(ge=1, le=96)] = 4
    """Layers of the BERT that is trained."""
    width: Annotated[int, Field(ge=64, le=8192, multiple_of=64)] = 256
    """Hidden width, a multiple of 64."""
    length: Annotated[int, Field(ge=8, le=512)] = 128
    """Token ids per row at most, and of every row where all are padded."""
    batch: Annotated[int, Field(ge=1, le=4096)] = 32
    """Rows per step."""
    batches: Annotated[int, Field(ge=1)] = STRETCH
    """Batches of each case; with buckets, those of a quarter of them, of 50 at most, are sorted together."""
    every: Annotated[int, Field(ge=1)] = 5
    """Of the batches padded to the maximal length, which cost the same each, one in so many is run."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads torch uses; 0 leaves its own choice."""


class Case(NamedTuple):
    """A step and how its batches are made."""

    step: str
    buckets: bool
    padded: bool  # to the maximal length


CASES = {
    "twin, padded to LENGTH": Case(TWIN, buckets=False, padded=True),
    "twin, padded per batch": Case(TWIN, buckets=False, padded=False),
    "asa, padded per batch": Case(ASA, buckets=False, padded=False),
    "asa, buckets": Case(ASA, buckets=True, padded=False),
    "vanilla, buckets": Case(VANILLA, buckets=True, padded=False),
}


class Total(NamedTuple):
    """What the batches of a case had and took."""

    rows: int = 0
    tokens: int = 0  # padding included
    seconds: float = 0.0


def finetune_throughput(argv: list[str]) -> None:
    """Rows a second of fine-tuning on SST-2, with length buckets and without, beside the slow twin."""
    request = asked(ThroughputConfig, argv, "finetune-throughput")
    if request.threads:
        torch.set_num_threads(request.threads)
    data = rows(request)
    text = report(request, data, measure(request, data))
    print(text)
    save(request, "finetune-throughput", argv, text)


def rows(request: ThroughputConfig) -> Encoded:
    """Training rows for `batches` batches, drawn by a fixed seed. Raises RequestError where SST-2 is not there."""
    wanted = request.batch * request.batches
    settings = {"data": request.data, "models": {"model": request.tokenizer}, "out": Path(), "train_rows": wanted}
    task = load(named(TASK), from_dict(FinetuneConfig, settings))
    split = task.splits["train"]
    if len(split) < wanted:
        raise RequestError(f"{TASK} has {len(split)} training rows, not {wanted}; lower --batches or --batch")
    tokenizer, most = load_tokenizer(request.tokenizer, "--tokenizer"), bert_config(1, 64, "sdpa").vocab_size
    if len(tokenizer) > most:
        raise RequestError(f"{request.tokenizer} has {len(tokenizer):,} words: allowed: {most:,}; set --tokenizer")
    return encode(task.kind, split, tokenizer, request.length)


def measure(request: ThroughputConfig, data: Encoded) -> dict[str, Total]:
    """Batch after batch of every case, each time one of each; the first batch of all is not counted."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = bert_config(request.layers, request.width, "sdpa")
    shape.num_labels = 2
    steps = {label: trainer(shape, case.step, "classification", device) for label, case in CASES.items()}
    found = dict.fromkeys(CASES, Total())
    for number in tqdm(range(-1, request.batches), "batches", leave=False, disable=None):
        for label, case in CASES.items():
            if case.padded and number % request.every and number >= 0:
                continue
            began = time.perf_counter()
            batch = make(request, data, case, max(number, 0), device)
            steps[label](batch)
            wait(device)
            seconds = time.perf_counter() - began
            if number >= 0:
                before, ids = found[label], batch.inputs["input_ids"]
                found[label] = Total(before.rows + len(ids), before.tokens + ids.numel(), before.seconds + seconds)
    return found


def make(request: ThroughputConfig, data: Encoded, case: Case, number: int, device: torch.device) -> Batch:
    """A batch of the one epoch, as finetune/loop.py makes it; or padded as the released program does."""
    numbers: np.ndarray = training_rows(data, request.batch, 0, number, case.buckets)
    batch = data.batch(numbers)
    if case.padded:
        missing = request.length - batch.inputs["input_ids"].shape[1]
        padded = {name: F.pad(x, (0, missing), value=data.padding[name]) for name, x in batch.inputs.items()}
        batch = replace(batch, inputs=padded)
    return batch.to(device)


def report(request: ThroughputConfig, data: Encoded, found: dict[str, Total]) -> str:
    """A line per case: tokens a row, rows a second, relative to both ways to pad the twin."""
    padded, plain, *_ = (total.rows / total.seconds for total in found.values())
    gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    shape = bert_config(request.layers, request.width, "sdpa")
    ways = attention([case.step for case in CASES.values()], shape, request.batch, request.length, "fp32")
    lines = [
        f"BERT {request.layers} x {request.width}, SST-2, {request.batches} batches of {request.batch} rows of"
        f" {np.mean(data.lengths):.1f} tokens on average, {ways}, fp32, {where}; load {os.getloadavg()[1]:.1f}",
        f"{'case':24s}{'tokens/row':>12}{'rows/s':>10}{f'/ twin {request.length}':>12}{'/ twin':>9}",
    ]
    for label, total in found.items():
        rate = total.rows / total.seconds
        name = label.replace("LENGTH", str(request.length))
        line = f"{name:24s}{total.tokens / total.rows:12.1f}{rate:10.1f}"
        lines.append(line + f"{rate / padded:12.3f}{rate / plain:9.3f}")
    return "\n".join(lines)
