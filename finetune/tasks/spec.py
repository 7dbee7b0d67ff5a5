"""What a task's description may say: configs/task/NAME.yaml for the standard ones, flags or a file for your own."""

import difflib
import os
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field

from asa.config import config, did_you_mean, from_dict
from asa.errors import RequestError
from finetune.tasks.files import Format

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"  # of a task or a split, which become files' names
STANDARD = Path(__file__).parents[2] / "configs" / "task"
Named = Literal["classification", "regression", "token", "tokens", "choice"]


def _separate(given: Any) -> Any:
    """`a.csv,b.csv` are two files, unless there is one of that name."""
    paths = [given] if isinstance(given, str | Path) else given
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str | Path) for path in paths):
        return given
    # A list is longer than a file's name may be, of which Path.exists makes an error.
    parts = [[path] if os.path.exists(path) else [part.strip() for part in str(path).split(",")] for path in paths]
    if not all(part for several in parts for part in several):
        raise ValueError("a name between commas is empty, allowed: FILE or FILE,FILE")
    return [part for several in parts for part in several]


def distinct(names: tuple) -> tuple:
    """Raises ValueError for a list with an entry twice."""
    if len(set(names)) < len(names):
        raise ValueError("an entry is given twice, allowed: each once")
    return names


Files = Annotated[tuple[Path, ...], BeforeValidator(_separate)]


@config
class Source:
    """A folder that may hold the files of a standard task."""

    at: Path
    """Folder, relative to --data."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Keys of the task that are different there."""


@config
class HubSource:
    """A data set of the Hugging Face hub."""

    path: str
    """Repository, or a local folder of the same form."""
    config: str | None = None
    """Which of the repository's configurations."""
    revision: str | None = None
    """Branch, tag or commit; null: the newest."""
    splits: dict[str, str]
    """Our split -> theirs; `a+b` joins two, `C:a` is that of configuration C."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Keys of the task that are different there."""


@config
class TaskConfig:
    """Where a task's rows are, which columns hold text and label, and how it is scored."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")] = "own"
    """Names the runs' folder and the report's table."""
    folder: Path | None = None
    """Task folder as `data_prep build` writes it, in place of all keys below."""
    kind: Annotated[Named, AfterValidator(lambda kind: "token" if kind == "tokens" else kind)] = "classification"
    """classification: one class per row; regression: one number per row; token (or tokens): one class per word; choice:
    the right one of several answers."""
    train: Files = ()
    """Files of training rows, FILE or FILE,FILE: .csv, .tsv, .jsonl, .json, .parquet or .conll; .gz, .bz2 and .xz are
    read as well."""
    dev: Files = ()
    """Files of rows that choose the epoch; empty: a part of the training rows is held out."""
    test: Files = ()
    """Files of rows that are scored once, at the end; empty: dev is scored, and held-out training rows choose."""
    submit: Files = ()
    """Files of rows without labels, predicted at the end."""
    extra: dict[str, Files] = field(default_factory=dict)
    """Further splits by name: their files are scored at the end, or predicted where they have no column of labels, or
    their name is submit-SOMETHING."""
    subsets: str = ""
    """Column by whose values the rows of test are scored apart as well, a further split each; empty: none."""
    also: Annotated[tuple[str, ...], AfterValidator(distinct)] = ()
    """Standard tasks of the same kind and classes whose training rows are added."""
    format: Format = "auto"
    """How the files are written; auto: by their ending. csv: separated by commas, or by tabs where the first line has
    no comma, quoted where needed; tsv: by tabs, quotes are ordinary characters; conll: columns `words` and `label`."""
    header: tuple[str, ...] = ()
    """csv and tsv: the columns' names where labelled files have no first line with them; a first line that has just
    these names is read as such."""
    entry: str = ""
    """json: the entry of the file's object that holds the rows; empty: the file is a list of them."""
    broken: Literal["refuse", "mend"] = "refuse"
    """Rows without a label, labelled ones whose text is null, and rows of a tsv that a line break inside a text cuts in
    two: refuse them, or mend: leave out and count the former, join and count the latter; those that no further lines
    complete are left out too."""
    text: Annotated[tuple[str, ...], Field(min_length=1)] = ("text",)
    """Column of the text, or the two columns of a pair; token: the column of the words, a list or words between spaces.
    JSON's inner keys stand behind a dot: question.stem."""
    choices: tuple[str, ...] = ()
    """Kind choice: the columns of the answers, or the one that holds their list; empty: all of `text` but the first."""
    form: Annotated[tuple[str, ...], Field(max_length=2)] = ()
    """What the encoder reads, one segment or two, with columns in braces and, of kind choice, {answer}; empty: the
    columns of `text`, kind choice: the first of them, and the others with the answer behind."""
    literals: bool = False
    """Texts are written as Python bytes, b'...': read what they stand for."""
    ranked: str = ""
    """Kind classification, pairs: the class that one row of each question has. Rows with the same first text become one
    question of kind choice, rows without company are left out; empty: rows are taken as they are."""
    first_of: str = ""
    """Column: only the first row with each of its values is kept; empty: all rows are."""
    label: str = "label"
    """Column of the label; choice: of the right answer's number from 0, letter, or text."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of their index; empty: those of the training rows, sorted."""
    spellings: dict[str, str] = field(default_factory=dict)
    """Another spelling of a class in the files -> the class."""
    metrics: tuple[str, ...] = ()
    """Scores by name, the first of which chooses the epoch; empty: those usual for the kind."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """Published settings of the task: keys of FinetuneConfig, but for models, methods, seeds and where things are, and
    for train_rows, holdout, paper_compat and adversary."""
    paper_compat: dict[str, Any] = field(default_factory=dict)
    """Keys of the task that FinetuneConfig.paper_compat changes."""
    partial: str = ""
    """What these files are of a published set that has more, told with the rows and the scores; empty: all of it."""
    sources: tuple[Source, ...] = ()
    """Where below FinetuneConfig.data the files may be: the first place that has them all is taken."""
    hub: HubSource | None = None
    """Where the rows come from if FinetuneConfig.data is null."""


def chosen(names: Sequence[str], own: TaskConfig) -> list[TaskConfig]:
    """The standard tasks of these names, or without any the user's own.

    Raises: RequestError for an unknown name, and for one's own beside standard ones.
    """
    if names and own != TaskConfig():
        raise RequestError("task.* describes a task of your own; leave it or --tasks out")
    return [named(name) for name in names] if names else [own]


def named(name: str) -> TaskConfig:
    """A standard task. Raises RequestError, which names the tasks there are."""
    files = {file.stem: file for file in sorted(STANDARD.glob("*.yaml"))}
    if name not in files:
        near = did_you_mean(difflib.get_close_matches(name, files, n=1))
        raise RequestError(
            f"no task {name!r}; {near}set --tasks to some of {', '.join(files)}, or describe one by --task"
        )
    return from_dict(TaskConfig, {"name": name, **yaml.safe_load(files[name].read_text())})
