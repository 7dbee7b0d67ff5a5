"""A run: its model, engine, method and data at the position of the newest checkpoint, and how it is saved."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from asa import checkpoint, dist
from asa.config import to_dict
from asa.engine import Engine
from asa.hf import checkpoint_activations
from asa.methods import METHODS, Method, groups_unread
from asa.methods.limits import rounding, slow_adversary
from asa.record import environment
from asa.rtd import ReplacedTokenModel
from asa.tokenizer import load_tokenizer
from asa.zero import DeepSpeedEngine
from pretrain.config import PretrainConfig
from pretrain.data import Batches
from pretrain.faults import Faults
from pretrain.objective import Objective, objective_of
from pretrain.resume import inputs, threads


@dataclass
class Run:
    """What the loop works on, and how far it is."""

    config: PretrainConfig
    engine: Engine
    method: Method
    objective: Objective
    batches: Batches
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    faults: Faults
    inputs: dict[str, str]  # hashes of what it reads, as it was at the start
    step: int = 0
    seconds: float = 0.0  # of earlier parts of a resumed run

    @property
    def tokens_per_step(self) -> int:
        return self.config.global_batch * self.batches.length


def build(config: PretrainConfig, device: torch.device, found: Path | None = None) -> Run:
    """Model, engine, method and data, at the position of the checkpoint `found` if there is one. All ranks call it."""
    method = METHODS[config.method](config)
    objective = objective_of(config)
    module, notes = dist.agreed(lambda: objective.build(config, config.asa if method.uses_adversary else None))
    if method.uses_adversary and (told := slow_adversary(config.optim.eps, config.asa.reversal)):
        notes = [*notes, f"note: {told}; set --optim.eps or --asa.reversal"]
    for note in [*notes, *rounding(config.precision, device.type == "cuda")]:
        say(note)
    if config.activation_checkpointing:
        for part in module.children():
            if isinstance(part, PreTrainedModel):
                checkpoint_activations(part)
    updates, micro = config.steps * method.replays, config.micro(dist.world())
    engine = DeepSpeedEngine(
        module, config.optim, updates, device, config.zero, config.precision, micro, config.offload
    )
    batches = Batches(
        config.data,
        config.seed,
        config.global_batch,
        config.mask_share,
        dist.rank(),
        dist.world(),
        config.masking,
    )
    if config.global_batch > (rows := len(batches.train)):
        say(f"note: --global_batch {config.global_batch:,} is over the {rows:,} rows: a step has some several times")
    faults = Faults(config.on_nonfinite)
    tokenizer = load_tokenizer(config.model, "--model")
    run = Run(config, engine, method, objective, batches, tokenizer, device, faults, inputs(config))
    if found is not None:
        facts = checkpoint.load(found, engine, method)
        run.step, run.seconds, faults.skipped = facts["step"], facts["seconds"], facts["skipped"]
        say(f"continuing {config.out} from step {run.step} of {config.steps}")
    engine.module.train()
    return run


def save(run: Run, seconds: float) -> None:
    """A checkpoint of the run as it stands; all ranks call it. Raises checkpoint.SaveFailed, WorkError."""
    facts = {
        "config": to_dict(run.config),
        "inputs": run.inputs,
        "world": dist.world(),
        "threads": threads(),
        "seconds": seconds,
        "tokens": run.step * run.tokens_per_step,
        "skipped": run.faults.skipped,
    }
    if isinstance(run.engine.module, ReplacedTokenModel):
        facts["generator"] = json.loads(run.engine.module.generator.config.to_json_string())
    root = run.config.out / "checkpoints"
    checkpoint.save(root, run.step, run.engine, run.method, run.tokenizer, facts, run.config.keep)


def facts_of(run: Run) -> dict[str, Any]:
    """The first line of the record, without the settings of other methods."""
    others = groups_unread(run.config.method)
    return {
        "stage": "pretrain",
        "objective": run.config.objective,
        "method": run.config.method,
        "model": run.config.model.name,
        "seed": run.config.seed,
        "processes": dist.world(),
        "config": {key: value for key, value in to_dict(run.config).items() if key not in others},
        "inputs": run.inputs,
        "command": sys.argv,
        "environment": environment(),
    }


def say(line: str) -> None:
    if dist.is_main():
        print(line, flush=True)
