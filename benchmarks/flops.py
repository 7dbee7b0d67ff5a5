"""FLOPs of one BERT-base step, forward and backward: ours, by any method, and Hugging Face's.

Counted on fake tensors, which have shapes but no contents, so a laptop counts what a GPU would do. The count is that
of matrix products (2 per multiply-add), attention's included in both directions.
"""

from collections.abc import Mapping
from typing import Literal

from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedConfig

from asa.config import config
from asa.errors import WorkError
from benchmarks.passes import Cost, cost, count
from benchmarks.steps import (
    ASA,
    PAIRS,
    PEERS,
    STOCK,
    VANILLA,
    StepName,
    Task,
    bare_model,
    bert_config,
    names_of,
    ratios,
    show,
    stock_loss,
    task_batch,
    task_model,
)
from benchmarks.tables import Recorded, asked, save

LENGTHS = (128, 256, 512)
ROWS = 32  # of a step: an adversary merges its two maps once for all of them
BOUND_LENGTH = 256
BOUNDS = {(ASA, VANILLA): 2.08, (VANILLA, STOCK): 0.79}
LAYERS, WIDTH = 12, 768


@config
class FlopsConfig(Recorded):
    """Count the FLOPs of one BERT-base step at lengths 128, 256 and 512. Without `methods`, of an MLM step of ours, of
    one with ASA and of Hugging Face's; a ratio past its bound is a failure."""

    methods: tuple[StepName, ...] = ()
    """Methods by name (freelb-3: with 3 passes), or all: passes of each and FLOPs relative to vanilla instead; peers
    are left out."""
    task: Task = "mlm"
    """Objective that `methods` train on: mlm or classification."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Hugging Face attention implementation; both do the same matrix products."""


def flops(argv: list[str]) -> None:
    """Count the FLOPs of a BERT-base step: ours, by any method, and Hugging Face's."""
    request = asked(FlopsConfig, argv, "flops")
    shape = bert_config(LAYERS, WIDTH, request.attention)
    if request.methods:
        names = [VANILLA, *(name for name in names_of(request.methods) if name not in (VANILLA, *PEERS))]
        costs = {length: method_costs(shape, names, length, request.task) for length in LENGTHS}
        text = methods_table(costs, request.task)
        print(text)
        save(request, "flops", argv, text)
        return
    counts = {length: step_flops(shape, length) for length in LENGTHS}
    text = "\n".join([table(counts, request.attention), last_line(counts[BOUND_LENGTH])])
    print(text)
    save(request, "flops", argv, text)
    check(counts[BOUND_LENGTH])


def step_flops(shape: PreTrainedConfig, length: int) -> dict[str, float]:
    """FLOPs per row of one forward and backward at `length`, by step."""
    found = {name: one.flops for name, one in method_costs(shape, [VANILLA, ASA], length, "mlm").items()}
    with FakeTensorMode():
        batch = task_batch("mlm", ROWS, length, shape.vocab_size)
        model = bare_model(shape, "mlm")
        return found | {STOCK: count(lambda: stock_loss(model, batch).backward()) / ROWS}


def method_costs(shape: PreTrainedConfig, names: list[str], length: int, task: Task) -> dict[str, Cost]:
    """What each method costs; FLOPs are per row of a step of ROWS."""
    # Plain meta tensors would not do: Hugging Face reads the padding mask's contents unless the tensor is a fake one.
    with FakeTensorMode():
        batch = task_batch(task, ROWS, length, shape.vocab_size)
        found = {name: cost(task_model(shape, name, task), name, batch) for name in names}
    return {name: one._replace(flops=one.flops / ROWS) for name, one in found.items()}


def methods_table(costs: dict[int, dict[str, Cost]], task: Task) -> str:
    """A line per method: passes per micro-batch, then FLOPs relative to vanilla by length."""
    lines = [
        f"BERT-base, {task}, {ROWS} rows, one micro-batch (its replays too); FLOPs relative to vanilla by length",
        f"{'method':15s}{'forwards':>9}{'backwards':>10}{'of weights':>11}" + "".join(f"{n:>8d}" for n in costs),
    ]
    plain = {length: found[VANILLA].flops for length, found in costs.items()}
    for name, one in next(iter(costs.values())).items():
        passes = f"{one.forwards:9g}{one.backwards:10g}{one.weight_backwards:11g}"
        lines.append(f"{name:15s}{passes}" + "".join(f"{costs[n][name].flops / plain[n]:8.3f}" for n in costs))
    return "\n".join(lines)


def table(counts: dict[int, dict[str, float]], attention: str) -> str:
    """GFLOPs per row and the three ratios, one line per length."""
    heads = "".join(f"{show(pair):>15}" for pair in PAIRS)
    lines = [
        f"BERT-base, one MLM step of {ROWS} rows (forward and backward), GFLOPs per row, {attention} attention",
        f"length  {'vanilla':>9} {'ASA':>9} {'stock':>9}{heads}",
    ]
    for length, found in counts.items():
        giga = " ".join(f"{found[name] / 1e9:9.1f}" for name in (VANILLA, ASA, STOCK))
        lines.append(f"{length:6d}  {giga}" + "".join(f"{value:15.3f}" for value in ratios(found).values()))
    return "\n".join(lines)


def last_line(costs: Mapping[str, float]) -> str:
    return f"length {BOUND_LENGTH}: " + ", ".join(f"{show(pair)} {value:.4f}" for pair, value in ratios(costs).items())


def check(costs: Mapping[str, float]) -> None:
    """Raises WorkError when a ratio is past its bound."""
    found = ratios(costs)
    past = [
        f"{show(pair)} is {found[pair]:.4f}, above {bound}" for pair, bound in BOUNDS.items() if found[pair] > bound
    ]
    if past:
        raise WorkError("; ".join(past) + f" at length {BOUND_LENGTH}: a step does more work than it should")
