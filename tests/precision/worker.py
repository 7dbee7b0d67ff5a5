"""One process of the low-precision runs: DeepSpeed's FP16 and BF16 engines on tiny models; results to a JSON file.

DeepSpeed refuses FP16 on a CPU although torch computes it, so the CPU accelerator is told to say that it can: the
engine's logic (loss scale, overflow, skipped steps) is the same as on a GPU.
"""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist

from asa import dist
from asa.adversary import ASAConfig
from asa.engine import Precision
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel
from asa.optim import OptimConfig
from asa.zero import DeepSpeedEngine
from tests.asa.conftest import tiny_batch
from tests.asa.encoders import EAGER_ONLY, tiny

FAMILIES = ("bert", "modernbert", "deberta-v2")
METHOD_NAMES = ("vanilla", "asa")
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
STAGES = (1, 2)
STEPS = 20
OVERFLOW_AT = (3, 4)  # these steps get an infinite gradient in fp16; the second one halves the loss scale


def let_cpu_do_fp16() -> None:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    CPU_Accelerator.is_fp16_supported = lambda self: True  # type: ignore[method-assign]
    CPU_Accelerator.supported_dtypes = lambda self: [torch.float, torch.half, torch.bfloat16]  # type: ignore[method-assign]


def engine_for(family: str, method: str, zero: int, precision: Precision, device: torch.device) -> DeepSpeedEngine:
    model = tiny(family, attention="eager" if family in EAGER_ONLY else "sdpa", initializer_range=0.1)
    torch.manual_seed(1)
    module = TaskModel(model, "mlm", ASAConfig() if METHODS[method](MethodsConfig()).uses_adversary else None)
    optim = OptimConfig(lr=5e-3, warmup=0.0)
    return DeepSpeedEngine(module, optim, STEPS, device, zero, precision, micro_batch=3)


def run(family: str, method_name: str, zero: int, precision: Precision, device: torch.device) -> dict[str, Any]:
    engine = engine_for(family, method_name, zero, precision, device)
    method = METHODS[method_name](MethodsConfig())
    seen: dict[str, Any] = {"terms": [], "applied": [], "lr": [], "norm": [], "scale": []}
    for step in range(STEPS):
        batch = tiny_batch(seed=0)
        batch.inputs.pop("token_type_ids")
        batch = batch.to(device)
        terms = method.backward(engine, batch, At(0, 0))
        if step in OVERFLOW_AT and precision == "fp16":
            engine.backward(engine.forward(batch).logits.float().sum() * 1e30)
        stats = engine.step()
        seen["terms"].append({name: value.tolist() for name, value in terms.items()})
        seen["applied"].append(stats.applied)
        seen["lr"].append(stats.lr)
        seen["norm"].append(float(stats.grad_norm))
        seen["scale"].append(float(getattr(engine._optimizer, "loss_scale", 1.0)))
    state = engine.full_state()
    seen["finite"] = all(bool(value.isfinite().all()) for value in state.values())
    return seen


def main(out: Path, device: torch.device) -> None:
    torch.set_num_threads(1)
    if device.type == "cpu":
        let_cpu_do_fp16()
    torch_dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    results = {}
    for case in product(FAMILIES, METHOD_NAMES, STAGES, PRECISIONS):
        results["-".join(map(str, case))] = run(*case, device)
    if dist.is_main():
        out.write_text(json.dumps(results))
    dist.close()  # a process that ends without it is now and then aborted by gloo's threads


if __name__ == "__main__":
    main(Path(sys.argv[1]), torch.device(sys.argv[2]))
