"""The command `robustness`: how much a small step of the word embeddings can raise the loss (FreeLB, Table 5)."""

import hashlib
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asa import record
from asa.errors import RequestError, WorkError
from asa.hf import weights_sha256
from asa.places import atomic_write, check_folder, clear
from asa.record import Record
from finetune.attack import Worst
from finetune.claims import in_turn
from finetune.evaluation_config import RobustnessConfig
from finetune.labels import by_number_note
from finetune.lineage import check_unseen, scored_ones, trained_on_note
from finetune.radii import RADII, radii_of
from finetune.saved import Saved, find, kept, length_of, replaceable, tasks_of
from finetune.subject import Subject, attacked, places_of, prepare
from finetune.tasks.task import Task

# E examples, S starts

EXAMPLES = "examples.npz"


def robustness(config: RobustnessConfig) -> None:
    """Attack every model on every task; finished records are kept. Prints a table per task.

    Raises: RequestError for a wrong input, before anything is attacked, and for a task of which no row is classified
        right by all models, or where the reference resists on none; WorkError for damaged files or a loss that is not
        finite.
    """
    if config.reference not in config.models:
        raise RequestError(f"reference = {config.reference!r}, allowed: {', '.join(config.models)}; set --reference")
    if RADII in config.models:  # beside which the reference's radii stand
        raise RequestError(f"a model is called {RADII}, as a file of ours is; give it another name by --models.NAME")
    check_folder(config.out, "--out")
    saved = {name: find(path, f"--models.{name}") for name, path in config.models.items()}
    models = list(saved.values())
    tasks = [_common(seen, models, config.split) for seen in tasks_of(config, models, config.out, config.split)]
    for task in tasks:
        for name, one in saved.items():
            check_unseen(one.folder, one.run, task, config.split)  # as all see it now, not each as its own run did
            if note := trained_on_note(one.folder, one.run, task, [config.split]):
                print(note, flush=True)
            places = places_of(name, one, task, config)
            if note := by_number_note(one.labels, task.labels, places, config.map, str(one.folder)):
                print(note, flush=True)
            folder, facts = _record(name, one, task, config, _facts(task, saved, config))
            if not kept(folder, facts, config.overwrite):
                replaceable(folder, "robustness")
    for task in tasks:
        with in_turn(config.out, f"{task.name}/{config.reference}"):
            _attack(task, saved, config)


def _cut_apart(subjects: dict[str, Subject], config: RobustnessConfig) -> str:
    """A line where one model may be shown less of a text than another; else empty."""
    lengths = {name: length_of(one.saved, config.length, f"--models.{name}") for name, one in subjects.items()}
    cuts = any(max(one.data.lengths) >= lengths[name] for name, one in subjects.items())
    if not cuts or len(set(lengths.values())) < 2:
        return ""
    told = ", ".join(f"{length} for {name}" for name, length in lengths.items())
    return f"note: texts may be cut at other lengths ({told}); --length {min(lengths.values())} cuts them alike"


def _attack(task: Task, saved: dict[str, Saved], config: RobustnessConfig) -> None:
    """Every model on one task."""
    subjects = {name: prepare(name, one, task, config) for name, one in saved.items()}
    if note := _cut_apart(subjects, config):
        print(note, flush=True)
    right = sorted(set.intersection(*(one.right for one in subjects.values())))
    if not right:
        raise RequestError(f"no row of {task.name} is classified right by all models; leave one out, or the task")
    lengths = subjects[config.reference].data.lengths
    rows = np.array(sorted(right[: config.rows], key=lambda row: (lengths[row], row)))  # little padding in a batch
    print(f"{task.name}: all models are right on {len(right)} of {len(task.splits[config.split])} rows", end="")
    print(f", {len(rows)} are attacked", flush=True)
    # Which rows all are right on may differ by rounding, on another device: radii and records are those rows' own.
    ids = "\n".join(task.splits[config.split].ids[row] for row in rows)
    facts = {**_facts(task, saved, config), "attacked_sha256": hashlib.sha256(ids.encode()).hexdigest()}
    for name, one in saved.items():
        folder, own = _record(name, one, task, config, facts)
        if not kept(folder, own, config.overwrite):  # refused before the radii of its rows are lost
            replaceable(folder, "robustness")
    radius_E = radii_of(subjects[config.reference], rows, config, facts)
    print(f"  rows left out, where {config.reference} resists at none of the radii: {int((radius_E == 0).sum())}")
    if not radius_E.any():
        raise RequestError(f"{config.reference} resists nowhere on {task.name}; lower --radius or raise --radii")
    _table({name: _compare(one, task, rows, radius_E, config, facts) for name, one in subjects.items()})


def _common(seen: Sequence[Task], models: Sequence[Saved], split: str) -> Task:
    """The task as the models see it that were trained on it. Raises: RequestError where their rows differ."""
    for task in seen:
        _check(task, split)
    own = [task for task, saved in zip(seen, models, strict=True) if saved.trained_on == task.name]
    if any(task.splits[split] != own[0].splits[split] for task in own):
        raise RequestError(
            f"the models were trained on {own[0].name} with several values of --holdout or --paper_compat, so that rows"
            f" of {split} trained some of them; compare those of one by --models"
        )
    return (own or seen)[0]


def _check(task: Task, split: str) -> None:
    if task.kind not in ("classification", "choice"):
        raise RequestError(f"{task.name} is of kind {task.kind}, allowed: classification, choice; set --tasks")
    if split not in task.splits or task.splits[split].labels is None:
        labelled = [name for name, rows in task.splits.items() if rows.labels is not None]
        raise RequestError(f"split = {split!r}, {task.name} has {', '.join(labelled)}; set --split")


def _facts(task: Task, saved: dict[str, Saved], config: RobustnessConfig) -> dict[str, Any]:
    """All that radii and attacks depend on: the attacked rows follow from all models."""
    names = ("split", "rows", "radius", "radii", "steps", "step_size", "starts", "seed", "length", "batch")
    return {
        "task": task.name,
        "metrics": ["median"],
        "reference": config.reference,
        "config": {name: getattr(config, name) for name in names} | ({"map": config.map} if config.map else {}),
        "inputs": {
            "models_sha256": {name: weights_sha256(one.folder) for name, one in saved.items()},
            "task_sha256": task.sha256,
        },
    }


def _record(
    name: str, saved: Saved, task: Task, config: RobustnessConfig, shared: dict[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """Folder and start line of a model's record."""
    own = {"model": name, "method": saved.method, "seed": saved.seed, "trained_on": saved.trained_on}
    compat = saved.config.get("paper_compat") and saved.trained_on == task.name
    told = {"chosen_by_test": bool(compat), "partial": task.facts.get("partial", "")}
    told["scored_rows_trained"] = scored_ones(saved.run, task.facts, [config.split])
    facts = {"stage": "robustness", **shared, **own, **{key: value for key, value in told.items() if value}}
    facts["environment"] = record.environment()
    return config.out / shared["task"] / config.reference / name, facts


def _compare(
    subject: Subject,
    task: Task,
    rows: np.ndarray,
    radius_E: np.ndarray,
    config: RobustnessConfig,
    shared: dict[str, Any],
) -> dict[str, Any]:
    """Attack one model on the rows that have a radius; what the end line of its record holds."""
    folder, facts = _record(subject.name, subject.saved, task, config, shared)
    if kept(folder, facts, config.overwrite):
        return record.read(folder / record.NAME)[-1]
    began = time.perf_counter()
    clear(folder, record.NAME)
    rows, radius_E = rows[radius_E > 0], radius_E[radius_E > 0]
    with closing(Record(folder, {**facts, "command": sys.argv})) as log:
        worst = attacked(subject, rows, radius_E, config, "attack")
        if not torch.isfinite(worst.reached_SE).all():
            raise WorkError(f"{subject.name}: a loss under attack is not finite; lower --radius")
        ids = np.array([task.splits[config.split].ids[row] for row in rows], dtype=np.str_)
        arrays = {"clean": worst.clean_E, "reached": worst.reached_SE, "resisted": worst.resisted_E}
        found = {name: tensor.numpy() for name, tensor in arrays.items()}
        found |= {"radius": radius_E, "increase": worst.increase_E.numpy()}
        with atomic_write(folder / EXAMPLES) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, ids=ids, **found)
        end = {**_summary(worst, radius_E), "seconds": round(time.perf_counter() - began, 3)}
        log.end(end)
    return end


def _summary(worst: Worst, radius_E: np.ndarray) -> dict[str, Any]:
    """Statistics over examples. start_spread: of each example, the largest minus the smallest loss that a start has
    reached, the median; near 0 where the ascents find the same maximum from everywhere."""
    increase_E = worst.increase_E.double().numpy()
    q25, median, q75 = (float(value) for value in np.percentile(increase_E, (25, 50, 75)))
    spread_E = worst.reached_SE.amax(0) - worst.reached_SE.amin(0)
    return {
        "median": median,
        "q25": q25,
        "q75": q75,
        "mean": float(increase_E.mean()),
        "sd": float(increase_E.std(ddof=1)) if len(increase_E) > 1 else None,
        "max": float(increase_E.max()),
        "n": len(increase_E),
        "radius_median": float(np.median(radius_E)),
        "clean_loss_median": float(np.median(worst.clean_E.numpy())),
        "resisted": float(worst.resisted_E.float().mean()),
        "start_spread": float(np.median(spread_E.numpy())) if len(worst.reached_SE) > 1 else None,
    }


def _table(ends: dict[str, dict[str, Any]]) -> None:
    columns = ("n", "median", "q25", "q75", "clean_loss_median", "radius_median", "resisted")
    print(f"  {'model':16s}" + "".join(f"{name.removesuffix('_median'):>12s}" for name in columns))
    for name, end in ends.items():
        print(f"  {name:16s}" + "".join(f"{end[column]:12.4g}" for column in columns), flush=True)
