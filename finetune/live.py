"""What a sweep shows while it works: a table on a terminal, elsewhere a line per run."""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from asa import dist, record
from finetune.run import Cell


class Status(NamedTuple):
    """How far a run is, by its record. main: the end's score in the task's first metric, on test or else on dev."""

    event: str
    step: int = 0
    main: float | None = None


class Board:
    """Inside: worker 0 draws the table of the whole sweep where standard output is a terminal, and the others are
    silent; elsewhere each worker prints a line per run. The table is read off the records, whoever writes them."""

    def __init__(self, cells: Sequence[Cell], metrics: dict[str, str], kept: Sequence[Cell], worker: int) -> None:
        """Args: metrics, the first one of each task by its name; kept, the runs that were finished before."""
        self._cells = cells
        self._kept = {cell.run.name for cell in kept}
        self._first = worker == 0 and dist.is_main()
        self._metrics = metrics
        self._terminal = sys.stdout.isatty()
        self._ended: dict[str, Status] = {}
        self._began = time.time()
        draws = self._terminal and self._first
        self._live = Live(get_renderable=self.render, console=Console(), refresh_per_second=0.5) if draws else None

    def __enter__(self) -> "Board":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """A line about a run that has come to its end."""
        if not self._terminal and dist.is_main():
            print(line, flush=True)

    def note(self, line: str) -> None:
        """A line about the whole sweep, which worker 0 alone prints."""
        if self._first:
            print(line, flush=True)

    def warn(self, line: str) -> None:
        """A line about a task, which whoever finds it prints; over worker 0's table no other does."""
        if self._first or (not self._terminal and dist.is_main()):
            print(line, flush=True)

    def render(self) -> Group:
        """Tasks x methods (and models where several): runs done, mean main score; then what is under way."""
        states = {cell.run.name: self._status(cell) for cell in self._cells}
        models = list(dict.fromkeys(cell.run.model for cell in self._cells))
        methods = list(dict.fromkeys(cell.run.method for cell in self._cells))
        table = Table("task", *(["model"] if len(models) > 1 else []), *methods)
        for task in self._metrics:
            for model in models:
                row = [
                    _cell([states[c.run.name] for c in self._cells if c.run[:3] == (task, model, method)])
                    for method in methods
                ]
                table.add_row(f"{task} ({self._metrics[task]})", *([model] if len(models) > 1 else []), *row)
        return Group(table, Text(self._summary(states)))

    def _status(self, cell: Cell) -> Status:
        name = cell.run.name
        if name in self._ended:
            return self._ended[name]
        path = cell.folder / record.NAME
        try:
            earlier = name not in self._kept and path.stat().st_mtime < self._began
        except FileNotFoundError:  # not begun, or its worker is just clearing the folder
            earlier = True
        if earlier:
            return Status("none")  # what an earlier command has left
        status = read(path, self._metrics[cell.run.task])
        if status.event in ("end", "failed"):
            self._ended[name] = status
        return status

    def _summary(self, states: dict[str, Status]) -> str:
        ended = [name for name, status in states.items() if status.event in ("end", "failed")]
        now = [f"{name} step {s.step}" for name, s in states.items() if s.event not in ("none", "end", "failed")]
        new = len(set(ended) - self._kept)
        text = f"{len(ended)} of {len(states)} runs"
        if new and len(ended) < len(states):
            seconds = (time.time() - self._began) / new * (len(states) - len(ended))
            text += f", about {_duration(seconds)} left"
        return "\n".join([text, *now])


def read(path: Path, metric: str) -> Status:
    """A run's status from its record."""
    events: list[dict[str, Any]] = record.read(path)
    if not events:
        return Status("none")
    last = events[-1]
    step = max((event.get("step", 0) for event in events), default=0)
    return Status(last.get("event", "none"), step, last.get(f"test_{metric}", last.get(f"dev_{metric}")))


def _cell(states: Sequence[Status]) -> str:
    scores = [status.main for status in states if status.event == "end" and status.main is not None]
    failed = sum(status.event == "failed" for status in states)
    parts = [f"{len(scores)}/{len(states)}"]
    if scores:
        parts.append(f"{100 * statistics.fmean(scores):.1f}")
    if failed:
        parts.append(f"{failed} failed")
    return "  ".join(parts)


def _duration(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{max(1, minutes)} min"
