"""The figures of a log line: loss terms, norms, rates, memory."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from asa import dist, resident
from asa.engine import Precision, StepStats
from asa.record import numbers
from pretrain.objective import Terms
from pretrain.run import Run

# Dense matrix products per second of a device, from the makers' data sheets, by words of its name and arithmetic; the
# first that fits counts.
# fp32 is that of the ordinary units: torch uses TF32 only where it is asked to.
PEAKS: dict[str, dict[Precision, float]] = {
    "H200 NVL": {"fp16": 836e12, "bf16": 836e12, "fp32": 60e12},
    "H200": {"fp16": 989e12, "bf16": 989e12, "fp32": 67e12},
    "H100 NVL": {"fp16": 835e12, "bf16": 835e12, "fp32": 60e12},
    "H100 PCIe": {"fp16": 756e12, "bf16": 756e12, "fp32": 51e12},
    "H100": {"fp16": 989e12, "bf16": 989e12, "fp32": 67e12},
    "A100": {"fp16": 312e12, "bf16": 312e12, "fp32": 19.5e12},
    "L40S": {"fp16": 362e12, "bf16": 362e12, "fp32": 91.6e12},
    "RTX 4090": {"fp16": 165e12, "bf16": 165e12, "fp32": 82.6e12},
    "V100": {"fp16": 125e12, "fp32": 15.7e12},
    "T4": {"fp16": 65e12, "fp32": 8.1e12},
}


class Meter:
    """Steps per second between log lines, evaluation and saving left out, and the work of a step."""

    def __init__(self, run: Run) -> None:
        self.steps, self._start = 0, time.perf_counter()
        self.peak = peak(run.device, run.config.precision) if countable(run) else None
        self.flops = 0  # of this rank's share of a step; counted once, where the peak is known and the count true
        self._untimed = 2  # first steps of those that are counted

    def rate(self) -> float | None:
        """Steps per second since the last call; None where no step was timed. The caller has waited for the device."""
        now = time.perf_counter()
        rate = self.steps / (now - self._start) if self.steps else None
        self.steps, self._start = 0, now
        return rate

    @contextmanager
    def paused(self) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self._start += time.perf_counter() - before

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Inside, the first time, matrix products are counted. That step's time does not count, for counting is slow,
        nor the next one's, which begins with the kernels that counting has kept out."""
        if not self._untimed or not self.peak:
            yield
            return
        with self.paused(), FlopCounterMode(display=False) if self._untimed == 2 else nullcontext() as counter:
            yield
        if counter is not None:
            self.flops = once(counter.get_flop_counts().get("Global", {}))
        self._untimed -= 1
        self.steps -= 1


def once(counts: Mapping[Any, int]) -> int:
    """FLOPs without those that the backwards of GPU attention spend on making the scores anew: one product of the five
    that torch counts for them. Args: torch's count by operation."""
    return sum(n * 4 // 5 if str(name).endswith("attention_backward") else n for name, n in counts.items())


def countable(run: Run) -> bool:
    """Whether torch's count in one step is the work of every step, each matrix product once. It misses those of fused
    kernels, which an attack may run in; not all methods attack in every step; what is recomputed is counted again."""
    return not (run.method.uses_adversary or run.config.activation_checkpointing)


def peak(device: torch.device, precision: Precision) -> float | None:
    """FLOPs per second that the device could do; None where its data sheet is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    if re.search(r"\b(MIG|Laptop|4090 D)\b", name):  # parts of a chip and weaker ones of its name
        return None
    return next((figures.get(precision) for key, figures in PEAKS.items() if re.search(rf"\b{key}\b", name)), None)


def figures(run: Run, terms: Terms, stats: StepStats, meter: Meter) -> dict[str, Any]:
    """What a log line says of the step. All ranks call it."""
    # Terms may share a tensor (plain MLM: the loss is the task), which must not be summed twice.
    values: dict[str, Any] = dict(numbers({name: dist.all_reduce_(term.clone()) for name, term in terms.items()}))
    norms = {"": stats.grad_norm, "_model": stats.model_norm, "_adversary": stats.adversary_norm}
    values |= {f"grad_norm{part}": float(norm) for part, norm in norms.items() if norm is not None}
    values |= {"lr": stats.lr, "loss_scale": stats.loss_scale, "skipped": run.faults.skipped}
    if used := memory(run.device):
        values["memory_gb"] = used
    rate = meter.rate()
    if rate is not None:
        values["tokens_per_s"] = run.tokens_per_step * rate
    if rate is not None and meter.peak and meter.flops:
        values["mfu"] = meter.flops * rate / meter.peak
    return values


def memory(device: torch.device) -> float:
    """Largest memory of this process so far, in GB: the device's, or the host's where there is none; 0 where the system
    does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resident.most() / 1e9
