"""One process of the RTD engine test: objective, then method, on every engine and accumulation; results to a file."""

import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
from safetensors.torch import save_file
from torch import Tensor

from asa import dist, rtd
from asa.adversary import ASAConfig
from asa.engine import Engine, PlainEngine
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.base import add
from asa.rtd import ReplacedTokenModel
from asa.zero import DeepSpeedEngine
from pretrain.objective import ReplacedTokens
from tests.asa.encoders import tiny
from tests.contract.worker import ACCUMULATIONS, CPU, ENGINES, LENGTH, OPTIM, ROWS, STEPS, micro_batch

Case = tuple[str, str, str, int]  # family, method, engine, micro-batches per step and process
ELECTRA: list[Case] = [("electra", "vanilla", engine, 1) for engine in ("plain", "zero2", "zero3")]
EVERY: list[Case] = [*product(("bert",), ("asa",), ENGINES, ACCUMULATIONS), *ELECTRA]
# Of the quick suite, by number of processes: with two every engine, with one what the others are compared with.
QUICK: dict[int, list[Case]] = {
    1: [("bert", "asa", "plain", 1), ("bert", "asa", "plain", 2), ("bert", "asa", "zero2", 2), ELECTRA[0]],
    2: [*product(("bert",), ("asa",), ENGINES, (2,)), *ELECTRA],
}
SHAPE: dict[str, Any] = {"vocab_size": 60, "max_position_embeddings": LENGTH}
WEIGHT = 0.5  # large enough that the generator's part of the tied embeddings' gradient shows


def build(family: str, method: str) -> ReplacedTokenModel:
    """BERT with a generator of its own size, ELECTRA with a smaller one."""
    smaller: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1} if family == "electra" else {}
    generator = tiny(family, seed=3, **SHAPE, **smaller)
    shape = tiny(family, **SHAPE).config
    shape.num_labels = 1
    torch.manual_seed(7)
    discriminator = rtd.discriminator_class(shape).from_config(shape)
    return ReplacedTokenModel(discriminator, generator, ASAConfig(tau=0.3) if method == "asa" else None)


def make_engine(name: str, module: ReplacedTokenModel, slots: int) -> Engine:
    if name == "plain":
        return PlainEngine(module, OPTIM, STEPS, CPU)
    micro = ROWS // (slots * dist.world())
    return DeepSpeedEngine(module, OPTIM, STEPS, CPU, zero=int(name[-1]), precision="fp32", micro_batch=micro)


def run(family: str, method_name: str, name: str, slots: int) -> dict[str, Tensor]:
    """Weights after STEPS updates, with each step's summed terms and gradient norm."""
    engine = make_engine(name, build(family, method_name), slots)
    objective, method = ReplacedTokens(WEIGHT), METHODS[method_name](MethodsConfig(asa=ASAConfig(tau=0.3)))
    seen: dict[str, Tensor] = {}
    for step in range(STEPS):
        batches = [micro_batch(step, slot, slots) for slot in range(slots)]
        window, terms = objective.prepare(engine, batches, lambda: None)
        for slot, batch in enumerate(window):
            add(terms, method.backward(engine, batch, At(slot, 0)))
        seen |= {f"term.{step}.{key}": dist.all_reduce_(value.clone()) for key, value in terms.items()}
        seen[f"norm.{step}"] = torch.as_tensor(float(engine.step().grad_norm), dtype=torch.float64)
    return seen | {f"weight.{key}": value for key, value in engine.full_state().items()}


def main(out: Path, every: bool) -> None:
    torch.set_num_threads(1)
    torch_dist.init_process_group("gloo")
    # Draws follow the shape of the micro-batch; the likeliest id is the same however the rows are cut.
    rtd.sample = lambda log_probs_MV, pad: log_probs_MV.argmax(-1)
    for family, method, name, slots in EVERY if every else QUICK[dist.world()]:
        result = run(family, method, name, slots)
        if dist.is_main():
            save_file(result, out / f"{family}-{method}-{name}-{slots}-{dist.world()}.safetensors")
    dist.close()  # a process that ends without it is now and then aborted by gloo's threads


if __name__ == "__main__":
    main(Path(sys.argv[1]), every="every" in sys.argv)
