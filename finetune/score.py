"""The command `score`: saved models on other tasks than their own (transfer)."""

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asa import record
from asa.errors import RequestError
from asa.hf import weights_sha256
from asa.model import TaskModel
from asa.places import check_folder, clear
from asa.record import Record
from finetune.claims import in_turn
from finetune.evaluation_config import ScoreConfig
from finetune.labels import Merge, by_number_note, label_map, merged, refuse_map
from finetune.lineage import scored_ones, trained_on_note
from finetune.metrics import score
from finetune.predictions import FOLDER, Predictions, as_wide, by_row, predict, save_predictions, stored
from finetune.saved import Saved, device, encoded, find, kept, length_of, module_of, replaceable, tasks_of
from finetune.tasks.facts import of_words
from finetune.tasks.task import Task, scored

FLAG = "--models (the first arguments)"


class Pair(NamedTuple):
    """A model and a task it is scored on. places: for each class of the model the task's; empty for numbers and
    answers."""

    saved: Saved
    task: Task
    places: list[int]
    folder: Path


def score_all(config: ScoreConfig) -> None:
    """Score every model on every task; finished records are kept. Prints one line per record.

    Raises: RequestError for a wrong input, before anything is scored; WorkError for damaged files, or where the
        system refuses to write.
    """
    check_folder(config.out, "--out")
    models = [find(path, FLAG) for path in config.models]
    seen = tasks_of(config, models, config.out)
    pairs = [pair(saved, task, config) for tasks in seen for saved, task in zip(models, tasks, strict=True)]
    if twins := [str(one.folder) for n, one in enumerate(pairs) if one.folder in [other.folder for other in pairs[:n]]]:
        raise RequestError(f"two of the models would be {twins[0]}; score them with another --out each")
    for one in pairs:
        check_folder(one.folder, "--out")
    facts = {one.folder: facts_of(one, config) for one in pairs}
    done = {one.folder for one in pairs if kept(one.folder, facts[one.folder], config.overwrite)}
    for one in pairs:
        if one.folder not in done:
            replaceable(one.folder, "score")
    for one in pairs:
        if note := trained_on_note(one.saved.folder, one.saved.run, one.task, scored(one.task.splits)):
            print(note, flush=True)
        where = str(one.saved.folder)
        if note := by_number_note(one.saved.labels, one.task.labels, one.places, config.map, where):
            print(note, flush=True)
    for saved in models:
        mine = [one for one in pairs if one.saved is saved]
        module = module_of(saved, device(), FLAG) if any(one.folder not in done for one in mine) else None
        for one in mine:
            scores = "finished before"
            name = str(one.folder.relative_to(config.out))
            if module is not None and one.folder not in done:
                with in_turn(config.out, name):
                    if not kept(one.folder, facts[one.folder], config.overwrite):  # by another process, meanwhile
                        replaceable(one.folder, "score")
                        scores = _line(score_one(one, module, config, facts[one.folder]))
            print(f"{name:48s} {scores}", flush=True)


def _line(end: dict[str, Any]) -> str:
    scores = "  ".join(f"{key} {value:.4f}" for key, value in end.items() if key != "seconds")
    return scores or "no labels: predictions only"


def pair(saved: Saved, task: Task, config: ScoreConfig) -> Pair:
    """Raises RequestError for a model of another kind, with other classes than the task, or of shorter rows than asked
    for."""
    if saved.kind != task.kind:
        raise RequestError(
            f"{saved.folder} is for kind {saved.kind}, {task.name} is {task.kind}; leave one of them out"
        )
    length_of(saved, config.length, FLAG)
    named = task.kind in ("classification", "token")
    if not named:
        refuse_map(config.map, task.name, task.kind)
    places = label_map(saved.labels, task.labels, config.map, str(saved.folder)) if named else []
    return Pair(saved, task, places, config.out / task.name / saved.name)


def facts_of(one: Pair, config: ScoreConfig) -> dict[str, Any]:
    """The start line of a record: of the model's run all by which the report tells runs apart."""
    saved, task = one.saved, one.task
    told = {key: value for key, value in saved.run.get("inputs", {}).items() if key.endswith("sha256")}
    began, trained = told.pop("model_sha256", None), told.pop("task_sha256", None)
    named = {name: task.labels[place] for name, place in zip(saved.labels, one.places, strict=False)}
    return {
        "stage": "score",
        "task": task.name,
        "metrics": list(task.metrics),
        "model": saved.model,
        "method": saved.method,
        "seed": saved.seed,
        "trained_on": saved.trained_on,
        "config": {**saved.config, "length": config.length or saved.length, "merge": config.merge},
        "classes": named,
        "inputs": {
            **told,
            "model_sha256": weights_sha256(saved.folder),
            "start_sha256": began,
            "trained_sha256": trained,
            "task_sha256": task.sha256,
        },
        "models": saved.run.get("models", []),
        **({"partial": task.facts["partial"]} if task.facts.get("partial") else {}),
        **({"scored_rows_trained": True} if scored_ones(saved.run, task.facts, scored(task.splits)) else {}),
        **({"adversary": saved.run["adversary"]} if "adversary" in saved.run else {}),
        "environment": record.environment(),
    }


def score_one(one: Pair, module: TaskModel, config: ScoreConfig, facts: dict[str, Any]) -> dict[str, Any]:
    """Predict and score every split but those of training and choice; what the end line holds."""
    began = time.perf_counter()
    clear(one.folder, record.NAME)
    end: dict[str, Any] = {}
    known: dict[Any, np.ndarray] = {}
    with closing(Record(one.folder, {**facts, "command": sys.argv})) as log:
        for split in scored(one.task.splits):
            rows = one.task.splits[split]
            found = _predicted(one, split, module, config, known)
            save_predictions(one.folder / FOLDER / f"{split}.npz", stored(found, one.task, split))
            if rows.labels is not None:
                end |= {f"{split}_{name}": value for name, value in score(found, rows.labels, one.task).items()}
        end["seconds"] = round(time.perf_counter() - began, 3)
        log.end(end)
    return end


def _predicted(
    one: Pair, split: str, module: TaskModel, config: ScoreConfig, known: dict[Any, np.ndarray]
) -> Predictions:
    """A split's predictions in the task's classes. known: those of texts before; parts of test need no pass of their
    own."""
    texts = one.task.splits[split].texts
    if not all(text in known for text in texts):
        data = encoded(one.saved, one.task, split, config.length, FLAG)
        length = length_of(one.saved, config.length, FLAG)
        for line in of_words(one.task.name, one.saved.name, length, {split: data})[2]:
            print(line, flush=True)
        # Without gold labels: they number the task's classes, not the model's.
        found = predict(module, replace(data, gold=None), config.batch, device())
        found.check(f"a prediction of {one.saved.folder} is not finite; give another by {FLAG}")
        known.update(zip(texts, _mapped(found, one.places, config.merge), strict=True))
    rows = [known[text] for text in texts]
    return Predictions(one.task.kind, as_wide(rows) if one.task.kind == "choice" else rows, None)


def _mapped(found: Predictions, places: Sequence[int], merge: Merge) -> list[np.ndarray]:
    """The rows in the task's classes, all of them at once: one by one they take as long as the model's passes."""
    if not places:
        return found.logits
    if found.kind != "token":
        return list(merged(np.stack(found.logits), places, merge))
    sizes = np.array([len(row) for row in found.logits])
    return by_row(merged(np.concatenate(found.logits), places, merge), sizes)
