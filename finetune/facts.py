"""The start line of a run, and whether a run in its folder is this very one."""

import json
import os
from pathlib import Path
from typing import Any

import torch

from asa import dist, manifest, record
from asa.adversary import FILE as ADVERSARY_FILE
from asa.config import flat, to_dict
from asa.errors import RequestError, WorkError
from asa.hf import settings_sha256, weight_sha256, weights_sha256
from asa.methods import METHODS, groups_read, groups_unread, source_sha256
from finetune import state
from finetune.config import FinetuneConfig
from finetune.lineage import run_of, stages
from finetune.model import exported_adversary
from finetune.predictions import FOLDER
from finetune.run import Cell
from finetune.tasks.task import Task

# What a run's scores do not depend on, or what other facts tell: it may differ between the calls of one sweep.
WHERE = ("tasks", "task", "data", "recipes", "models", "methods", "seeds", "out")
HOW = ("log_every", "save_every", "worker", "overwrite", "save_model")
ELSEWHERE = WHERE + HOW
# What lies in a run's folder; `.partial` as well.
PARTS = {record.NAME, "environment.json", "tensorboard", "model", FOLDER, state.FOLDER}
READER = "reader_sha256"  # an input: what tokenizer.json does not tell of how texts are read
SCHEDULE = "random_mask.schedule"  # a file, which counts by its content; another one for each task at least


def facts_of(cell: Cell, task: Task, given: dict[str, Any]) -> dict[str, Any]:
    """The start line of a run: what it is, all that its scores depend on, and where it ran.

    Args: given, the request.
    """
    run, config = cell
    adversary = {"adversary": "exported" if exported_adversary(run, config) else "fresh"}
    earlier = stages(run_of(config.models[run.model]))
    attacked = METHODS[run.method](config).uses_adversary
    return {
        "stage": "finetune" if run.trial is None else "tune",
        "model": run.model,
        "task": task.name,
        "kind": task.kind,
        "metrics": list(task.metrics),
        "method": run.method,
        "seed": run.seed,
        "config": settings(run.method, config),
        "models": list(config.models),  # in the order of the request, which a manifest forgets
        "inputs": _inputs(cell, task),
        "task_facts": task.facts,
        **({"earlier": earlier} if earlier else {}),
        "request": _plain({key: value for key, value in given.items() if key not in ("worker", "overwrite")}),
        **(adversary if attacked else {}),
        "processes": dist.world(),
        "threads": torch.get_num_threads(),
        "environment": record.environment(),
    }


def _inputs(cell: Cell, task: Task) -> dict[str, str]:
    """The sha256 of every file that the run reads, and where its model is."""
    run, config = cell
    folder, schedule = config.models[run.model], config.random_mask.schedule
    inputs = {"model": str(folder), "model_sha256": weights_sha256(folder), "task_sha256": task.sha256}
    inputs[READER] = settings_sha256(folder)
    if METHODS[run.method](config).uses_adversary and exported_adversary(run, config):
        inputs["adversary_sha256"] = weight_sha256(folder / ADVERSARY_FILE)
    if (sha256 := source_sha256(run.method)) is not None:
        inputs["method_sha256"] = sha256
    if schedule is not None and "random_mask" in groups_read(run.method):
        inputs["schedule_sha256"] = manifest.file_sha256(schedule)
    return inputs


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value, default=str))


def settings(method: str, config: FinetuneConfig) -> dict[str, Any]:
    """The settings that count for runs of a method: those of other methods are left out."""
    others = groups_unread(method)
    if not METHODS[method](config).uses_adversary:
        others |= {"adversary"}
    return {key: value for key, value in to_dict(config).items() if key not in others and key not in ELSEWHERE}


def check_own(folder: Path) -> None:
    """Raises: RequestError where something else than a run stands in a run's folder, which a new run would remove.
    Hidden files are no work of anybody's; a folder may go while another process begins the run anew."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise RequestError(f"{folder} is no folder, so no run is put there; set another --out") from None
    for name in names:
        if not name.startswith(".") and name.removesuffix(".partial") not in PARTS:
            raise RequestError(
                f"{folder / name} is no part of a run, and would be removed; move it or set another --out"
            )


def is_finished(cell: Cell, facts: dict[str, Any]) -> bool:
    """Whether the run is finished already with these very settings and inputs, and has kept its model where it is to.

    Raises: RequestError when it is finished with others, or unfinished with others and has saved something to go on
        from, and overwrite is off. WorkError for a kept model that is damaged.
    """
    path = cell.folder / record.NAME
    finished = record.finished(path)
    if not finished and not (path.is_file() and state.saved(cell.folder)):
        return False
    before, now = _essences(_start(path), facts)
    if before == now:
        return finished and (not cell.config.save_model or _has_model(cell.folder / "model"))
    if cell.config.overwrite:
        return False
    changed = sorted(key for key in before | now if before.get(key) != now.get(key))
    what = "a finished run" if finished else "an unfinished run, with a saved state,"
    raise RequestError(f"{path.parent} is {what} with another {', '.join(changed)}; set --out or --overwrite true")


def is_same(cell: Cell, facts: dict[str, Any]) -> bool:
    """Whether what lies in the run's folder, finished or not, was made with these very settings and inputs."""
    before, now = _essences(_start(cell.folder / record.NAME), facts)
    return before == now


def _has_model(folder: Path) -> bool:
    """Whether a run has kept its model. Raises WorkError for one that has lost files or bytes since."""
    try:
        manifest.read(folder, "model", "--out")
    except RequestError:  # none was kept, or not to the end
        return False
    except WorkError as error:
        raise WorkError(f"{error}: remove {folder} and give the same command again, which makes the run anew") from None
    return True


def _start(path: Path) -> dict[str, Any]:
    return next(iter(record.read(path)), {})


def is_begun(cell: Cell, facts: dict[str, Any]) -> bool:
    """Whether an unfinished run with these very settings and inputs lies in the run's folder, made on as many processes
    and threads of such a device: on others numbers are rounded otherwise. Prints a line where that alone differs."""
    path = cell.folder / record.NAME
    before = _start(path)
    essences = _essences(before, facts)
    if not before or record.finished(path) or essences[0] != essences[1]:
        return False
    then, now = _place(before), _place(facts)
    changed = [f"{name} {then[name]}, now {now[name]}" for name in now if then[name] != now[name]]
    if changed and state.saved(cell.folder):
        print(f"{cell.run.name}: begun with {', '.join(changed)}; the run starts anew", flush=True)
    return not changed


def _place(facts: dict[str, Any]) -> dict[str, Any]:
    """What the rounding of a run's numbers depends on; threads where the CPU makes them."""
    names = ("processes",) if torch.cuda.is_available() else ("processes", "threads")
    return {**{name: facts.get(name) for name in names}, "device": facts.get("environment", {}).get("device")}


def _essences(before: dict[str, Any], now: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a record and of a request; what older records do not tell of the tokenizer is taken for the same."""
    then = _essence(before)
    return then, {key: value for key, value in _essence(now).items() if key != READER or key in then}


def _essence(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts a run is recognised by, flat: files by content, not by path."""
    config = {key: value for key, value in facts.get("config", {}).items() if key not in ELSEWHERE}
    inputs = {key: value for key, value in facts.get("inputs", {}).items() if key.endswith("sha256")}
    found = {"stage": facts.get("stage"), **flat(config), **inputs}  # trials have no scores on test
    # A setting that is null was none in records from before it.
    return {key: value for key, value in found.items() if key != SCHEDULE and value is not None}
