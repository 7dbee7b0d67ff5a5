"""What a task's description says must fit together."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

from asa.errors import RequestError
from finetune.tasks.cells import canonical, flag, wrong
from finetune.tasks.files import ending
from finetune.tasks.places import FILES, blind, columns, paths_of
from finetune.tasks.rows import FIELD, Raw
from finetune.tasks.spec import STANDARD, TaskConfig
from finetune.tasks.task import Split

KINDS = {
    "choices": ("choice",),
    "form": ("classification", "regression", "choice"),
    "spellings": ("classification", "token"),
    "literals": ("classification", "regression", "choice"),
    "ranked": ("classification",),
}
"""Keys that only tasks of these kinds read."""
FORMATS = {"header": ("csv", "tsv"), "entry": ("json",)}
"""Keys that only files of these formats have a use for."""


def check_keys(task: TaskConfig, standard: bool) -> None:
    """Raises RequestError for keys that exclude each other, and for those that nothing of the task reads.

    Of a standard task, which no flag describes, the file is named that does.
    """
    try:
        _check_keys(task)
    except RequestError as error:
        if not standard:
            raise
        said = str(error).replace("--task.", "")
        raise RequestError(f"{STANDARD / f'{task.name}.yaml'}: {said}") from None


def _check_keys(task: TaskConfig) -> None:
    _check_kind(task)
    _check_formats(task)
    _check_once(task)
    if any(task.header.count(name) > 1 for name in columns(task)):
        raise RequestError(f"task.header is {', '.join(task.header)}, allowed: each once; set --task.header")
    clash = set(FILES) & set(task.extra)
    if clash:
        raise RequestError(f"task.extra names {sorted(clash)[0]!r}, which has a key of its own; name it otherwise")
    if task.labels and task.kind in ("regression", "choice"):
        raise RequestError(f"task.labels is {', '.join(task.labels)}, kind {task.kind} has no classes; leave it out")
    _check_label(task)
    strange = sorted(set(task.spellings.values()) - set(task.labels)) if task.labels else []
    named = {canonical(name) for name in task.labels} - {""}
    if len(named) < len(task.labels) or len(task.labels) == 1 or strange:
        what = f"task.spellings names class {strange[0]!r}" if strange else f"task.labels is {', '.join(task.labels)}"
        raise RequestError(f"{what}, allowed: two classes or more, each named once; set --task.labels")
    if task.kind == "choice" and not task.choices and len(task.text) < 2:
        raise RequestError("kind choice has no column of answers; set --task.choices")
    if task.kind == "choice" and task.form and not any("{answer}" in form for form in task.form):
        raise RequestError("task.form has no {answer}, which kind choice is about; mend --task.form")
    if task.form:
        _check_form(task.form)
    if task.ranked and task.also:
        raise RequestError("task.also adds rows, task.ranked makes questions of them; leave one of the two out")
    if task.kind in ("classification", "regression") and len(task.text) > 2 and not task.form:
        raise RequestError(f"task.text has {len(task.text)} columns, allowed: one, or two of a pair; set --task.text")
    if task.kind == "token" and len(task.text) != 1:
        raise RequestError(
            f"task.text has {len(task.text)} columns, kind token wants that of the words; set --task.text"
        )


def _check_label(task: TaskConfig) -> None:
    """Raises RequestError where the encoder would read the label. The label of kind choice may be an answer's text."""
    splits = {*paths_of(task), *(task.hub.splits if task.hub else ())}
    question = task.text[:1] if task.kind == "choice" and not task.choices else task.text
    fields = {name for form in task.form for name in re.findall(FIELD, form)}
    if task.kind == "choice":
        fields -= {"answer"}  # each of the answers, whatever columns there are
    shown = fields if task.form else question
    if task.label in shown and not all(map(blind, splits)):
        key = "form" if task.form else "text"
        raise RequestError(f"task.label is {task.label!r}, which is a column of task.{key} too; set --task.label")


def _check_form(form: Sequence[str]) -> None:
    """Raises RequestError for a lone brace, and for a form that reads no column: every text would be the same."""
    rest = [re.sub(FIELD, "", part) for part in form]
    if broken := [part for part, left in zip(form, rest, strict=True) if "{" in left or "}" in left]:
        raise RequestError(f"task.form has {broken[0]!r}, allowed: columns in braces, {{NAME}}; mend --task.form")
    if all(left == part for part, left in zip(form, rest, strict=True)):
        raise RequestError(f"task.form is {', '.join(map(repr, form))}, which reads no column; mend --task.form")


def _check_kind(task: TaskConfig) -> None:
    """A column of answers that nothing reads may be a forgotten --task.kind choice."""
    for key, kinds in KINDS.items():
        if getattr(task, key) and task.kind not in kinds:
            raise RequestError(
                f"task.{key} is set, which kind {task.kind} does not read, only {', '.join(kinds)}; leave it out, or"
                " set --task.kind"
            )


def _check_formats(task: TaskConfig) -> None:
    paths = [path for several in paths_of(task).values() for path in several]
    read = {ending(path) if task.format == "auto" else task.format for path in paths}
    for key, formats in FORMATS.items():
        if getattr(task, key) and read and not read.intersection(formats):
            raise RequestError(
                f"task.{key} is set, which no file of the task has a use for, only those of format"
                f" {', '.join(formats)}; leave it out, or set --task.format"
            )


def _check_once(task: TaskConfig) -> None:
    """Rows of a file that is named twice in a split would train, or be scored, twice."""
    for split, paths in paths_of(task).items():
        seen = set[Path]()
        for path in paths:
            if path.resolve() in seen:
                key = split if split in FILES else f"extra.{split}"
                raise RequestError(f"task.{key} names {path} twice; leave it out once, by --task.{key}")
            seen.add(path.resolve())


def check_scores(splits: Mapping[str, Split], metrics: Iterable[str]) -> None:
    """Raises RequestError where scores of two splits would have one name: macro_f1 of test, f1 of test_macro."""
    first: dict[str, str] = {}
    scored = [name for name, split in splits.items() if name != "train" and split.labels is not None]
    for split, metric in product(scored, dict.fromkeys((*metrics, "loss"))):
        name = f"{split}_{metric}"
        if name in first:
            raise RequestError(
                f"splits {first[name]!r} and {split!r} would both have a score {name}; name one of them otherwise"
                " (--task.extra, --task.subsets), or set --task.metrics"
            )
        first[name] = split


def check_spread(task: TaskConfig, splits: Mapping[str, Split], raws: Mapping[str, Raw]) -> None:
    """Raises RequestError for a regression whose rows of train or dev all have one number: there is nothing to learn,
    and every correlation is 0."""
    trains = task.kind == "regression" and "train" in raws
    for name in [name for name in ("train", "dev") if trains and name in raws]:
        # One row chooses nothing, whatever its number.
        if len(splits[name]) > 1 and len(numbers := set(splits[name].labels or [])) == 1:
            told = f"column {task.label!r} of {name} has one number only, {numbers.pop()}"
            raise wrong(raws[name].rows[0], told, flag(task, name))
