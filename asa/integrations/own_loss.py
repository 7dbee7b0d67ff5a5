"""Whether a model's own forward makes another loss than the task's, which is what methods train on."""

import inspect
import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from transformers import PreTrainedModel

from asa.batch import Batch, Kind
from asa.errors import RequestError
from asa.integrations.tasks import to_batch, totals
from asa.losses import task_loss
from asa.model import Output, TaskModel
from asa.stock import altered, written_by
from asa.typed import fork_rng

# Backward functions behind which two losses may be one that are two before: a loss would do that of itself.
_THROUGH = ("LogSoftmaxBackward",)


def refuse_loss(task: TaskModel, kind: Kind, inputs: Mapping[str, Any]) -> None:
    """Raises RequestError for a model whose own forward makes another loss than the task's, by this batch, or asks for
    labels, which methods do not give it. Leaves buffers and random state as they were."""
    model: Any = task.model
    if not _makes_a_loss(model):
        return
    labels: Tensor = inputs["labels"]
    batch = to_batch(kind, inputs, totals(kind, [inputs]))
    with _as_it_was(model):
        output = model(**{**inputs, "labels": labels if labels.is_floating_point() else labels.long()})
        theirs, found = _loss(output), _logits(output, inputs, batch)
        # Without any label Hugging Face's is NaN.
        if theirs is None or found is None or theirs.numel() != 1 or not theirs.isfinite():
            return
        logits, shown = found
        theirs, ours = theirs.reshape(()), task_loss(Output(shown), batch)
        if not _near(theirs, ours):
            other = f"{theirs:.4g} where the task's is {ours:.4g}"
        elif not _pull_alike(theirs, ours, logits, batch.total_labels):
            other = f"{theirs:.4g} as the task's, but its gradient is another"
        else:
            return
    raise RequestError(
        f"{type(model).__name__}.forward makes a loss of its own ({other}), and methods train on the task's; leave it"
        " out, or train with Hugging Face's Trainer"
    )


def _makes_a_loss(model: PreTrainedModel) -> bool:
    """Whether the forward is a user's and takes labels, or the loss it calls is."""
    whole: Any = type(model)
    stock = written_by(whole.forward, "transformers.") and not altered(model)
    if stock and "_loss_function" not in vars(model):
        return False
    taken = inspect.signature(model.forward).parameters
    named = taken.get("labels")
    if named is not None and named.default is named.empty:
        raise RequestError(
            f"{type(model).__name__}.forward cannot do without labels, of which methods make the loss themselves; give"
            " its argument the default None"
        )
    return named is not None or any(one.kind is one.VAR_KEYWORD for one in taken.values())


@contextmanager
def _as_it_was(model: nn.Module) -> Generator[None]:
    """Put buffers and random states back, also those that were bound to other tensors, or to none."""
    held: list[dict[str, Tensor | None]] = [vars(part)["_buffers"] for part in model.modules()]
    kept = [(own, dict(own)) for own in held]
    buffers = [buffer for own in held for buffer in own.values() if buffer is not None]
    # One that was expanded nobody can write into.
    values = [(buffer, buffer.clone()) for buffer in buffers if 0 not in buffer.stride()]
    python, array = random.getstate(), np.random.get_state()
    try:
        devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
        with fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
        for own, before in kept:
            own.clear()
            own.update(before)
        with torch.no_grad():
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _loss(output: Any) -> Tensor | None:
    """As Hugging Face's Trainer finds it in what a forward with labels returns."""
    found = _by_name(output, "loss")
    if found is None:
        found = next(iter(_in_order(output)), None)
    return found if isinstance(found, Tensor) else None


def _logits(output: Any, inputs: Mapping[str, Any], batch: Batch) -> tuple[Tensor, Tensor] | None:
    """Those that have a row for each label, whole and as `_shown`; None where there are none, as of a loss alone, or
    several."""
    given = (_by_name(output, "logits"), *_in_order(output)[1:])
    looked = [(one, _shown(one, inputs, batch)) for one in given if isinstance(one, Tensor)]
    found = [(logits, shown) for logits, shown in looked if shown is not None]
    return found[0] if len(found) == 1 else None


# What a model of one's own returns is of any type.
def _by_name(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, dict) else getattr(output, name, None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _in_order(output: Any) -> list[Any]:
    return list(output) if isinstance(output, tuple | list) else []  # pyright: ignore[reportUnknownArgumentType]


def _shown(logits: Tensor, inputs: Mapping[str, Any], batch: Batch) -> Tensor | None:
    """The logits of which the task's loss would be made; None where there are none for each label."""
    if batch.positions is None:
        wanted = batch.labels.shape
        fits = logits.numel() == wanted.numel() if batch.kind == "regression" else logits.shape[:-1] == wanted
        return logits if fits else None
    if logits.shape[:-1] == inputs["input_ids"].shape:
        return logits.flatten(0, -2)[batch.positions]
    return logits if len(logits) == len(batch.positions) else None  # ModernBERT may give these alone


def _pull_alike(theirs: Tensor, ours: Tensor, logits: Tensor, units: int) -> bool:
    """Whether the gradients of two losses are one at each unit's logits: where a head knows nothing yet, weights of
    classes change only these."""
    if not (logits.requires_grad and theirs.requires_grad):
        return True
    edge: Any = get_gradient_edge(logits)
    pulls: list[Any]
    while True:
        pulls = [torch.autograd.grad(one, edge, retain_graph=True, allow_unused=True)[0] for one in (theirs, ours)]
        inner = [below for below in edge.node.next_functions if below[0] is not None]
        # None: of a copy that was made beside the loss.
        if not (pulls[0] is None or edge.node.name().startswith(_THROUGH)) or len(inner) != 1:
            break
        edge = GradientEdge(*inner[0])
    return pulls[0] is None or _near(units * pulls[0].float(), units * pulls[1].float())


def _near(one: Tensor, two: Tensor) -> bool:
    """Up to rounding in half precision."""
    return bool((one - two).abs().max() <= 1e-3 + 0.02 * two.abs().max())
