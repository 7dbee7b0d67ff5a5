"""Seconds and memory of one optimizer step by PlainEngine: of any of our methods and of Hugging Face's step.

The steps take turns in one process, so that a busy machine slows all alike; what counts are the medians' ratios. Peak
memory is that of a process of its own.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import torch
from pydantic import Field
from tqdm import tqdm
from transformers import PreTrainedConfig

from asa.config import config
from asa.errors import RequestError
from asa.families import family
from benchmarks.peak import peak_bytes
from benchmarks.plot import draw
from benchmarks.steps import StepName, Task, bert_config, cycle, folder_config, names_of, task_batch
from benchmarks.updates import Step, build_step
from cli import parse

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
MEGA = 2**20
PICTURES = (".png", ".svg", ".pdf")


@config
class StepTimeConfig:
    """Time one optimizer step of training methods and of Hugging Face's own, fp32, on a GPU if there is one."""

    methods: Annotated[tuple[StepName, ...], Field(min_length=1)] = ("vanilla", "asa", "stock")
    """Steps by name: any method, stock for Hugging Face's own, or all for every method. The first one is what the
    others are compared with."""
    task: Task = "mlm"
    """What the steps train on: mlm or classification."""
    model: Path | None = None
    """Hugging Face folder whose shape is timed, with random weights; without it a BERT of `layers` and `width`."""
    layers: Annotated[int, Field(ge=1, le=96)] = 4
    """Layers (without `model`)."""
    width: Annotated[int, Field(ge=64, le=8192, multiple_of=64)] = 256
    """Hidden width, a multiple of 64 (without `model`)."""
    lengths: Annotated[tuple[Annotated[int, Field(ge=8, le=8192)], ...], Field(min_length=1)] = (256,)
    """Tokens per row; a table for each."""
    batch: Annotated[int, Field(ge=1, le=4096)] = 8
    """Rows per step."""
    repeats: Annotated[int, Field(ge=1, le=10_000)] = 7
    """Timed rounds; each step runs once per round (a method whose steps differ: once with each)."""
    warmup: Annotated[int, Field(ge=0, le=1000)] = 2
    """Rounds before the timed ones."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads torch uses; 0 leaves its own choice."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Hugging Face attention implementation."""
    clock: Literal["wall", "processor"] = "wall"
    """wall, or processor: the time of all threads of this process, for CPUs that others use too."""
    memory: bool = False
    """Measure peak memory too, each step in a process of its own."""
    plot: Path | None = None
    """Picture of the ratios to write: .png, .svg or .pdf."""


def step_time(argv: list[str]) -> None:
    """Time optimizer steps of our methods and of Hugging Face's, in turns."""
    request = parse(StepTimeConfig, argv, "python -m benchmarks step-time")
    if request.plot and request.plot.suffix not in PICTURES:
        raise RequestError(f"plot = {request.plot}: allowed: a name that ends in {', '.join(PICTURES)}; set --plot")
    names, found = names_of(request.methods), {}
    for length in request.lengths:
        seconds = {name: median(taken) for name, taken in measure(request, length).items()}
        peaks = {name: peak_bytes(_twice, request, name, length) for name in names} if request.memory else {}
        found[length] = seconds, peaks
        print(report(request, length, seconds, peaks), flush=True)
    if request.plot:
        draw(found, request.plot)


def prepare(request: StepTimeConfig) -> torch.device:
    if request.threads:
        torch.set_num_threads(request.threads)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def measure(request: StepTimeConfig, length: int) -> dict[str, list[float]]:
    """Seconds of every timed batch, by step, in order. Raises RequestError for a length that has no positions."""
    device = prepare(request)
    steps = {name: _build(request, name, length, device) for name in names_of(request.methods)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in tqdm(range(request.warmup + request.repeats), f"length {length}", leave=False, disable=None):
        for name, step in steps.items():
            taken = _time(step, cycle(name), device, CLOCKS[request.clock])
            if round_ >= request.warmup:
                seconds[name].append(taken)
    return seconds


def _build(request: StepTimeConfig, name: str, length: int, device: torch.device) -> Step:
    """One batch by the step `name`, with its update. Raises RequestError for a length that has no positions."""
    shape = _shape(request, length)
    batch = task_batch(request.task, request.batch, length, shape.vocab_size).to(device)
    return build_step(shape, name, batch, device)


def _shape(request: StepTimeConfig, length: int) -> PreTrainedConfig:
    if request.model is None:
        shape = bert_config(request.layers, request.width, request.attention)
        shape.max_position_embeddings = max(length, shape.max_position_embeddings)
        return shape
    shape = folder_config(request.model, request.attention)
    most = family(shape.model_type).longest(shape)
    if length > most:
        raise RequestError(f"lengths = {length}: {request.model} has positions for 8 to {most}; set --lengths")
    return shape


def _twice(request: StepTimeConfig, name: str, length: int) -> None:
    """What peak memory is measured of: the second step has the optimizer's state and a teacher beside it."""
    step = _build(request, name, length, prepare(request))
    for _ in range(2 * cycle(name)):
        step()


def _time(step: Step, times: int, device: torch.device, clock: Callable[[], float]) -> float:
    """Seconds of a step, the mean of `times` in a row."""
    _wait(device)
    started = clock()
    for _ in range(times):
        step()
    _wait(device)
    return (clock() - started) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(request: StepTimeConfig, length: int, seconds: dict[str, float], peaks: dict[str, int]) -> str:
    """A line per step: milliseconds and megabytes of a batch, each also relative to the first step's."""
    lines = [_heading(request, length), f"{'step':15s}{'ms':>10}{'ratio':>8}" + f"{'MB':>9}{'ratio':>8}" * bool(peaks)]
    first = next(iter(seconds))
    for name, taken in seconds.items():
        line = f"{name:15s}{1000 * taken:10.1f}{taken / seconds[first]:8.3f}"
        if peaks:
            line += f"{peaks[name] / MEGA:9.0f}{peaks[name] / peaks[first]:8.3f}"
        lines.append(line)
    return "\n".join(lines)


def _heading(request: StepTimeConfig, length: int) -> str:
    on_gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    what = request.model or f"BERT {request.layers} x {request.width}"
    rounds = f"{request.clock} time, medians of {request.repeats} rounds after {request.warmup}"
    rounds += f", load {os.getloadavg()[1]:.1f}"
    return f"{what}, {request.task}, {request.batch} rows of {length}, {request.attention}, fp32, {where}; {rounds}"
