"""Weak scaling: a step of the real engines with one process and with several, the rows of each process the same.

torch.distributed.run starts a group of processes for every number of them (benchmarks/scaling_rank.py). The groups
live together and take turns through a store, each engine running one step per turn, so that a busy machine slows all
alike. A waiting group sleeps.

Communication: beside the timed steps some are profiled; the share is the time in which a collective of gloo or NCCL
was under way on rank 0, waiting for slower ranks included, divided by the median of the timed steps.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple, cast

import torch
from pydantic import Field
from torch._C._distributed_c10d import TCPStore
from tqdm import tqdm

from asa.config import config, save_yaml
from asa.engine import Precision
from asa.errors import RequestError, WorkError
from asa.methods import MethodName
from asa.methods.limits import check_precision
from asa.zero_settings import working_stage
from benchmarks.fused import attention
from benchmarks.steps import bert_config
from benchmarks.tables import Recorded, asked, check_gpus, save
from benchmarks.updates import Zero
from launch.command import environment

PLAIN, END = "plain", "end"
LONGEST = timedelta(minutes=10)  # that a group may take for its start or a turn
LOOK = 0.02  # seconds between two looks for an answer


@config
class ScalingConfig(Recorded):
    """Time an MLM step under torch's own engine and DeepSpeed's ZeRO stages, with one process and with several."""

    processes: Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], Field(min_length=1)] = (1, 2)
    """Numbers of processes, a core or GPU each; the first one is what the others are compared with."""
    zero: Annotated[tuple[Zero, ...], Field(min_length=1)] = (0, 1, 2, 3)
    """DeepSpeed ZeRO stages. In half precision 2 works in the place of 0 and 1, and has one line."""
    plain: bool = True
    """Torch's own engine too, which has fp32 only."""
    method: MethodName = "asa"
    """Training method."""
    precision: Precision = "fp32"
    """Arithmetic of model and gradients."""
    layers: Annotated[int, Field(ge=1, le=96)] = 4
    """Layers of the BERT that is trained."""
    width: Annotated[int, Field(ge=64, le=8192, multiple_of=64)] = 256
    """Hidden width, a multiple of 64."""
    length: Annotated[int, Field(ge=8, le=8192)] = 128
    """Tokens per row."""
    rows: Annotated[int, Field(ge=1, le=4096)] = 8
    """Rows per step and process."""
    repeats: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Timed steps of every engine and number of processes."""
    warmup: Annotated[int, Field(ge=1, le=1000)] = 1
    """Steps before the timed ones."""
    profiled: Annotated[int, Field(ge=1, le=100)] = 2
    """Steps after the timed ones, of which the communication is measured."""


def scaling(argv: list[str]) -> None:
    """Weak scaling over processes and ZeRO stages, with the share of communication."""
    request = asked(ScalingConfig, argv, "scaling")
    check(request)
    text = report(request, measure(request))
    print(text)
    save(request, "scaling", argv, text)


def check(request: ScalingConfig) -> None:
    """Raises RequestError for what cannot run here."""
    check_precision(request.precision, cuda=check_gpus(request.processes))
    if request.precision != "fp32" and request.plain:
        raise RequestError(f"the plain engine has no {request.precision}; set --plain false, or --precision fp32")


def engines(request: ScalingConfig) -> dict[str, Zero | None]:
    """The ZeRO stage of every engine by its name, that of the stage that works; None: torch's own."""
    found: dict[str, Zero | None] = {PLAIN: None} if request.plain else {}
    stages = (working_stage(stage, request.precision) for stage in request.zero)
    found.update((f"ZeRO {stage}", cast(Zero, stage)) for stage in stages)
    return found


class Found(NamedTuple):
    """Seconds by processes and engine: of the timed steps, and of communication in the profiled ones."""

    steps: dict[tuple[int, str], list[float]]
    waits: dict[tuple[int, str], list[float]]


def measure(request: ScalingConfig) -> Found:
    """Raises WorkError where a group of processes fails."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LONGEST)
    turns = ["warm"] * request.warmup + ["timed"] * request.repeats + ["profiled"] * request.profiled
    found = Found({}, {})
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        groups = [
            stack.enter_context(_group(request, world, store, folder)) for world in dict.fromkeys(request.processes)
        ]
        for turn, kind in enumerate(tqdm(turns, "turns", leave=False, disable=None)):
            for group in groups:
                taken = group.turn(turn, kind)
                into = {"timed": found.steps, "profiled": found.waits}.get(kind, {})
                for name, seconds in taken.items():
                    into.setdefault((group.world, name), []).append(seconds)
        for group in groups:
            group.end(len(turns))
    return found


class Group(NamedTuple):
    """The processes that share a step."""

    world: int
    process: subprocess.Popen[bytes]
    store: TCPStore
    log: Path

    def turn(self, number: int, kind: str) -> dict[str, float]:
        """Have each engine run a step; seconds by engine."""
        self.store.set(f"go/{self.world}/{number}", kind)
        return json.loads(self.answer(f"done/{self.world}/{number}"))

    def end(self, number: int) -> None:
        """Let the group end. Raises WorkError where it does not."""
        self.store.set(f"go/{self.world}/{number}", END)
        try:
            self.process.wait(LONGEST.total_seconds())
        except subprocess.TimeoutExpired:
            raise WorkError(f"{self.world} processes did not end within {LONGEST}") from None

    def answer(self, key: str) -> bytes:
        """What the group puts under the key. Raises WorkError where it ends without, or takes too long."""
        last = time.monotonic() + LONGEST.total_seconds()
        while self.process.poll() is None:
            if self.store.check([key]):
                return self.store.get(key)
            if time.monotonic() > last:
                raise WorkError(f"{self.world} processes gave no answer within {LONGEST}; lower --rows or --length")
            time.sleep(LOOK)
        said = self.log.read_text().strip().splitlines()
        # A rank's own words come before those of its launcher.
        why = next((line for line in said if re.search(r"(Error|Exception): \S", line)), said[0] if said else "no word")
        raise WorkError(f"{self.world} processes failed: {why.strip()[-300:]}")


@contextmanager
def _group(request: ScalingConfig, world: int, store: TCPStore, folder: Path) -> Iterator[Group]:
    """A group that is ready for its turns; it does not outlive this."""
    settings, log = folder / "request.yaml", folder / f"{world}.log"
    save_yaml(request, settings)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc_per_node", str(world)]
    command += ["-m", "benchmarks.scaling_rank", str(settings), str(store.port)]
    # As the launcher sets it, but for the threads: the others' cores are not one process's gain.
    more = environment(world) | {"OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=os.environ | more, stdout=file, stderr=file)
        group = Group(world, process, store, log)
        try:
            group.answer(f"ready/{world}")
            yield group
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def report(request: ScalingConfig, found: Found) -> str:
    """A line per engine and number of processes. Efficiency: a step of the first number of processes / of this one."""
    gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if gpu else f"CPU, {os.cpu_count()} cores, a thread a process"
    shape = bert_config(request.layers, request.width, "sdpa")
    stages = list(engines(request).values())
    ways = attention([request.method], shape, request.rows, request.length, request.precision, stages)
    lines = [
        f"BERT {request.layers} x {request.width}, mlm, {request.method}, {request.rows} rows of {request.length} a"
        f" process, {ways}, {request.precision}, {where}; medians of {request.repeats} steps after {request.warmup},"
        f" load {os.getloadavg()[1]:.1f}",
        f"{'engine':8s}{'processes':>10}{'ms':>10}{'/ plain':>9}{'rows/s':>10}{'efficiency':>12}{'communication':>15}",
    ]
    middle = {key: median(taken) for key, taken in found.steps.items()}
    for name in engines(request):
        for world in dict.fromkeys(request.processes):
            step = middle[world, name]
            plain = f"{step / middle[world, PLAIN]:9.3f}" if request.plain else f"{'':9s}"
            line = f"{name:8s}{world:10d}{1e3 * step:10.1f}{plain}{world * request.rows / step:10.1f}"
            line += f"{middle[request.processes[0], name] / step:12.3f}"
            lines.append(line + f"{median(found.waits[world, name]) / step:15.1%}")
    return "\n".join(lines)
