"""The record of a run: metrics.jsonl (what reports read), TensorBoard (what people watch), rank 0 only.

metrics.jsonl has one JSON object per line: {"event": "start", ...facts}, any number of {"event": "train" | "eval",
"step": n, ...values} and, when the run is complete, {"event": "end", ...}. A run without an end line is unfinished.
"""

import json
import platform
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

NAME = "metrics.jsonl"
Value = float | int | str | bool | list[float] | None


class Record:
    """Appends to FOLDER/metrics.jsonl and writes the same numbers to TensorBoard; does nothing where `active` is False.

    A resumed run passes the step it resumes from: later lines of the interrupted run are dropped first.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], active: bool = True, resume: int | None = None) -> None:
        self.path = folder / NAME
        self._board: SummaryWriter | None = None
        if not active:
            return
        folder.mkdir(parents=True, exist_ok=True)
        kept = (
            [] if resume is None else [e for e in read(self.path) if e.get("step", 0) <= resume and e["event"] != "end"]
        )
        lines = [json.dumps(event) + "\n" for event in kept or [{"event": "start", **facts}]]
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(lines))
        partial.rename(self.path)
        if resume is None:
            shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resume)

    def log(self, event: str, step: int, values: Mapping[str, Value]) -> None:
        """One line, and one TensorBoard scalar per number (lists get an index)."""
        if self._board is None:
            return
        self._append({"event": event, "step": step, **values})
        for name, value in values.items():
            several = (
                {f"{name}/{i}": item for i, item in enumerate(value)} if isinstance(value, list) else {name: value}
            )
            for tag, item in several.items():
                if isinstance(item, int | float):
                    self._board.add_scalar(f"{event}/{tag}", item, step)

    def end(self, values: Mapping[str, Value]) -> None:
        """The line that says the run is complete."""
        if self._board is not None:
            self._append({"event": "end", **values})
        self.close()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def _append(self, event: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(event) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a metrics.jsonl, in order; none where there is no file. A torn last line is left out."""
    if not path.is_file():
        return []
    events = []
    for line in path.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the writer was killed inside this line: what follows is nothing
    return events


def finished(path: Path) -> bool:
    """Whether the run that writes `path` came to its end."""
    events = read(path)
    return bool(events) and events[-1]["event"] == "end"


def numbers(terms: Mapping[str, Tensor]) -> dict[str, Value]:
    """Tensors on any device as plain numbers: the log line's one wait for the device."""
    return {name: value.tolist() for name, value in terms.items()}


def environment() -> dict[str, str]:
    """What a reader needs to repeat a run."""
    packages = ("torch", "transformers", "deepspeed", "datasets", "tokenizers")
    versions = {name: _version(name) for name in packages}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {"python": platform.python_version(), "device": device, "system": platform.platform(), **versions}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
