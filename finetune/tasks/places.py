"""Where a task's rows come from: files that its keys name, a place below the data folder, or the hub."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from asa.config import from_dict, to_dict
from asa.errors import RequestError, WorkError
from finetune.config import FinetuneConfig
from finetune.tasks import files
from finetune.tasks.cells import flag
from finetune.tasks.files import Row
from finetune.tasks.rows import FIELD
from finetune.tasks.spec import STANDARD, HubSource, TaskConfig

FILES = ("train", "dev", "test", "submit")


def settled(task: TaskConfig, config: FinetuneConfig) -> TaskConfig:
    """The task with the keys that hold for this request: those of the papers, of the place where its files lie.

    Raises: RequestError where no place has the files.
    """
    if task.hub is not None and from_hub(task, config):
        return _changed(task, task.hub.keys, config.paper_compat)
    if not task.sources:
        return _changed(task, {}, config.paper_compat)
    if config.data is None:
        raise RequestError(f"task {task.name!r} is not on the hub; set --data to the folder that holds its files")
    return _placed(task, config.data, config.paper_compat)


def from_hub(task: TaskConfig, config: FinetuneConfig) -> bool:
    return config.data is None and task.hub is not None


def _changed(task: TaskConfig, keys: dict[str, Any], compat: bool) -> TaskConfig:
    if "recipe" in {**keys, **task.paper_compat, **keys.get("paper_compat", {})}:
        raise RequestError(
            f"task {task.name!r} has a recipe of its own for a place or for the papers; give one, as recipe"
        )
    values = {**to_dict(task), **keys}
    return from_dict(TaskConfig, {**values, **(values["paper_compat"] if compat else {})})


def _placed(task: TaskConfig, data: Path, compat: bool) -> TaskConfig:
    """The task at the first source that has all its files, every path complete."""
    missing = []
    for source in task.sources:
        found = _changed(task, source.keys, compat)
        found = replace(
            found,
            **{name: tuple(data / source.at / file for file in getattr(found, name)) for name in FILES},
            extra={name: tuple(data / source.at / file for file in paths) for name, paths in found.extra.items()},
        )
        absent = [path for paths in paths_of(found).values() for path in paths if not path.exists()]
        if not absent:
            return found
        missing.append(str(absent[0]))
    absent = ", no ".join(dict.fromkeys(missing))
    raise RequestError(
        f"task {task.name!r} has no files: there is no {absent}; set --data, or leave it out for the hub"
    )


def paths_of(task: TaskConfig) -> dict[str, tuple[Path, ...]]:
    return {name: paths for name, paths in {**{n: getattr(task, n) for n in FILES}, **task.extra}.items() if paths}


def supply(task: TaskConfig, config: FinetuneConfig, standard: bool) -> dict[str, Iterator[Row]]:
    """The rows of every split that a settled task has, not read yet. Raises: RequestError where there is none.

    standard: the task is described by a file, not by flags.
    """
    if task.hub is not None and from_hub(task, config):
        _check_hub(task, task.hub)
        return {ours: hub_rows(task.hub, theirs) for ours, theirs in task.hub.splits.items()}
    found = {name: _rows(task, name, paths, standard) for name, paths in paths_of(task).items()}
    if not found and task.hub is not None:
        raise RequestError(f"task {task.name!r} is on the hub, not in a folder; leave --data out")
    if not found:
        raise RequestError(f"task {task.name!r} has no files; give --task.train FILE (and --task.dev, --task.test)")
    return found


def _rows(task: TaskConfig, split: str, paths: tuple[Path, ...], standard: bool) -> Iterator[Row]:
    """Only labelled files may go without the first line of names: those of test servers have their own."""
    header = () if blind(split) else task.header
    named, wanted = flag(task, split if split in FILES else f"extra.{split}"), columns(task)
    described = STANDARD / f"{task.name}.yaml"
    for path in paths:
        if standard and not task.sources and not path.exists():
            raise RequestError(f"{described}: no file {path}; add sources: [{{at: FOLDER}}] for --data, or whole paths")
        some = False
        for row in files.rows(path, task.format, named, header, task.entry, task.broken == "mend", wanted):
            some = True
            yield row
        if not some:
            raise RequestError(f"{path} has no rows; fill it or set {named}")


def columns(task: TaskConfig) -> set[str]:
    """The columns that a task names; of an inner key also the one that holds it."""
    fields = [name for form in task.form for name in re.findall(FIELD, form)]
    named = {*task.text, *task.choices, *fields, task.label, task.first_of, task.subsets}
    return named | {name.partition(".")[0] for name in named}


def blind(split: str) -> bool:
    """Whether these are rows of a test server: submit, or submit-NAME."""
    return split == "submit" or split.startswith("submit-")


def read_files(task: TaskConfig, config: FinetuneConfig) -> list[Path]:
    """The files of a settled task, each once; none of one from the hub."""
    if from_hub(task, config):
        return []
    named = dict.fromkeys(path for paths in paths_of(task).values() for path in paths)
    return [file for path in named for file in (sorted(path.rglob("*.txt")) if path.is_dir() else [path])]


def training_files(task: TaskConfig, config: FinetuneConfig) -> list[Path]:
    """The files of a settled task's training rows; none of one from the hub."""
    return read_files(replace(task, dev=(), test=(), submit=(), extra={}), config)


def training(task: TaskConfig, config: FinetuneConfig) -> list[str]:
    """The files of a settled task's training rows; from the hub a name that no file has."""
    if task.hub is not None and from_hub(task, config):
        hub = task.hub
        return [f"hub:{hub.path} {hub.config} {hub.splits['train']}"] if "train" in hub.splits else []
    return [str(path) for path in training_files(task, config)]


def _check_hub(task: TaskConfig, hub: HubSource) -> None:
    if hub.revision is not None and Path(hub.path).is_dir():  # which `datasets` prefers, and reads as it is
        raise RequestError(
            f"task {task.name!r}: hub.revision = {hub.revision}, but {hub.path} is a folder here, which has no"
            " revisions; leave hub.revision out, or give the repository's name as hub.path"
        )


def hub_rows(hub: HubSource, split: str) -> Iterator[Row]:
    """Raises: WorkError where the hub cannot be reached or has no such set."""
    import datasets
    from datasets.exceptions import DatasetsError

    before, colon, after = split.partition(":")
    other = colon and "[" not in before  # a slice, train[:10%], has a colon too
    config, part = (before, after) if other else (hub.config, split)
    try:
        table = datasets.load_dataset(hub.path, config, split=part, revision=hub.revision)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error).split())[:200]
        raise WorkError(
            f"no split {split!r} of {hub.path} from the hub ({reason}); set --data to local files"
        ) from error
    if not len(table):
        raise RequestError(f"split {split!r} of {hub.path} on the hub has no rows; set --data to local files")
    for number, values in enumerate(table, 1):
        yield Row(Path(hub.path) / split, number, dict(values))
