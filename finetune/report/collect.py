"""Find the runs below a folder, read their metrics.jsonl, and say which of them may be compared."""

import dataclasses
import fnmatch
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asa import record
from asa.config import flat
from asa.errors import RequestError
from asa.lines import check
from asa.methods import MethodsConfig, groups_read
from finetune.facts import READER, SCHEDULE

STAGES = ("finetune", "score", "ensemble", "robustness", "pretrain")
COMPARED = ("finetune", "score")  # stages whose runs stand for a model, a method and a seed on a task
# Settings that move no score; a task's data is compared by its hash.
NEUTRAL = ("task", "out", "log_every", "save_every", "keep", "save_model", "worker", "adversary")
NEUTRAL += ("on_nonfinite", "on_save_error", "hang_timeout", "wandb")  # of pre-training
NO_SEED = -1
_METHODS = tuple(field.name for field in dataclasses.fields(MethodsConfig))


@dataclass(frozen=True)
class Run:
    """One metrics.jsonl. name: its folder below the runs folder; end: None for an unfinished run; twin: name of the
    run whose copy it is, empty for none; failed: the event that says why it has no end, where it has failed; alike:
    whether its test rows are all answered alike."""

    name: str
    folder: Path
    facts: dict[str, Any]
    train: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    end: dict[str, Any] | None
    twin: str = ""
    failed: dict[str, Any] | None = None
    alike: bool = False

    @property
    def stage(self) -> str | None:
        return self.facts.get("stage")

    @property
    def model(self) -> str:
        return str(self.facts.get("model") or "n/a")

    @property
    def method(self) -> str:
        return str(self.facts.get("method") or "n/a")

    @property
    def seed(self) -> int:
        """NO_SEED where there is none, as of a model from elsewhere that was only scored."""
        seed = self.facts.get("seed")
        return NO_SEED if seed is None else seed

    @property
    def task(self) -> str:
        """The task that is scored, with the one that was trained on where that is another."""
        if self.stage == "pretrain":
            return str(self.facts.get("objective", "mlm"))
        name, source = self.facts.get("task", "n/a"), self.facts.get("trained_on")
        return f"{name} after {source}" if self.stage in ("score", "ensemble") and source else str(name)

    @property
    def metrics(self) -> list[str]:
        """Names of the task's metrics, the main one first."""
        return list(self.facts.get("metrics") or ("accuracy", "macro_f1"))

    @property
    def last_step(self) -> int:
        return max((event.get("step", 0) for event in self.train + self.evals), default=0)

    @property
    def shared(self) -> dict[str, Any]:
        """What makes the runs of different methods comparable: the settings of no method, and the data's hash."""
        own = ("method", "seed", "model") if self.stage == "pretrain" else ()
        config, inputs = self.facts.get("config", {}), self.facts.get("inputs", {})
        if self.stage == "pretrain" and inputs:  # told apart by contents, wherever they lie
            config = config | {
                "data": _short(inputs.get("data")),
                "shape": _short(inputs.get("shape", inputs.get("model"))),
                "heldout_rows": inputs.get("heldout"),
            }
        settings = {key: value for key, value in config.items() if key not in (*NEUTRAL, *_METHODS, *own)}
        found = {**flat(settings), "task_sha256": _short(inputs.get("task_sha256"))}
        if self.stage == "score" and "trained_sha256" in inputs:
            found["trained_sha256"] = _short(inputs["trained_sha256"])
            if self.facts.get("method"):  # of one run's classes; others' models may name theirs as they like
                found |= {f"map.{theirs}": ours for theirs, ours in (self.facts.get("classes") or {}).items()}
        if several := inputs.get("models_sha256"):  # which rows are attacked follows from all models
            found["models_sha256"] = hashlib.sha256(json.dumps(several, sort_keys=True).encode()).hexdigest()[:8]
        if attacked := self.facts.get("attacked_sha256"):  # on another device it may be others that all get right
            found["attacked_sha256"] = _short(attacked)
        return _set(found)

    @property
    def settings(self) -> str:
        """`shared` as text."""
        return json.dumps(self.shared, sort_keys=True)

    @property
    def own(self) -> dict[str, Any]:
        """The settings that its method reads, by dotted key; its record may hold those of others. Files by content."""
        config, read = self.facts.get("config", {}), groups_read(self.method)
        inputs = self.facts.get("inputs", {})
        groups = {name: config[name] for name in _METHODS if name in config and name in read}
        attacked = "adversary" in self.facts and "asa" in read
        found = flat(groups) | ({"adversary": self.facts["adversary"]} if attacked else {})
        hashes = {SCHEDULE: inputs.get("schedule_sha256"), "method_sha256": inputs.get("method_sha256")}
        return _set(found | {key: _short(sha256) for key, sha256 in hashes.items() if sha256})

    @property
    def figures(self) -> dict[str, float]:
        """The finite numbers of the end line; none of an unfinished run."""
        numbers = {key: value for key, value in (self.end or {}).items() if isinstance(value, int | float)}
        return {key: value for key, value in numbers.items() if abs(value) <= sys.float_info.max}

    @property
    def scores(self) -> dict[str, float]:
        """SPLIT_METRIC of the end line: test first, then further splits, dev last."""
        endings = tuple(f"_{metric}" for metric in self.metrics)
        known = {key: value for key, value in self.figures.items() if key.endswith(endings)}
        order = {"test": 0, "dev": 2}
        return dict(sorted(known.items(), key=lambda item: order.get(item[0].partition("_")[0], 1)))

    def series(self, key: str, events: str = "train") -> tuple[list[int], list[Any]]:
        """Steps and values of a metric over the train or eval events that hold it; of lists those as long as the
        last."""
        found = [(event["step"], event[key]) for event in getattr(self, events) if event.get(key) is not None]
        found = [(step, value) for step, value in found if _length(value) == _length(found[-1][1])]
        return [step for step, _ in found], [value for _, value in found]


def collect(folder: Path) -> list[Run]:
    """Every run below `folder`, in the order of their folders.

    Raises: RequestError when there is no such folder or no run in it, or when a run was made twice with other scores.
    """
    if not folder.is_dir():
        raise RequestError(f"no folder {folder}; give the folder of the runs as the first argument")
    paths = found_below(folder, record.NAME)
    runs = [_read(path, path.parent.relative_to(folder).as_posix()) for path in paths]
    if not any(run.stage in STAGES for run in runs):
        why = f"no {record.NAME} of a known stage"
        why = "trials alone, which their trials.csv tells" if any(map(is_trial, runs)) else why
        raise RequestError(f"no run below {folder}: {why}; give the folder of the runs")
    return _marked_twins(_told_classes(_told_readers(_told_adversaries(runs))))


def found_below(folder: Path, pattern: str) -> list[Path]:
    """Files with such names, in the order of their paths. Folders that are links are gone into after all others, so
    that what lies here for real keeps its name, and each folder once."""
    found, been, waiting = [], set[str](), [folder]
    while waiting:
        for place, folders, names in os.walk(waiting.pop(0)):
            if (real := os.path.realpath(place)) in been:
                folders.clear()
                continue
            been.add(real)
            waiting += sorted(path for name in folders if (path := Path(place, name)).is_symlink())
            found += [Path(place, name) for name in fnmatch.filter(names, pattern)]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def finished(runs: list[Run], *stages: str) -> list[Run]:
    """Those of these stages, without copies."""
    return [run for run in runs if run.stage in stages and run.end is not None and not run.twin]


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _set(settings: dict[str, Any]) -> dict[str, Any]:
    """Without those that are null: records from before a setting do not have it at all."""
    return {key: value for key, value in settings.items() if value is not None}


def _short(sha256: Any) -> str:
    return str(sha256)[:8]


def left_out(runs: list[Run]) -> list[Run]:
    """Runs without an end line, copies, and records of no known stage; without trials, which no report is about."""
    others = [run for run in runs if not is_trial(run)]
    return [run for run in others if run.end is None or run.twin or run.stage not in STAGES]


def is_trial(run: Run) -> bool:
    """Whether it is of a search of settings, which has no scores on test."""
    return run.stage == "tune"


def weights(run: Run) -> str:
    """Hash of the weights a run began with, one for all their files; empty where its record does not say, as older ones
    of pre-training, which have the hash of the model's shape alone. Of a run's model that was scored: of those the run
    began with."""
    inputs = run.facts.get("inputs", {})
    key = "start_sha256" if run.stage == "score" and run.facts.get("method") else "model_sha256"
    if run.stage == "pretrain":
        key = "model" if "shape" in inputs else ""
    known = str(inputs.get(key) or "")
    return hashlib.sha256(known.encode()).hexdigest() if "+" in known else known


def _read(path: Path, name: str) -> Run:
    events = record.parsed(path)
    if not events or events[0].get("event") != "start":
        return Run(name, path.parent, {}, [], [], None)  # no record of ours
    check(events, path)
    by_kind = {kind: [event for event in events if event["event"] == kind] for kind in ("train", "eval")}
    last = {events[-1]["event"]: events[-1]}  # as `record.finished` has it
    return Run(
        name,
        path.parent,
        events[0],
        by_kind["train"],
        by_kind["eval"],
        end=last.get("end"),
        failed=last.get("failed"),
    )


def _told_adversaries(runs: list[Run]) -> list[Run]:
    """Exported adversaries by their hash, where one set of weights had several: nothing else would tell such runs
    apart. With other weights the adversary is a part of what these are."""
    return _told(runs, _adversary, lambda run, sha256: {"adversary": f"{run.facts['adversary']} {sha256[:8]}"})


def _told_readers(runs: list[Run]) -> list[Run]:
    """The settings of a tokenizer, where one set of weights had several: they read texts otherwise."""
    return _told(runs, reader, lambda run, sha256: {"model": f"{run.model}, tokenizer {sha256[:8]}"})


def reader(run: Run) -> str:
    """Hash of those settings; empty where its record does not say."""
    return str(run.facts.get("inputs", {}).get(READER) or "")


def _told_classes(runs: list[Run]) -> list[Run]:
    """What became of the classes of somebody else's model, where one was scored with several maps: no two of them are
    one model's runs. Of a run's own model this stands among the settings."""
    return _told(runs, _classes, lambda run, read: {"model": f"{run.model}, {read}"})


def _told(runs: list[Run], mark: Callable[[Run], str], tell: Callable[[Run, str], dict[str, str]]) -> list[Run]:
    """The runs, those of weights that have several marks with other facts. Args: mark, empty where a run has none."""
    seen: dict[str, set[str]] = {}
    for run in runs:
        if found := mark(run):
            seen.setdefault(weights(run), set()).add(found)
    return [
        dataclasses.replace(run, facts={**run.facts, **tell(run, found)})
        if (found := mark(run)) and len(seen[weights(run)]) > 1
        else run
        for run in runs
    ]


def _classes(run: Run) -> str:
    outside = run.stage == "score" and not run.facts.get("method")
    classes = (run.facts.get("classes") or {}) if outside else {}
    return " ".join(f"map.{theirs}={ours}" for theirs, ours in classes.items())


def _adversary(run: Run) -> str:
    """Hash of the exported adversary it began with; empty where it has none, or its record does not say."""
    return str(run.facts.get("inputs", {}).get("adversary_sha256") or "") if "adversary" in run.facts else ""


def _marked_twins(runs: list[Run]) -> list[Run]:
    """A copy, or a run that several folders have, would pass for a further seed: all but the first are marked."""
    seen: dict[tuple, Run] = {}
    marked = []
    for run in runs:
        if run.stage in STAGES and run.end is not None:
            first = seen.setdefault(_cell(run), run)
            if run.stage in COMPARED and first.scores != run.scores:
                raise RequestError(
                    f"{first.name} and {run.name} are the same run (task, model, method, seed, settings) with other"
                    " scores; remove one or give a folder that holds one"
                )
            run = run if run is first else dataclasses.replace(run, twin=first.name)
        marked.append(run)
    return marked


def _cell(run: Run) -> tuple:
    """What no two runs have in common: nothing of when, where and on what machine they were made. Ensembles have no
    settings: their members tell them apart."""
    cell = tuple(str(run.facts.get(key)) for key in ("stage", "model", "method", "seed", "reference"))
    inputs = run.facts.get("inputs", {})
    own = [run.own, None if weights(run) else run.facts.get("config", {}).get("model")]
    if run.stage == "ensemble":
        own += [run.facts.get("members"), inputs.get("sha256"), run.scores]
    return (*cell, run.task, weights(run), run.settings, json.dumps(own, sort_keys=True))
