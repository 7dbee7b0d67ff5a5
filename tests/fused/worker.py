"""One process of fused steps under DeepSpeed, and of the same steps unfused; results to a JSON file."""

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as torch_dist
from triton.runtime.interpreter import InterpreterBuilder

from asa import adversary, dist, fused
from asa.engine import Precision
from asa.fused import activations, launch, norms
from asa.methods import METHODS, At, MethodsConfig
from tests.asa.conftest import tiny_batch
from tests.fused.interpreted import dot_of_numbers
from tests.precision.worker import engine_for, let_cpu_do_fp16

STEPS = 3


def run(zero: int, precision: Precision, device: torch.device) -> dict[str, Any]:
    """Terms by step, norms of the last step's gradients, and how often attention, norms and GELU were fused."""
    launched, forward = [], launch.forward
    large, launch_large = [], norms.run

    def counted(*args: Any) -> Any:
        launched.append(args)
        return forward(*args)

    def noted(kernel: Any, *args: Any, **settings: Any) -> None:
        large.append(kernel)
        launch_large(kernel, *args, **settings)

    launch.forward, norms.run, activations.run = counted, noted, noted  # type: ignore[assignment]
    torch.manual_seed(5)
    engine = engine_for("bert", "asa", zero, precision, device)
    method, terms, sizes = METHODS["asa"](MethodsConfig()), [], []
    for _ in range(STEPS):
        batch = tiny_batch(seed=0)
        batch.inputs.pop("token_type_ids")
        found = method.backward(engine, batch.to(device), At(0, 0))
        terms.append({name: value.tolist() for name, value in found.items()})
        stats = engine.step(norms=True)
        assert stats.applied
        assert stats.model_norm is not None
        assert stats.adversary_norm is not None
        sizes.append({"model": float(stats.model_norm), "adversary": float(stats.adversary_norm)})
    launch.forward, norms.run, activations.run = forward, launch_large, launch_large
    found = {"terms": terms, "norms": sizes[-1], "launched": len(launched)}
    kernels = {"normed": norms.norm_kernel, "intermediate": activations.gelu_gradient_kernel}
    return found | {name: large.count(kernel) for name, kernel in kernels.items()}


def main(out: Path, device: torch.device, zero: int, precision: Precision) -> None:
    torch.set_num_threads(1)
    if device.type == "cpu":
        let_cpu_do_fp16()
    if os.environ.get("TRITON_INTERPRET") == "1":
        InterpreterBuilder.create_dot = dot_of_numbers(InterpreterBuilder.create_dot)
    fused._works = lambda *_: True  # trials are other tests'
    fused.FEWEST_NUMBERS = 0  # pyright: ignore[reportConstantRedefinition]
    adversary.merges = lambda _: True  # as at sizes that are not a test's
    torch_dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    results = {}
    for name, devices in (("fused", {device.type}), ("plain", set())):
        fused.DEVICES = devices
        results[name] = run(zero, precision, device)
    if dist.is_main():
        out.write_text(json.dumps(results))
    dist.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), torch.device(sys.argv[2]), int(sys.argv[3]), cast(Precision, sys.argv[4]))
