"""The configs of the commands that work on finished runs. Every path is relative to the working directory."""

import os
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from asa.config import config
from finetune.config import Count, model_names
from finetune.tasks.spec import TaskConfig, distinct


def _apart(value: tuple[Path, ...]) -> tuple[Path, ...]:
    """A folder may have several paths, but counts once."""
    seen: dict[str, Path] = {}
    for path in value:
        if (place := os.path.realpath(path)) in seen:
            raise ValueError(f"{seen[place]} and {path} are one folder, allowed: each once")
        seen[place] = path
    return value


Names = Annotated[tuple[str, ...], AfterValidator(distinct)]
Paths = Annotated[tuple[Path, ...], Field(min_length=1), AfterValidator(_apart)]
Positive = Annotated[float, Field(gt=0, le=1e4)]


@config
class TaskRequest:
    """Tasks whose rows a model is run on."""

    tasks: Names = ()
    """Standard tasks, the names of the files in configs/task; empty: the one that `task` describes."""
    task: TaskConfig = TaskConfig()
    """A task of your own."""
    data: Path | None = None
    """Folder that holds the files of the standard tasks, a folder each; null: they are taken from the hub."""
    length: Annotated[int, Field(ge=8)] | None = None
    """Token ids per row at most; null: as the run was trained, 128 for a model of elsewhere."""
    map: dict[str, str] = field(default_factory=dict)
    """Class of the models -> class of the task, where the names do not say it."""
    batch: Count = 128
    """Rows per forward pass."""
    overwrite: bool = False
    """Replace finished records at `out` that were made with other settings, models or tasks."""


@config
class ScoreConfig(TaskRequest):
    """Score saved models on other tasks: OUT/TASK/TRAINED_ON-MODEL-METHOD-SEED/metrics.jsonl and predictions."""

    models: Paths
    """Folders of runs that were trained with --save_model true, or Hugging Face folders with a head; the first
    arguments."""
    out: Path
    """Folder of the records, one folder each."""
    merge: Literal["sum", "max"] = "sum"
    """Several classes of a model that are one of the task (neutral and contradiction: non-entailment) have the sum, or
    the largest, of their probabilities."""


@config
class EnsembleConfig:
    """Average the predicted probabilities of runs of one task (regression: the numbers): OUT/metrics.jsonl and
    predictions."""

    runs: Annotated[tuple[Path, ...], Field(min_length=2), AfterValidator(_apart)]
    """Folders of finished runs; the first arguments."""
    out: Path
    """Folder of the record."""
    overwrite: bool = False
    """Replace an ensemble of other runs."""


@config
class SubmitConfig:
    """Write a submission for the GLUE server from the predictions of runs, one run or ensemble per task."""

    runs: Paths
    """Folders of finished runs, scores or ensembles; the first arguments."""
    out: Path
    """The .zip to write."""
    partial: bool = False
    """Write it although tasks are missing, which the server refuses."""


@config
class RobustnessConfig(TaskRequest):
    """Largest increase of the loss in a ball around the word embeddings, by long PGD:
    OUT/TASK/REFERENCE/MODEL/metrics.jsonl."""

    models: Annotated[dict[str, Path], Field(min_length=1), AfterValidator(model_names)]
    """Name -> a run trained with --save_model true, or a Hugging Face folder with a head; the name stands in the
    report."""
    out: Path
    """Folder of the records, one folder each."""
    reference: str
    """Name of the model that sets each example's radius: the largest at which it resists."""
    split: str = "test"
    """Rows that are attacked."""
    rows: Count | None = None
    """Attacked rows at most, the first that all models classify right; null: all of them."""
    radius: Positive = 0.5
    """Largest radius tried, in units of the word embeddings, L2 over an example's tokens."""
    radii: Annotated[int, Field(ge=1, le=1_000_000)] = 15
    """Radii up to `radius`, equally spaced, among which the reference's largest is searched; each doubling of their
    number costs it one more attack."""
    steps: Count = 2000
    """Ascents per start."""
    step_size: Annotated[float, Field(gt=0, le=2)] = 0.05
    """Length of an ascent, as a share of the example's radius."""
    starts: Count = 4
    """Attacks per example: the first from the clean example, the others from random points of the ball."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the random starts."""
