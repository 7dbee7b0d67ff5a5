"""One process of the matrix: ZeRO stage x offload x precision x accumulation x recomputation; results to JSON.

Each case trains, is saved, and continues both as it is and from the checkpoint in another engine; it also gets a
gradient that is not finite. It is compared with the plain engine, which on as many processes draws the same dropout.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import pytest
import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from asa import checkpoint, dist, zero_at_once
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.engine import Engine, PlainEngine, Precision, State, StepStats
from asa.errors import WorkError
from asa.hf import checkpoint_activations
from asa.methods import METHODS, At, MethodsConfig
from asa.optim import OptimConfig
from asa.zero import DeepSpeedEngine
from tests.asa.conftest import ROWS, tiny_batch, tiny_module, tiny_tokenizer
from tests.precision.worker import let_cpu_do_fp16

BEFORE, STEPS = 2, 4
# A large eps keeps Adam from turning rounding noise of near-zero gradients into whole steps.
OPTIM = OptimConfig(lr=1e-2, warmup=0.5, eps=1e-3)
SCALE = 256.0  # FP16's first scale, 65536, overflows on so small a model
CPU = torch.device("cpu")
WAIT = timedelta(minutes=50)
ATTACK = ASAConfig(mask="gumbel")
Stage = Literal["plain", 0, 1, 2, 3]


class Case(NamedTuple):
    stage: Stage
    offload: bool
    precision: Precision
    slots: int
    recompute: bool

    @property
    def name(self) -> str:
        return "-".join(map(str, self))

    @property
    def reference(self) -> "Case":
        return Case("plain", False, "fp32", self.slots, self.recompute)


def every() -> list[Case]:
    """All that DeepSpeed supports."""
    whole = product((0, 1, 2, 3), (False, True), get_args(Precision), (1, 2), (False, True))
    return [Case(*case) for case in whole if case[0] or not case[1]]


THIN = (
    Case(0, False, "fp32", 1, False),
    Case(0, False, "bf16", 2, True),
    Case(0, False, "fp16", 1, True),
    Case(1, True, "fp32", 2, True),
    Case(1, False, "bf16", 1, False),
    Case(1, True, "fp16", 2, False),
    Case(2, False, "fp32", 2, False),
    Case(2, True, "bf16", 1, True),
    Case(2, False, "fp16", 2, True),
    Case(3, True, "fp32", 1, True),
    Case(3, True, "bf16", 2, False),
    Case(3, False, "fp16", 1, False),
)
"""Every pair of settings once."""

AT_ONCE = (Case(2, False, "bf16", 2, False), Case(0, False, "fp16", 1, True), Case(1, False, "bf16", 1, True))
"""Where several ranks' gradients are summed at once."""


def with_references(cases: Iterable[Case]) -> list[Case]:
    return [*dict.fromkeys(case.reference for case in cases), *cases]


def build(case: Case, seed: int) -> Engine:
    # A fresh adversary's scores are all near zero: a hard map's bits would hang on fp16's rounding. Noise decides them.
    module = tiny_module(asa=ATTACK, dropout=0.1, seed=seed).train()
    if case.recompute:
        checkpoint_activations(module.model)
    if case.stage == "plain":
        return PlainEngine(module, OPTIM, STEPS, CPU)
    engine = DeepSpeedEngine(module, OPTIM, STEPS, CPU, case.stage, case.precision, ROWS, case.offload)
    if case.precision == "fp16":
        engine.set_counters({"applied": 0, "scaler": {"cur_scale": SCALE}})
    return engine


def window(step: int, slots: int) -> Iterator[Batch]:
    """This rank's micro-batches of a step."""
    all_ = [
        [tiny_batch(seed=1 + step + 100 * slot + 10_000 * rank) for slot in range(slots)]
        for rank in range(dist.world())
    ]
    labels = sum(len(batch.labels) for mine in all_ for batch in mine)
    for batch in all_[dist.rank()]:
        yield replace(batch, total_rows=ROWS * slots * dist.world(), total_labels=labels)


def train(engine: Engine, slots: int, first: int, last: int, norms: list[float] | None = None) -> list[float]:
    """Losses of the steps, over all ranks; `norms` gets those of the gradients."""
    method, losses = METHODS["asa"](MethodsConfig(asa=ATTACK)), []
    for step in range(first, last):
        dist.seed_all(2, step, dist.rank())
        terms = [method.backward(engine, batch, At(slot, 0))["loss"] for slot, batch in enumerate(window(step, slots))]
        losses.append(float(dist.all_reduce_(torch.stack(terms).sum())))
        stats = engine.step(norms=True)
        assert stats.applied
        if norms is not None:
            norms.append(float(stats.grad_norm))
    return losses


def state_of(engine: Engine) -> dict[str, Tensor]:
    states = cast(tuple[State, ...], get_args(State))
    return {f"{state} {name}": p.float().cpu().clone() for state in states for name, p in engine.parts(state)}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def not_finite(engine: Engine, of_loss: bool = True) -> StepStats:
    """A step whose gradient, and loss, is not finite on the last rank alone, which all must leave out."""
    factor = float("nan") if dist.rank() == dist.world() - 1 else 1.0
    logits = engine.forward(tiny_batch()).logits
    if not of_loss:
        logits.register_hook(lambda gradient: gradient * factor)
    engine.backward(logits.float().sum() * (factor if of_loss else 1.0))
    return engine.step(norms=True)


class Reference(NamedTuple):
    losses: list[float]
    norms: list[float]
    end: dict[str, Tensor]


def run(case: Case, references: dict[Case, Reference], out: Path) -> dict[str, Any]:
    engine, method = build(case, seed=0), METHODS["asa"](MethodsConfig(asa=ATTACK))
    norms = list[float]()
    losses = train(engine, case.slots, 0, BEFORE, norms)
    folder = checkpoint.save(out / case.name, BEFORE, engine, method, tiny_tokenizer(), {}, keep=1)
    losses += train(engine, case.slots, BEFORE, STEPS, norms)
    end = state_of(engine)
    other = build(case, seed=9)
    checkpoint.load(folder if dist.is_main() else None, other, method)
    calm = train(other, case.slots, BEFORE, BEFORE + 1)
    before, counters = state_of(other), other.counters()
    stats = not_finite(other)
    skipped = {
        "applied": stats.applied,
        "norms": [stats.model_norm, stats.adversary_norm],
        "changed": differing(before, state_of(other)),
        "counted": other.counters()["applied"] - counters["applied"],
    }
    other.set_counters(counters)
    again = calm + train(other, case.slots, BEFORE + 1, STEPS)
    if case.stage == "plain":
        references[case] = Reference(losses, norms, end)
    found = {
        "losses": losses,
        "again": again,
        "differing": differing(end, state_of(other)),
        "counters": [engine.counters(), other.counters()],
        "skipped": skipped,
    }
    return found | compare(references[case.reference], losses, norms, end)


def compare(plain: Reference, losses: list[float], norms: list[float], end: dict[str, Tensor]) -> dict[str, float]:
    """Largest differences from the plain engine: of a weight, absolute, of a loss and a gradient's norm, relative."""
    weights = [float((end[name] - p).abs().max()) for name, p in plain.end.items() if name.startswith("weights")]
    return {
        "weights_off": max(weights),
        "losses_off": max(abs(mine / its - 1) for mine, its in zip(losses, plain.losses, strict=True)),
        "norms_off": max(abs(mine / its - 1) for mine, its in zip(norms, plain.norms, strict=True)),
    }


def scale_at(stage: Stage, **scaler: Any) -> Engine:
    """An FP16 engine that does not clip, its loss scale's state as given."""
    module = tiny_module(seed=3)
    engine = DeepSpeedEngine(module, replace(OPTIM, clip=0.0), STEPS, CPU, cast(int, stage), "fp16", ROWS)
    engine.set_counters({"applied": 0, "scaler": {"cur_scale": SCALE} | scaler})
    return engine


def growing(stage: Stage) -> dict[str, Any]:
    """A step after which the scale grows, and the same one after which it does not."""
    steady, growing = scale_at(stage), scale_at(stage, cur_iter=1000)
    for engine in (steady, growing):
        METHODS["vanilla"](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
    scales = [engine.step().loss_scale for engine in (steady, growing)]
    after = [engine.counters()["scaler"]["cur_scale"] for engine in (steady, growing)]
    return {"differing": differing(state_of(steady), state_of(growing)), "scales": scales, "after": after}


def lowest(stage: Stage) -> str:
    """What is said of an overflow at the smallest scale."""
    try:
        not_finite(scale_at(stage, cur_scale=1.0), of_loss=False)
    except WorkError as error:
        return str(error)
    return ""


def kept(stage: Stage) -> list[Any]:
    """The scale's state before and after losses that are not finite, and whether the scale was to blame."""
    engine = scale_at(stage, cur_scale=1.0)
    before = engine.counters()
    stats = [not_finite(engine) for _ in range(3)]
    return [before, engine.counters(), [one.applied or one.overflow for one in stats]]


def climbed(stage: Stage) -> list[Any]:
    """The same of a loss that is not finite because an ascent under the scale has overflowed on the last rank."""
    engine = scale_at(stage, cur_scale=512.0, cur_hysteresis=1)
    last = dist.rank() == dist.world() - 1
    x = torch.ones(2, requires_grad=True)
    (gradient,) = engine.ascend((x.half() * (1000 if last else 1)).float().sum(), [x])
    assert torch.isfinite(gradient).all() != last
    stats = not_finite(engine)
    return [stats.applied, stats.overflow, engine.counters()["scaler"]["cur_scale"]]


def begun(stage: Stage, offload: bool, precision: Precision) -> list[str]:
    """Weights that an engine does not begin from as rank 0 has given them."""
    module = tiny_module(asa=ATTACK, seed=dist.rank())
    engine = DeepSpeedEngine(module, OPTIM, STEPS, CPU, cast(int, stage), precision, ROWS, offload)
    given = {name: p.detach() for name, p in tiny_module(asa=ATTACK, seed=0).named_parameters()}
    return differing(given, dict(engine.parts("weights")))


def begun_again(stage: Stage) -> float:
    """How far a second engine in bf16 begins from the weights of the first, in part of the largest one."""
    module = tiny_module(asa=ATTACK, seed=3)
    given = {name: p.detach().clone() for name, p in module.named_parameters()}
    found = dict[str, Tensor]()
    for _ in range(2):
        engine = DeepSpeedEngine(module, OPTIM, STEPS, CPU, cast(int, stage), "bf16", ROWS)
        found = dict(engine.parts("weights"))
        engine.close()
    return max(float((found[name].float() - p).abs().max() / p.abs().max()) for name, p in given.items())


class Work(TorchDispatchMode):
    """Counts the operations that are more than another view of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or "detach" in func.name())
        return func(*args, **(kwargs or {}))


def operations(stage: Stage) -> dict[str, int]:
    """Of an update in bf16 and, beside those of a pass in fp32, of a pass forwards and backwards; parameters."""
    made: list[Engine] = [build(Case(one, False, "bf16", 1, False), seed=3) for one in (stage, "plain")]
    passes = []
    for engine in made:
        with Work() as work:
            METHODS["vanilla"](MethodsConfig()).backward(engine, tiny_batch(), At(0, 0))
        passes.append(work.count)
    with Work() as update:
        assert made[0].step().applied
    parameters = len(list(made[0].module.parameters()))
    return {"update": update.count, "further": passes[0] - passes[1], "parameters": parameters}


def group_waits(stage: Stage) -> float:
    """Seconds after which a collective of DeepSpeed's is over."""
    group = cast(Any, build(Case(stage, False, "bf16", 1, False), seed=3))._optimizer.dp_process_group
    assert group is not torch_dist.group.WORLD
    return group._get_backend(CPU).options._timeout.total_seconds()


def waits(stage: Stage) -> int:
    """How often five steps of two micro-batches ask DeepSpeed's device to finish all that it was given."""
    from deepspeed.accelerator import get_accelerator

    engine, counted = build(Case(stage, False, "fp32", 1, False), seed=3), 0

    def synchronize(*_: Any) -> None:
        nonlocal counted
        counted += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(get_accelerator(), "synchronize", synchronize)
        train(engine, 2, 0, 5)  # its timer begins with the third
    return counted


def run_all(cases: Iterable[Case], out: Path) -> dict[Case, dict[str, Any]]:
    """What came of each case, and of the plain engine's that they are compared with."""
    references: dict[Case, Reference] = {}
    return {case: run(case, references, out) for case in with_references(cases)}


def main(out: Path, which: str) -> None:
    torch.set_num_threads(1)
    let_cpu_do_fp16()
    piece, zero_at_once.PIECE = zero_at_once.PIECE, 2000  # several of them, as a real model has
    dist.init(cuda=False, launched=True, timeout=WAIT)
    found = run_all({"every": every(), "thin": THIN, "at once": AT_ONCE}[which], out)
    results: dict[str, Any] = {case.name: result for case, result in found.items()}
    stages: tuple[Stage, ...] = (1, 2, 3)
    if which == "thin":
        for stage in (0, 2, 3):
            results[f"scale-{stage}"] = growing(stage) | {"lowest": lowest(stage)}
    zero_at_once.PIECE = piece
    for stage, offload in product(stages[1:], (False, True)):
        results[f"begun-{stage}-{offload}"] = {one: begun(stage, offload, one) for one in get_args(Precision)}
    for stage in stages[1:]:
        results[f"faults-{stage}"] = {"kept": kept(stage), "climbed": climbed(stage), "again": begun_again(stage)}
    results["seconds of DeepSpeed's group"] = group_waits(2)
    results["operations"] = operations(2)
    results["operations"]["waits"] = sum(waits(stage) for stage in (0, 1, 2))
    if dist.is_main():
        (out / "results.json").write_text(json.dumps(results))
    dist.close()  # a process that ends without it is now and then aborted by gloo's threads


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
