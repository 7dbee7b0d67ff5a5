"""What it costs to keep a pre-training run safe and visible: stop flag, log line, checkpoints, resuming.

Processes train as they do under the launcher, on a GPU each where there are GPUs; between
its steps each of the parts is timed by itself, since beside a step's own scatter a hundredth of it could not be seen.
A step with a log line also computes norms of all gradients, inside the update of weights: of two updates, one with
them and one without, the difference is the log line's.
A CPU's kernels give the same bits every time, so the line on deterministic ones is there for GPUs only.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, TypeVar

import torch
from pydantic import Field
from torch.multiprocessing.spawn import spawn

from asa import checkpoint, dist, typed
from asa.config import config
from asa.engine import StepStats
from asa.record import Record
from benchmarks.tables import Recorded, asked, check_gpus
from benchmarks.tables import save as save_table
from benchmarks.updates import Zero, wait
from launch.command import free_port
from pretrain.config import PretrainConfig
from pretrain.config import check as check_pretrain
from pretrain.figures import Meter, figures
from pretrain.loop import Session, update
from pretrain.objective import Terms
from pretrain.progress import progress_bar
from pretrain.run import build, save
from pretrain.stop import Stop
from pretrain.watchdog import Watchdog

STEP, DETERMINISTIC, LOG = "step", "step, deterministic", "log line, each log_every"
T = TypeVar("T")


@config
class UpkeepConfig(Recorded):
    """Time the parts of a pre-training run that are not training."""

    data: Path
    """Shard folder made by data_prep."""
    model: Path
    """Hugging Face folder that the shards were made for."""
    processes: Annotated[int, Field(ge=1, le=16)] = 2
    """Processes that train together, one core or GPU each."""
    global_batch: Annotated[int, Field(ge=1)] = 64
    """Rows of a step."""
    micro_batch: Annotated[int, Field(ge=1)] = 32
    """Rows of a forward pass at most."""
    zero: Zero = 2
    """DeepSpeed ZeRO stage."""
    rounds: Annotated[int, Field(ge=2)] = 9
    """Timed rounds; in each, every part has its turn."""


def upkeep(argv: list[str]) -> None:
    """Cost of the stop flag, log lines, checkpoints and deterministic kernels of a pre-training run."""
    request = asked(UpkeepConfig, argv, "upkeep")
    with tempfile.TemporaryDirectory() as folder:
        training = _training(request, Path(folder))
        cuda = check_gpus((request.processes,))
        check_pretrain(training, request.processes, cuda)
        os.environ |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        # Without it cuBLAS refuses to be deterministic.
        os.environ |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if cuda else {"DS_ACCELERATOR": "cpu"}
        os.environ["WORLD_SIZE"] = str(request.processes)
        spawn(_rank, (request, training, cuda, argv), request.processes)


def _training(request: UpkeepConfig, out: Path) -> PretrainConfig:
    return PretrainConfig(
        data=request.data,
        model=request.model,
        out=out / "run",
        global_batch=request.global_batch,
        micro_batch=request.micro_batch,
        zero=request.zero,
        keep=1,
    )


def _rank(rank: int, request: UpkeepConfig, training: PretrainConfig, cuda: bool, argv: list[str]) -> None:
    """One process: prepares the run, and rank 0 prints."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init(cuda=cuda, launched=True)
    run = build(training, device)
    record = Record(training.out, {}, dist.is_main())
    bar = progress_bar(training.method, 0, 10**6)
    bar.disable = True
    session = Session(run, record, bar, Stop(), Watchdog(0, None), Meter(run), 0.0)
    seconds = measure(session, request.rounds)
    if dist.is_main():
        folder = checkpoint.complete(training.out / "checkpoints")[-1]
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        text = report(request, seconds, size, training.log_every)
        save_table(request, "upkeep", argv, text)
        print(text)
    record.close()
    dist.close()


def measure(session: Session, rounds: int) -> dict[str, list[float]]:
    """Seconds of each part in every round but the first."""
    run = session.run
    root = run.config.out / "checkpoints"

    def step() -> None:
        update(session, log=False)
        run.step += 1

    def deterministic() -> None:
        typed.deterministic()
        step()
        torch.use_deterministic_algorithms(False)

    def log() -> float:
        without, _ = _updated(session, log=False)
        norms, last = _updated(session, log=True)
        line, _ = _timed(lambda: session.record.log("train", run.step, figures(run, *last, session.meter)), run.device)
        return norms - without + line

    def load() -> None:
        checkpoint.load(checkpoint.complete(root)[-1], run.engine, run.method)

    works: dict[str, Callable[[], object]] = {
        STEP: step,
        **({DETERMINISTIC: deterministic} if run.device.type == "cuda" else {}),
        "stop flag, each step": session.stop.agreed,
        LOG: log,
        "checkpoint, save": lambda: save(run, 0.0),
        "checkpoint, load": load,
    }
    found: dict[str, list[float]] = {part: [] for part in works}
    for round_ in range(rounds + 1):
        session.meter.steps += 1
        for part, work in works.items():
            taken = log() if part == LOG else _timed(work, run.device)[0]
            if round_:
                found[part].append(taken)
    return found


def _updated(session: Session, log: bool) -> tuple[float, tuple[Terms, StepStats]]:
    """Makes a step. Seconds of its update of weights alone, and what the step found."""
    run, taken = session.run, list[float]()
    real = run.engine.step

    def timed(norms: bool = False) -> StepStats:
        seconds, stats = _timed(lambda: real(norms), run.device)
        taken.append(seconds)
        return stats

    run.engine.step = timed
    try:
        found = update(session, log)
    finally:
        run.engine.step = real
    run.step += 1
    return sum(taken), found


def _timed(work: Callable[[], T], device: torch.device) -> tuple[float, T]:
    """Seconds that the work takes, begun by all ranks together, and what it returns."""
    wait(device)
    dist.barrier()
    began = time.perf_counter()
    found = work()
    wait(device)
    return time.perf_counter() - began, found


def report(request: UpkeepConfig, seconds: dict[str, list[float]], size: int, log_every: int) -> str:
    """A line for each part: milliseconds, and per step as a share of it."""
    step = median(seconds[STEP])
    lines = [
        f"{request.model.name}, ASA, ZeRO {request.zero}, {request.processes} processes, {request.global_batch} rows a"
        f" step; milliseconds, median (least to most) of {request.rounds}; checkpoint {size / 1e6:.1f} MB"
    ]
    for part, found in seconds.items():
        often = log_every if "log" in part else 1
        share = (
            f"{median(found) / step / often:9.3%} of a step" if "each" in part else f"{median(found) / step:9.2f} steps"
        )
        lines.append(
            f"{part:26s} {1e3 * median(found):9.2f} ({1e3 * min(found):.2f} to {1e3 * max(found):.2f}) {share}"
        )
    return "\n".join(lines)
