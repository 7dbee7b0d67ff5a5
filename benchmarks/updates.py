"""One optimizer step as a callable, of ours or of Hugging Face's, on the same batch each time."""

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedConfig

from asa.batch import Batch
from asa.engine import PlainEngine
from asa.methods import At
from asa.optim import OptimConfig, build_optimizer
from benchmarks.steps import STOCK, Task, bare_model, method_of, stock_backward, task_model

Step = Callable[[], None]


def build_step(shape: PreTrainedConfig, name: str, batch: Batch, device: torch.device) -> Step:
    """One batch by the step `name`, with its update, or its updates where a method replays; weights random."""
    torch.manual_seed(0)
    task: Task = "mlm" if batch.kind == "mlm" else "classification"
    if name == STOCK:
        return _stock_step(shape, batch, task, device)
    engine = PlainEngine(task_model(shape, name, task).train(), OptimConfig(), 1_000_000, device)
    method = method_of(name)

    def step() -> None:
        for replay in range(method.replays):
            method.backward(engine, batch, At(0, replay))
            engine.step()
            method.after_step(engine)

    return step


def _stock_step(shape: PreTrainedConfig, batch: Batch, task: Task, device: torch.device) -> Step:
    model = bare_model(shape, task).train()
    nn.Module.to(model, device)
    optim = OptimConfig()
    optimizer = build_optimizer(model, optim)
    backward = stock_backward(model, batch)

    def step() -> None:
        backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
