"""The start line of a run, and whether a run in its folder is this very one."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from asa import manifest, record
from asa.config import to_dict
from asa.errors import RequestError
from asa.methods import METHODS, MethodsConfig
from finetune.config import FinetuneConfig
from finetune.model import exported_adversary
from finetune.run import Cell
from finetune.tasks.task import Task

# What a run's scores do not depend on, or what other facts tell: it may differ between the calls of one sweep.
WHERE = ("tasks", "task", "data", "recipes", "models", "methods", "seeds", "out")
HOW = ("log_every", "save_every", "worker", "overwrite")
ELSEWHERE = WHERE + HOW


@functools.cache
def weights_sha256(path: Path) -> str:
    """sha256 of the weights of a Hugging Face folder."""
    files = sorted(file for pattern in ("*.safetensors", "pytorch_model*.bin") for file in path.glob(pattern))
    return "+".join(manifest.file_sha256(file) for file in files)


def facts_of(cell: Cell, task: Task, given: dict[str, Any]) -> dict[str, Any]:
    """The start line of a run: what it is, all that its scores depend on, and where it ran.

    Args: given, the request.
    """
    run, config = cell
    adversary = {"adversary": "exported" if exported_adversary(run, config) else "fresh"}
    attacked = METHODS[run.method](config).uses_adversary
    inputs = {
        "model": str(config.models[run.model]),
        "model_sha256": weights_sha256(config.models[run.model]),
        "task_sha256": task.sha256,
    }
    return {
        "stage": "finetune",
        "model": run.model,
        "task": task.name,
        "kind": task.kind,
        "metrics": list(task.metrics),
        "method": run.method,
        "seed": run.seed,
        "config": settings(run.method, config),
        "inputs": inputs,
        "task_facts": task.facts,
        "request": _plain({key: value for key, value in given.items() if key not in ("worker", "overwrite")}),
        **(adversary if attacked else {}),
        "environment": record.environment(),
    }


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value, default=str))


def settings(method: str, config: FinetuneConfig) -> dict[str, Any]:
    """The settings that count for runs of a method: those of other methods are left out."""
    read = groups_read(method, config)
    others = {field.name for field in dataclasses.fields(MethodsConfig)} - read
    if not METHODS[method](config).uses_adversary:
        others |= {"adversary"}
    return {key: value for key, value in to_dict(config).items() if key not in others and key not in ELSEWHERE}


def groups_read(method: str, config: FinetuneConfig) -> set[str]:
    """The keys of MethodsConfig that the method reads; all of them for one from outside, which may read later."""
    if ":" in method:
        return {field.name for field in dataclasses.fields(MethodsConfig)}
    read: set[str] = set()

    class Noted:
        def __getattr__(self, name: str) -> Any:
            read.add(name)
            return getattr(config, name)

    built = METHODS[method](Noted())  # type: ignore[arg-type]  # it answers as the config does
    return read | ({"asa"} if built.uses_adversary else set())


def is_finished(cell: Cell, facts: dict[str, Any]) -> bool:
    """Whether the run is finished already with these very settings and inputs.

    Raises: RequestError when it is finished with others and overwrite is off.
    """
    path = cell.folder / record.NAME
    if not record.finished(path):
        return False
    before, now = _essence(record.read(path)[0]), _essence(facts)
    if before == now:
        return True
    if cell.config.overwrite:
        return False
    changed = sorted(key for key in before | now if before.get(key) != now.get(key))
    raise RequestError(
        f"{path.parent} is a finished run with another {', '.join(changed)}; set --out or --overwrite true"
    )


def is_begun(cell: Cell, facts: dict[str, Any]) -> bool:
    """Whether an unfinished run with these very settings and inputs lies in the run's folder."""
    path = cell.folder / record.NAME
    events = record.read(path)
    return bool(events) and not record.finished(path) and _essence(events[0]) == _essence(facts)


def _essence(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts a run is recognised by, flat: weights and task by content, not by path."""
    config = {key: value for key, value in facts.get("config", {}).items() if key not in ELSEWHERE}
    inputs = {key: value for key, value in facts.get("inputs", {}).items() if key.endswith("sha256")}
    return {**_flat(config), **inputs}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
