"""One fine-tuning run: a model, a method, a seed -> metrics.jsonl."""

import math
import shutil
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification

from asa import manifest
from asa.adversary import FILE as ADVERSARY_FILE
from asa.dist import seed_all
from asa.engine import PlainEngine, StepStats
from asa.errors import WorkError
from asa.methods import METHODS, At, Method
from asa.model import TaskModel
from asa.record import Record, Value, numbers
from finetune.config import FinetuneConfig
from finetune.metrics import evaluate
from finetune.tasks.batches import Encoded, steps_per_epoch, training_batch

HEAD, ADVERSARY, DROPOUT = range(3)  # one random stream each, keyed by (seed, stream, step)


class Run(NamedTuple):
    """One cell of the sweep."""

    model: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.method}-{self.seed}"


@dataclass(frozen=True)
class Best:
    """The evaluation with the highest dev accuracy so far (the first of equals) and its weights, on the CPU."""

    step: int
    epoch: float
    dev: dict[str, float]
    weights: dict[str, Tensor]


class Meter:
    """Means of the training terms since the last log line, each over the steps that had it; nothing waits for the
    device before `drain`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()
        self._lr = 0.0

    def add(self, terms: dict[str, Tensor], stats: StepStats) -> None:
        for name, value in {**terms, "grad_norm": torch.as_tensor(stats.grad_norm)}.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] += 1
        self._lr = stats.lr

    def drain(self) -> dict[str, Value]:
        means = numbers({name: value / self._counts[name] for name, value in self._sums.items()})
        self._sums, self._counts = {}, Counter()
        return {**means, "lr": self._lr}


def train(run: Run, config: FinetuneConfig, data: dict[str, Encoded], classes: list[str], facts: dict) -> dict:
    """Train, select by dev accuracy, score on test once; returns what the end line of metrics.jsonl holds.

    An earlier unfinished (or replaced) run in the same folder is removed first.
    Raises: WorkError when a loss or gradient is not finite or the record cannot be written; RequestError where the
        method refuses this model, or an exported adversary does not fit it.
    """
    began = time.perf_counter()
    folder = config.out / run.name
    shutil.rmtree(folder, ignore_errors=True)
    device = device_of(config)
    steps, method = steps_of(config, len(data["train"])), METHODS[run.method](config)
    engine = PlainEngine(build(run, config, classes), config.optim, steps * method.replays, device)
    with closing(Record(folder, facts)) as record:
        best = _fit(run, config, engine, method, data, steps, record)
        engine.module.model.load_state_dict(best.weights)
        test = evaluate(engine.module, data["test"], config.eval_batch, device)
        if config.save_model:
            _save(engine.module, config.models[run.model], folder / "model", facts)
        end = {
            **{f"dev_{name}": value for name, value in best.dev.items()},
            **{f"test_{name}": value for name, value in test.items()},
            "best_step": best.step,
            "best_epoch": best.epoch,
            "steps": steps,
            "seconds": round(time.perf_counter() - began, 3),
        }
        record.end(end)
    return end


def _fit(
    run: Run,
    config: FinetuneConfig,
    engine: PlainEngine,
    method: Method,
    data: dict[str, Encoded],
    steps: int,
    record: Record,
) -> Best:
    """All steps, with evaluations on dev on the way and after the last."""
    per_epoch = steps_per_epoch(len(data["train"]), config.batch)
    meter, best = Meter(), None
    place = int(config.worker.split("/")[0])
    for step in tqdm(range(steps), desc=run.name, position=place, leave=False, disable=None):
        batch = training_batch(data["train"], config.batch, run.seed, step).to(engine.device)
        engine.module.train()
        # As in pre-training: a step is a batch, of which a method with replays makes several updates.
        for replay in range(method.replays):
            seed_all(run.seed, DROPOUT, step * method.replays + replay)
            terms = method.backward(engine, batch, At(0, replay))
            stats = engine.step()
            if not stats.applied:
                raise WorkError(f"{run.name}: loss or gradient of step {step + 1} is not finite; lower --optim.lr")
            method.after_step(engine)
            meter.add(terms, stats)
        done = step + 1
        if done % config.log_every == 0 or done == steps:
            record.log("train", done, meter.drain())
        if _due(done, config.evals_per_epoch, per_epoch) or done == steps:
            best = _select(best, engine, data["dev"], config, done, done / per_epoch, record)
    assert best is not None
    return best


def _due(done: int, evaluations: int, per_epoch: int) -> bool:
    """Whether step number `done` completes another of the `evaluations` equal parts of an epoch."""
    return done * evaluations // per_epoch > (done - 1) * evaluations // per_epoch


def _select(
    best: Best | None,
    engine: PlainEngine,
    dev: Encoded,
    config: FinetuneConfig,
    step: int,
    epoch: float,
    record: Record,
) -> Best:
    """Evaluate on dev and keep the better of `best` and now."""
    scores = evaluate(engine.module, dev, config.eval_batch, engine.device)
    record.log("eval", step, {"split": "dev", "epoch": round(epoch, 6), **scores})
    if best is not None and scores["accuracy"] <= best.dev["accuracy"]:
        return best
    weights = {name: value.detach().cpu().clone() for name, value in engine.module.model.state_dict().items()}
    return Best(step, round(epoch, 6), scores, weights)


def build(run: Run, config: FinetuneConfig, classes: list[str]) -> TaskModel:
    """The model with a new head, and its adversary where the method has one; both follow from the seed."""
    seed_all(run.seed, HEAD, 0)
    model = AutoModelForSequenceClassification.from_pretrained(
        config.models[run.model],
        num_labels=len(classes),
        id2label=dict(enumerate(classes)),
        label2id={name: index for index, name in enumerate(classes)},
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
    )
    seed_all(run.seed, ADVERSARY, 0)
    module = TaskModel(model, "classification", config.asa if METHODS[run.method](config).uses_adversary else None)
    if module.adversary is not None and exported_adversary(run, config):
        module.adversary.load_pretrained(config.models[run.model])
    return module


def exported_adversary(run: Run, config: FinetuneConfig) -> bool:
    """Whether the run, if its method has adversaries, takes those of the model's folder."""
    return config.adversary == "exported" and (config.models[run.model] / ADVERSARY_FILE).is_file()


def steps_of(config: FinetuneConfig, rows: int) -> int:
    """Batches of a run, each of them an optimizer step or, where the method replays it, several."""
    wanted = math.ceil(config.epochs * steps_per_epoch(rows, config.batch))
    return min(wanted, config.max_steps or wanted)


def device_of(config: FinetuneConfig) -> torch.device:
    """GPU i (modulo their number) for worker i/n, the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(config.worker.split("/")[0]) % torch.cuda.device_count())


def _save(module: TaskModel, source: Path, folder: Path, facts: dict) -> None:
    """An ordinary Hugging Face folder: the selected weights, with the tokenizer files of the model they came from."""
    with manifest.staging(folder) as partial:
        module.model.save_pretrained(partial)
        for path in source.iterdir():
            if path.name.startswith(("tokenizer", "vocab", "merges", "special_tokens")):
                shutil.copy2(path, partial)
        manifest.write(partial, "model", facts)
