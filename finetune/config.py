"""The configs of the finetune commands. Every path is relative to the working directory."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from asa.config import config
from asa.engine import Precision
from asa.errors import RequestError
from asa.methods import Method, MethodName, MethodsConfig, build_method, limits
from asa.optim import OptimConfig
from finetune.tasks.spec import TaskConfig, distinct

Count = Annotated[int, Field(ge=1)]


def model_names(value: dict[str, Path]) -> dict[str, Path]:
    """Its argument. Raises ValueError for a name that cannot be a part of a folder's."""
    for name in value:
        if not re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}", name) or name in (".", ".."):
            raise ValueError(f"{name!r} cannot name a run's folder, allowed: up to 100 letters, digits and _ . -")
    return value


def _whole_seeds(value: tuple[int, ...]) -> tuple[int, ...]:
    if any(seed < 0 for seed in value):
        raise ValueError("allowed: 0 <= seed")
    return distinct(value)


@config
class FinetuneConfig(MethodsConfig):
    """Fine-tune every model with every method and every seed on every task: OUT/TASK/MODEL-METHOD-SEED/."""

    tasks: Annotated[tuple[str, ...], AfterValidator(distinct)] = ()
    """Standard tasks, the names of the files in configs/task; empty: the one that `task` describes."""
    task: TaskConfig = TaskConfig()
    """A task of your own."""
    data: Path | None = None
    """Folder that holds the files of the standard tasks, a folder each; null: they are taken from the hub."""
    recipes: bool = True
    """Begin with the published recipe of each standard task and the published settings of each method for it; keys that
    are given by --config or as flags have the last word."""
    paper_compat: bool = False
    """Do as the papers did where it is no good practice: choose the epoch on the scored file, and what the task's file
    lists under paper_compat."""
    holdout: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training rows, 1,000 at most, that chooses the epoch where a task has no two labelled files besides
    them."""
    models: Annotated[dict[str, Path], Field(min_length=1), AfterValidator(model_names)]
    """Name -> Hugging Face folder of an encoder with its tokenizer; the name stands in the report."""
    out: Path
    """Folder of the runs, one folder each."""
    methods: Annotated[tuple[MethodName, ...], Field(min_length=1), AfterValidator(distinct)] = ("vanilla", "asa")
    """Training methods by name."""
    seeds: Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_whole_seeds)] = (0, 1, 2, 3, 4)
    """One run per seed: order of the rows, new head, dropout, adversary."""
    adversary: Literal["fresh", "exported"] = "fresh"
    """What method asa and its kin start from: adversaries drawn from the seed, or those that pre-training has left in
    the model's folder (adversary.safetensors). A folder without any gets fresh ones; the run's record says which."""
    length: Annotated[int, Field(ge=8)] = 128
    """Token ids per row at most, special tokens included; longer texts are cut."""
    batch: Count = 32
    """Rows per step, over all processes that share the run; one step of an epoch has what is left."""
    micro_batch: Count | None = None
    """Rows per forward pass of one process at most, which lowers the memory that a step takes; null: all of its share.
    Losses are means over the whole batch in any case."""
    buckets: bool = True
    """Put rows of like length in a batch, so that little is padded; the batches come in random order."""
    epochs: Annotated[float, Field(gt=0, le=1e6)] = 3.0
    """Passes over the training rows; parts of a pass count."""
    max_steps: Count | None = None
    """Steps at most; null: what `epochs` says. A method with replays (freeat) makes several updates per step."""
    train_rows: Count | None = None
    """Training rows at most, drawn by a fixed seed, the same for every run; null: all."""
    evals_per_epoch: Count = 1
    """Evaluations on dev per pass over the training rows, at most one a step; the last step has one in any case."""
    patience: Count | None = None
    """Evaluations in a row without a better dev score after which a run ends; null: it goes on to its last step. The
    learning rate decays as if it did."""
    eval_batch: Count = 128
    """Rows per forward pass in evaluation."""
    log_every: Count = 20
    """Batches per line of training metrics (steps, but for freeat); a line holds their means."""
    save_every: Annotated[float, Field(ge=0)] = 60.0
    """Seconds between two saves of what an unfinished run goes on from after a kill, made with a log line; where a save
    takes t > 1 seconds, t times as many. 0: with every log line."""
    engine: Literal["plain", "deepspeed"] = "plain"
    """What makes the updates: torch itself in fp32, or DeepSpeed."""
    zero: Literal[0, 1, 2, 3] = 0
    """DeepSpeed's ZeRO stage: what the processes that share a run (launch finetune --ranks N) hold a part of each. In
    bf16 and fp16, 2 works in the place of 0 and 1."""
    precision: Precision = "fp32"
    """Arithmetic of model and gradients; adversaries and losses stay fp32. bf16 and fp16 need --engine deepspeed, fp16
    a GPU as well."""
    worker: Annotated[int, Field(ge=0)] = 0
    """Number of this process among those that work on one sweep: it takes GPU number `worker` (modulo their number),
    and 0 shows the table. Which runs it makes is settled as they go."""
    overwrite: bool = False
    """Replace runs at `out` that were made with other settings, models or task, finished ones and unfinished ones that
    have saved something."""
    save_model: bool = False
    """Keep the selected weights as a Hugging Face folder OUT/TASK/MODEL-METHOD-SEED/model. A finished run that has kept
    none is made again."""
    optim: OptimConfig = OptimConfig()
    """Optimizer and learning rate, the same for every run of a task."""


@config
class TuneConfig(FinetuneConfig):
    """Try settings of each method, OUT/trial-K/TASK/MODEL-METHOD-SEED/, and choose by dev alone: OUT/best.yaml."""

    seeds: Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_whole_seeds)] = (0,)
    """One run per seed of each trial; a trial's score is their mean."""
    trials: Annotated[int, Field(ge=2, le=1000)] = 8
    """Settings tried of every method that has a range in `search`, the same number of each; the first are those of the
    request."""
    search: Annotated[dict[str, tuple[float, float]], Field(min_length=1)]
    """GROUP.KEY of a method's setting -> its least and its greatest value: `freelb.radius: [0.02, 0.5]`. Whole numbers
    are tried evenly, others by their logarithm. Ranges of methods that are not asked for are left out."""


def check(config: FinetuneConfig, cuda: bool) -> dict[str, Method]:
    """The methods of the request by name. Raises RequestError for settings that exclude each other, or that a method
    cannot work with."""
    if config.engine == "plain" and config.precision != "fp32":
        raise RequestError(f"precision {config.precision} is DeepSpeed's; set --engine deepspeed or --precision fp32")
    if config.engine == "plain" and config.zero:
        raise RequestError(f"zero = {config.zero} is a stage of DeepSpeed; set --engine deepspeed or --zero 0")
    limits.check_precision(config.precision, cuda)
    return {name: build_method(name, config, config.precision, config.zero) for name in config.methods}


@config
class MapsConfig:
    """Draw what every layer attends to in a sentence, what its adversary masks, and attention under that mask."""

    model: Path
    """A model with its adversary.safetensors: the folder that `pretrain export` writes for an ASA run, or a run of
    fine-tuning with asa that kept its model."""
    text: Annotated[str, Field(min_length=1)]
    """Any sentence."""
    out: Path
    """Picture to write: .png, .svg or .pdf; beside it goes the same name with the ending .maps.json, which the report
    reads."""
    layers: tuple[int, ...] = ()
    """Layers to draw, the bottom one 0; empty: all."""
    head: Annotated[int, Field(ge=0)] | None = None
    """Attention head to draw, the first one 0; null: the mean over all heads."""
    beside: Path | None = None
    """A second model with the same tokenizer, a folder or a run too, whose attention is drawn beside."""


@config
class ReportConfig:
    """Summarise every run below RUNS, the first argument: OUT/report.html, OUT/report.md, OUT/report.csv."""

    runs: Path
    """Folder whose metrics.jsonl files are read, at any depth."""
    out: Path
    """Folder for the three files."""
    repeated: bool = False
    """Pre-training was repeated with every seed: a model's name that has other weights with each seed is one model, and
    spreads are those of both stages. Otherwise other weights are another model, told apart by their hash."""
