"""One process of the contract test: every method x engine x accumulation in one process group, results to a file.

Run under torch's or DeepSpeed's launcher variables; a process group is set up once since start-up costs seconds.
"""

import sys
from itertools import product
from pathlib import Path

import torch
import torch.distributed as torch_dist
from safetensors.torch import save_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from asa import dist
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.engine import DeepSpeedEngine, Engine, PlainEngine
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.random_mask import RandomMaskConfig
from asa.model import TaskModel
from asa.optim import OptimConfig

ENGINES = ("plain", "zero0", "zero1", "zero2", "zero3")
ACCUMULATIONS = (1, 2)
STEPS, ROWS, LENGTH, MASKED = 2, 8, 12, 3
# A large eps keeps Adam from turning rounding noise of near-zero gradients into whole steps.
OPTIM = OptimConfig(lr=1e-2, warmup=0.0, eps=1e-3)
# Masks that draw nothing: what is drawn depends on how rows are cut into micro-batches.
OPTIONS = MethodsConfig(random_mask=RandomMaskConfig(strategy="magnitude"))
CPU = torch.device("cpu")


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
    for step in range(STEPS):
        for slot in range(slots):
            terms = method.backward(engine, micro_batch(step, slot, slots), At(slot, 0))
            for key, value in terms.items():
                seen[f"term.{step}.{key}"] = seen.get(f"term.{step}.{key}", torch.zeros_like(value)) + value
        seen[f"norm.{step}"] = torch.as_tensor(float(engine.step().grad_norm), dtype=torch.float64)
    seen = {key: dist.sum_(value) if key.startswith("term") else value for key, value in seen.items()}
    return seen | {f"weight.{key}": value for key, value in engine.full_state().items()}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    torch_dist.init_process_group("gloo")
    for name, method, slots in product(ENGINES, METHODS, ACCUMULATIONS):
        result = run(name, method, slots)
        if dist.is_main():
            save_file(result, out / f"{name}-{method}-{dist.world()}-{slots}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
