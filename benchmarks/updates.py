"""Optimizer steps as callables that take a batch: ours and the peers'."""

import gc
import os
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from asa import dist
from asa.batch import Batch
from asa.engine import Engine, PlainEngine, Precision
from asa.errors import WorkError
from asa.methods import At
from asa.model import TaskModel
from asa.optim import OptimConfig, build_optimizer
from benchmarks.steps import PEERS, TWIN, Task, bare_model, method_of, stock_loss, task_model, twin_model

Train = Callable[[Batch], bool]  # whether the update was applied: fp16 leaves out those that overflow
Zero = Literal[0, 1, 2, 3]
STEPS = 1_000_000  # of the schedule, which then hardly moves
TRIALS = 40  # in which a loss scale falls from 65536 below 1e-6
_made: list[Any] = []  # DeepSpeedEngines, each of which keeps its model until it is closed
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def trainer(
    shape: PreTrainedConfig,
    name: str,
    task: Task,
    device: torch.device,
    precision: Precision = "fp32",
    compiled: bool = False,
    zero: Zero | None = None,
) -> Train:
    """What makes the step `name` of a batch, with its update, or its updates where a method replays; weights random.

    Args: zero is the stage of DeepSpeed, which half precision needs and no peer has; None: torch's own engine.
    """
    torch.manual_seed(0)
    if name in PEERS:
        return _peer(shape, name, task, device, precision, compiled)
    module = task_model(shape, name, task).train()
    if compiled:
        module.compile(dynamic=False)
    engine, method = engine_of(module, device, precision, zero), method_of(name)

    def train(batch: Batch) -> bool:
        applied = True
        for replay in range(method.replays):
            method.backward(engine, batch, At(0, replay))
            applied &= engine.step().applied
            method.after_step(engine)
        return applied

    return train


def settle(step: Callable[[], bool], times: int = 1) -> None:
    """Make steps until `times` in a row are applied: the first loss scales of fp16 may be too large, and an update that
    is left out takes less time. Raises: WorkError where they never are."""
    done = 0
    for _ in range(TRIALS + times):
        done = done + 1 if step() else 0
        if done == times:
            return
    raise WorkError(f"after {TRIALS} updates in fp16 they still overflow; set --precision bf16 or fp32")


def wait(device: torch.device) -> None:
    """Until a GPU has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def engine_of(module: TaskModel, device: torch.device, precision: Precision, zero: Zero | None) -> Engine:
    """DeepSpeed at stage `zero`; None: torch's own engine."""
    if zero is None:
        return PlainEngine(module, OptimConfig(), STEPS, device)
    from asa.zero import DeepSpeedEngine  # its import takes seconds

    # DeepSpeed asks for it even where no launcher has set it, and says so where it finds no GPU.
    os.environ.setdefault("LOCAL_RANK", "0")
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not dist.active():
        dist.init(device.type == "cuda", launched=False)
    # The rows of a micro-batch are for DeepSpeed's own reports only.
    engine = DeepSpeedEngine(module, OptimConfig(), STEPS, device, zero, precision, micro_batch=1)
    _made.append(engine)
    return engine


def made() -> int:
    """How many steps there are that `free` would close."""
    return len(_made)


def free(since: int = 0) -> None:
    """Give back the memory of all steps that nobody holds, but for the first `since`: none is to be called again."""
    while len(_made) > since:
        _made.pop().close()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _peer(
    shape: PreTrainedConfig, name: str, task: Task, device: torch.device, precision: Precision, compiled: bool
) -> Train:
    """Hugging Face's step or the twin's: fp32 weights, half precision by autocast and a loss scale."""
    model: nn.Module = twin_model(shape, task) if name == TWIN else bare_model(shape, task)
    nn.Module.to(model.train(), device)
    if compiled:
        model.compile(dynamic=False)
    optim = OptimConfig()
    optimizer = build_optimizer(model, optim)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def train(batch: Batch) -> bool:
        scale = scaler.get_scale()
        with torch.autocast(device.type, HALVES.get(precision), enabled=precision in HALVES):
            loss: Tensor = model(batch) if name == TWIN else stock_loss(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return scaler.get_scale() >= scale

    return train
