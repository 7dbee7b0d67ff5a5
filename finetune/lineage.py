"""Which rows a saved model was trained on: by the run that saved it, and by those whose models that one began from."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asa import manifest
from asa.errors import RequestError
from finetune.tasks.task import Task, scored

_SEEN = ("trained", "held_out_sha256")  # of a task's facts: its files of training rows; the rows held out of them
_SPLIT = ("holdout", "paper_compat")  # the settings that decide on the latter


def run_of(folder: Path) -> dict[str, Any]:
    """Start line of the fine-tuning run that saved a Hugging Face folder, whatever has become of its weights since;
    empty for a folder from elsewhere.

    Raises: WorkError where its manifest is damaged.
    """
    facts = manifest.written(folder, "model") or {}
    return facts if facts.get("stage") == "finetune" else {}


def stages(run: dict[str, Any]) -> list[dict[str, Any]]:
    """What a run and those before it have seen, the earliest first: `task`, `split` (its settings of it) and _SEEN.

    Args: run, its start line.
    """
    known, config = run.get("task_facts", {}), run.get("config", {})
    own = {"task": run.get("task"), "split": {key: config[key] for key in _SPLIT if key in config}}
    own |= {key: known[key] for key in _SEEN if key in known}
    return [*run.get("earlier", []), *([own] if known else [])]


def check_unseen(folder: Path, run: dict[str, Any], task: Task, split: str) -> None:
    """Raises: RequestError where the split is held out of files that have trained the model, of which these very rows
    were not held out then: it was another task's, or the task had other files or columns. A file of the split's own is
    what the user says it is.

    Args: run, the start line of the model's run.
    """
    if may_have_seen(run, task, split):
        raise RequestError(
            f"{folder} was trained on rows of {task.name}, whose {split} is held out of them; leave out the model"
            " or the task, describe the task as its run did, or give test rows of their own by --task.test"
        )


def scored_ones(run: dict[str, Any], facts: dict[str, Any], splits: Iterable[str]) -> bool:
    """Whether a file that these splits of a task, by its facts, are read from, and not held out of, has trained the
    model."""
    files = {sha256 for split in splits for sha256 in _files(facts, split)}
    return any(files.intersection(stage.get("trained", ())) for stage in stages(run))


def caveats(start: dict[str, Any]) -> dict[str, Any]:
    """What the scores of a record, by its start line, are not: `chosen_by_test`, where the scored rows chose the epoch
    (with paper_compat those of the task that was trained on do); `scored_rows_trained`, where a file of them trained
    the model, in its own run or before; `partial`, what they are of a published set that has more. Those that hold."""
    own, task = start.get("task_facts", {}), start.get("task")
    compat = start.get("config", {}).get("paper_compat") and start.get("trained_on", task) == task
    trained = start.get("scored_rows_trained") or scored_ones(start, own, scored(own.get("rows", {})))
    found = {"chosen_by_test": bool(start.get("chosen_by_test") or compat), "scored_rows_trained": bool(trained)}
    found |= {"partial": (own or start).get("partial", "")}
    return {name: value for name, value in found.items() if value}


def _files(facts: dict[str, Any], split: str) -> list[str]:
    """The files of a split's own; none of one that is, or is held out of, the training rows."""
    given: dict[str, list[str]] = facts.get("scored_from", {})
    test = given.get("test", given.get("dev", []))
    if split == "train":
        return []
    if split == "dev" and not facts.get("compat"):  # where test chooses, dev is that
        return given.get("dev", []) if "test" in given else []
    return test if split in ("dev", "test") else given.get(split, test)  # a part of test is in its file


def trained_on_note(folder: Path, run: dict[str, Any], task: Task, splits: Iterable[str]) -> str | None:
    """A line for a model that is scored on rows which it may have been trained on."""
    if not scored_ones(run, task.facts, splits):
        return None
    return f"{task.name}: {folder} was trained on a file of its scored rows: they tell nothing of rows it has not seen"


def may_have_seen(run: dict[str, Any], task: Task, split: str) -> bool:
    """Whether the rows of the split are held out of files that have trained the model, and were not held out then."""
    held = task.facts.get("held_out_sha256", {}).get(split)
    files = set(task.facts.get("held_from", task.facts.get("trained", ())))
    return any(
        held and held != stage.get("held_out_sha256", {}).get(split) and files & set(stage.get("trained", ()))
        for stage in stages(run)
    )
