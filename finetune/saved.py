"""Models with a head, as runs and others have saved them."""

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch

from asa import fused, hf, manifest, record
from asa.errors import RequestError, WorkError
from asa.model import TaskModel
from asa.tokenizer import load_tokenizer
from finetune.config import FinetuneConfig
from finetune.evaluation_config import TaskRequest
from finetune.lineage import check_unseen, run_of, stages
from finetune.model import HEADS
from finetune.predictions import FOLDER
from finetune.tasks.batches import Encoded, encode
from finetune.tasks.load import load
from finetune.tasks.spec import chosen
from finetune.tasks.task import Kind, Task

LENGTH = 128  # tokens per row for a model that no run of ours has made
_KINDS: dict[str, Kind] = {"SequenceClassification": "classification", "TokenClassification": "token"}
_KINDS["MultipleChoice"] = "choice"
# What a record of an evaluation consists of; `.partial` as well.
_RECORD = (record.NAME, "environment.json", "examples.npz", f"{FOLDER}/*.npz", "tensorboard/events.out.tfevents.*")


class Saved(NamedTuple):
    """A model to evaluate. labels: names of its classes; model: its name in the run that made it, of another folder
    that folder's; run: that run's start line, empty for another folder."""

    folder: Path
    kind: Kind
    labels: tuple[str, ...]
    model: str
    run: dict[str, Any]

    @property
    def method(self) -> str | None:
        return self.run.get("method")

    @property
    def seed(self) -> int | None:
        return self.run.get("seed")

    @property
    def trained_on(self) -> str | None:
        """The run's task."""
        return self.run.get("task")

    @property
    def config(self) -> dict[str, Any]:
        """The run's settings."""
        return self.run.get("config", {})

    @property
    def length(self) -> int | None:
        return self.config.get("length")

    @property
    def name(self) -> str:
        """Names its records."""
        known = (self.trained_on, self.model, self.method, self.seed)
        return "-".join(str(part) for part in known if part is not None)


def finished(folder: Path, flag: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Start and end line of the record in a folder. Raises RequestError where there is none, or an unfinished one."""
    events = record.read(folder / record.NAME)
    if not events:
        raise RequestError(f"{folder} has no {record.NAME}; give the folder of a finished run by {flag}")
    if events[-1].get("event") != "end":
        raise RequestError(f"{folder} is an unfinished run; finish it, or give another by {flag}")
    return events[0], events[-1]


def folder_of(path: Path, flag: str) -> tuple[Path, dict[str, Any]]:
    """The folder of a run's saved model and the run's start line; for one without a record itself and nothing.

    Raises: RequestError where the run is unfinished or has kept none; WorkError where a saved file is damaged.
    """
    if not (path / record.NAME).is_file():
        return path, {}
    start, _ = finished(path, flag)
    folder = path / "model"
    if not folder.is_dir():
        stage = start.get("stage")
        why = (
            "has kept no model; run it again with --save_model true, or"
            if stage in (None, "finetune")
            else f"is of stage {stage}, which keeps no model;"
        )
        raise RequestError(f"{path} {why} set {flag}")
    manifest.verify(folder, "model", flag)
    return folder, start


def find(path: Path, flag: str) -> Saved:
    """The model in a run's folder or in a Hugging Face folder, which may be a run's too.

    Raises: RequestError where there is none or it has no head for a task; WorkError where a saved file is damaged.
    """
    folder, start = folder_of(path, flag)
    hf.check_reader(folder, flag)
    run = run_of(folder)
    if run and start:
        run = {"models": list(start.get("request", {}).get("models", {})), **run}  # older manifests have no order
    if run and folder == path and not _whole(folder):
        run = {key: run[key] for key in ("task_facts", "earlier") if key in run}  # it has seen those rows all the same
    shape = hf.read_config(folder)
    kind = _kind(shape, folder, flag)
    names: dict[int, str] = dict(shape.id2label or {})  # type: ignore[arg-type]  # keys are int once loaded
    labels = tuple(names[index] for index in sorted(names))
    name = run.get("model") or Path(os.path.abspath(folder)).name  # that of "." is empty
    return Saved(folder, kind, labels, name, run)


def _whole(folder: Path) -> bool:
    """Whether a model is as its run has saved it, every byte."""
    try:
        manifest.verify(folder, "model", "--models")
    except WorkError:
        return False
    return True


def _kind(shape: Any, folder: Path, flag: str) -> Kind:
    made_for = (shape.architectures or ["none"])[0]
    match = re.fullmatch(r".*For(\w+)", made_for)
    if not match or match[1] not in _KINDS:
        raise RequestError(f"{folder} is {made_for}, which has no head for a task; fine-tune it first, or set {flag}")
    kind = _KINDS[match[1]]
    return "regression" if kind == "classification" and shape.num_labels == 1 else kind


def module_of(saved: Saved, device: torch.device, flag: str) -> TaskModel:
    """The model in evaluation mode, in fp32. Raises RequestError where its folder lacks some of the weights, or has
    others than its config.json says."""
    with hf.loading(saved.folder, flag):
        model, info = HEADS[saved.kind].from_pretrained(saved.folder, output_loading_info=True, dtype=torch.float32)
    if info["missing_keys"]:
        lost = sorted(info["missing_keys"])[0]
        raise RequestError(f"{saved.folder} has no weights {lost}; fine-tune it first, or set {flag}")
    return TaskModel(model, saved.kind).to(device).eval()


def encoded(saved: Saved, task: Task, split: str, length: int | None, flag: str) -> Encoded:
    """A split in the model's own tokens. Raises RequestError where the model reads no rows of this length."""
    length = length_of(saved, length, flag)
    return encode(task.kind, task.splits[split], load_tokenizer(saved.folder, flag), length)


def length_of(saved: Saved, length: int | None, flag: str) -> int:
    """Tokens per row at most. Raises RequestError where the model reads no rows of this length."""
    length = length or saved.length or LENGTH
    hf.check_model(saved.folder, flag, length)
    return length


def device() -> torch.device:
    fused.leave_out(os.environ)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tasks_of(request: TaskRequest, models: Sequence[Saved], out: Path, split: str = "test") -> list[list[Task]]:
    """Each task that a request names, loaded, as each of the models is to see it.

    One that a model was trained on is split as the model's run has split it (holdout, paper_compat): else rows that it
    was trained on would be scored.
    Raises: RequestError for a task of one's own beside standard ones, and where rows of `split` that are held out of
        training files may have trained a model; else as the loader.
    """
    found = []
    for spec in chosen(request.tasks, request.task):
        task = load(spec, _asked(request, out, {}))
        known: dict[str, Task] = {str({}): task}
        seen = []
        for saved in models:
            own = _splitting(saved, task.name)
            if str(own) not in known:
                known[str(own)] = load(spec, _asked(request, out, own))
            seen.append(known[str(own)])
            check_unseen(saved.folder, saved.run, seen[-1], split)
        found.append(seen)
    return found


def _splitting(saved: Saved, task: str) -> dict[str, Any]:
    """How the last of the model's runs on this task has split its rows, where that was not as ever."""
    usual = {"holdout": FinetuneConfig.holdout, "paper_compat": FinetuneConfig.paper_compat}
    own = next((stage.get("split", {}) for stage in reversed(stages(saved.run)) if stage.get("task") == task), {})
    return {key: own[key] for key, value in usual.items() if own.get(key, value) != value}


def _asked(request: TaskRequest, out: Path, own: dict[str, Any]) -> FinetuneConfig:
    """A request for the loader."""
    return FinetuneConfig(
        tasks=request.tasks, task=request.task, data=request.data, models={"any": out}, out=out, **own
    )


def kept(folder: Path, facts: dict[str, Any], overwrite: bool) -> bool:
    """Whether a record is finished already with these very facts, the environment and paths aside.

    Raises: RequestError where it is finished with others and overwrite is off.
    """
    if not record.finished(folder / record.NAME):
        return False
    before = record.read(folder / record.NAME)[0]
    changed = [name for name in facts if name != "environment" and before.get(name) != facts[name]]
    if not changed or overwrite:
        return not changed
    raise RequestError(f"{folder} is finished with another {', '.join(changed)}; set --out or --overwrite true")


def replaceable(folder: Path, stage: str) -> None:
    """Raises: RequestError where something else than a record of this stage stands, which a new one would remove. What
    a kill has left of one is such a record."""
    events = record.read(folder / record.NAME)
    if os.path.lexists(folder) and (not folder.is_dir() or (events and events[0].get("stage") != stage)):
        raise RequestError(f"{folder} exists and holds no record of {stage}, so it is not replaced; set another --out")
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if not path.is_dir()]
    for name in names:
        # `*` would match a slash as well.
        if not any(
            fnmatch(name.removesuffix(".partial"), one) and name.count("/") == one.count("/") for one in _RECORD
        ):
            raise RequestError(
                f"{folder} is not replaced, since {name} in it is no part of a record of {stage}; move that or set"
                " another --out"
            )
