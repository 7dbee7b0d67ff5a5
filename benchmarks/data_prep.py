"""The stages of data preparation as processes: time, megabytes a second, documents a second, peak memory.

The input is a dump made by repeating the pages of a given one until it has the asked size. The stages take turns, so
that a busy machine slows them alike; what counts are the ratios, of processor seconds above all. Extraction is set
against wikiextractor where that is installed.
"""

import bz2
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import psutil
from pydantic import Field

from asa import manifest
from asa.config import config
from asa.errors import RequestError, WorkError
from benchmarks.tables import Recorded, asked, save

_MARKUP = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|<ref|==|'''")
_SAMPLE_SECONDS = 0.05


@config
class DataPrepConfig(Recorded):
    """Time `text`, `dedup` and, with a model, `build` on a dump of a given size, with one process and with several.

    rows is `build` from documents, build the same from the dump: text and rows by one command.
    """

    input: Path
    """Dump whose pages are repeated (.xml or .bz2); on the command line simply the first argument."""
    megabytes: Annotated[int, Field(ge=1)] = 200
    """Size of the XML, in millions of bytes."""
    workers: Annotated[int, Field(ge=2)] = 2
    """Processes of the runs with more than one."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """Runs of each kind."""
    wikiextractor: Annotated[str, Field(pattern=r"\S")] = "wikiextractor"
    """Command of wikiextractor; best in an environment of its own: pip install wikiextractor."""
    model: Path | None = None
    """Hugging Face folder for the stages rows and build; without it those are left out."""


class Stage(NamedTuple):
    """A command with WORKERS, IN (the dump or an earlier stage's folder) and OUT to be filled in."""

    name: str
    command: list[str]
    source: str = "dump"


class Run(NamedTuple):
    """What one run took: seconds, processor seconds of all its processes, the most bytes they held together."""

    seconds: float
    cpu: float
    memory: int


def data_prep(argv: list[str]) -> None:
    """INPUT: time and memory of text, dedup and build on a dump of 200 MB, beside wikiextractor."""
    request = asked(DataPrepConfig, argv, "data-prep", positional="input")
    chosen = stages(request)
    with tempfile.TemporaryDirectory() as folder:
        dump = repeat(request.input, request.megabytes * 10**6, Path(folder) / "wiki.xml")
        print(f"{dump.stat().st_size / 1e6:.0f} MB of XML, {request.rounds} rounds, taking turns", flush=True)
        runs: dict[tuple[str, int], list[Run]] = {}
        for _ in range(request.rounds):
            for stage in chosen:
                for workers in (1, request.workers):
                    runs.setdefault((stage.name, workers), []).append(_run(stage, workers, dump, Path(folder)))
        found = manifest.read(Path(folder) / "text-1", "documents", "OUT")["documents"]["kept"]
        lines = [report(runs, dump.stat().st_size, found, request.workers)]
        for name in ("text", "wikiextractor"):
            if (name, 1) in runs:
                lines.append(leftovers(name, Path(folder) / f"{name}-1"))
    text = "\n".join(lines)
    print(text)
    save(request, "data-prep", argv, text)


def repeat(source: Path, size: int, target: Path) -> Path:
    """A dump of at least `size` bytes from the header and the pages of `source`. Raises RequestError for no dump."""
    if not source.is_file():
        raise RequestError(f"no dump {source}; give an existing one as INPUT")
    try:
        content = bz2.decompress(source.read_bytes()) if source.suffix == ".bz2" else source.read_bytes()
    except (OSError, ValueError) as error:
        raise WorkError(f"{source} cannot be read ({error}); fetch it again, or give another as INPUT") from None
    first, last = content.find(b"<page>"), content.rfind(b"</page>") + len(b"</page>")
    if first < 0:
        raise RequestError(f"{source} holds no pages; give a pages-articles dump as INPUT")
    with target.open("wb") as file:
        file.write(content[:first])
        while file.tell() < size:
            file.write(content[first:last] + b"\n")
        file.write(b"</mediawiki>\n")
    return target


def stages(request: DataPrepConfig) -> list[Stage]:
    """The stages to run; a line on wikiextractor where there is none."""
    ours = [sys.executable, "-m", "data_prep"]
    found = [Stage("text", [*ours, "text", "IN", "--out", "OUT", "--workers", "WORKERS"])]
    theirs = shlex.split(request.wikiextractor)
    if shutil.which(theirs[0]):
        more = ["IN", "--output", "OUT", "--processes", "WORKERS", "--json", "-q"]
        found.append(Stage("wikiextractor", [*theirs, *more]))
    else:
        print(
            f"no command {request.wikiextractor}: pip install wikiextractor and set --wikiextractor to compare with it"
        )
    found.append(Stage("dedup", [*ours, "dedup", "IN", "--out", "OUT", "--workers", "WORKERS"], "text"))
    if request.model:
        more = ["--model", str(request.model), "--out", "OUT", "--workers", "WORKERS"]
        found.append(Stage("rows", [*ours, "build", "--documents", "IN", *more], "text"))
        found.append(Stage("build", [*ours, "build", "--dumps", "IN", *more]))
    return found


def _run(stage: Stage, workers: int, dump: Path, folder: Path) -> Run:
    out = folder / f"{stage.name}-{workers}"
    shutil.rmtree(out, ignore_errors=True)
    source = dump if stage.source == "dump" else folder / f"{stage.source}-1"
    values = {"IN": str(source), "OUT": str(out), "WORKERS": str(workers)}
    with (folder / "log").open("w+") as log:
        began, cpu = time.perf_counter(), _children_cpu()
        process = psutil.Popen([values.get(word, word) for word in stage.command], stdout=log, stderr=log)
        memory = max(_memory(process), default=0)
        failed = process.wait()
        seconds = time.perf_counter() - began
        log.seek(0)
        if failed:
            raise WorkError(f"{stage.name} failed: {' '.join(log.read().split())[-300:]}")
    return Run(seconds, _children_cpu() - cpu, memory)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory(process: psutil.Popen) -> Iterator[int]:
    """The bytes held by a process and its children, again and again until it ends."""
    while process.poll() is None:
        total = 0
        try:
            for member in (process, *process.children(recursive=True)):
                total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        yield total
        try:
            process.wait(_SAMPLE_SECONDS)
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            continue


def report(runs: dict[tuple[str, int], list[Run]], size: int, documents: int, workers: int) -> str:
    """A line for each stage and number of processes, and the ratios of the medians.

    Args: size and documents are what all stages work on: bytes of XML, and the documents that text finds in them.
    """
    lines = [
        f"{'stage':14s} processes  seconds (fastest to slowest)  MB of XML/s  documents/s  processor seconds  peak MB"
    ]
    wall = {key: median(run.seconds for run in group) for key, group in runs.items()}
    cpu = {key: median(run.cpu for run in group) for key, group in runs.items()}
    for key, group in runs.items():
        times = sorted(run.seconds for run in group)
        spread = f"{wall[key]:.1f} ({times[0]:.1f} to {times[-1]:.1f})"
        memory = max(run.memory for run in group) / 1e6
        rate = size / 1e6 / wall[key]
        each = documents / wall[key]
        lines.append(
            f"{key[0]:14s} {key[1]:9d} {spread:>29s} {rate:12.1f} {each:12,.0f} {cpu[key]:18.1f} {memory:8.0f}"
        )
    for name in dict.fromkeys(name for name, _ in runs):
        lines.append(f"{name}: {workers} processes are {wall[name, 1] / wall[name, workers]:.2f} times as fast as 1")
    for count in (1, workers):
        if (other := ("wikiextractor", count)) in runs:
            ours = ("text", count)
            ratios = f"{wall[other] / wall[ours]:.2f} times as fast, by processor seconds {cpu[other] / cpu[ours]:.2f}"
            lines.append(f"text against wikiextractor, {count} processes: {ratios}")
    return "\n".join(lines)


def leftovers(name: str, folder: Path) -> str:
    """How many of the documents (lines of JSON) in a folder hold markup."""
    count = marked = 0
    for path in (path for path in folder.rglob("*") if path.is_file() and path.name != manifest.NAME):
        for line in path.read_text(encoding="utf-8").splitlines():
            count += 1
            marked += bool(_MARKUP.search(line))
    return f"{name}: {count:,} documents, {marked:,} with leftover markup ({marked / max(count, 1):.2%})"
