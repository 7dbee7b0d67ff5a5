"""Seconds of one optimizer step by PlainEngine: our vanilla MLM, our ASA MLM and Hugging Face's step.

The steps take turns in one process, so that a busy machine slows all alike; what counts are the medians' ratios.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import torch
from pydantic import Field
from transformers import AutoModelForMaskedLM, PreTrainedConfig

from asa.batch import Batch
from asa.config import config
from asa.engine import PlainEngine
from asa.errors import RequestError
from asa.families import family
from asa.optim import OptimConfig, build_optimizer
from benchmarks.steps import (
    ASA,
    STOCK,
    VANILLA,
    bert_config,
    folder_config,
    mlm_batch,
    our_backward,
    ratios,
    show,
    stock_backward,
    task_model,
)
from cli import parse

Step = Callable[[], None]


@config
class StepTimeConfig:
    """Time one optimizer step of vanilla MLM, ASA MLM and Hugging Face's MLM, fp32, on a GPU if there is one."""

    model: Path | None = None
    """Hugging Face folder whose shape is timed, with random weights; without it a BERT of `layers` and `width`."""
    layers: Annotated[int, Field(ge=1, le=96)] = 4
    """Layers (without `model`)."""
    width: Annotated[int, Field(ge=64, le=8192, multiple_of=64)] = 256
    """Hidden width, a multiple of 64 (without `model`)."""
    length: Annotated[int, Field(ge=8, le=8192)] = 256
    """Tokens per row."""
    batch: Annotated[int, Field(ge=1, le=4096)] = 8
    """Rows per step."""
    repeats: Annotated[int, Field(ge=1, le=10_000)] = 7
    """Timed rounds; each step runs once per round."""
    warmup: Annotated[int, Field(ge=0, le=1000)] = 2
    """Rounds before the timed ones."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads torch uses; 0 leaves its own choice."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Hugging Face attention implementation."""


def step_time(argv: list[str]) -> None:
    """Time a vanilla, an ASA and a stock Hugging Face optimizer step, in turns."""
    request = parse(StepTimeConfig, argv, "python -m benchmarks step-time")
    if request.threads:
        torch.set_num_threads(request.threads)
    seconds = measure(request, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    print(report(request, seconds))


def measure(request: StepTimeConfig, device: torch.device) -> dict[str, list[float]]:
    """Seconds of every timed step, by name, in order. Raises RequestError for a length that has no positions."""
    steps = build_steps(request, device)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(request.warmup + request.repeats):
        for name, step in steps.items():
            taken = _time(step, device)
            if round_ >= request.warmup:
                seconds[name].append(taken)
    return seconds


def build_steps(request: StepTimeConfig, device: torch.device) -> dict[str, Step]:
    shape = _shape(request)
    batch = mlm_batch(request.batch, request.length, shape.vocab_size).to(device)
    torch.manual_seed(0)
    steps = {name: _our_step(shape, name, batch, device) for name in (VANILLA, ASA)}
    return steps | {STOCK: _stock_step(shape, batch, device)}


def _shape(request: StepTimeConfig) -> PreTrainedConfig:
    if request.model is None:
        shape = bert_config(request.layers, request.width, request.attention)
        shape.max_position_embeddings = max(request.length, shape.max_position_embeddings)
        return shape
    shape = folder_config(request.model, request.attention)
    most = family(shape.model_type).longest(shape)
    if request.length > most:
        raise RequestError(f"length = {request.length}: {request.model} has positions for 8 to {most}; set --length")
    return shape


def _our_step(shape: PreTrainedConfig, name: str, batch: Batch, device: torch.device) -> Step:
    engine = PlainEngine(task_model(shape, name).train(), OptimConfig(), steps=1_000_000, device=device)
    backward = our_backward(engine, name, batch)

    def step() -> None:
        backward()
        engine.step()

    return step


def _stock_step(shape: PreTrainedConfig, batch: Batch, device: torch.device) -> Step:
    model = AutoModelForMaskedLM.from_config(shape).to(device).train()
    optim = OptimConfig()
    optimizer = build_optimizer(model, optim)
    backward = stock_backward(model, batch)

    def step() -> None:
        backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _time(step: Step, device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    step()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(request: StepTimeConfig, seconds: dict[str, list[float]]) -> str:
    """Milliseconds (median, smallest, largest) per step, then the ratios of the medians."""
    lines = [_heading(request), f"{'step':8s} {'median ms':>10} {'min':>8} {'max':>8}"]
    for name, taken in seconds.items():
        low, middle, high = (1000 * value for value in (min(taken), median(taken), max(taken)))
        lines.append(f"{name:8s} {middle:10.1f} {low:8.1f} {high:8.1f}")
    found = ratios({name: median(taken) for name, taken in seconds.items()})
    return "\n".join([*lines, "ratios: " + ", ".join(f"{show(pair)} {value:.3f}" for pair, value in found.items())])


def _heading(request: StepTimeConfig) -> str:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    what = request.model or f"BERT {request.layers} x {request.width}"
    rounds = f"{request.repeats} rounds after {request.warmup}"
    return f"{what}, {request.batch} rows of {request.length}, {rounds}, {request.attention}, fp32, {where}"
