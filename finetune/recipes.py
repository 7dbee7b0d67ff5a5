"""The settings of a run: defaults, then the task's recipe, the method's preset for the task, and what the user says."""

import copy
from pathlib import Path
from typing import Any

import yaml

from asa.config import from_dict
from asa.errors import RequestError
from asa.methods import groups_read
from finetune.config import FinetuneConfig
from finetune.facts import WHERE
from finetune.tasks.spec import TaskConfig

REQUESTS = ("train_rows", "holdout", "paper_compat", "adversary")  # which hold for all tasks and runs of a request
PRESETS = Path(__file__).parents[1] / "configs" / "method"


def resolved(given: dict[str, Any], task: TaskConfig, method: str) -> FinetuneConfig:
    """The config of the runs of a method on a task. Args: given, the keys that files and flags say, nested.

    Raises: RequestError for a recipe that names models, methods, seeds or places, or what tasks are loaded by.
    """
    base = from_dict(FinetuneConfig, given)
    published = preset(method, task.name) if base.tasks else {}  # a task of one's own may have any name
    if wrong := sorted(task.recipe.keys() & {*WHERE, *REQUESTS}) if base.recipes else []:
        raise RequestError(
            f"task.recipe has {wrong[0]}, which is no setting of single runs; set --{wrong[0]} and leave it out"
        )
    layers = [task.recipe, published] if base.recipes else []
    values = merged(*layers, given)
    chosen = {"tasks": [task.name] if base.tasks else [], "methods": [method]}
    return from_dict(FinetuneConfig, {**values, **chosen})


def preset(method: str, task: str) -> dict[str, Any]:
    """The entries with the task's name of configs/method/GROUP.yaml, for each group of settings that the method reads
    (asa_freelb those of asa and of freelb), so that methods of one sweep attack alike; empty where there are none."""
    found: dict[str, Any] = {}
    for name in groups_read(method):
        file = PRESETS / f"{name}.yaml"
        if file.is_file():
            found = merged(found, (yaml.safe_load(file.read_text()) or {}).get(task, {}))
    return found


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Nested keys of all layers; the later layer has the last word."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            nested = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if nested else copy.deepcopy(value)
    return result
