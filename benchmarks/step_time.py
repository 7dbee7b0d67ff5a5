"""Seconds of one optimizer step: of any of our methods, of Hugging Face's step and of the slow twin.

The steps take turns in one process, so that a busy machine slows all alike; what counts are the medians' ratios.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.stats import bootstrap
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from asa import dist
from asa.adversary import merges
from asa.config import config
from asa.errors import RequestError, WorkError
from benchmarks.cases import (
    Case,
    CasesConfig,
    Step,
    batch_of,
    build,
    cases,
    heading,
    prepare,
    refused,
    shape_of,
    size,
    way_of,
)
from benchmarks.missed import Missed, check_all, check_some, kept, notes, of_sizes
from benchmarks.passes import cost, count
from benchmarks.plot import check_picture, draw
from benchmarks.steps import (
    ASA,
    PAIRS,
    PEERS,
    TWIN,
    bare_model,
    cycle,
    ratios,
    show,
    stock_loss,
    task_model,
    twin_model,
)
from benchmarks.tables import asked, save
from benchmarks.updates import TRIALS, free, made, settle, wait
from pretrain.figures import peak

LEAST_ROUNDS = 5  # of which it is told how far a ratio strays
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


@config
class StepTimeConfig(CasesConfig):
    """Time one optimizer step of training methods and of their peers, on a GPU if there is one."""

    repeats: Annotated[int, Field(ge=1, le=10_000)] = 7
    """Timed rounds; each step runs once per round (a method whose steps differ: once with each)."""
    warmup: Annotated[int, Field(ge=0, le=1000)] = 2
    """Rounds before the timed ones."""
    clock: Literal["wall", "processor"] = "wall"
    """wall, or processor (CPUs only): the time of all threads of this process, where others use the machine too."""


def step_time(argv: list[str]) -> None:
    """Time optimizer steps of our methods and of their peers, in turns."""
    request = asked(StepTimeConfig, argv, "step-time")
    check_picture(request.plot)
    device = prepare(request)
    if request.clock == "processor" and device.type == "cuda":
        raise RequestError("clock processor counts the CPU's time, and the work is the GPU's; set --clock wall")
    found: dict[str, dict[str, float]] = {}
    missed: dict[str, Missed] = {}
    tables: list[str] = []
    try:
        for length in request.lengths:
            for rows in request.batch:
                name = size(request, rows, length)
                seconds, missed[name] = measure(request, rows, length, device)
                found[name] = {label: median(taken) for label, taken in seconds.items()}
                table = report(request, rows, length, device, seconds)
                tables.append("\n".join([table, *refused(request, rows, length, device), *notes(missed[name])]))
                print(tables[-1], flush=True)
                save(request, "step-time", argv, "\n\n".join(tables))
                print(flush=True)
    finally:
        dist.close()
    if request.plot:
        draw(found, "time of a batch", request.plot)
    check_all(of_sizes(missed))


def measure(
    request: StepTimeConfig, rows: int, length: int, device: torch.device
) -> tuple[dict[str, list[float]], Missed]:
    """Seconds of every timed batch, by case, in order, and the cases that do not work here. Raises what stands in the
    way of the first where none does."""
    # What is compiled for other shapes would be compared with these.
    torch._dynamo.reset()
    try:
        return _turns(request, rows, length, device)
    finally:
        free()


def _turns(
    request: StepTimeConfig, rows: int, length: int, device: torch.device
) -> tuple[dict[str, list[float]], Missed]:
    """Holds the steps, which nobody does when it is left."""
    found = cases(request)
    missed: Missed = {}
    steps: dict[str, Step] = {}
    for label, case in found.items():
        before = made()
        with kept(missed, label):
            steps[label] = build(request, case, rows, length, device)
            settle(steps[label], cycle(case.name))
        if label in missed:
            steps.pop(label, None)
            free(before)
    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for round_ in tqdm(range(request.warmup + request.repeats), f"length {length}", leave=False, disable=None):
        for label in [label for label in steps if label not in missed]:
            with kept(missed, label):
                taken = _time(steps[label], cycle(found[label].name), device, CLOCKS[request.clock])
                if round_ >= request.warmup:
                    seconds[label].append(taken)
            if label in missed:
                del steps[label]
                free(made())
    seconds = {label: taken for label, taken in seconds.items() if label not in missed}
    check_some(seconds, missed)
    return seconds, missed


def _time(step: Step, times: int, device: torch.device, clock: Callable[[], float]) -> float:
    """Seconds of a step, the mean of `times` in a row, all of whose updates were applied: fp16 tries a larger loss
    scale now and then, and an update that overflows and is left out takes less. Raises: WorkError where all do."""
    for _ in range(TRIALS):
        wait(device)
        started = clock()
        applied = [step() for _ in range(times)]
        wait(device)
        if all(applied):
            return (clock() - started) / times
    raise WorkError(f"{TRIALS} updates in fp16 overflowed; set --precision bf16 or fp32")


def report(
    request: StepTimeConfig, rows: int, length: int, device: torch.device, seconds: Mapping[str, list[float]]
) -> str:
    """A line per case: milliseconds, relative to the first one's, rows a second, on a GPU the share of its peak. Then
    the ratios that are bounded."""
    middle = {label: median(taken) for label, taken in seconds.items()}
    used = utilisation(request, rows, length, middle, device)
    wide = max(15, *(len(label) + 1 for label in middle))
    rounds = f"{request.clock} time, medians of {request.repeats} rounds after {request.warmup}"
    lines = [f"{heading(request, rows, length, device)}; {rounds}, load {os.getloadavg()[1]:.1f}"]
    mfu = f"{'MFU':>8}" if used else ""
    lines.append(f"{'step':{wide}s}{'ms':>10}{'least':>10}{'ratio':>8}{'rows/s':>10}{mfu}")
    first = next(iter(middle))
    for label, taken in middle.items():
        line = f"{label:{wide}s}{1000 * taken:10.1f}{1000 * min(seconds[label]):10.1f}{taken / middle[first]:8.3f}"
        line += f"{rows / taken:10.1f}"
        lines.append(line + (f"{used[label]:8.1%}" if label in used else ""))
    return "\n".join([*lines, *_bounded(request, seconds)])


def _bounded(request: StepTimeConfig, seconds: Mapping[str, list[float]]) -> list[str]:
    """A line of ratios for each attention and precision that the table has, of several rounds with their intervals."""
    found, lines = cases(request), []
    for precision in dict.fromkeys(request.precision):
        for way in dict.fromkeys(request.attention):
            mine = {
                case.name: seconds[label]
                for label, case in found.items()
                if label in seconds and case.precision == precision and case.attention == way_of(case.name, way)
            }
            found_ratios = ratios({name: median(taken) for name, taken in mine.items()}, [*PAIRS, (ASA, TWIN)])
            shown = ", ".join(
                f"{show(pair)} {value:.3f}{interval(mine[pair[0]], mine[pair[1]])}"
                for pair, value in found_ratios.items()
            )
            lines += [f"{way}, {precision}: {shown}"] if shown else []
    return lines


def interval(ones: Sequence[float], others: Sequence[float]) -> str:
    """Between which ratios of medians 95 % lie where the rounds, in each of which both were timed, are drawn anew:
    ` (2.051-2.142)`. Nothing for less than five rounds, which tell too little."""
    if len(ones) < LEAST_ROUNDS:
        return ""
    found = bootstrap(
        (ones, others),
        lambda one, other, axis=-1: np.median(one, axis=axis) / np.median(other, axis=axis),
        paired=True,
        batch=100,  # not all of them in memory
        method="percentile",
        rng=0,
    ).confidence_interval
    return f" ({found.low:.3f}-{found.high:.3f})"


def utilisation(
    request: StepTimeConfig, rows: int, length: int, middle: Mapping[str, float], device: torch.device
) -> dict[str, float]:
    """By case, the share of the device's peak that its matrix products take (MFU); none where no peak is known."""
    found: dict[str, float] = {}
    counted: dict[str, float] = {}  # by step: no attention and no precision changes it
    for label, case in cases(request).items():
        most = peak(device, case.precision)
        if most is not None and label in middle:
            if case.name not in counted:
                counted[case.name] = flops(request, case, rows, length)
            found[label] = counted[case.name] / middle[label] / most
    return found


def flops(request: StepTimeConfig, case: Case, rows: int, length: int) -> float:
    """FLOPs of the matrix products of one batch."""
    try:
        with FakeTensorMode():
            return _counted(request, case, rows, length)
    except DataDependentOutputException:  # ModernBERT reads what is in its mask, which a fake tensor lacks
        # All of them would take minutes: from the number on at which an adversary makes its maps one, a row is a row.
        width = shape_of(request, case.attention, length).hidden_size
        few = next(n for n in range(1, rows + 1) if n == rows or merges(torch.Size((n, length, width))))
        one, two = (_counted(request, case, some, length) for some in (few, few + 1))
        return one + (rows - few) * (two - one)


def _counted(request: StepTimeConfig, case: Case, rows: int, length: int) -> float:
    shape = shape_of(request, "eager" if case.attention == "eager" else "sdpa", length)
    batch = batch_of(request, shape, rows, length, torch.device("cpu"))
    with sdpa_kernel(SDPBackend.MATH):  # torch knows no FLOPs of its flash attention for CPUs
        if case.name not in PEERS:
            return cost(task_model(shape, case.name, request.task), case.name, batch).flops
        if case.name == TWIN:
            twin = twin_model(shape, request.task)
            return count(lambda: twin(batch).backward())
        model = bare_model(shape, request.task)
        return count(lambda: stock_loss(model, batch).backward())
