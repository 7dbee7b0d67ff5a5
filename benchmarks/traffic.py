"""What one step moves on a GPU: bytes, launches and products of each operation, counted on tensors without contents.

A count, and a rule for what it would take; nothing of it is measured. It shows what FLOPs do not: what goes through
memory again and again, and how many operations a GPU is given.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import PreTrainedConfig

from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.errors import RequestError
from asa.methods import At
from benchmarks.gpu_paths import OURS, as_on_a_gpu, bytes_of
from benchmarks.passes import CountingEngine
from benchmarks.steps import (
    ASA,
    PEERS,
    TWIN,
    VANILLA,
    StepName,
    Task,
    bare_model,
    bert_config,
    cycle,
    method_of,
    names_of,
    stock_loss,
    task_batch,
    task_model,
    twin_model,
)
from benchmarks.tables import Recorded, asked, save

# Of an H200: 85 % of its memory's bytes a second, 70 % of its half-precision FLOPs, and what attention reaches of all.
BYTES, FLOPS, PEAK = 4.1e12, 690e12, 989e12
SHARES = {"torch's attention": 0.5, "torch's attention, backwards": 0.4}
OUR_SHARE = 0.35
LAYERS, WIDTH = 12, 768

aten = torch.ops.aten
# Of a table they read the rows asked for, or add to some.
_GATHERS = {aten.embedding, aten.index, aten.index_select, aten.gather}
_PUTS = {aten.index_put, aten.index_put_, aten._index_put_impl_}  # a GPU has all of them in place
# Of their first operand they read nothing.
_WRITES = {aten.zero_, aten.fill_, aten.copy_, aten.bernoulli_, aten.uniform_, aten.normal_, aten.random_}
_WRITES |= {aten.zeros_like, aten.ones_like, aten.full_like, aten.rand_like, aten.randn_like, aten.randint_like}
_WRITES |= {aten.new_zeros, aten.new_ones, aten.new_full}
_NOTHING = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
_NOTHING |= {aten.detach, aten.alias, aten._unsafe_view, aten.squeeze_, aten.unsqueeze_, aten.promote_types}


@config
class TrafficConfig(Recorded):
    """Count what one micro-batch of a BERT-base in bf16, forwards and backwards, moves on a GPU; no GPU is needed. The
    times are by a rule and not measured: of each operation the longer of its bytes at 4.1 TB/s and its products at 690
    TFLOP/s, attention by torch at 50 % of 989 TFLOP/s (backwards 40 %) and by our kernels at 35 %."""

    methods: Annotated[tuple[StepName, ...], Field(min_length=1)] = (VANILLA, ASA)
    """Steps by name: methods (freelb-3: with 3 passes), all for every method, stock for Hugging Face's step, twin for a
    straightforward ASA; these two wholly in bf16, which autocast is not. The first one is what the others are compared
    with."""
    task: Task = "mlm"
    """Objective that they train on: mlm or classification."""
    lengths: Annotated[tuple[Annotated[int, Field(ge=8, le=512)], ...], Field(min_length=1)] = (256, 512)
    """Tokens per row; a table for each."""
    rows: Annotated[int, Field(ge=1, le=4096)] = 64
    """Rows of the micro-batch."""
    operations: Annotated[int, Field(ge=0, le=1000)] = 0
    """Kinds of operation to list for each method, those that move most."""


class Work(NamedTuple):
    """Of some operations. ms: by the rule above."""

    launches: float = 0
    bytes: float = 0
    flops: float = 0
    ms: float = 0

    def plus(self, other: "Work", times: float = 1) -> "Work":
        return Work(*(one + times * two for one, two in zip(self, other, strict=True)))


class Count(TorchDispatchMode):
    """Inside, adds up what operations do, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: defaultdict[str, Work] = defaultdict(Work)

    def note(self, name: str, moved: int, flops: int) -> None:
        """One launch that moves so many bytes."""
        rate = PEAK * OUR_SHARE if name.startswith(OURS) else PEAK * SHARES[name] if name in SHARES else FLOPS
        ms = 1e3 * max(moved / BYTES, flops / rate)
        self.found[name] = self.found[name].plus(Work(1, moved, flops, ms))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out, packet = func(*args, **kwargs), func.overloadpacket
        # What is in prim asks something about a tensor.
        if func.namespace != "aten" or func.is_view or packet in _NOTHING:
            return out
        flops = flop_registry[packet](*args, **kwargs, out_val=out) if packet in flop_registry else 0
        self.note(str(packet).removeprefix("aten."), _moved(packet, args, kwargs, out), flops)
        return out


def _moved(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Bytes that an operation reads and writes."""
    first_unread = packet in _WRITES | _GATHERS | _PUTS or kwargs.get("beta") == 0
    given = {name: value for name, value in kwargs.items() if name != "out"}
    read = bytes_of(tree_leaves([args[first_unread:], given]))
    if packet in _PUTS:
        return read + 2 * bytes_of(args[2:3])
    return read + bytes_of(tree_leaves(out)) * (2 if packet in _GATHERS else 1)


def traffic(argv: list[str]) -> None:
    """Count what a BERT-base step moves on a GPU: bytes, launches and products of its operations."""
    request = asked(TrafficConfig, argv, "traffic")
    names = names_of(request.methods)
    if find_spec("triton") is None:
        raise RequestError("our kernels are part of the count, and Triton is not there: pip install triton")
    tables: list[str] = []
    for length in request.lengths:
        shape = bert_config(LAYERS, WIDTH, "sdpa")
        found = {name: method_traffic(shape, name, request.task, request.rows, length) for name in names}
        tables.append(table(found, request, length))
        print(tables[-1], flush=True)
    save(request, "traffic", argv, "\n\n".join(tables))


def method_traffic(shape: PreTrainedConfig, name: str, task: Task, rows: int, length: int) -> dict[str, Work]:
    """What the step `name` does with one micro-batch in bf16 (the mean of steps that differ), by operation."""
    counter, steps = Count(), 1 if name in PEERS else cycle(name)
    with FakeTensorMode(), as_on_a_gpu(counter.note):
        batch = task_batch(task, rows, length, shape.vocab_size)
        work = _peer(shape, name, task, batch) if name in PEERS else _method(shape, name, task, batch)
        work()  # a method may make something that it keeps
        counter.found.clear()
        with counter:
            for _ in range(steps):
                work()
    return {operation: Work().plus(work, 1 / steps) for operation, work in counter.found.items()}


def _method(shape: PreTrainedConfig, name: str, task: Task, batch: Batch) -> Callable[[], None]:
    method, engine = method_of(name), cast(Engine, CountingEngine(task_model(shape, name, task).to(torch.bfloat16)))

    def work() -> None:
        for replay in range(method.replays):
            method.backward(engine, batch, At(0, replay))
            engine.module.zero_grad()  # as an update does
            method.after_step(engine)

    return work


def _peer(shape: PreTrainedConfig, name: str, task: Task, batch: Batch) -> Callable[[], None]:
    model: nn.Module = twin_model(shape, task) if name == TWIN else bare_model(shape, task)
    nn.Module.to(model.train(), torch.bfloat16)

    def work() -> None:
        loss: Tensor = model(batch) if name == TWIN else stock_loss(model, batch)
        loss.backward()
        model.zero_grad()

    return work


def table(found: dict[str, dict[str, Work]], request: TrafficConfig, length: int) -> str:
    """A line for each method, then the operations of each that move most."""
    what = f"BERT-base, {request.task}, {request.rows} rows of {length}, bf16"
    heads = f"{'method':15s}{'GB':>8}{'launches':>10}{'TFLOP':>8}{'ms':>8}{'GB':>10}{'launches':>10}{'ms':>10}"
    lines = [f"{what}, a micro-batch and its replays, ms by a rule; then relative to the first", heads]
    totals = {name: total(works.values()) for name, works in found.items()}
    base = next(iter(totals.values()))
    for name, one in totals.items():
        ratios = one.bytes / base.bytes, one.launches / base.launches, one.ms / base.ms
        lines.append(f"{name:15s}{_line(one)}" + "".join(f"{ratio:10.3f}" for ratio in ratios))
    for name, works in found.items() if request.operations else ():
        most = sorted(works.items(), key=lambda item: -item[1].bytes)[: request.operations]
        lines += ["", f"{name}: the operations that move most"]
        lines += [f"{operation:30s}{_line(work)}" for operation, work in most]
    return "\n".join(lines)


def _line(work: Work) -> str:
    return f"{work.bytes / 1e9:8.2f}{work.launches:10.0f}{work.flops / 1e12:8.2f}{work.ms:8.2f}"


def total(works: Iterable[Work]) -> Work:
    found = Work()
    for one in works:
        found = found.plus(one)
    return found
