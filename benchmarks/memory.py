"""Peak memory of one optimizer step, each in a process of its own: of a GPU if there is one, else of main memory."""

import sys
from collections.abc import Mapping
from statistics import median
from typing import Annotated

import torch
from pydantic import Field

from asa.config import config
from benchmarks.cases import Case, CasesConfig, build, cases, heading, prepare, refused, size
from benchmarks.missed import Missed, check_all, check_some, kept, notes, of_sizes
from benchmarks.peak import Peak, peak_bytes
from benchmarks.plot import check_picture, draw
from benchmarks.steps import VANILLA, bert_config, cycle, task_model
from benchmarks.tables import asked, save
from benchmarks.updates import engine_of, free, settle

MEGA = 2**20


@config
class MemoryConfig(CasesConfig):
    """Peak memory of one optimizer step of training methods and of their peers, on a GPU if there is one."""

    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    """Processes for each step, which take turns; the median counts."""


def memory(argv: list[str]) -> None:
    """Peak memory of optimizer steps, each in a process of its own."""
    request = asked(MemoryConfig, argv, "memory")
    check_picture(request.plot)
    device = prepare(request)
    found: dict[str, dict[str, float]] = {}
    missed: dict[str, Missed] = {}
    tables: list[str] = []
    for length in request.lengths:
        for rows in request.batch:
            name = size(request, rows, length)
            peaks, missed[name] = measure(request, rows, length)
            found[name] = {label: float(one.most) for label, one in peaks.items()}
            table = report(heading(request, rows, length, device), peaks)
            tables.append("\n".join([table, *refused(request, rows, length, device), *notes(missed[name])]))
            print(tables[-1], flush=True)
            save(request, "memory", argv, "\n\n".join(tables))
            print(flush=True)
    if request.plot:
        draw(found, "peak memory", request.plot)
    check_all(of_sizes(missed))


def measure(request: MemoryConfig, rows: int, length: int) -> tuple[dict[str, Peak], Missed]:
    """Medians by case, and the cases that do not work here. Raises what stands in the way of the first where none
    does."""
    found = cases(request)
    # Of every case, or a case that needs no DeepSpeed would begin with another heap than its neighbours.
    first = _load_engine if set(request.precision) != {"fp32"} else None
    peaks: dict[str, list[Peak]] = {label: [] for label in found}
    missed: Missed = {}
    for _ in range(request.repeats):
        for label in [label for label in found if label not in missed]:
            with kept(missed, label):
                peaks[label].append(peak_bytes(_twice, request, found[label], rows, length, first=first))
                print(f"{label}: {peaks[label][-1].most / MEGA:.0f} MB", file=sys.stderr, flush=True)
    peaks = {label: taken for label, taken in peaks.items() if label not in missed}
    check_some(peaks, missed)
    middle = {label: Peak(*(int(median(part)) for part in zip(*taken, strict=True))) for label, taken in peaks.items()}
    return middle, missed


def _load_engine() -> None:
    """Import what steps in half precision do, which is no memory of theirs: most of it comes with the first engine."""
    if torch.cuda.is_available():
        return  # whose memory has no modules
    shape = bert_config(1, 64, "sdpa")
    shape.vocab_size = 99  # as small as it goes: what is freed again could pass for memory that a step does not need
    engine_of(task_model(shape, VANILLA, "mlm"), torch.device("cpu"), "bf16", 2)
    free()


def _twice(request: MemoryConfig, case: Case, rows: int, length: int) -> object:
    """The second step has the optimizer's state and a teacher beside it. On a GPU it alone counts, and not
    what the start took and gave back."""
    device = prepare(request)
    step = build(request, case, rows, length, device)
    if case.precision == "fp16":
        settle(step)  # an update that overflows leaves the optimizer without its state
    for again in (False, True):
        if again and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for _ in range(cycle(case.name)):
            step()
    return step


def report(heading: str, peaks: Mapping[str, Peak]) -> str:
    """A line per case: the peak, what of it stays between steps (weights, optimizer) and what a step adds, each of
    those that count also relative to the first case's."""
    wide = max(15, *(len(label) + 1 for label in peaks))
    lines = [f"{heading}; MB", f"{'step':{wide}s}{'peak':>9}{'ratio':>8}{'stays':>9}{'added':>9}{'ratio':>8}"]
    first = next(iter(peaks.values()))
    for label, one in peaks.items():
        line = f"{label:{wide}s}{one.most / MEGA:9.0f}{one.most / first.most:8.3f}{one.stays / MEGA:9.0f}"
        lines.append(line + f"{one.added / MEGA:9.0f}{one.added / first.added:8.3f}")
    return "\n".join(lines)
