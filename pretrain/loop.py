"""The pre-training loop: batches -> method -> engine, with log lines, held-out evaluation and checkpoints."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from asa import checkpoint, dist, hf, manifest
from asa.config import save_yaml, to_dict
from asa.engine import DeepSpeedEngine, Engine
from asa.errors import RequestError, WorkError
from asa.losses import task_loss
from asa.methods import METHODS, At, Method
from asa.model import TaskModel
from asa.record import Record, environment, numbers
from pretrain.config import PretrainConfig
from pretrain.data import Batches

FREE_TO_CHANGE = ("out", "log_every", "eval_every", "eval_rows", "save_every", "keep", "micro_batch", "data", "model")


@dataclass
class Run:
    """What the loop works on."""

    config: PretrainConfig
    engine: Engine
    method: Method
    batches: Batches
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    first: int  # step to begin with; more than 0 when resumed
    shards: str  # hash of the shard manifest, so that a resumed run reads the same rows


def train(config: PretrainConfig, device: torch.device) -> None:
    """Run or continue pre-training in `config.out`; every rank calls it. Raises WorkError on a non-finite loss."""
    run = build(config, device)
    if run.first >= config.steps:
        _say(f"{config.out} is finished: step {run.first} of {config.steps}")
        return
    resumed = run.first or None
    record = Record(config.out, _facts(run), active=dist.is_main(), resume=resumed)
    if dist.is_main():
        save_yaml(config, config.out / "config.yaml")
    started, tokens = time.perf_counter(), 0
    with _progress(run) as bar:
        if not resumed:
            scores = evaluate(run)
            record.log("eval", 0, scores)
            _show(bar, 0, scores)
        for step in range(run.first, config.steps):
            clock = time.perf_counter()
            terms, stats = _update(run, step)
            tokens += _tokens(run)
            done = step + 1
            if done % config.log_every == 0 or done == config.steps:
                values = _read_terms(terms, step)
                seconds = time.perf_counter() - clock
                values |= {"lr": stats.lr, "grad_norm": float(stats.grad_norm), "tokens_per_s": _tokens(run) / seconds}
                record.log("train", done, values)
                bar.set_postfix_str(_postfix(values), refresh=False)
            bar.update()
            if done % config.eval_every == 0 or done == config.steps:
                scores = evaluate(run)
                record.log("eval", done, scores)
                _show(bar, done, scores)
            if done % config.save_every == 0 or done == config.steps:
                save(run, done)
    record.end({"seconds": time.perf_counter() - started, "tokens": tokens, "steps": config.steps})


def build(config: PretrainConfig, device: torch.device) -> Run:
    """Model, engine, method and data, at the position of the newest checkpoint in `config.out` if there is one."""
    if dist.is_main():
        manifest.verify(config.data, "shards", "--data")
    dist.barrier()
    model, new = hf.load_mlm(config.model, config.seed)
    if new:
        _say(f"{config.model} has no {', '.join(new)}: drawn from seed {config.seed}")
    torch.manual_seed(config.seed)
    module = TaskModel(model, "mlm", config.asa if config.method == "asa" else None)
    engine = DeepSpeedEngine(
        module, config.optim, config.steps, device, config.zero, config.precision, config.micro_batch
    )
    batches = Batches(config.data, config.seed, config.global_batch, config.mask_share, dist.rank(), dist.world())
    tokenizer = hf.load_tokenizer(config.model, "--model")
    shards = manifest.file_sha256(config.data / manifest.NAME)
    run = Run(config, engine, METHODS[config.method](config.asa), batches, tokenizer, device, 0, shards)
    found = checkpoint.complete(config.out / "checkpoints")
    if found:
        _resume(run, found[-1])
    engine.module.train()
    return run


def evaluate(run: Run) -> dict[str, Any]:
    """Held-out MLM loss and accuracy of the clean branch."""
    module = run.engine.module
    module.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=run.device)
    with torch.no_grad():
        for batch in run.batches.heldout_batches(run.config.eval_rows, run.config.micro_batch):
            batch = batch.to(run.device)
            out = run.engine.probe(batch)
            right = (out.logits.argmax(-1) == batch.labels).sum()
            loss = task_loss(out, batch) if len(batch.labels) else out.logits.sum()
            sums += torch.stack([loss, right / batch.total_labels]).double()
    module.train()
    loss, accuracy = dist.sum_(sums).tolist()
    return {"heldout_loss": loss, "heldout_accuracy": accuracy}


def save(run: Run, step: int) -> None:
    """A checkpoint after `step` optimizer steps."""
    facts = {"config": to_dict(run.config), "shards": run.shards, "world": dist.world()}
    checkpoint.save(run.config.out / "checkpoints", step, run.engine, run.method, run.tokenizer, facts, run.config.keep)


def _update(run: Run, step: int) -> tuple[dict[str, Tensor], Any]:
    """One optimizer step (or `replays` of them); this rank's share of the terms, still on the device."""
    config = run.config
    dist.seed_all(config.seed, step, dist.rank())
    window = [batch.to(run.device) for batch in run.batches.step(step, config.slots(dist.world()))]
    terms: dict[str, Tensor] = {}
    stats = None
    for replay in range(run.method.replays):
        terms = {}
        for slot, batch in enumerate(window):
            for name, term in run.method.backward(run.engine, batch, At(slot, replay)).items():
                terms[name] = terms[name] + term if name in terms else term
        stats = run.engine.step()
        run.method.after_step(run.engine)
    return terms, stats


def _read_terms(terms: dict[str, Tensor], step: int) -> dict[str, Any]:
    # Terms may share a tensor (plain MLM: the loss is the task), which must not be summed twice.
    values = numbers({name: dist.sum_(term.clone()) for name, term in terms.items()})
    if not math.isfinite(float(values["loss"])):  # type: ignore[arg-type]
        raise WorkError(
            f"the loss of step {step} is {values['loss']}; lower --optim.lr or look at the data of that step"
        )
    return values


def _resume(run: Run, folder: Any) -> None:
    facts = checkpoint.load(folder, run.engine, run.method)
    mine, theirs = to_dict(run.config), facts["config"]
    different = [key for key in mine if key not in FREE_TO_CHANGE and mine[key] != theirs.get(key)]
    if facts["shards"] != run.shards:
        different.append("data")
    if facts["world"] != dist.world():
        different.append("nproc")
    if different:
        raise RequestError(
            f"{run.config.out} holds a run with another {', '.join(different)}; give what it had, or another --out"
        )
    run.first = facts["step"]
    _say(f"continuing {run.config.out} from step {run.first}")


def _facts(run: Run) -> dict[str, Any]:
    return {
        "stage": "pretrain",
        "method": run.config.method,
        "model": run.config.model.name,
        "seed": run.config.seed,
        "processes": dist.world(),
        "config": to_dict(run.config),
        "environment": environment(),
    }


def _tokens(run: Run) -> int:
    return run.config.global_batch * run.batches.train.parts[0].shape[1]


def _postfix(values: dict[str, Any]) -> str:
    parts = [
        f"{name} {values[name]:.3f}" for name in ("task", "asa_token", "asa_sentence", "penalty") if name in values
    ]
    if "masked_share" in values:
        parts.append("masked " + "/".join(f"{share:.2f}" for share in values["masked_share"]))
    return "  ".join([*parts, f"lr {values['lr']:.1e}", f"{values['tokens_per_s']:,.0f} tokens/s"])


def _show(bar: tqdm, step: int, scores: dict[str, Any]) -> None:
    if dist.is_main():
        loss, accuracy = scores["heldout_loss"], scores["heldout_accuracy"]
        bar.write(f"step {step}: held-out loss {loss:.3f}, accuracy {accuracy:.1%}")


def _say(line: str) -> None:
    if dist.is_main():
        print(line, flush=True)


@contextmanager
def _progress(run: Run) -> Iterator[tqdm]:
    label = f"pretrain {run.config.method}"
    with tqdm(
        total=run.config.steps, initial=run.first, desc=label, unit="step", disable=not dist.is_main(), mininterval=1
    ) as bar:
        yield bar
