"""Whether a GPU does what is said of one: kernels, engine, steps, memory, a run in fp16, start-up, in one command.

Each part is commands of their own, so that a fault of the device ends that part alone. What a part prints is read for
the figures that are bounded. The page of results is written after every part: a machine may be lent for minutes.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from asa.config import config
from asa.errors import RequestError, WorkError
from benchmarks.tables import Recorded, asked, check_gpu, save

PartName = Literal[
    "kernels", "timing", "steps", "steps-large", "steps-512", "memory", "engine", "run", "startup", "upkeep", "methods"
]
# In their order, with what each takes of the time, in parts of the whole.
SHARES: dict[PartName, int] = {
    "kernels": 4,
    "timing": 1,
    "steps": 2,
    "steps-large": 1,
    "steps-512": 1,
    "memory": 1,
    "engine": 2,
    "run": 4,
    "startup": 2,
    "upkeep": 1,
    "methods": 2,
}
TESTS = ("pytest", "xdist", "hypothesis", "triton")
GRACE = 30  # seconds that a part may take to end what it has started


@config
class GpuConfig(Recorded):
    """Hold a GPU to its bounds, part by part: the tests that need one, the steps of BERT-base in bf16, memory, runs."""

    data: Path
    """Folder made by data_prep build, for run, startup and upkeep."""
    model: Path
    """Hugging Face folder that its shards were made for."""
    parts: Annotated[tuple[PartName, ...], Field(min_length=1)] = tuple(SHARES)
    """What is done, in the order given: kernels and engine are tests; timing is of kernels alone; steps, steps-512,
    memory and methods are BERT-base's batches of 64 rows, steps-large those of 256; run, startup and upkeep train on
    `data`."""
    minutes: Annotated[float, Field(gt=0, le=600)] = 60
    """Of all parts together. Each is ended after its share of what is left when it begins, the last after all of it."""
    jobs: Annotated[int, Field(ge=1, le=256)] = 8
    """Processes of the tests, which share the GPU; most of their time is the kernels' compilation, on the CPU."""


class Bound(NamedTuple):
    """A figure that is asked for. pattern: where a part prints it, its group the figure. most: the bound is upper."""

    name: str
    part: PartName
    pattern: str
    bound: float
    most: bool = True

    def found(self, told: str) -> float | None:
        match = re.search(self.pattern, told, re.MULTILINE)
        return float(match[1]) if match else None

    def holds(self, value: float) -> bool:
        return value <= self.bound if self.most else value >= self.bound


BOUNDS = (
    Bound("vanilla, MFU in %, length 256", "steps", r"^vanilla fused .* ([\d.]+)%$", 35, most=False),
    Bound("ASA / vanilla, length 256", "steps", r"^fused, bf16: .*\bASA/vanilla ([\d.]+)", 2.15),
    Bound("ASA / slow twin, length 256", "steps", r"^fused, bf16: .*\bASA/twin ([\d.]+)", 0.667),
    Bound("vanilla, MFU in %, 256 rows of 256", "steps-large", r"^vanilla .* ([\d.]+)%$", 35, most=False),
    Bound("ASA / vanilla, 256 rows of 256", "steps-large", r"^fused, bf16: .*\bASA/vanilla ([\d.]+)", 2.15),
    Bound("ASA / vanilla, length 512", "steps-512", r"^fused, bf16: .*\bASA/vanilla ([\d.]+)", 2.25),
    Bound("ASA / slow twin, memory that a step adds", "memory", r"^asa fused .* ([\d.]+)$", 0.5),
    Bound("data wait of a step in %, pre-training", "startup", r"^pretrain: .*data wait ([\d.]+)%", 1),
    Bound("data wait of a step in %, fine-tuning", "startup", r"^finetune: .*data wait ([\d.]+)%", 1),
)


class Done(NamedTuple):
    """A part that was begun. outcome: ok, failed (with the command's code) or out of time."""

    outcome: str
    seconds: float
    told: str


def gpu(argv: list[str]) -> None:
    """Hold a GPU to its bounds: the tests that need one, steps, memory, a run in fp16, start-up; 1 where one fails."""
    request = asked(GpuConfig, argv, "gpu")
    check(request)
    parts: list[PartName] = [*dict.fromkeys(request.parts)]
    until, done = time.monotonic() + 60 * request.minutes, dict[PartName, Done]()
    for place, name in enumerate(parts):
        # One that takes long leaves the others theirs, and what one does not need the others have.
        limit = (until - time.monotonic()) * SHARES[name] / sum(SHARES[part] for part in parts[place:])
        if limit > 0:
            done[name] = perform(name, commands(name, request), limit)
            save(request, "gpu", argv, report(parts, done))
    print(report(parts, done))
    if wrong := failures(parts, done):
        raise WorkError(f"not held: {'; '.join(wrong)}")


def check(request: GpuConfig) -> None:
    """Raises RequestError where there is no GPU, or not what the parts asked for need."""
    check_gpu()
    missing = [name for name in TESTS if find_spec(name) is None]
    if {"kernels", "engine"} & set(request.parts) and missing:
        raise RequestError(f"{missing[0]} is not installed: pip install -e '.[dev]', or leave kernels and engine out")
    if not Path("tests/fused").is_dir():
        raise RequestError("the tests are not here; give the command in the folder of the checkout")
    for folder in (request.data / "shards", request.data / "task"):
        if {"run", "startup", "upkeep"} & set(request.parts) and not folder.is_dir():
            raise RequestError(f"no {folder}; give a folder made by data_prep build, by --data")


def commands(name: PartName, request: GpuConfig) -> list[list[str]]:
    """The command lines of a part, without the interpreter."""
    results = ["--results", str(request.results or "null")]
    shape = ["--layers", "12", "--width", "768", "--precision", "bf16", *results, "--batch"]
    base, model = [*shape, "64"], ["--model", str(request.model), *results]
    ours, both = ["--attention", "fused"], ["--attention", "fused,sdpa"]
    shards = ["--data", str(request.data / "shards"), *model]
    many = ["-rs", "-n", str(request.jobs), "-m"]
    # By files: runs that a file's tests share are made once.
    files = "precision/test_deepspeed", "pretrain/test_gpu", "integrations/test_runs", "asa/test_waits"
    engine = [f"tests/{name}.py" for name in files]
    of_part: dict[PartName, list[list[str]]] = {
        # The large ones first and alone: they take the GPU's memory and time.
        "kernels": [
            ["pytest", "tests/fused/test_gpu.py", "-rs", "-m", "gpu"],
            ["pytest", "tests/fused", *many, "not gpu and not slow"],
        ],
        "steps": [["benchmarks", "step-time", "--methods", "vanilla,asa,stock,twin", *both, *base]],
        "timing": [["benchmarks", "kernel-time", "--rows", "64,256", *results]],
        "steps-large": [["benchmarks", "step-time", "--methods", "vanilla,asa", *ours, *shape, "256"]],
        "steps-512": [["benchmarks", "step-time", "--methods", "vanilla,asa", "--lengths", "512", *ours, *base]],
        "memory": [["benchmarks", "memory", "--methods", "twin,asa,vanilla", *both, *base]],
        "engine": [
            ["pytest", *engine, "--dist", "loadfile", *many, "gpu"],
        ],
        "run": [["benchmarks", "half-precision", "--precision", "fp16", *shards]],
        "startup": [["benchmarks", "startup", "--rounds", "1", "--data", str(request.data), *model]],
        "upkeep": [["benchmarks", "upkeep", "--processes", "1", *shards]],
        "methods": [["benchmarks", "step-time", "--methods", "vanilla,smart-1,r_drop,freelb-2,freelb-3", *both, *base]],
    }
    return of_part[name]


def perform(name: PartName, lines: Sequence[Sequence[str]], limit: float) -> Done:
    """Run a part's commands one after the other, all of them though one fails, and print what they do.

    Args: limit, seconds after which what runs is asked to end what it has started, and made to end after some more.
    """
    started, told, outcome = time.monotonic(), "", "ok"
    for line in lines:
        if (left := limit - (time.monotonic() - started)) <= 0:
            outcome = "out of time"
            break
        print(f"== {name}: python -m {shlex.join(line)}", flush=True)
        code, said = _run([sys.executable, "-m", *line], left)
        print(said, flush=True)
        told += said
        if code is None:
            outcome = "out of time"
            break
        outcome = f"failed ({code})" if code else outcome
    return Done(outcome, time.monotonic() - started, told)


def _run(command: list[str], limit: float) -> tuple[int | None, str]:
    """Exit code, None where the limit ended it, and what it printed."""
    # A folder of its own for what it does not remove when it is ended.
    with tempfile.TemporaryFile("w+", errors="replace") as told, tempfile.TemporaryDirectory() as folder:
        # One GPU, the first unless told: a Trainer that sees several would copy the model to each.
        settings = {"CUDA_VISIBLE_DEVICES": "0"} | os.environ | {"TMPDIR": folder}
        # A session of its own, whose processes can be ended together: tests and launchers start some.
        process = subprocess.Popen(command, env=settings, stdout=told, stderr=subprocess.STDOUT, start_new_session=True)
        code: int | None = None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        finally:
            with suppress(ProcessLookupError):  # none is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        told.seek(0)
        return code, told.read()


def report(parts: Sequence[PartName], done: Mapping[PartName, Done]) -> str:
    """A line per part and per bound of what was asked for."""
    lines = [f"{'part':12s}{'outcome':>14}{'seconds':>10}"]
    for name in parts:
        one = done.get(name)
        lines.append(f"{name:12s}{one.outcome:>14}{one.seconds:10.0f}" if one else f"{name:12s}{'not begun':>14}")
    lines.append(f"{'bound':44s}{'asked':>8}{'found':>8}")
    for bound in BOUNDS:
        if bound.part in parts:
            value = bound.found(done[bound.part].told) if bound.part in done else None
            line = f"{bound.name:44s}{'<=' if bound.most else '>='}{bound.bound:6.4g}"
            line += f"{'none':>8}" if value is None else f"{value:8.4g}"
            lines.append(line + ("" if value is None or bound.holds(value) else "  missed"))
    return "\n".join(lines)


def failures(parts: Sequence[PartName], done: Mapping[PartName, Done]) -> list[str]:
    """Parts that are not ok, and bounds that are missed or have no figure."""
    wrong: list[str] = [name for name in parts if name not in done or done[name].outcome != "ok"]
    for bound in BOUNDS:
        if bound.part in done:
            value = bound.found(done[bound.part].told)
            wrong += [] if value is not None and bound.holds(value) else [bound.name]
    return wrong
