"""Every model x method x seed of a config: inputs checked first, then one run after the other."""

import functools
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from asa import hf, manifest, record
from asa.config import to_dict
from asa.errors import RequestError
from asa.families import family
from asa.methods import METHODS
from finetune.config import FinetuneConfig
from finetune.loop import Run, exported_adversary, train
from finetune.tasks import folder
from finetune.tasks.batches import Encoded, encode

# What a run's score does not depend on: it may differ between the workers and between the calls of one sweep.
_ELSEWHERE = ("models", "methods", "seeds", "out", "worker", "overwrite")


def sweep(config: FinetuneConfig) -> None:
    """Train this worker's part of the runs; finished ones are kept. Prints one line per run.

    Raises: RequestError for a wrong input, before anything is trained; WorkError for a damaged task or a diverged run.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in config.methods:
        METHODS[name](config)  # settings a method cannot work with are refused now, not after hours of other runs
    task = folder.load(config.task)
    weights = {name: check_model(name, path, config.length) for name, path in config.models.items()}
    every = plan(config)
    facts = {run: facts_of(run, config, task, weights[run.model]) for run in every}
    done = {run for run in every if kept(run, config, facts[run])}

    @functools.cache
    def encoded(model: str) -> dict[str, Encoded]:
        tokenizer = hf.load_tokenizer(config.models[model], f"--models.{model}")
        return {name: encode(split, tokenizer, config.length) for name, split in task.splits.items()}

    for run in share(every, config.worker):
        if run in done:
            print(f"{run.name:32s} finished before", flush=True)
            continue
        end = train(run, config, encoded(run.model), task.classes, facts[run])
        print(_line(run, end), flush=True)


def plan(config: FinetuneConfig) -> list[Run]:
    """The runs, methods outermost: a method's runs cost alike, so dealing them out in turn gives equal shares."""
    return [Run(model, method, s) for method in config.methods for s in config.seeds for model in config.models]


def share(runs: list[Run], worker: str) -> list[Run]:
    """Part i/n: the runs whose number leaves i when divided by n."""
    part, parts = (int(number) for number in worker.split("/"))
    return runs[part::parts]


def check_model(name: str, path: Path, length: int) -> str:
    """sha256 of the weights of a Hugging Face folder that can be trained here.

    Raises: RequestError for a missing or incomplete folder, an unsupported family, or rows longer than it takes.
    """
    flag = f"--models.{name}"
    hf.check_model(path, flag)
    hf.load_tokenizer(path, flag)
    shape = AutoConfig.from_pretrained(path)
    if length > (most := family(shape.model_type).longest(shape)):
        raise RequestError(f"length = {length}: {path} takes at most {most} tokens; lower --length")
    files = sorted(file for pattern in ("*.safetensors", "pytorch_model*.bin") for file in path.glob(pattern))
    return "+".join(manifest.file_sha256(file) for file in files)


def facts_of(run: Run, config: FinetuneConfig, task: folder.Task, weights: str) -> dict[str, Any]:
    """The start line of a run: what it is, all that its scores depend on, and where it ran."""
    settings = {key: value for key, value in to_dict(config).items() if key not in _ELSEWHERE}
    adversary = {"adversary": "exported" if exported_adversary(run, config) else "fresh"}
    return {
        "stage": "finetune",
        "model": run.model,
        "task": task.name,
        "method": run.method,
        "seed": run.seed,
        "config": settings,
        "inputs": {"model": str(config.models[run.model]), "model_sha256": weights, "task_sha256": task.sha256},
        **(adversary if METHODS[run.method](config).uses_adversary else {}),
        "environment": record.environment(),
    }


def kept(run: Run, config: FinetuneConfig, facts: dict[str, Any]) -> bool:
    """Whether the run is finished already with these very settings and inputs.

    Raises: RequestError when it is finished with others and overwrite is off.
    """
    path = config.out / run.name / record.NAME
    if not record.finished(path):
        return False
    before = _essence(record.read(path)[0])
    if before == _essence(facts):
        return True
    if config.overwrite:
        return False
    changed = sorted(key for key in before | _essence(facts) if before.get(key) != _essence(facts).get(key))
    raise RequestError(
        f"{path.parent} is a finished run with another {', '.join(changed)}; set --out or --overwrite true"
    )


def _essence(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts a finished run is recognised by, flat: weights and task by content, not by path."""
    config = {key: value for key, value in facts.get("config", {}).items() if key != "task"}
    inputs = {key: value for key, value in facts.get("inputs", {}).items() if key.endswith("sha256")}
    return {**_flat(config), **inputs}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _line(run: Run, end: dict[str, Any]) -> str:
    scores = f"dev {end['dev_accuracy']:.4f}  test {end['test_accuracy']:.4f}  macro F1 {end['test_macro_f1']:.4f}"
    return f"{run.name:32s} {scores}  best epoch {end['best_epoch']:g}  {end['seconds']:.1f} s"
