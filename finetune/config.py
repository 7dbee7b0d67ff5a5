"""The configs of the finetune commands. Every path is relative to the working directory."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from asa.config import config
from asa.methods import MethodName, MethodsConfig
from asa.optim import OptimConfig

Count = Annotated[int, Field(ge=1)]


def _model_names(value: dict[str, Path]) -> dict[str, Path]:
    for name in value:
        if not re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*", name):
            raise ValueError(f"{name!r} cannot name a run's folder, allowed: letters, digits and _ . -")
    return value


def _whole_seeds(value: tuple[int, ...]) -> tuple[int, ...]:
    if any(seed < 0 for seed in value):
        raise ValueError("allowed: 0 <= seed")
    return _distinct(value)


def _distinct(value: tuple) -> tuple:
    if len(set(value)) < len(value):
        raise ValueError("an entry is given twice, allowed: each once")
    return value


def _worker(value: str) -> str:
    match = re.fullmatch(r"(\d+)/([1-9]\d*)", value)
    if not match or int(match[1]) >= int(match[2]):
        raise ValueError("allowed: i/n with 0 <= i < n")
    return value


@config
class FinetuneConfig(MethodsConfig):
    """Fine-tune every model with every method and every seed on one task: OUT/MODEL-METHOD-SEED/metrics.jsonl."""

    task: Path
    """Task folder: task.json, train.jsonl, dev.jsonl, test.jsonl, manifest.json."""
    models: Annotated[dict[str, Path], Field(min_length=1), AfterValidator(_model_names)]
    """Name -> Hugging Face folder of an encoder with its tokenizer; the name stands in the report."""
    out: Path
    """Folder of the runs, one folder each."""
    methods: Annotated[tuple[MethodName, ...], Field(min_length=1), AfterValidator(_distinct)] = ("vanilla", "asa")
    """Training methods by name."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_whole_seeds)] = (0, 1, 2, 3, 4)
    """One run per seed: order of the rows, new head, dropout, adversary."""
    adversary: Literal["fresh", "exported"] = "fresh"
    """What method asa and its kin start from: adversaries drawn from the seed, or those that pre-training has left in
    the model's folder (adversary.safetensors). A folder without any gets fresh ones; the run's record says which."""
    length: Annotated[int, Field(ge=8)] = 128
    """Token ids per row at most, special tokens included; longer texts are cut."""
    batch: Count = 32
    """Rows per step; the last step of an epoch has what is left."""
    epochs: Annotated[float, Field(gt=0)] = 3.0
    """Passes over the training rows; parts of a pass count."""
    max_steps: Count | None = None
    """Steps at most; null: what `epochs` says. A method with replays (freeat) makes several updates per step."""
    evals_per_epoch: Count = 1
    """Evaluations on dev per pass over the training rows; one more follows the last step."""
    eval_batch: Count = 128
    """Rows per forward pass in evaluation."""
    log_every: Count = 20
    """Optimizer steps per line of training metrics; a line holds their means."""
    worker: Annotated[str, AfterValidator(_worker)] = "0/1"
    """Part i/n of the runs, i from 0: what one of n processes does, on GPU i where there are several."""
    overwrite: bool = False
    """Replace finished runs at `out` that were made with other settings, models or task."""
    save_model: bool = False
    """Keep the selected weights as a Hugging Face folder OUT/MODEL-METHOD-SEED/model."""
    optim: OptimConfig = OptimConfig()
    """Optimizer and learning rate, the same for every run."""


@config
class MapsConfig:
    """Draw what every layer attends to in a sentence, what its adversary masks, and attention under that mask."""

    model: Path
    """Folder written by `pretrain export` of an ASA run: a model with its adversary.safetensors."""
    text: Annotated[str, Field(min_length=1)]
    """Any sentence."""
    out: Path
    """Picture to write: .png, .svg or .pdf."""
    layers: Annotated[tuple[int, ...], Field(min_length=1)] | None = None
    """Layers to draw, the bottom one 0; null: all."""


@config
class ReportConfig:
    """Summarise every run below RUNS, the first argument: OUT/report.html, OUT/report.md, OUT/report.csv."""

    runs: Path
    """Folder whose metrics.jsonl files are read, at any depth."""
    out: Path
    """Folder for the three files."""
