"""A task's description -> its rows, split by split."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from asa import manifest
from asa.config import to_dict
from asa.errors import RequestError
from finetune.config import FinetuneConfig
from finetune.metrics import check_metrics, usual
from finetune.ranking import questions
from finetune.tasks import folder
from finetune.tasks.added import Added, added, split_of, unseen
from finetune.tasks.cells import flag
from finetune.tasks.checks import check_keys, check_scores, check_spread
from finetune.tasks.facts import content_sha256, facts_of, rows_sha256
from finetune.tasks.labels import classes
from finetune.tasks.places import FILES, blind, from_hub, paths_of, read_files, settled, supply, training
from finetune.tasks.rows import Raw, read
from finetune.tasks.spec import NAME, TaskConfig, named
from finetune.tasks.split import arranged, subset, taken
from finetune.tasks.task import Kind, Split, Task

LABELLED = {"train": True, "dev": True, "test": True}
OWN = {*LABELLED, "submit"}  # splits with a key of their own


def load(task: TaskConfig, config: FinetuneConfig) -> Task:
    """Read all files of a task, check every row, and settle which rows train, choose the epoch and are scored.

    A labelled test file is scored and the dev file chooses; else the dev file is scored and a part of the training
    rows, the same for every run, chooses. A task without training rows has no dev and can only be scored.
    Raises: RequestError for rows or settings that do not fit, naming file and line; WorkError for damaged files or a
        hub that cannot be reached.
    """
    _check_alone(task, config)
    return _read(settled(task, config), config) if task.folder is None else _saved(task, task.folder, config)


def _saved(task: TaskConfig, place: Path, config: FinetuneConfig) -> Task:
    """A task folder, which says of itself what it is."""
    found = folder.load(place)
    name = found.name if task.name == TaskConfig().name else task.name
    splits = arranged(found.splits, [], config)
    hashes = {str(place / manifest.NAME): found.sha256}
    facts = facts_of(splits, found.labels, hashes, {})
    facts["trained"] = [manifest.file_sha256(place / "train.jsonl")]
    # By its rows too: which of them train and choose follows from the settings.
    sha256 = content_sha256(found.kind, found.labels, found.metrics, splits, hashes)
    return replace(found, name=name, splits=splits, facts=facts, sha256=sha256)


def _read(task: TaskConfig, config: FinetuneConfig) -> Task:
    """A task of files or of the hub, whose keys say what their columns are."""
    kind: Kind = task.kind  # type: ignore[assignment]  # the other word for token is gone by now
    raws = _raws(task, config)
    names = classes(task, next((raw for raw in raws.values() if raw.labels is not None), next(iter(raws.values()))))
    rows = _split_subsets(task, raws, {name: split_of(task, raw, names) for name, raw in raws.items()})
    unasked: dict[str, int] = {}
    if task.ranked:
        rows, unasked = questions(rows, names, task.ranked)
        kind, names = "choice", []
    metrics = task.metrics or usual(kind, names)
    check_metrics(metrics, kind, names)
    others = _others(task, names, rows, config)
    splits = arranged(rows, [one.split for one in others], config)
    check_scores(splits, metrics)
    check_spread(task, rows, raws)
    paths = [*read_files(task, config), *(path for one in others for path in one.files)]
    hashes = {str(path): manifest.file_sha256(path) for path in dict.fromkeys(paths)}
    sources = {**raws, **{one.name: one.raw for one in others}}
    held = taken(rows, config) if "train" in splits else []
    facts = {
        **facts_of(splits, names, hashes, {name: raw.dropped for name, raw in sources.items()}),
        "joined": {name: raw.joined for name, raw in sources.items() if raw.joined},
        "seen": {one.name: one.seen for one in others if one.seen},
        "unasked": unasked,
        "partial": "; ".join(filter(None, [task.partial, *(one.partial for one in others)])),
        **_origins(task, hashes, config),
        "held_out_sha256": {name: rows_sha256(splits[name]) for name in held},
    }
    return Task(task.name, kind, names, metrics, splits, content_sha256(kind, names, metrics, splits, hashes), facts)


def _raws(task: TaskConfig, config: FinetuneConfig) -> dict[str, Raw]:
    """The cells of every split, as its file or the hub has them."""
    standard = task.name in config.tasks
    check_keys(task, standard)
    supplied = supply(task, config, standard)
    _check_names(supplied, "--task.hub.splits" if from_hub(task, config) else "--task.extra")
    return {name: read(task, rows, _labelled(name)) for name, rows in supplied.items()}


def _others(task: TaskConfig, names: list[str], scored: dict[str, Split], config: FinetuneConfig) -> list[Added]:
    """The rows of other tasks that train as well, without those of this one that choose or are scored."""
    others = [added(other, task, names, config) for other in task.also]
    if not others:
        return []
    mine = {name: split for name, split in arranged(scored, [], config).items() if name != "train"}
    if "train" not in scored and "dev" in scored and not config.paper_compat:
        mine["dev"] = scored["dev"]  # no dev yet for want of training rows, but that file will choose
    return unseen(others, mine.values())


def trainable(task: Task, config: FinetuneConfig) -> Task:
    """The task itself. Raises: RequestError for one that has no rows to train on, or whose scored rows all train or
    choose as well where that is not asked for."""
    if "train" not in task.splits:
        advice = "leave it out of --tasks" if task.name in config.tasks else "set --task.train"
        raise RequestError(f"task {task.name!r} has no training rows, it can only be scored; {advice}")
    dev, test = (_content(task.splits[name]) for name in ("dev", "test"))
    if not config.paper_compat and test <= dev:
        what = "the same rows in dev and test" if test == dev else "all rows of test in dev as well"
        raise RequestError(
            f"task {task.name!r} has {what}, which would choose the epoch and be scored; give others by --task.dev or"
            " --task.test, leave one out, or set --paper_compat true"
        )
    known = {*task.splits["train"].texts, *task.splits["dev"].texts}
    if not config.paper_compat and all(text in known for text in task.splits["test"].texts):
        raise RequestError(
            f"task {task.name!r} would be scored on rows that all train or choose the epoch; give others by"
            " --task.test or --task.dev, leave it out, or set --paper_compat true"
        )
    return task


def _content(split: Split) -> set[str]:
    """The rows with their labels, whatever their order."""
    return {repr(row) for row in zip(split.texts, split.labels or [], strict=True)}


def _origins(task: TaskConfig, hashes: dict[str, str], config: FinetuneConfig) -> dict[str, Any]:
    """What the rows that train, those that are scored and those that are held out are parts of, by sha256."""
    trained = _trained(task, hashes, config)
    return {
        "trained": trained,
        "scored_from": _scored_from(task, hashes, config),
        "held_from": [_content_of(name, task, hashes) for name in training(task, config)] or trained,
    }


def _trained(task: TaskConfig, hashes: dict[str, str], config: FinetuneConfig) -> list[str]:
    """The sha256 of every file of training rows, added ones too; of the hub's rows their name there."""
    several = [task, *(settled(named(other), config) for other in task.also)]
    return [_content_of(name, one, hashes) for one in several for name in training(one, config)]


def _content_of(name: str, task: TaskConfig, hashes: dict[str, str]) -> str:
    """The sha256 of a file, with the entry of it that the task reads; of the hub's rows their name."""
    sha256 = hashes.get(name)
    return name if sha256 is None else f"{sha256} {task.entry}".rstrip()


def _scored_from(task: TaskConfig, hashes: dict[str, str], config: FinetuneConfig) -> dict[str, list[str]]:
    """The sha256 of every file of rows that choose or are scored, by the split that the task's keys give it for."""
    nothing = replace(task, **dict.fromkeys(FILES, ()), extra={})
    return {
        name: [_content_of(str(path), task, hashes) for path in read_files(replace(nothing, test=paths), config)]
        for name, paths in paths_of(task).items()
        if name != "train" and not blind(name)
    }


def _labelled(split: str) -> bool | None:
    """Whether a split has labels; None: where its first row has the column, which those of a test server may fill with
    numbers that are no class (GLUE on the hub)."""
    return False if blind(split) else LABELLED.get(split)


def _check_alone(task: TaskConfig, config: FinetuneConfig) -> None:
    """Raises RequestError for keys that a task folder has its own of, and for keys of files beside a set of the hub."""
    usual, asked = to_dict(TaskConfig()), to_dict(task)
    given = [key for key in asked if asked[key] != usual[key]]
    others = [key for key in given if key not in ("name", "folder", "recipe")]
    if task.folder is not None and others:
        raise RequestError(f"task.{others[0]} is set beside task.folder, which has its own; leave one of the two out")
    files = [key for key in given if key in (*FILES, "extra", "format", "header", "entry")]
    if files and from_hub(task, config) and not task.sources:
        raise RequestError(f"task.{files[0]} is set beside task.hub, which has its own rows; leave one of the two out")


def _check_names(names: Iterable[str], flag: str, where: str = "") -> None:
    """A split's name is a file's name as well."""
    if wrong := [name for name in names if not re.fullmatch(NAME, name)]:
        raise RequestError(
            f"{where}{wrong[0]!r}, which cannot name a split; allowed: up to 100 letters, digits, _, . and -, the first"
            f" neither . nor -; set {flag}"
        )


def _split_subsets(task: TaskConfig, raws: dict[str, Raw], splits: dict[str, Split]) -> dict[str, Split]:
    """The splits, and one for each value of the column `subsets` among the rows that are scored."""
    scored = next((name for name in ("test", "dev") if name in raws), None)
    if not task.subsets:
        return splits
    if scored is None:
        raise RequestError("task.subsets are parts of a file that is scored; give one by --task.test or --task.dev")
    values = raws[scored].subsets
    if len(values) < len(splits[scored]):
        raise RequestError(f"{raws[scored].rows[0].path} has no column {task.subsets!r}; set {flag(task, 'subsets')}")
    parts = {value: subset(splits[scored], values, value) for value in sorted(set(values))}
    _check_names(parts, "--task.subsets", f"column {task.subsets!r} has the value ")
    clash = set(parts) & {*splits, *OWN}
    if clash:
        raise RequestError(
            f"column {task.subsets!r} has a value {sorted(clash)[0]!r}, the name of a split; set --task.subsets"
        )
    return {**splits, **parts}
