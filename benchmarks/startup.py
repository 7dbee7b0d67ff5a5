"""Time to the first step of real runs, from the command's start, and what their steps wait for.

A run is started as `python -m launch` starts it: its dry run checks the request and prints the command lines, which are
then run with benchmarks/startup_run.py in the module's place, which is the stage itself with its parts timed. Beside
the two stages the bare imports of torch and transformers take their turn, a floor for what a start can take. What
checkpoints cost is told by `upkeep`.
"""

import json
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

from pydantic import Field

from asa import manifest
from asa.config import config
from asa.errors import RequestError, WorkError
from asa.methods import MethodName
from benchmarks.commands import printed
from benchmarks.tables import Recorded, asked, save

BARE = "import torch, transformers"
PARTS = ("launch", "imports", "data", "model", "engine", "evaluation", "rest", "first step")
Part = dict[str, float]


@config
class StartupConfig(Recorded):
    """Time a pre-training run and a fine-tuning run from the command to the first step, part by part."""

    data: Path
    """Folder made by data_prep build: its shards/ are pre-trained on, its task/ is fine-tuned on."""
    model: Path
    """Hugging Face folder that the shards were made for."""
    method: MethodName = "asa"
    """Training method."""
    batch: Annotated[int, Field(ge=1)] = 32
    """Rows of a step."""
    steps: Annotated[int, Field(ge=2)] = 20
    """Steps of a run; those after the first tell what a step waits for."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """Runs of each kind, which take turns."""


class Started(NamedTuple):
    """A run. until: seconds of each of PARTS, one after the other. later: seconds of the steps after the first, by
    part. steps, evaluations: how many of them were made meanwhile; a small task ends before the steps asked for."""

    until: Part
    later: Part
    steps: int
    evaluations: int


def startup(argv: list[str]) -> None:
    """Time to first step of pre-training and fine-tuning by parts, and the data wait of their steps."""
    request = asked(StartupConfig, argv, "startup")
    for name in ("shards", "task"):
        if not (request.data / name).is_dir():
            raise RequestError(f"no {request.data / name}; give a folder made by data_prep build, by --data")
    text = report(request, *measure(request))
    print(text)
    save(request, "startup", argv, text)


def measure(request: StartupConfig) -> tuple[dict[str, list[Started]], list[float]]:
    """The runs by stage, and the seconds of the bare imports. Raises WorkError where a run fails."""
    runs: dict[str, list[Started]] = {"pretrain": [], "finetune": []}
    bare: list[float] = []
    for round_ in range(1, request.rounds + 1):
        began = time.perf_counter()
        printed([sys.executable, "-c", BARE])
        bare.append(time.perf_counter() - began)
        for stage, found in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                found.append(start(stage, arguments(request, stage, Path(folder) / "run"), Path(folder) / "told"))
            # Now: a later run that fails, or is cut off, takes the table along.
            until = sum(found[-1].until.values())
            print(f"{stage}, run {round_}: {until:.1f} s to the first step; {_later(found[-1:])}", file=sys.stderr)
    return runs, bare


def arguments(request: StartupConfig, stage: str, out: Path) -> list[str]:
    """The flags of a short run."""
    count = str(request.steps)
    if stage == "pretrain":
        flags = {"data": request.data / "shards", "model": request.model, "method": request.method, "nproc": 1}
        flags |= {"steps": count, "eval_every": count, "save_every": count, "eval_rows": 64}
        flags |= {"global_batch": request.batch, "micro_batch": request.batch}
    else:
        flags = {"task.folder": request.data / "task", "models.base": request.model, "methods": request.method}
        length = manifest.read(request.data / "shards", "shards", "--data")["length"]
        flags |= {"max_steps": count, "seeds": 0, "batch": request.batch, "length": length, "nproc": 1}
    return [word for name, value in (flags | {"out": out}).items() for word in (f"--{name}", str(value))]


def start(stage: str, flags: list[str], told: Path) -> Started:
    """One run, from the launcher's command to its end."""
    began = time.time()
    shown = printed([sys.executable, "-m", "launch", stage, *flags, "--dry_run", "true"])
    words = shlex.split(next(line for line in shown.splitlines() if line.startswith("$ "))[2:])
    count = next(index for index, word in enumerate(words) if "=" not in word)
    settings, command = dict(word.split("=", 1) for word in words[:count]), words[count:]
    module = command.index(stage)
    command[module : module + 2] = ["benchmarks.startup_run", stage, str(told)]
    printed(command, settings)
    found = json.loads(told.read_text())
    if not found["steps"]:
        raise WorkError(f"{stage} made one step alone, after which nothing is timed; lower --batch")
    until = dict.fromkeys(PARTS, 0.0) | found["until"] | {"launch": found["created"] - began}
    return Started(until, found["later"], found["steps"], found["evaluations"])


def report(request: StartupConfig, runs: dict[str, list[Started]], bare: list[float]) -> str:
    """A line per part: seconds, medians, and the share of the whole; then what the steps after the first wait for."""
    floor = median(bare)
    lines = [
        f"{request.model.name}, {request.method}, {request.batch} rows a step, 1 process; seconds to the first step,"
        f" medians of {request.rounds} runs, load {os.getloadavg()[1]:.1f}",
        f"{'part':12s}" + "".join(f"{stage:>12s}{'share':>9}" for stage in runs),
    ]
    middle = {
        stage: {part: median(one.until[part] for one in found) for part in PARTS} for stage, found in runs.items()
    }
    whole = {stage: median(sum(one.until.values()) for one in found) for stage, found in runs.items()}
    for part in PARTS:
        shown = (f"{middle[stage][part]:12.2f}{middle[stage][part] / whole[stage]:9.1%}" for stage in runs)
        lines.append(f"{part:12s}" + "".join(shown))
    lines.append(f"{'whole':12s}" + "".join(f"{value:12.2f}{1:9.1%}" for value in whole.values()))
    lines.append(f"bare imports of torch and transformers: {floor:.2f}")
    for stage, found in runs.items():
        lines.append(f"{stage}: imports / bare imports {middle[stage]['imports'] / floor:.2f}; {_later(found)}")
    return "\n".join(lines)


def _later(found: list[Started]) -> str:
    """What the steps after the first wait for, and what evaluations take."""
    spent = [one.later["step"] + one.later.get("data", 0.0) for one in found]
    wait = median(one.later.get("data", 0.0) / seconds for one, seconds in zip(found, spent, strict=True))
    each = median(seconds / one.steps for one, seconds in zip(found, spent, strict=True))
    evaluations = median(one.later.get("evaluation", 0.0) / max(1, one.evaluations) for one in found)
    return f"a step {1e3 * each:.1f} ms, of it data wait {wait:.2%}; an evaluation {evaluations / each:.1f} steps"
