"""What `step-time` and `memory` take: steps x attention x precision, for every length and batch size."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

import torch
from pydantic import Field
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from asa.batch import Batch
from asa.config import config
from asa.engine import Precision
from asa.errors import RequestError, WorkError
from asa.families import family
from asa.fused import told
from asa.methods.limits import check_precision
from asa.zero_settings import working_stage
from benchmarks.fused import (
    check_kernels,
    fusible,
    kernels,
    large_due,
    large_taken,
    launches,
    with_kernels,
    without_kernels,
)
from benchmarks.steps import (
    TWIN,
    StepName,
    Task,
    bert_config,
    check_twin,
    cycle,
    folder_config,
    names_of,
    task_batch,
)
from benchmarks.tables import Recorded
from benchmarks.updates import HALVES, Zero, trainer

Step = Callable[[], bool]  # whether its updates were applied
Attention = Literal["sdpa", "eager", "compiled", "fused"]


@config
class CasesConfig(Recorded):
    """Optimizer steps that are compared, on a GPU if there is one."""

    methods: Annotated[tuple[StepName, ...], Field(min_length=1)] = ("vanilla", "asa", "stock", "twin")
    """Steps by name: any method (freelb-N, pgd-N, smart-N: with N passes or ascents), all for every method, stock for
    Hugging Face's own step, twin for a straightforward ASA with materialised maps. The first one is what the others are
    compared with."""
    task: Task = "mlm"
    """What the steps train on: mlm or classification."""
    model: Path | None = None
    """Hugging Face folder whose shape is taken, with random weights; without it a BERT of `layers` and `width`."""
    layers: Annotated[int, Field(ge=1, le=96)] = 4
    """Layers (without `model`)."""
    width: Annotated[int, Field(ge=64, le=8192, multiple_of=64)] = 256
    """Hidden width, a multiple of 64 (without `model`)."""
    lengths: Annotated[tuple[Annotated[int, Field(ge=8, le=8192)], ...], Field(min_length=1)] = (256,)
    """Tokens per row; a table for each."""
    batch: Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=1)] = (8,)
    """Rows per step; a table for each."""
    attention: Annotated[tuple[Attention, ...], Field(min_length=1)] = ("sdpa",)
    """How a step is executed: Hugging Face's eager or sdpa attention, compiled (sdpa, the model by torch.compile), or
    fused (GPUs only: sdpa, and our kernels, which the three others go without: for losses, for norms and activations
    of large tensors, and for attention under an attack whose passes have dropout of their own; the peers are by sdpa).
    The twin has its own way and comes once."""
    precision: Annotated[tuple[Precision, ...], Field(min_length=1)] = ("fp32",)
    """fp32: torch's own engine. bf16, and on a GPU fp16: our steps by DeepSpeed with weights in half precision, the
    peers under autocast, as each has it."""
    zero: Zero = 2
    """DeepSpeed ZeRO stage of our steps in half precision, where 2 works in the place of 0 and 1."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads torch uses; 0 leaves its own choice."""
    plot: Path | None = None
    """Picture of the ratios to write: .png, .svg or .pdf."""


class Case(NamedTuple):
    """One of the steps of a table."""

    name: str
    attention: Attention
    precision: Precision


def cases(request: CasesConfig) -> dict[str, Case]:
    """The steps of a table by label, which tells what the table has several of."""
    found: dict[str, Case] = {}
    for precision in dict.fromkeys(request.precision):
        for name in names_of(request.methods):
            ways: list[Attention] = [way_of(name, way) for way in request.attention]
            for way in dict.fromkeys(ways):
                words = [name]
                words += [way] if len(set(request.attention)) > 1 and name != TWIN else []
                words += [precision] if len(set(request.precision)) > 1 else []
                found[" ".join(words)] = Case(name, way, precision)
    return found


def way_of(name: str, asked: Attention) -> Attention:
    """How a step is executed where the table is to have the way `asked`."""
    if name == TWIN:
        return "eager"
    return "sdpa" if asked == "fused" and not fusible(name) else asked


def prepare(request: CasesConfig) -> torch.device:
    """The device. Raises RequestError where precision or torch.compile do not work here, or the model has no such
    length or attention: before anything is measured."""
    if request.threads:
        torch.set_num_threads(request.threads)
    for precision in request.precision:
        check_precision(precision, torch.cuda.is_available())
    if "fused" in request.attention:
        check_kernels()
    for way in request.attention:
        for length in request.lengths:
            shape = shape_of(request, way, length)
            if TWIN in names_of(request.methods):
                check_twin(shape)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "compiled" in request.attention:
        _check_compiler(device)
    return device


def _check_compiler(device: torch.device) -> None:
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(4, device=device))
    except Exception as error:  # whatever a missing or broken compiler makes torch raise
        reason = told(error)[:200]
        raise RequestError(
            f"torch.compile does not work here ({reason}); install a C++ compiler, or leave compiled out of --attention"
        ) from None
    # Every step is a model of its own, and there are many: none is to fall back to running as it is.
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def build(request: CasesConfig, case: Case, rows: int, length: int, device: torch.device) -> Step:
    """A case's step on `rows` of `length`. Raises RequestError for a length that has no positions."""
    shape = shape_of(request, case.attention, length)
    batch, compiled = batch_of(request, shape, rows, length, device), case.attention == "compiled"
    zero = None if case.precision == "fp32" else request.zero
    train = trainer(shape, case.name, request.task, device, case.precision, compiled, zero)
    # Each of the other ways without the kernels that torch's own operations would give way to by themselves.
    run = without_kernels(train)
    if case.attention == "fused":
        taken, _ = _large(request, case, shape, rows * length, device)
        run = with_kernels(train, device, cycle(case.name), launches(case.name, shape, taken))
    return lambda: run(batch)


def _large(
    request: CasesConfig, case: Case, shape: PreTrainedConfig, tokens: int, device: torch.device
) -> tuple[set[str], set[str]]:
    """Of norms and activations, the kernels that a case by them takes, and those that it would but for their trial."""
    due = large_due(case.name, shape, tokens, None if case.precision == "fp32" else request.zero)
    with kernels({device.type}):
        taken = large_taken(due, shape, HALVES.get(case.precision, torch.float32), device)
    return taken, due - taken


def refused(request: CasesConfig, rows: int, length: int, device: torch.device) -> list[str]:
    """A line for each case of a table by the kernels that does without some, since they fail their trial here."""
    found: list[str] = []
    for label, case in cases(request).items():
        if case.attention != "fused":
            continue
        shape = shape_of(request, case.attention, length)
        with suppress(WorkError, RuntimeError):  # of a trial that cannot be made, which the case is told of
            _, out = _large(request, case, shape, rows * length, device)
            if out:
                found.append(f"{label}: {' and '.join(sorted(out))} by torch, since our kernels fail their trial")
    return found


def batch_of(request: CasesConfig, shape: PreTrainedConfig, rows: int, length: int, device: torch.device) -> Batch:
    return task_batch(request.task, rows, length, shape.vocab_size).to(device)


def shape_of(request: CasesConfig, attention: Attention, length: int) -> PreTrainedConfig:
    """The model's shape. RequestError for a length that has no positions and for attention that it lacks."""
    implementation = "eager" if attention == "eager" else "sdpa"
    if request.model is None:
        shape = bert_config(request.layers, request.width, implementation)
        shape.max_position_embeddings = max(length, shape.max_position_embeddings)
        return shape
    shape = folder_config(request.model, implementation)
    most = family(shape.model_type).longest(shape)
    if length > most:
        raise RequestError(f"lengths = {length}: {request.model} has positions for 8 to {most}; set --lengths")
    family_model = cast(type[PreTrainedModel], MODEL_FOR_MASKED_LM_MAPPING[type(shape)])
    if implementation == "sdpa" and not family_model._supports_sdpa:
        raise RequestError(f"attention = {attention}: {shape.model_type} has eager alone; set --attention eager")
    return shape


def size(request: CasesConfig, rows: int, length: int) -> str:
    """The name of a table's batch among those of the request."""
    return f"{length} tokens, {rows} rows" if len(request.batch) > 1 else f"{length} tokens"


def heading(request: CasesConfig, rows: int, length: int, device: torch.device) -> str:
    """The model, the batch and where it runs."""
    on_gpu = device.type == "cuda"
    where = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    what = request.model.name if request.model else f"BERT {request.layers} x {request.width}"
    ways = "/".join(request.attention)
    # Of the steps in half precision, whose peers have no stage.
    stages = {
        one: "" if one == "fp32" else f" (ours: ZeRO {working_stage(request.zero, one)})" for one in request.precision
    }
    precisions = "/".join(one + stage for one, stage in stages.items())
    return f"{what}, {request.task}, {rows} rows of {length}, {ways}, {precisions}, {where}"
