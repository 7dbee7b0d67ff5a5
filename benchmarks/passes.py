"""What a method does with one micro-batch: its passes and their FLOPs, counted on tensors without contents."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from asa import compared, cpu_attention
from asa.batch import Batch
from asa.engine import Engine, Passes
from asa.methods import At
from asa.model import Output, TaskModel
from asa.optim import OptimConfig
from asa.signal import Perturb, Tap
from benchmarks.steps import Backward, cycle, method_of


class Cost(NamedTuple):
    """Of one micro-batch, with all its replays; where a method's steps differ, their mean.

    forwards: begun passes over its rows, a teacher's and those that end at the first block included; one over the rows
    twice is two. backwards: all; weight_backwards: those that reach the weights. flops: of matrix products.
    """

    forwards: float
    backwards: float
    weight_backwards: float
    flops: float


class CountingEngine(Passes):
    """Passes on the bare module, which has what costs matrix products; updates nothing."""

    def __init__(self, module: TaskModel) -> None:
        super().__init__(module, OptimConfig(), 1_000_000, torch.device("cpu"))
        self.backwards = 0

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        return self.module(batch, perturb, tap)

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        self.backwards += 1
        return super().ascend(loss, wrt, scaled)

    def backward(self, loss: Tensor) -> None:
        self.backwards += 1
        loss.backward()

    @contextmanager
    def same_dropout(self, masks: bool = True, taps: bool = True) -> Iterator[None]:
        # The random state has contents, which the tensors here lack.
        yield


def cost(module: TaskModel, name: str, batch: Batch) -> Cost:
    """What method `name` costs; to be called under a FakeTensorMode that module and batch were made in."""
    engine, method, steps = CountingEngine(module), method_of(name), cycle(name)
    begun: list[int] = []

    def note(one: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(one, TaskModel):
            begun.append(len(args[0].pad_BL))

    hook = register_module_forward_pre_hook(note)

    def work() -> None:
        for _ in range(steps):
            for replay in range(method.replays):
                method.backward(cast(Engine, engine), batch, At(0, replay))
                method.after_step(cast(Engine, engine))

    try:
        flops = count(work)
    finally:
        hook.remove()
    return Cost(
        sum(begun) / len(batch.pad_BL) / steps, engine.backwards / steps, method.passes * method.replays, flops / steps
    )


def count(work: Backward) -> int:
    """FLOPs of the matrix products in `work`, 2 per multiply-add."""
    # What a CPU does in portions of its cache's size is counted in one: the same products in far fewer calls.
    whole = [patch.object(module, "CACHED", 2**62) for module in (compared, cpu_attention)]
    with whole[0], whole[1], FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()
