"""One process of `python -m benchmarks scaling`: builds every engine, then waits for its turns."""

import json
import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import TCPStore
from torch.profiler import ProfilerActivity, profile

from asa import dist
from asa.batch import Batch
from asa.config import from_dict
from asa.errors import WorkError
from benchmarks.scaling import END, ScalingConfig, engines
from benchmarks.steps import bert_config, cycle, task_batch
from benchmarks.updates import TRIALS, Train, settle, trainer, wait

PATIENCE = timedelta(days=1)  # the command ends its processes


def main(settings: Path, port: int) -> None:
    request = from_dict(ScalingConfig, yaml.safe_load(settings.read_text()))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init(cuda, launched=True, timeout=PATIENCE)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)
    trains, batch = _trains(request, device), _batch(request, device)
    for train in trains.values():
        settle(partial(train, batch), cycle(request.method))
    if dist.is_main():
        store.set(f"ready/{dist.world()}", "")
    turn = 0
    while (kind := store.get(f"go/{dist.world()}/{turn}").decode()) != END:
        profiled, times = kind == "profiled", cycle(request.method)
        taken = {name: step_seconds(train, batch, profiled, times) for name, train in trains.items()}
        if dist.is_main():
            store.set(f"done/{dist.world()}/{turn}", json.dumps(taken))
        turn += 1
    dist.close()


def _trains(request: ScalingConfig, device: torch.device) -> dict[str, Train]:
    shape = bert_config(request.layers, request.width, "sdpa")
    shape.max_position_embeddings = max(request.length, shape.max_position_embeddings)
    return {
        name: trainer(shape, request.method, "mlm", device, request.precision, zero=zero)
        for name, zero in engines(request).items()
    }


def _batch(request: ScalingConfig, device: torch.device) -> Batch:
    """This process's rows of a step that all share."""
    vocab = bert_config(1, 64, "sdpa").vocab_size
    batch = task_batch("mlm", request.rows, request.length, vocab).to(device)
    world = dist.world()
    return replace(batch, total_rows=batch.total_rows * world, total_labels=batch.total_labels * world)


def step_seconds(train: Train, batch: Batch, profiled: bool, times: int) -> float:
    """Seconds of a step, the mean of `times` in a row, that all begin together; if profiled, those in which a
    collective was under way. Those with an update that fp16 leaves out, on all ranks alike, take less and do not count.
    Raises: WorkError where all are so."""
    for _ in range(TRIALS):
        dist.barrier()
        taken = [_step_seconds(train, batch, profiled) for _ in range(times)]
        if all(applied for applied, _ in taken):
            return sum(seconds for _, seconds in taken) / times
    raise WorkError(f"{TRIALS} updates in fp16 overflowed; set --precision bf16 or fp32")


def _step_seconds(train: Train, batch: Batch, profiled: bool) -> tuple[bool, float]:
    if profiled:
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        with profile(activities=kinds) as profiler:
            applied = train(batch)
            wait(batch.labels.device)
        spans = [(e.time_range.start, e.time_range.end) for e in profiler.events() or () if collective(e)]
        return applied, covered(spans) / 1e6
    began = time.perf_counter()
    applied = train(batch)
    wait(batch.labels.device)
    return applied, time.perf_counter() - began


def collective(event: Any) -> bool:
    """Of a GPU's its own events alone: the call that begins a collective ends at once."""
    if torch.cuda.is_available():
        return event.device_type == DeviceType.CUDA and event.name.startswith("nccl")
    return event.name.startswith(("gloo:", "record_param_comms"))


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of what the spans cover together, however they overlap."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
