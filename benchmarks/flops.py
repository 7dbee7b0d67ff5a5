"""FLOPs of one BERT-base MLM step, forward and backward: ours, with ASA, and Hugging Face's.

Counted on fake tensors, which have shapes but no contents, so a laptop counts what a GPU would do. The count is that
of matrix products (2 per multiply-add), attention's included in both directions.
"""

from typing import Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForMaskedLM, PreTrainedConfig

from asa.batch import Batch
from asa.config import config
from asa.errors import WorkError
from asa.model import Output, TaskModel
from asa.signal import Perturb, Tap
from benchmarks.steps import (
    ASA,
    PAIRS,
    STOCK,
    VANILLA,
    Backward,
    bert_config,
    mlm_batch,
    our_backward,
    ratios,
    show,
    stock_backward,
    task_model,
)
from cli import parse

LENGTHS = (128, 256, 512)
BOUND_LENGTH = 256
BOUNDS = {(ASA, VANILLA): 2.13, (VANILLA, STOCK): 0.83}
LAYERS, WIDTH = 12, 768


@config
class FlopsConfig:
    """Count the FLOPs of one BERT-base step at lengths 128, 256 and 512; fails when a ratio is past its bound."""

    attention: Literal["sdpa", "eager"] = "sdpa"
    """Hugging Face attention implementation; both do the same matrix products."""


class CountingEngine:
    """Forward and backward on the bare module: what an engine adds to them has no matrix product."""

    def __init__(self, module: TaskModel) -> None:
        self.module = module

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        return self.module(batch, perturb, tap)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def flops(argv: list[str]) -> None:
    """Count the FLOPs of a BERT-base step: ours, with ASA, and Hugging Face's."""
    request = parse(FlopsConfig, argv, "python -m benchmarks flops")
    shape = bert_config(LAYERS, WIDTH, request.attention)
    counts = {length: step_flops(shape, length) for length in LENGTHS}
    print(table(counts, request.attention))
    print(last_line(counts[BOUND_LENGTH]))
    check(counts[BOUND_LENGTH])


def step_flops(shape: PreTrainedConfig, length: int) -> dict[str, int]:
    """FLOPs per row of one forward and backward at `length`, by step."""
    # Plain meta tensors would not do: Hugging Face reads the padding mask's contents unless the tensor is a fake one.
    with FakeTensorMode():
        batch = mlm_batch(1, length, shape.vocab_size)
        steps = {name: our_backward(CountingEngine(task_model(shape, name)), name, batch) for name in (VANILLA, ASA)}
        steps[STOCK] = stock_backward(AutoModelForMaskedLM.from_config(shape), batch)
        return {name: _count(step) for name, step in steps.items()}


def _count(step: Backward) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def table(counts: dict[int, dict[str, int]], attention: str) -> str:
    """GFLOPs per row and the three ratios, one line per length."""
    heads = "".join(f"{show(pair):>15}" for pair in PAIRS)
    lines = [
        f"BERT-base, one MLM step (forward and backward), GFLOPs per row, {attention} attention",
        f"length  {'vanilla':>9} {'ASA':>9} {'stock':>9}{heads}",
    ]
    for length, count in counts.items():
        giga = " ".join(f"{count[name] / 1e9:9.1f}" for name in (VANILLA, ASA, STOCK))
        lines.append(f"{length:6d}  {giga}" + "".join(f"{value:15.3f}" for value in ratios(count).values()))
    return "\n".join(lines)


def last_line(count: dict[str, int]) -> str:
    return f"length {BOUND_LENGTH}: " + ", ".join(f"{show(pair)} {value:.4f}" for pair, value in ratios(count).items())


def check(count: dict[str, int]) -> None:
    """Raises WorkError when a ratio is past its bound."""
    found = ratios(count)
    past = [
        f"{show(pair)} is {found[pair]:.4f}, above {bound}" for pair, bound in BOUNDS.items() if found[pair] > bound
    ]
    if past:
        raise WorkError("; ".join(past) + f" at length {BOUND_LENGTH}: a step does more work than it should")
