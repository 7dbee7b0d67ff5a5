"""Every task x model x method x seed of a config: inputs checked first, then run after run."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from asa import dist, hf, manifest, record
from asa.adversary import FILE as ADVERSARY_FILE
from asa.adversary import check_saved
from asa.config import from_dict
from asa.errors import Apart, RequestError, WorkError
from asa.families import family
from asa.methods import METHODS, OURS, limits
from asa.methods.limits import rounding, slow_adversary
from asa.places import check_folder
from asa.tokenizer import for_words, load_tokenizer, reader_sha256
from finetune import state
from finetune.claims import claimed
from finetune.config import FinetuneConfig, check
from finetune.facts import check_own, facts_of, is_begun, is_finished
from finetune.lineage import check_unseen, may_have_seen, run_of, trained_on_note
from finetune.live import Board
from finetune.loop import train
from finetune.recipes import merged, preset, resolved
from finetune.run import Cell, Run
from finetune.tasks.batches import Encoded, encode
from finetune.tasks.facts import of_words, task_line
from finetune.tasks.load import load, trainable
from finetune.tasks.spec import chosen
from finetune.tasks.task import Task, scored

Failure = RequestError | WorkError
Trials = Sequence[Sequence[dict[str, Any]]]  # of each trial keys of FinetuneConfig, nested, that go over the request's


class Sweep:
    """The runs of a request, their tasks and what they are recognised by."""

    def __init__(self, given: dict[str, Any], trials: Trials | None = None) -> None:
        """Args: given, the keys of FinetuneConfig that files and flags say, nested; the rest is the task's recipe.
            trials, what each trial of a search has otherwise; nothing is then scored but dev.

        Raises: RequestError for a wrong input; WorkError for a damaged task.
        """
        self.began = time.time()
        config = from_dict(FinetuneConfig, given)
        check_folder(config.out, "--out")
        manifest.check_free(config.out, "--out")
        self.models = config.models
        for name, path in config.models.items():  # before tasks, of which the hub's take minutes
            hf.check_model(path, f"--models.{name}")
        self.tasks = tasks_of(config)
        if trials is not None:
            self.tasks = {name: unscored(task) for name, task in self.tasks.items()}
        self.cells = cells_of(given, list(self.tasks.values()), trials)
        notes = [*_seen(config.models.values(), self.tasks.values()), *_published(config, given), *_fresh(config)]
        notes += (line for cell in self.cells for line in rounding(cell.config.precision, torch.cuda.is_available()))
        self.notes = list(dict.fromkeys((*notes, *_slow(self.cells))))
        self.facts = {cell.run: facts_of(cell, self.tasks[cell.run.task], given) for cell in self.cells}
        # One of another request is refused before anything is trained.
        self.finished = [cell for cell in self.cells if is_finished(cell, self.facts[cell.run])]
        for cell in self.cells:
            if cell not in self.finished and not state.saved(cell.folder):
                check_own(cell.folder)
        self._alike: dict[str, PreTrainedTokenizerBase] = {}
        self._tokenizer = functools.cache(self._load_tokenizer)
        if any(task.kind == "token" for task in self.tasks.values()):
            for model in self.models:
                for_words(self._tokenizer(model))  # refused before anything is trained
        # Those of one task alone, whose runs come one after the other.
        self._rows = functools.lru_cache(maxsize=1)(lambda task: functools.cache(functools.partial(self._encode, task)))
        self._told: set[str] = set()

    def _load_tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        """The same for all models that read texts alike, whose rows are then made once."""
        found = load_tokenizer(self.models[model], f"--models.{model}")
        if not isinstance(found, PreTrainedTokenizerFast):
            return found  # nothing says how one reads that is written in Python
        return self._alike.setdefault(reader_sha256(found), found)

    def _encode(self, task: str, tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, Encoded]:
        kind, splits = self.tasks[task].kind, self.tasks[task].splits
        return {name: encode(kind, split, tokenizer, length) for name, split in splits.items()}

    def _words(self, cell: Cell, data: dict[str, Encoded], board: Board) -> dict[str, dict[str, int]]:
        """By split, the words that were cut off and those without a token, told with the first run that has so many;
        splits without any are left out."""
        cut, lost, lines = of_words(cell.run.task, cell.run.model, cell.config.length, data)
        for line in (line for line in lines if line not in self._told):
            self._told.add(line)
            board.warn(line)
        return {"cut": cut, "unread": lost}

    def make(self, cell: Cell, board: Board) -> Failure | None:
        """One claimed run, unless another process has finished it meanwhile; the error it failed with. All ranks must
        call it."""
        run, facts = cell.run, self.facts[cell.run]
        if dist.on_main(lambda: is_finished(cell, facts)):
            return None
        going_on = dist.on_main(lambda: is_begun(cell, facts))
        data = self._rows(run.task)(self._tokenizer(run.model), cell.config.length)
        if self.tasks[run.task].kind == "token":
            facts = {**facts, "task_facts": {**facts["task_facts"], **self._words(cell, data, board)}}
        try:
            if not (going_on and state.saved(cell.folder)):
                dist.on_main(lambda: check_own(cell.folder))  # again: other runs may have taken hours
            end = train(cell, self.tasks[run.task], data, facts, going_on)
        except Apart:
            raise
        except (RequestError, WorkError) as error:
            board.say(f"{run.name:40s} failed: {error}")
            return type(error)(*error.args)  # without its traceback, which holds on to the run's memory
        board.say(_line(run, self.tasks[run.task], end))
        return None

    def unfinished(self, cells: list[Cell]) -> list[str]:
        """Names of those that no process has finished yet. All ranks must call it."""
        return dist.on_main(lambda: [cell.run.name for cell in cells if not is_finished(cell, self.facts[cell.run])])


def sweep(given: dict[str, Any]) -> None:
    """Make the runs of a request. Args, raises: as Sweep and make_all."""
    make_all(Sweep(given), from_dict(FinetuneConfig, given).worker)


def make_all(work: Sweep, worker: int) -> None:
    """Make the runs that no other process makes; finished ones are kept. Prints one line per run, or a live table.

    Args: worker, the number of this process.
    Raises: at the end, where runs have failed: RequestError if wrong inputs are all the reasons, else WorkError.
    """
    failed: dict[str, Failure] = {}

    def make(cell: Cell) -> None:
        """Under the claim. A run that another process has tried meanwhile, and failed at, is not tried again."""
        error = dist.on_main(lambda: failure(cell, work.began)) or work.make(cell, board)
        if error is not None:
            failed[cell.run.name] = error

    metrics = {name: task.metrics[0] for name, task in work.tasks.items()}
    with Board(work.cells, metrics, work.finished, worker) as board:
        for line in [*map(task_line, work.tasks.values()), *work.notes]:
            board.note(line)
        for cell in work.finished:
            state.clear(cell.folder)  # left where a kill came between the end line and this
            board.note(f"{cell.run.name:40s} finished before")
        others = []
        for cell in (cell for cell in work.cells if cell not in work.finished):
            with claimed(cell.config.out, cell.run.name) as mine:
                make(cell) if mine else others.append(cell)
        # Those of processes that are killed meanwhile fall to the first one, which waits, and else to who comes by.
        for cell in others if dist.world() == 1 else ():
            with claimed(cell.config.out, cell.run.name, wait=worker == 0) as mine:
                if mine:
                    make(cell)
    # Ranks cannot wait.
    _answer(failed, work.unfinished(others) if dist.world() > 1 else [], len(work.cells))


def _answer(failed: dict[str, Failure], left: list[str], runs: int) -> None:
    """Raises: where runs have failed or are left to another process."""
    told = []
    if failed:
        told.append(
            f"{len(failed)} of {runs} runs failed ({', '.join(failed)}); the first: {next(iter(failed.values()))}"
        )
    if left:
        told.append(f"another process had {len(left)} of {runs} runs ({', '.join(left)}); give the same command again")
    if told:
        requests = not left and all(isinstance(error, RequestError) for error in failed.values())
        raise (RequestError if requests else WorkError)("; ".join(told))


def failure(cell: Cell, began: float) -> Failure | None:
    """What another process has failed with at the run. Args: began, the start of this one (Unix time, seconds): what
    was written before is an earlier command's."""
    path = cell.folder / record.NAME
    events = record.read(path)
    if not events or events[-1].get("event") != "failed" or path.stat().st_mtime < began:
        return None
    kind = RequestError if events[-1].get("request") else WorkError
    return kind(events[-1]["error"])


def _seen(models: Iterable[Path], tasks: Iterable[Task]) -> Iterator[str]:
    """A line for each task whose epoch is chosen by rows that a model has seen, or whose scored rows' own file has
    trained it. Raises: RequestError where scored rows are held out of such a file."""
    for folder in models:
        run = run_of(folder)
        for task in tasks:
            check_unseen(folder, run, task, "test")
            if may_have_seen(run, task, "dev"):
                yield f"{task.name}: {folder} may have been trained on rows of its dev, which choose the epoch"
            if line := trained_on_note(folder, run, task, scored(task.splits)):
                yield line


def _published(config: FinetuneConfig, given: dict[str, Any]) -> Iterator[str]:
    """A line for each standard task on which methods attack as published, which may have been for another model. Args:
    given, the keys that files and flags say, which leave nothing of a preset where they say all of it."""
    own = merged(given)
    for task in config.tasks if config.recipes else ():
        known = [method for method in config.methods if method in OURS]
        if methods := [method for method in known if merged(preset(method, task), own) != own]:
            yield (
                f"{task}: {', '.join(methods)} as published for this task, of whatever model (configs/method/NAME.yaml"
                " says which); flags and --config have the last word, --recipes false leaves it out"
            )


def _fresh(config: FinetuneConfig) -> Iterator[str]:
    """A line for the models without an exported adversary, where such are asked for."""
    methods = [method for method in config.methods if METHODS[method](config).uses_adversary]
    without = [name for name, folder in config.models.items() if not (folder / ADVERSARY_FILE).is_file()]
    if config.adversary == "exported" and methods and without:
        models = ", ".join(without)
        yield f"--adversary exported: no {ADVERSARY_FILE} in {models}, where those of {', '.join(methods)} are fresh"


def _slow(cells: Iterable[Cell]) -> Iterator[str]:
    """A line for each method whose adversary the optimizer slows down, on each task that has its own settings."""
    for cell in cells:
        config, method = cell.config, cell.run.method
        told = slow_adversary(config.optim.eps, config.asa.reversal)
        if told and METHODS[method](config).uses_adversary:
            yield f"{method}: {told}; set --optim.eps or --asa.reversal"


def tasks_of(config: FinetuneConfig) -> dict[str, Task]:
    """The tasks that a request names, loaded, by name. Raises RequestError for one that is not known, or
    has no rows to train on, or no rows to choose by beside the scored ones."""
    tasks = [trainable(load(spec, config), config) for spec in chosen(config.tasks, config.task)]
    return {task.name: task for task in tasks}


def unscored(task: Task) -> Task:
    """Without the rows that no choice may look at."""
    return replace(task, splits={name: task.splits[name] for name in ("train", "dev")})


def cells_of(given: dict[str, Any], tasks: list[Task], trials: Trials | None) -> list[Cell]:
    """The runs of a request, or of each task those of all trials, one trial after the other. Raises: as plan."""
    checked = functools.cache(check_model)  # one that all trials and methods have is read once
    if trials is None:
        return plan(given, tasks, checked)
    cells: list[Cell] = []
    for number, own in enumerate(trials):
        try:
            cells += [cell for one in own for cell in plan(merged(given, one), tasks, checked, number)]
        except RequestError as error:
            if number == 0:
                raise
            raise RequestError(f"trial {number}, whose settings are of --search: {error}; or mend --search") from None
    order = [task.name for task in tasks]
    return sorted(cells, key=lambda cell: order.index(cell.run.task))


def plan(
    given: dict[str, Any],
    tasks: list[Task],
    checked: Callable[[str, Path, int], int],
    trial: int | None = None,
) -> list[Cell]:
    """The runs, a task after the other and in it a seed after the other, so that what is done is comparable early.

    Args: checked, check_model, which remembers what it has read.
    Raises: RequestError for settings that a method or a model cannot work with.
    """
    config = from_dict(FinetuneConfig, given)
    cells = []
    for name, path in config.models.items():
        if config.adversary == "exported":
            hf.check_weights(path / ADVERSARY_FILE, f"--models.{name}")
    for spec, task in zip(chosen(config.tasks, config.task), tasks, strict=True):
        own = {method: resolved(given, spec, method) for method in config.methods}
        for method, settings in own.items():
            built = check(settings, torch.cuda.is_available())  # now, not after hours of runs
            for name, path in settings.models.items():
                limits.check_depth(built[method], checked(name, path, settings.length))
                exported = config.adversary == "exported" and (path / ADVERSARY_FILE).is_file()
                if exported and built[method].uses_adversary:
                    check_saved(path, settings.asa)
        cells += [
            Cell(Run(task.name, model, method, seed, trial), own[method])
            for seed in config.seeds
            for method in config.methods
            for model in config.models
        ]
    return cells


def check_model(name: str, path: Path, length: int) -> int:
    """How many layers it has.

    Raises: RequestError for a missing, incomplete or damaged folder, an unsupported family, a tokenizer with more ids
        than the model, or rows longer than it takes.
    """
    flag = f"--models.{name}"
    hf.check_reader(path, flag)
    shape = hf.read_config(path)
    if length > (most := family(shape.model_type).longest(shape)):
        raise RequestError(f"length = {length}: {path} takes at most {most} tokens; lower --length")
    return shape.num_hidden_layers


def _line(run: Run, task: Task, end: dict[str, Any]) -> str:
    scored = [key for key in end if any(key.endswith(f"_{metric}") for metric in task.metrics)]
    scores = "  ".join(f"{key} {end[key]:.4f}" for key in scored)
    return f"{run.name:40s} {scores}  best epoch {end['best_epoch']:g}  {end['seconds']:.1f} s"
