"""The pre-training loop: batches -> objective -> method -> engine, with log lines, evaluations and checkpoints."""

import json
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from asa import checkpoint, dist, hf, manifest
from asa.config import save_yaml, to_dict
from asa.engine import DeepSpeedEngine, Engine, StepStats
from asa.errors import WorkError
from asa.methods import METHODS, At, Method
from asa.record import Record, environment, numbers
from asa.rtd import ReplacedTokenModel
from pretrain.config import PretrainConfig
from pretrain.data import Batches
from pretrain.objective import Objective, Terms, add, evaluate, objective_of
from pretrain.progress import Stopwatch, postfix, progress_bar
from pretrain.resume import newest, only_run, shards_sha256


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
    step: int = 0
    seconds: float = 0.0  # of earlier parts of a resumed run

    @property
    def tokens_per_step(self) -> int:
        return self.config.global_batch * self.batches.length


def train(config: PretrainConfig, device: torch.device) -> None:
    """Run or continue pre-training in `config.out`; every rank calls it.

    Raises: RequestError where `config.out` belongs to another request, WorkError for damaged input or a diverged run.
    """
    dist.on_main(lambda: _verify(config))
    with only_run(config.out):
        run = build(config, device)
        resumed = run.step or None
        record = Record(config.out, _facts(run), active=dist.is_main(), resume=resumed)
        if dist.is_main():
            save_yaml(config, config.out / "config.yaml")
        began = time.perf_counter() - run.seconds
        with progress_bar(config.method, run.step, config.steps) as bar:
            if not resumed:
                _evaluate_and_log(run, record, bar)
            _steps(run, record, bar, began)
        record.end(
            {"seconds": time.perf_counter() - began, "tokens": run.step * run.tokens_per_step, "steps": run.step}
        )


def build(config: PretrainConfig, device: torch.device) -> Run:
    """Model, engine, method and data, at the position of the newest checkpoint in `config.out` if there is one."""
    method = METHODS[config.method](config)
    objective = objective_of(config)
    module, notes = objective.build(config, config.asa if method.uses_adversary else None)
    for note in notes:
        _say(note)
    if config.activation_checkpointing:
        for part in module.children():
            if isinstance(part, PreTrainedModel):
                part.activation_checkpointing_enable()
    updates, micro = config.steps * method.replays, config.micro(dist.world())
    engine = DeepSpeedEngine(module, config.optim, updates, device, config.zero, config.precision, micro)
    batches = Batches(
        config.data,
        config.seed,
        config.global_batch,
        config.mask_share,
        dist.rank(),
        dist.world(),
        config.masking,
    )
    run = Run(config, engine, method, objective, batches, hf.load_tokenizer(config.model, "--model"), device)
    found = newest(config, dist.world())
    if found:
        facts = checkpoint.load(found, engine, method)
        run.step, run.seconds = facts["step"], facts["seconds"]
        _say(f"continuing {config.out} from step {run.step} of {config.steps}")
    engine.module.train()
    return run


def _verify(config: PretrainConfig) -> None:
    """Every byte of the shards and of the checkpoint to continue from."""
    manifest.verify(config.data, "shards", "--data")
    found = newest(config, dist.world())
    if found:
        manifest.verify(found, checkpoint.KIND, "--out")


def _steps(run: Run, record: Record, bar: tqdm, began: float) -> None:
    """The optimizer steps that are left, with their log lines, evaluations and checkpoints."""
    config, watch = run.config, Stopwatch()
    while run.step < config.steps:
        terms, stats = _update(run)
        run.step += 1
        last = run.step == config.steps
        watch.steps += 1
        if run.step % config.log_every == 0 or last:
            values = _read_terms(terms, run.step)
            values |= {"lr": stats.lr, "grad_norm": float(stats.grad_norm)}
            values["tokens_per_s"] = run.tokens_per_step * watch.rate()
            record.log("train", run.step, values)
            bar.set_postfix_str(postfix(values), refresh=False)
        bar.update()
        with watch.paused():
            if run.step % config.eval_every == 0 or last:
                _evaluate_and_log(run, record, bar)
            if run.step % config.save_every == 0 or last:
                _refuse_diverged(run, {"gradient norm": float(stats.grad_norm)} if stats.applied else {})
                save(run, time.perf_counter() - began)


def _evaluate_and_log(run: Run, record: Record, bar: tqdm) -> None:
    batches = run.batches.heldout_batches(run.config.eval_rows, run.config.micro(dist.world()))
    scores = evaluate(run.objective, run.engine, (batch.to(run.device) for batch in batches))
    record.log("eval", run.step, scores)
    if dist.is_main():
        shown = (f"{name.removeprefix('heldout_').replace('_', ' ')} {value:.3f}" for name, value in scores.items())
        bar.write(f"step {run.step}: held-out {', '.join(shown)}")
    _refuse_diverged(run, scores)


def _refuse_diverged(run: Run, values: dict[str, float]) -> None:
    """Raises WorkError, on every rank alike, where a value is not finite: such weights are never saved."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise WorkError(f"the {name} at step {run.step} is {value}; lower --optim.lr or look at that step's data")


def save(run: Run, seconds: float) -> None:
    """A checkpoint of the run as it stands."""
    shards = shards_sha256(run.config)
    facts = {"config": to_dict(run.config), "shards": shards, "world": dist.world(), "seconds": seconds}
    if isinstance(run.engine.module, ReplacedTokenModel):
        facts["generator"] = json.loads(run.engine.module.generator.config.to_json_string())
    root = run.config.out / "checkpoints"
    checkpoint.save(root, run.step, run.engine, run.method, run.tokenizer, facts, run.config.keep)


def _update(run: Run) -> tuple[Terms, StepStats]:
    """One optimizer step (or `replays` of them); this rank's share of the terms, still on the device."""
    config = run.config
    dist.seed_all(config.seed, run.step, dist.rank())
    masked = [batch.to(run.device) for batch in run.batches.step(run.step, config.slots(dist.world()))]
    window, before = run.objective.prepare(run.engine, masked)
    terms: Terms = {}
    stats = StepStats(False, 0.0, 0.0)
    for replay in range(run.method.replays):
        terms = dict(before)
        for slot, batch in enumerate(window):
            add(terms, run.method.backward(run.engine, batch, At(slot, replay)))
        stats = run.engine.step()
        run.method.after_step(run.engine)
    return terms, stats


def _read_terms(terms: Terms, step: int) -> dict[str, Any]:
    """The step's means over all ranks as numbers. Raises WorkError for a loss that is not finite."""
    # Terms may share a tensor (plain MLM: the loss is the task), which must not be summed twice.
    values: dict[str, Any] = dict(numbers({name: dist.sum_(term.clone()) for name, term in terms.items()}))
    if not math.isfinite(values["loss"]):
        raise WorkError(f"the loss of step {step} is {values['loss']}; lower --optim.lr or look at that step's data")
    return values


def _facts(run: Run) -> dict[str, Any]:
    return {
        "stage": "pretrain",
        "objective": run.config.objective,
        "method": run.config.method,
        "model": run.config.model.name,
        "seed": run.config.seed,
        "processes": dist.world(),
        "config": to_dict(run.config),
        "environment": environment(),
    }


def _say(line: str) -> None:
    if dist.is_main():
        print(line, flush=True)
