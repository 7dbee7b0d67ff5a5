"""A pre-training run in half precision beside the same one in fp32, as a user has them: `python -m launch pretrain`, a
stop on the way, the same command again, and an export, from which a last run reads the held-out loss anew.
"""

import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field

from asa import manifest, record
from asa.config import config
from asa.errors import WorkError
from asa.methods import MethodName
from benchmarks.commands import printed, refuse, started
from benchmarks.tables import Recorded, asked, save
from pretrain.config import PretrainConfig, check

LINES = 30  # log lines of a run
SHOWN = 10  # of them in the table


@config
class HalfPrecisionConfig(Recorded):
    """Losses, loss scale, checkpoint and export of a pre-training run in half precision, beside the same in fp32."""

    data: Path
    """Shard folder made by data_prep."""
    model: Path
    """Hugging Face folder that the shards were made for."""
    precision: Literal["fp16", "bf16"] = "fp16"
    """Of the run that fp32 is compared with; fp16 needs a GPU."""
    method: MethodName = "asa"
    """Training method."""
    zero: Literal[0, 1, 2, 3] = 2
    """DeepSpeed ZeRO stage."""
    steps: Annotated[int, Field(ge=2)] = 150
    """Optimizer steps of each run."""
    batch: Annotated[int, Field(ge=1)] = 64
    """Rows of a step."""
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-3
    """Largest learning rate."""


class Found(NamedTuple):
    """A run. train, evals: the record's events, of a run that was stopped and continued once. resumed: the step after
    which it was. exported: held-out loss of the export, read anew."""

    train: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    resumed: int
    exported: float


def half_precision(argv: list[str]) -> None:
    """A pre-training run in fp16 or bf16 beside one in fp32: losses, loss scale, checkpoint, export."""
    request = asked(HalfPrecisionConfig, argv, "half-precision")
    with tempfile.TemporaryDirectory() as folder:
        _check(request, Path(folder) / "run")
        found = dict[str, Found]()
        for name in ("fp32", request.precision):
            found[name] = measure(request, name, Path(folder) / name)
            print(ends(name, found[name]), flush=True)  # whoever ends this before the other is made has that much
    text = report(request, found, manifest.read(request.data, "shards", "--data")["length"])
    print(text)
    save(request, "half-precision", argv, text)


def _check(request: HalfPrecisionConfig, out: Path) -> None:
    """Raises RequestError or WorkError for what the second run would refuse after the first was made."""
    settings: dict[str, Any] = {"method": request.method, "zero": request.zero, "precision": request.precision}
    settings |= {"global_batch": request.batch, "micro_batch": request.batch, "steps": request.steps}
    config = PretrainConfig(data=request.data, model=request.model, out=out, **settings)
    check(config, 1, torch.cuda.is_available())


def measure(request: HalfPrecisionConfig, precision: str, folder: Path) -> Found:
    """Raises WorkError where one of the commands fails, and where the run is over before it is stopped."""
    run, export = folder / "run", folder / "export"
    command = [*_pretrain(request, run), "--method", request.method, "--precision", precision]
    command += ["--steps", str(request.steps)]
    if stop(command, run / record.NAME):
        printed(command)
    events = record.read(run / record.NAME)
    resumed = [one["step"] for one in events if one["event"] == "resume"]
    if not resumed:
        raise WorkError(f"the run in {precision} ended before it could be stopped; raise --steps")
    printed([sys.executable, "-m", "pretrain", "export", "--checkpoint", str(run), "--out", str(export)])
    again = folder / "again"
    printed([*_pretrain(request, again, export), "--method", "vanilla", "--steps", "1"])
    train, evals = ([one for one in events if one["event"] == kind] for kind in ("train", "eval"))
    first = next(one for one in record.read(again / record.NAME) if one["event"] == "eval")
    return Found(train, evals, resumed[0], first["heldout_loss"])


def _pretrain(request: HalfPrecisionConfig, out: Path, model: Path | None = None) -> list[str]:
    """The command of a run, but for what its two kinds differ in."""
    every = max(1, request.steps // LINES)
    flags = {"data": request.data, "model": model or request.model, "out": out, "zero": request.zero, "nproc": 1}
    flags |= {"global_batch": request.batch, "micro_batch": request.batch, "optim.lr": request.lr}
    flags |= {"log_every": every, "eval_every": request.steps, "save_every": request.steps}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "launch", "pretrain", *words]


def stop(command: list[str], path: Path) -> bool:
    """Start a run and stop it by SIGTERM after its first log line; False where it came to its end before.

    path: the run's record. Raises WorkError where the run fails.
    """
    with started(command) as (process, told):
        while process.poll() is None and not any(one.get("event") == "train" for one in record.parsed(path)):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)  # does nothing where it has ended
        code = process.wait()
        refuse(code if code != 128 + signal.SIGTERM else 0, command, told)
    return code != 0


def report(request: HalfPrecisionConfig, found: dict[str, Found], length: int) -> str:
    """Losses by step beside each other, with the loss scale; then the ends, and what became of stop and export."""
    full, half = found.values()
    lines = [
        f"{request.model.name}, {request.method}, {request.steps} steps of {request.batch} rows of {length},"
        f" ZeRO {request.zero}, 1 process",
        f"{'step':>6}{'fp32':>10}{request.precision:>10}{'loss scale':>12}{'left out':>10}",
    ]
    pairs = list(zip(full.train, half.train, strict=True))
    step = max(1, -(-len(pairs) // SHOWN))
    for one, other in pairs[(len(pairs) - 1) % step :: step]:
        line = f"{one['step']:6d}{one['task']:10.4f}{other['task']:10.4f}"
        lines.append(line + f"{other['loss_scale']:12.0f}{other['skipped']:10d}")
    apart = mean(other["task"] - one["task"] for one, other in pairs)
    lines.append(f"{request.precision} - fp32, mean over {len(pairs)} log lines: {apart:+.4f}")
    return "\n".join([*lines, *(ends(name, run) for name, run in found.items())])


def ends(name: str, run: Found) -> str:
    """Held-out losses, the stop, the rate."""
    before, after = (run.evals[place]["heldout_loss"] for place in (0, -1))
    told = f"{name}: held-out loss {before:.4f} before, {after:.4f} after, {run.exported:.4f} of the export"
    told += f"; stopped after step {run.resumed} and continued"
    rates = [one["tokens_per_s"] for one in run.train if "tokens_per_s" in one]  # none of a process's first step
    return f"{told}; {f'{median(rates):.0f}' if rates else '-'} tokens a second"
