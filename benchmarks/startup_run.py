"""A run of a stage whose parts are timed, for `python -m benchmarks startup`: STAGE FILE FLAGS ..."""

import functools
import importlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

STEP, REST = "step", "rest"
WORK = {"pretrain": "pretrain.loop", "finetune": "finetune.sweep"}
# Where the functions of each part are looked up when they are called. A name that is gone ends the benchmark.
PARTS: dict[str, dict[str, list[str]]] = {
    "pretrain": {
        "data": [
            "pretrain.loop._check_inputs",
            "pretrain.run.inputs",
            "pretrain.run.Batches",
            "pretrain.data.Batches.step",
        ],
        "model": ["pretrain.objective.MaskedLM.build"],
        "engine": ["pretrain.process.dist.init", "pretrain.run.DeepSpeedEngine"],
        "evaluation": ["pretrain.loop._evaluate_and_log"],
        "checkpoint": ["pretrain.loop._save"],
        STEP: ["pretrain.loop.update"],
    },
    "finetune": {
        "data": [
            "finetune.sweep.tasks_of",
            "finetune.sweep.Sweep._encode",
            "finetune.loop.Ahead.__call__",
        ],
        "model": ["finetune.loop.build"],
        "engine": ["finetune.loop.engine_of"],
        "evaluation": ["finetune.loop._evaluate"],
        "checkpoint": ["finetune.state.Saver.save"],
        STEP: ["finetune.loop._step"],
    },
}


class Clock:
    """Seconds by part; of nested parts each has its own time alone."""

    def __init__(self) -> None:
        self.created = psutil.Process().create_time()
        self._since, self._stack = self.created, ["imports"]
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.until: dict[str, float] = {}
        self.steps, self.evaluations = 0, 0  # after the first step

    def switch(self, part: str) -> None:
        """From now on it is another part."""
        now = time.time()
        self._seconds[self._stack[-1]] += now - self._since
        self._since, self._stack[-1] = now, part

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        self.switch(self._stack[-1])
        self._stack.append(part)
        yield
        self.switch(part)
        self._stack.pop()
        if part == STEP and not self.until:
            self.until = dict(self._seconds)
            self.until["first step"] = self.until.pop(STEP)
            self._seconds.clear()
        elif self.until:
            self.steps += part == STEP
            self.evaluations += part == "evaluation"

    def told(self) -> dict[str, Any]:
        later = dict(self._seconds)
        counts = {"steps": self.steps, "evaluations": self.evaluations}
        return {"created": self.created, "until": self.until, "later": later, **counts}


def watch(clock: Clock, part: str, place: str) -> None:
    """Count the time of a function or class, named where it is looked up, as that of a part."""
    path, _, name = place.rpartition(".")
    try:
        owner: Any = importlib.import_module(path)
    except ModuleNotFoundError:  # a class, or a module that another one holds
        module, _, inner = path.rpartition(".")
        owner = getattr(importlib.import_module(module), inner)
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with clock.during(part):
            return function(*args, **kwargs)

    setattr(owner, name, timed)


def main(stage: str, file: Path, flags: list[str]) -> None:
    clock = Clock()
    entry = importlib.import_module(f"{stage}.__main__")
    importlib.import_module(WORK[stage])  # which the command would import when it is given
    clock.switch(REST)
    for part, places in PARTS[stage].items():
        for place in places:
            watch(clock, part, place)
    entry.run(flags)
    file.write_text(json.dumps(clock.told()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
