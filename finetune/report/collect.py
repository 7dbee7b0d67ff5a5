"""Find the runs below a folder and read their metrics.jsonl."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asa import record
from asa.errors import RequestError

STAGES = ("finetune", "pretrain")
# Settings that move no score; the data is compared by its hash.
_NEUTRAL = ("task", "out", "log_every", "save_every", "keep", "save_model", "worker")


@dataclass(frozen=True)
class Run:
    """One metrics.jsonl. name: its folder below the runs folder; end: None for an unfinished run."""

    name: str
    facts: dict[str, Any]
    train: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    end: dict[str, Any] | None

    @property
    def stage(self) -> str | None:
        return self.facts.get("stage")

    @property
    def method(self) -> str:
        return str(self.facts.get("method", "n/a"))

    @property
    def last_step(self) -> int:
        return max((event["step"] for event in self.train + self.evals), default=0)

    @property
    def settings(self) -> str:
        """All that makes two runs comparable, as text: the configuration and the hash of the data."""
        config = {key: value for key, value in self.facts.get("config", {}).items() if key not in _NEUTRAL}
        task = self.facts.get("inputs", {}).get("task_sha256")
        own = ("method", "seed", "model") if self.stage == "pretrain" else ()
        return json.dumps([{key: value for key, value in config.items() if key not in own}, task], sort_keys=True)

    def series(self, key: str, events: str = "train") -> tuple[list[int], list[Any]]:
        """Steps and values of a metric over the train or eval events that hold it."""
        found = [(event["step"], event[key]) for event in getattr(self, events) if key in event]
        return [step for step, _ in found], [value for _, value in found]


def collect(folder: Path) -> list[Run]:
    """Every run below `folder`, in the order of their folders.

    Raises: RequestError when there is no such folder or no run in it, or when two finished runs are the same cell.
    """
    if not folder.is_dir():
        raise RequestError(f"no folder {folder}; give the folder of the runs as the first argument")
    paths = sorted(folder.rglob(record.NAME), key=lambda path: path.relative_to(folder).as_posix())
    runs = [_read(path, path.parent.relative_to(folder).as_posix()) for path in paths]
    if not any(run.stage in STAGES for run in runs):
        raise RequestError(f"no run below {folder}: no {record.NAME} of a known stage; give the folder of the runs")
    _refuse_twins(runs)
    return runs


def finished(runs: list[Run], stage: str) -> list[Run]:
    return [run for run in runs if run.stage == stage and run.end is not None]


def unfinished(runs: list[Run]) -> list[Run]:
    """Runs without an end line, and records of no known stage."""
    return [run for run in runs if run.end is None or run.stage not in STAGES]


def lettered(runs: list[Run]) -> dict[str, str]:
    """A letter for each distinct set of settings: A where all runs share one."""
    distinct = sorted({run.settings for run in runs})
    return {settings: _letters(index) for index, settings in enumerate(distinct)}


def model_label(run: Run, runs: list[Run]) -> str:
    """The model's name, with the start of its hash where the name stands for several sets of weights."""
    name = str(run.facts.get("model", "n/a"))
    mine = _weights(run)
    others = {_weights(other) for other in runs if other.facts.get("model") == run.facts.get("model")}
    return name if len(others) == 1 else f"{name} ({mine[:8]})"


def _weights(run: Run) -> str:
    return str(run.facts.get("inputs", {}).get("model_sha256", ""))


def _read(path: Path, name: str) -> Run:
    events = record.read(path)
    facts = events[0] if events and events[0]["event"] == "start" else {}
    by_kind = {kind: [event for event in events if event["event"] == kind] for kind in ("train", "eval", "end")}
    return Run(name, facts, by_kind["train"], by_kind["eval"], (by_kind["end"] or [None])[-1])


def _refuse_twins(runs: list[Run]) -> None:
    """Two records of one run would pass for two seeds."""
    seen: dict[tuple, str] = {}
    for run in finished(runs, "finetune"):
        cell = tuple(str(run.facts.get(key)) for key in ("task", "model", "method", "seed"))
        cell += (_weights(run), run.settings)
        if cell in seen:
            raise RequestError(
                f"{seen[cell]} and {run.name} are the same run (task, model, method, seed, settings);"
                " remove one or give a folder that holds one"
            )
        seen[cell] = run.name


def _letters(index: int) -> str:
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else _letters(index // 26 - 1) + letter
