"""One process of the contract test: every method x engine x accumulation in one process group, results to a file.

Run under torch's or DeepSpeed's launcher variables; a process group is set up once since start-up costs seconds.
"""

import gc
import json
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as torch_dist
from safetensors.torch import save_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from asa import dist, perturb
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.engine import Engine, PlainEngine
from asa.errors import WorkError
from asa.losses import task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.creat import CreATConfig
from asa.methods.freeat import FreeATConfig
from asa.methods.freelb import FreeLBConfig
from asa.methods.pgd import PGDConfig
from asa.methods.r3f import R3FConfig
from asa.methods.random_mask import RandomMaskConfig
from asa.methods.smart import SMARTConfig
from asa.methods.smart_released import SMARTReleasedConfig
from asa.methods.smoothness import SmoothConfig
from asa.methods.vat import VATConfig
from asa.methods.yopo import YOPOConfig
from asa.model import Output, TaskModel
from asa.optim import OptimConfig
from asa.perturb import Room
from asa.signal import Perturb, Tap
from asa.zero import DeepSpeedEngine
from tests.precision import matrix
from tests.precision.worker import let_cpu_do_fp16

ENGINES = ("plain", "zero0", "zero1", "zero2", "zero3")
WORLDS = ACCUMULATIONS = (1, 2)
NO_CLIMB = ("vanilla", "asa", "asa_sparse", "random_mask", "r3f", "r_drop")  # no ascent in the words
FP16_METHODS = tuple(name for name in METHODS if name not in NO_CLIMB)
LOSS_SCALES = (2.0**2, 2.0**13)
# Where DeepSpeed's scale arrives in long runs of large steps, whose totals keep the gradients themselves small.
HIGH_SCALE, HIGH_TOTAL = 2.0**20, 39_000
# Identical micro-batches of a window by ZeRO stage: sums in bf16 would be off from a few on. 3 takes ten times as long.
SLICES = {0: 64, 1: 64, 2: 64, 3: 32}
STEPS, ROWS, LENGTH, MASKED = 2, 8, 12, 3
SHORT = 4  # tokens of a rank's shorter rows
# A large eps keeps Adam from turning rounding noise of near-zero gradients into whole steps.
OPTIM = OptimConfig(lr=1e-2, warmup=0.0, eps=1e-3)
WALK: dict[str, Any] = {"radius": 0.15, "step_size": 0.1, "start": 0.1}
# Perturbations that rounding does not decide, and masks that draw nothing: a draw follows how rows are cut.
SMOOTH: dict[str, Any] = {"radius": 0.2, "noise": 0.2, "step_size": 0.05}
OPTIONS = MethodsConfig(
    random_mask=RandomMaskConfig(strategy="magnitude"),
    pgd=PGDConfig(**WALK),
    freeat=FreeATConfig(**WALK),
    yopo=YOPOConfig(**WALK),
    freelb=FreeLBConfig(**WALK, passes=3),
    smart=SMARTConfig(**SMOOTH),
    smart_released=SMARTReleasedConfig(noise=0.05),
    alum=SmoothConfig(**SMOOTH),
    vat=VATConfig(distance=0.5),
    r3f=R3FConfig(noise=0.1),
    creat=CreATConfig(start=0.05),
)
CPU = torch.device("cpu")


def cases(world: int) -> list[tuple[str, str, int]]:
    """Engine, method, accumulation: everything by two processes for two methods, for the others, and by one process,
    each way of passing once."""
    thorough = ("vanilla", "asa")
    found: list[tuple[str, str, int]] = [*product(("plain",), thorough, ACCUMULATIONS)]
    found += product(ENGINES[1:4], thorough, ACCUMULATIONS if world == 2 else (2,))
    others = [method for method in METHODS if method not in thorough]
    found += product(("plain",), others, ACCUMULATIONS if world == 1 else (2,))
    found += product(("zero1",) if world == 1 else ("zero2",), others, (2,))
    # ZeRO 3 costs ten times the others: those two and one method each with gradients of a pass, ascents, replays, a
    # teacher, a tap.
    found += product(("zero3",) if world == 2 else (), (*thorough, "freelb", "pgd", "freeat", "smart", "creat"), (2,))
    return [*found, ("zero0", "freelb", 2)]


def every_case() -> list[tuple[str, str, int]]:
    """Every engine with every method and accumulation, but the one pair that is refused."""
    return [case for case in product(ENGINES, METHODS, ACCUMULATIONS) if case[:2] != ("zero3", "yopo")]


def same_draws(room: Room, size: float) -> Tensor:
    """In place of random starts: the same for every row, so that it does not matter how rows are cut."""
    drawn_LD = torch.rand(room.real_RL.shape[1], room.width, generator=torch.Generator().manual_seed(5)) * 2 - 1
    return drawn_LD * room.real_RL.unsqueeze(-1) * size


def build(method: str) -> TaskModel:
    torch.manual_seed(7)
    shape = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    return TaskModel(
        BertForMaskedLM(shape), "mlm", ASAConfig(tau=0.3) if METHODS[method](OPTIONS).uses_adversary else None
    )


def micro_batch(step: int, slot: int, slots: int) -> Batch:
    """Slot `slot` of this rank: the step's rows are the same however they are cut. Rows differ in masked tokens."""
    generator = torch.Generator().manual_seed(100 + step)
    ids_BL = torch.randint(5, 60, (ROWS, LENGTH), generator=generator)
    mask_BL = torch.ones_like(ids_BL)
    mask_BL[::3, -3:] = 0
    masked_BL = torch.zeros_like(mask_BL, dtype=torch.bool)
    for row in range(ROWS):
        masked_BL[row, 1 : 2 + row % MASKED] = True
    per_slot = ROWS // (slots * dist.world())
    first = (slot * dist.world() + dist.rank()) * per_slot
    rows = slice(first, first + per_slot)
    positions = masked_BL[rows].flatten().nonzero().squeeze(-1)
    return Batch(
        kind="mlm",
        inputs={"input_ids": ids_BL[rows], "attention_mask": mask_BL[rows]},
        labels=ids_BL[rows].flatten()[positions],
        total_rows=ROWS,
        total_labels=int(masked_BL.sum()),
        positions=positions,
    )


def make_engine(name: str, method: str, slots: int) -> Engine:
    module = build(method)
    if name == "plain":
        return PlainEngine(module, OPTIM, STEPS, CPU)
    micro = ROWS // (slots * dist.world())
    return DeepSpeedEngine(module, OPTIM, STEPS, CPU, zero=int(name[-1]), precision="fp32", micro_batch=micro)


def run(name: str, method_name: str, slots: int) -> dict[str, Tensor]:
    """Weights after STEPS updates, with each step's summed terms and gradient norm."""
    engine = make_engine(name, method_name, slots)
    method = METHODS[method_name](OPTIONS)
    seen: dict[str, Tensor] = {}
    for step, replay in product(range(STEPS), range(method.replays)):
        for slot in range(slots):
            terms = method.backward(engine, micro_batch(step, slot, slots), At(slot, replay))
            for name, value in terms.items():
                key = f"term.{step}.{replay}.{name}"
                seen[key] = seen.get(key, torch.zeros_like(value)) + value
        seen[f"norm.{step}.{replay}"] = torch.as_tensor(float(engine.step().grad_norm), dtype=torch.float64)
        method.after_step(engine)
    seen = {key: dist.all_reduce_(value) if key.startswith("term") else value for key, value in seen.items()}
    state = {f"state.{key}": value.clone() for key, value in method.state_dict().items()}
    return seen | state | {f"weight.{key}": value for key, value in engine.full_state().items()}


def fp16_engine(method_name: str, scale: float) -> DeepSpeedEngine:
    engine = DeepSpeedEngine(build(method_name), OPTIM, STEPS, CPU, zero=1, precision="fp16", micro_batch=ROWS)
    setattr(engine._optimizer, "loss_scale", scale)  # noqa: B010  # its type does not tell
    return engine


def fp16_gradient(scale: float) -> Tensor:
    """What an ascent on DeepSpeed's FP16 engine with this loss scale returns for the words."""
    engine, batch = fp16_engine("vanilla", scale), micro_batch(0, 0, 1)
    delta_BLD = torch.zeros(ROWS, LENGTH, 16, requires_grad=True)
    (found_BLD,) = engine.ascend(task_loss(engine.probe(batch, Perturb(embed_BLD=delta_BLD)), batch), (delta_BLD,))
    return found_BLD


def fp16_perturbations(method_name: str, scale: float, batch: Batch) -> dict[str, Tensor]:
    """The perturbations of a micro-batch on DeepSpeed's FP16 engine with this loss scale."""
    engine = fp16_engine(method_name, scale)
    seen: dict[str, Tensor] = {}

    def note(passing: Callable[..., Output]) -> Callable[..., Output]:
        def noted(batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
            if perturb is not None and perturb.embed_BLD is not None:
                seen[f"{len(seen)}"] = perturb.embed_BLD.detach().clone()
            return passing(batch, perturb, tap)

        return noted

    engine.forward, engine.probe = note(engine.forward), note(engine.probe)  # type: ignore[method-assign]
    method = METHODS[method_name](OPTIONS)
    for replay in range(method.replays):
        method.backward(engine, batch, At(0, replay))
    return seen


def fp16(out: Path) -> None:
    """Perturbations and an ascent's gradient in FP16 under small and large loss scales."""
    let_cpu_do_fp16()
    batch = micro_batch(0, 0, 1)
    for method, scale in product(FP16_METHODS, LOSS_SCALES):
        save_file(fp16_perturbations(method, scale, batch), out / f"fp16-{method}-{scale:g}.safetensors")
    large = replace(batch, total_labels=HIGH_TOTAL)
    save_file(fp16_perturbations("yopo", HIGH_SCALE, large), out / "fp16-yopo-high.safetensors")
    save_file({f"{scale:g}": fp16_gradient(scale) for scale in LOSS_SCALES}, out / "fp16-ascent.safetensors")


def bf16_norm(zero: int, slices: int) -> float:
    """The gradient's norm of one micro-batch taken `slices` times, each with its share of the loss."""
    engine = DeepSpeedEngine(build("vanilla"), OPTIM, STEPS, CPU, zero=zero, precision="bf16", micro_batch=ROWS)
    batch = micro_batch(0, 0, 1)
    batch = replace(batch, total_rows=slices * batch.total_rows, total_labels=slices * batch.total_labels)
    for _ in range(slices):
        engine.backward(task_loss(engine.forward(batch), batch))
    return float(engine.step().grad_norm)


def bf16(out: Path) -> None:
    """Norms of a gradient taken at once and in many micro-batches."""
    found = {zero: [bf16_norm(zero, slices) for slices in (1, many)] for zero, many in SLICES.items()}
    (out / "bf16-norms.json").write_text(json.dumps(found))


def outlives(zero: int) -> bool:
    """Whether a model outlives its engine, which was closed after a step."""
    engine = DeepSpeedEngine(build("asa"), OPTIM, STEPS, CPU, zero=zero, precision="fp32", micro_batch=ROWS)
    METHODS["asa"](OPTIONS).backward(engine, micro_batch(0, 0, 1), At(0, 0))
    engine.step()
    model = weakref.ref(engine.module)
    engine.close()
    del engine
    gc.collect()
    return model() is not None


def short(batch: Batch) -> Batch:
    """Its first tokens, among which all masked ones are."""
    assert batch.positions is not None
    inputs = {name: value[:, :SHORT] for name, value in batch.inputs.items()}
    rows, columns = batch.positions // LENGTH, batch.positions % LENGTH
    assert bool((columns < SHORT).all())
    return replace(batch, inputs=inputs, positions=rows * SHORT + columns)


def ragged(name: str) -> dict[str, Tensor]:
    """Adam's averages of gradients after an update by ASA, to which rank 0 gave shorter rows."""
    engine, batch = make_engine(name, "asa", 1), micro_batch(0, 0, 1)
    METHODS["asa"](OPTIONS).backward(engine, batch if dist.rank() else short(batch), At(0, 0))
    engine.step()
    return {name: value.clone() for name, value in engine.parts("exp_avg")}


def mixed(name: str) -> str:
    """What is said of the same where gradients come as each rank's shapes have it."""
    with mock.patch("asa.adversary.dist", SimpleNamespace(world=lambda: 1)):
        try:
            ragged(name)
        except WorkError as error:
            return str(error)
    return ""


def rows_of_two_lengths(out: Path) -> None:
    for name in ENGINES:
        found = ragged(name)
        if dist.is_main():
            save_file(found, out / f"ragged-{name}.safetensors")
    said = {name: mixed(name) for name in ENGINES[1:]}
    if dist.is_main():
        (out / "mixed.json").write_text(json.dumps(said))


def evaluated(engine: Engine, batch: Batch) -> Tensor:
    """As a fine-tuning run evaluates."""
    engine.module.eval()
    with torch.no_grad():
        logits = engine.module(batch).logits.clone()
    engine.module.train()
    return logits


def restored(name: str) -> list[Any]:
    """By how much an evaluation differs: after a step from one of the first weights, that from one for which autocast
    has kept nothing, and from one of the first weights once these are back. Whether a gradient was made under autocast,
    and the types of a probe and a pass. Before the step autocast is shown the weights by an evaluation, but on ZeRO 3:
    there DeepSpeed keeps what it has gathered only in the order of passes that a step has shown it."""
    asked: list[Any] = []
    engine, batch = make_engine(name, "vanilla", 1), micro_batch(0, 0, 1)
    kept = [(part, value.clone()) for part, value in engine.parts("weights")]
    with torch.no_grad():
        before = build("vanilla").eval()(batch).logits
    probed, passed = engine.probe(batch), engine.forward(batch)
    loss = task_loss(passed, batch)
    loss.register_hook(lambda _: asked.append(torch.is_autocast_enabled("cpu")))
    engine.backward(loss)
    if not engine.partitioned:
        evaluated(engine, batch)
    engine.step()
    after = evaluated(engine, batch)
    torch.clear_autocast_cache()
    anew = evaluated(engine, batch)
    engine.restore("weights", kept)
    again = evaluated(engine, batch)
    engine.close()
    pairs = ((after, before), (after, anew), (again, before))
    return [
        *((one - other).abs().max().item() for one, other in pairs),
        *asked,
        str(probed.logits.dtype),
        str(passed.logits.dtype),
    ]


def from_itself(name: str) -> float:
    """The divergence of SMART's teacher from the model that it begins as."""
    engine = make_engine(name, "smart", 1)
    terms = METHODS["smart"](OPTIONS).backward(engine, micro_batch(0, 0, 1), At(0, 0))
    engine.close()
    return terms["proximal"].item()


def put_back(engines: Sequence[str]) -> dict[str, list[Any]]:
    """The same two of engines, alone and in one autocast around everything."""
    found = {}
    for name, around in product(engines, (False, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            found[f"{name}-{around}"] = [from_itself(name), *restored(name)]
    return found


def resume(out: Path) -> None:
    """Each ZeRO stage on two processes, saved and continued."""
    cases = [case for case in matrix.THIN if case.precision == "fp32"]
    found = {case.name: result for case, result in matrix.run_all(cases, out).items()}
    if dist.is_main():
        (out / "resume.json").write_text(json.dumps(found))


def main(out: Path, every: bool) -> None:
    torch.set_num_threads(1)
    torch_dist.init_process_group("gloo")
    perturb.uniform = perturb.gaussian = same_draws
    # First, since ZeRO 3 gives a process another linear layer, of whose weights autocast keeps nothing.
    apart = put_back(ENGINES[:-1] if dist.world() == 2 else ())
    for name, method, slots in every_case() if every else cases(dist.world()):
        result = run(name, method, slots)
        if dist.is_main():
            save_file(result, out / f"{name}-{method}-{dist.world()}-{slots}.safetensors")
    if dist.world() == 1:
        fp16(out)
        bf16(out)
        (out / "outlive.json").write_text(json.dumps([zero for zero in range(4) if outlives(zero)]))
    else:
        resume(out)
        rows_of_two_lengths(out)
        apart |= put_back(ENGINES[-1:])
        if dist.is_main():
            (out / "restored.json").write_text(json.dumps(apart))
    dist.close()  # a process that ends without it is now and then aborted by gloo's threads


if __name__ == "__main__":
    main(Path(sys.argv[1]), every="every" in sys.argv)
