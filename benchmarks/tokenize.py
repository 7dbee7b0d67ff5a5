"""Documents -> rows: our stage against the tokenise-and-group step of the usual masked-LM script, on the same text.

The other side is what the Hugging Face documentation describes for `datasets`: a batched map that tokenises with the
special-tokens mask, then a batched map that joins the lists and cuts them at the length, each with as many processes.
Both sides take turns, so that a busy machine slows them alike; what counts are the ratios. Processor seconds, those of
worker processes included, say what the work costs whatever else runs.
"""

import io
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import datasets
from pydantic import Field
from transformers import AutoTokenizer
from transformers.utils import logging as hf_logging

from asa import manifest
from asa.config import config
from benchmarks.tables import Recorded, asked, save
from data_prep.build import build
from data_prep.config import BuildConfig
from data_prep.stored import files, read
from data_prep.text import write_jsonl

OURS, THEIRS = "ours", "map"


@config
class TokenizeConfig(Recorded):
    """Time documents -> rows of token ids: `build` and the masked-LM script's two maps, with one and more processes."""

    documents: list[Path]
    """Folders made by `python -m data_prep text`; on the command line simply the leading arguments."""
    model: Path
    """Hugging Face folder whose tokenizer is used."""
    length: Annotated[int, Field(ge=8)] = 128
    """Token ids a row."""
    copies: Annotated[int, Field(ge=1)] = 1
    """Times the documents are repeated. Words that come again are quicker for `build`: 1 is the hardest case."""
    parts: Annotated[int, Field(ge=1)] = 8
    """Files the documents are put into."""
    workers: Annotated[int, Field(ge=2)] = 2
    """Processes of the runs with more than one."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """Runs of each kind."""


def tokenize(argv: list[str]) -> None:
    """Documents -> rows: tokens a second of `build` and of tokenise-and-group by datasets.map."""
    request = asked(TokenizeConfig, argv, "tokenize", positional="documents")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process is to mean one core, on both sides
    with tempfile.TemporaryDirectory() as folder:
        documents = spread(request, Path(folder) / "documents")
        text = report(measure(request, documents, Path(folder) / "runs"), request)
    print(text)
    save(request, "tokenize", argv, text)


def spread(request: TokenizeConfig, folder: Path) -> Path:
    """A folder of documents with the text of all given, `copies` times, in `parts` files."""
    folder.mkdir()
    every = [d for path in files(request.documents, "DOCUMENTS") for d in read(path)]
    repeated = [d._replace(title=f"{d.title} {copy}") for copy in range(request.copies) for d in every]
    for part in range(request.parts):
        mine = repeated[part :: request.parts]
        write_jsonl((document._asdict() for document in mine), folder / f"documents-{part:06d}.jsonl")
    manifest.write(folder, "documents", {"documents": {"kept": len(repeated), "dropped": {}}})
    return folder


class Rate(NamedTuple):
    """Tokens a second of time that passed, and of processor time."""

    passed: float
    processor: float


def measure(request: TokenizeConfig, documents: Path, scratch: Path) -> dict[tuple[str, int], list[Rate]]:
    """The rates by side and number of processes, one for each round."""
    datasets.disable_progress_bars()
    hf_logging.set_verbosity_error()
    sides: dict[str, Callable[[int], int]] = {
        OURS: lambda workers: by_build(request, documents, scratch / "ours", workers),
        THEIRS: lambda workers: by_maps(request, documents, scratch / "map", workers),
    }
    rates: dict[tuple[str, int], list[Rate]] = {}
    for _ in range(request.rounds):
        for workers in (1, request.workers):
            for name, side in sides.items():
                shutil.rmtree(scratch, ignore_errors=True)
                began, used = time.perf_counter(), _processor_seconds()
                tokens = side(workers)
                rate = Rate(tokens / (time.perf_counter() - began), tokens / (_processor_seconds() - used))
                rates.setdefault((name, workers), []).append(rate)
    return rates


def _processor_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def by_build(request: TokenizeConfig, documents: Path, out: Path, workers: int) -> int:
    """Our stage, verification of the input and hashes of the output included; the tokens in its rows."""
    with redirect_stdout(io.StringIO()):
        build(BuildConfig(documents=[documents], model=request.model, length=request.length, out=out, workers=workers))
    return sum(manifest.read(out / "shards", "shards", "--out")["tokens"].values())


def by_maps(request: TokenizeConfig, documents: Path, out: Path, workers: int) -> int:
    """The two maps; the tokens in their rows."""
    tokenizer = AutoTokenizer.from_pretrained(request.model)
    length, processes = request.length, workers if workers > 1 else None

    def tokenise(batch: dict[str, list]) -> Any:
        return tokenizer(batch["text"], return_special_tokens_mask=True)

    def group(batch: dict[str, list]) -> dict[str, list]:
        joined = {key: list(chain(*lists)) for key, lists in batch.items()}
        whole = len(joined["input_ids"]) // length * length
        return {key: [ids[at : at + length] for at in range(0, whole, length)] for key, ids in joined.items()}

    paths = [str(path) for path in sorted(documents.glob("*.jsonl"))]
    text = datasets.load_dataset("json", data_files=paths, split="train", cache_dir=str(out))
    split = text.map(tokenise, batched=True, num_proc=processes, remove_columns=text.column_names)
    return len(split.map(group, batched=True, num_proc=processes)) * length


def report(rates: dict[tuple[str, int], list[Rate]], request: TokenizeConfig) -> str:
    """Millions of tokens a second, medians, and their ratios."""
    heading = f"documents x {request.copies}, rows of {request.length}, {request.rounds} rounds"
    lines = [f"{heading}; million tokens a second, medians: of time that passed, of processor time"]
    middle = {key: Rate(*map(median, zip(*found, strict=True))) for key, found in rates.items()}
    for (name, workers), rate in middle.items():
        lines.append(f"{name:5s} {workers} processes {rate.passed / 1e6:6.2f} {rate.processor / 1e6:6.2f}")
    many = request.workers
    for what, over, under in (
        ("ours / map, 1 process", (OURS, 1), (THEIRS, 1)),
        (f"ours / map, {many} processes", (OURS, many), (THEIRS, many)),
        (f"ours, {many} processes / 1", (OURS, many), (OURS, 1)),
    ):
        ratio = Rate(*(a / b for a, b in zip(middle[over], middle[under], strict=True)))
        lines.append(f"{what}: {ratio.passed:.2f}, {ratio.processor:.2f}")
    return "\n".join(lines)
