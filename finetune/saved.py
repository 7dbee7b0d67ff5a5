"""Models with a head, as runs and others have saved them."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from asa import hf, manifest, record
from asa.errors import RequestError
from asa.model import TaskModel
from asa.tokenizer import load_tokenizer
from finetune.config import FinetuneConfig
from finetune.evaluation_config import TaskRequest
from finetune.model import HEADS
from finetune.tasks.batches import Encoded, encode
from finetune.tasks.load import load
from finetune.tasks.spec import chosen
from finetune.tasks.task import Kind, Task

LENGTH = 128  # tokens per row for a model that no run of ours has made
_KINDS: dict[str, Kind] = {"SequenceClassification": "classification", "TokenClassification": "token"}
_KINDS["MultipleChoice"] = "choice"


class Saved(NamedTuple):
    """A model to evaluate. labels: names of its classes. model, method, seed, trained_on, length, config: of the run
    that made it; of another folder its name, None and no settings."""

    folder: Path
    kind: Kind
    labels: tuple[str, ...]
    model: str
    method: str | None
    seed: int | None
    trained_on: str | None
    length: int | None
    config: dict[str, Any]
    start_sha256: str | None = None  # of the weights that the run began with
    trained: tuple[str, ...] = ()  # sha256 of the files, or names on the hub, of all rows that trained it
    held_out: Mapping[str, str] = MappingProxyType({})  # sha256 of the rows of dev and test that were held out of these

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


def find(path: Path, flag: str) -> Saved:
    """The model in a run's folder or in a Hugging Face folder.

    Raises: RequestError where there is none or it has no head for a task; WorkError where a saved file is damaged.
    """
    facts: dict[str, Any] = {}
    folder = path
    if (path / record.NAME).is_file():
        facts, _ = finished(path, flag)
        folder = path / "model"
        if not folder.is_dir():
            raise RequestError(f"{path} has kept no model; run it again with --save_model true, or set {flag}")
        manifest.verify(folder, "model", flag)
    hf.check_reader(folder, flag)
    shape = hf.read_config(folder)
    kind = _kind(shape, folder, flag)
    names: dict[int, str] = dict(shape.id2label or {})  # type: ignore[arg-type]  # keys are int once loaded
    labels = tuple(names[index] for index in sorted(names))
    made = {name: facts.get(name) for name in ("method", "seed")}
    config = facts.get("config", {})
    name = facts.get("model") or Path(os.path.abspath(folder)).name  # that of "." is empty
    trained_on, length, start = facts.get("task"), config.get("length"), facts.get("inputs", {}).get("model_sha256")
    known = facts.get("task_facts", {})
    rows = {"trained": tuple(known.get("trained", ())), "held_out": known.get("held_out_sha256", {})}
    run = {"trained_on": trained_on, "length": length, "config": config, "start_sha256": start}
    return Saved(folder, kind, labels, name, **made, **run, **rows)


def _kind(shape: Any, folder: Path, flag: str) -> Kind:
    made_for = (shape.architectures or ["none"])[0]
    match = re.fullmatch(r".*For(\w+)", made_for)
    if not match or match[1] not in _KINDS:
        raise RequestError(f"{folder} is {made_for}, which has no head for a task; fine-tune it first, or set {flag}")
    kind = _KINDS[match[1]]
    return "regression" if kind == "classification" and shape.num_labels == 1 else kind


def module_of(saved: Saved, device: torch.device, flag: str) -> TaskModel:
    """The model in evaluation mode, in fp32. Raises RequestError where its folder lacks some of the weights."""
    with hf.quiet():
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
            check_unseen(saved, seen[-1], split)
        found.append(seen)
    return found


def check_unseen(saved: Saved, task: Task, split: str) -> None:
    """Raises: RequestError where the split is held out of files that have trained the model, of which these very rows
    were not held out then: it was another task's, or the task had other files or columns. A file of the split's own is
    what the user says it is."""
    held = task.facts.get("held_out_sha256", {}).get(split)
    if held and held != saved.held_out.get(split) and set(saved.trained) & set(task.facts["trained"]):
        raise RequestError(
            f"{saved.folder} was trained on rows of {task.name}, whose {split} is held out of them; leave out the model"
            " or the task, describe the task as its run did, or give test rows of their own by --task.test"
        )


def _splitting(saved: Saved, task: str) -> dict[str, Any]:
    """How the model's run has split its rows, where that was this task and not as ever."""
    if saved.trained_on != task:
        return {}
    usual = {"holdout": FinetuneConfig.holdout, "paper_compat": FinetuneConfig.paper_compat}
    return {key: saved.config[key] for key, value in usual.items() if saved.config.get(key, value) != value}


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
