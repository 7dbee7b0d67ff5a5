"""The record of a run: metrics.jsonl (what reports read), TensorBoard (what people watch), rank 0 only.

metrics.jsonl has one JSON object per line: {"event": "start", ...facts}, any number of {"event": "train" | "eval",
"step": n, ...values}, what befell the run ("resume", "fault", "failed") and, when it is complete, {"event": "end",
...}. A run without an end line is unfinished.
"""

import errno
import functools
import importlib
import json
import math
import os
import platform
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from asa import dist
from asa.curves import Curves
from asa.errors import RequestError, WorkError
from asa.lines import check, wrong
from asa.places import atomic_write, fsync, refusal_told

NAME = "metrics.jsonl"
DRAWN = ("train", "eval")  # events whose numbers are curves
PROCESSORS = Path("/proc/cpuinfo")
Value = float | int | str | bool | list[Any] | None
"""A list: of numbers, or of such lists."""


class Record:
    """Appends to FOLDER/metrics.jsonl and writes the same numbers to TensorBoard; does nothing where `active` is False.

    A resumed run passes the step it resumes from: later lines of the interrupted run are dropped first.
    Raises: WorkError, in every call, where the system refuses to write.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        active: bool = True,
        resume: int | None = None,
        wandb: str | None = None,
    ) -> None:
        self.path = folder / NAME
        self._curves: Curves | None = None
        self._drawn = folder / "tensorboard"
        self._wandb: Any = None
        if not active:
            return
        kept = (
            [] if resume is None else [e for e in read(self.path) if e.get("step", 0) <= resume and e["event"] != "end"]
        )
        lines = [json.dumps(event) + "\n" for event in kept or [{"event": "start", **facts}]]
        for path, text in (
            (self.path, "".join(lines)),
            (folder / "environment.json", json.dumps(installed(), indent=1) + "\n"),
        ):
            with atomic_write(path) as partial:
                partial.write_text(text)
        if resume is None:
            shutil.rmtree(self._drawn, ignore_errors=True)
        with refusal_told(self._drawn):
            # It drops what it has from this step on, that step too, of which the lines above are kept.
            self._curves = Curves(self._drawn, purge=None if resume is None else resume + 1)
        if wandb is not None:
            self._wandb = _weights_and_biases(wandb, folder, facts, going_on=resume is not None)

    def log(self, event: str, step: int, values: Mapping[str, Value]) -> None:
        """One line and, for a DRAWN event, one TensorBoard scalar per number (lists get an index); what is not finite
        is null. Raises: RequestError for a value that no reader of the line could take, whose name means another."""
        if self._curves is None:
            return
        values = {name: _finite(value) for name, value in values.items()}
        line = {"event": event, "step": step}
        if event in DRAWN:
            _check_names(line, values)
        self._append(line | values)
        if event not in DRAWN:
            return
        scalars = {f"{event}/{tag}": item for tag, item in _scalars(values).items()}
        if self._wandb is not None:
            self._wandb.log(scalars, step=step)
        with refusal_told(self._drawn):
            self._curves.add(step, scalars)

    def steps(self, event: str) -> set[int]:
        """The steps that have a line of this event; none where the record is not active."""
        return set() if self._curves is None else {e["step"] for e in read(self.path) if e["event"] == event}

    def end(self, values: Mapping[str, float | None]) -> None:
        """The line that says the run is complete."""
        if self._curves is not None:
            self._append({"event": "end", **{name: _finite(value) for name, value in values.items()}})
            self.sync()  # what could make the run again is removed next
        self.close(complete=True)

    def sync(self) -> None:
        """Force the lines so far to disk, before what relies on them: after a power cut a checkpoint may be there."""
        if self._curves is not None:
            with refusal_told(self.path):
                fsync(self.path)

    def close(self, complete: bool = False) -> None:
        self._curves = None
        wandb, self._wandb = self._wandb, None
        if wandb is not None:
            wandb.finish(exit_code=0 if complete else 1)

    def _append(self, event: dict[str, Any]) -> None:
        with refusal_told(self.path), self.path.open("a+b") as file:
            _cut_torn_line(file)
            file.write(json.dumps(event, allow_nan=False).encode() + b"\n")


def shared(folder: Path, facts: Mapping[str, Any], resume: int | None = None, wandb: str | None = None) -> Record:
    """Rank 0's record of a run, an idle one elsewhere; every rank calls it. Raises WorkError, on every rank, where it
    cannot be written."""
    made = list[Record]()
    dist.on_main(lambda: made.append(Record(folder, facts, True, resume, wandb)))
    return made[0] if made else Record(folder, facts, active=False)


def _check_names(line: dict[str, Any], values: dict[str, Any]) -> None:
    taken = next((f"{name}: is the line's own" for name in line if name in values), None)
    if (found := taken or wrong(line | values)) is not None:
        raise RequestError(f"a term of the method has a name that means something else ({found}); rename it")


def _cut_torn_line(file: BinaryIO) -> None:
    """Remove what a failed write has left of a line: glued to it, the next would be lost as well."""
    if not file.seek(0, os.SEEK_END):
        return
    file.seek(-1, os.SEEK_END)
    if file.read() != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _finite(value: Value) -> Any:
    """The value as JSON has it, which knows no NaN and no infinity."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scalars(values: Mapping[str, Value]) -> dict[str, float]:
    """The numbers among the values; a list gives one for each item."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, list):
            found |= _scalars({f"{name}/{number}": item for number, item in enumerate(value)})
        elif isinstance(value, int | float):
            found[name] = float(value)
    return found


def _weights_and_biases(project: str, folder: Path, facts: Mapping[str, Any], going_on: bool) -> Any:
    """A run of the project, continued where the run in the folder is. Raises: RequestError where it does not begin."""
    wandb = importlib.import_module("wandb")  # by name: it is an extra that type checkers need not find
    known = folder / "wandb_id"
    if not (going_on and known.is_file()):
        with atomic_write(known) as partial:
            partial.write_text(secrets.token_hex(8))
    settings = {"id": known.read_text(), "name": folder.absolute().name, "resume": "allow", "config": dict(facts)}
    try:
        return wandb.init(project=project, dir=str(folder), **settings)
    except Exception as error:  # no login, no network, a name it does not take: all are errors of its own
        why = " ".join(str(error).split())[:200]
        raise RequestError(f"wandb = {project}: {why}; mend it, set WANDB_MODE=offline or leave --wandb out") from error


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a run's metrics.jsonl, in order; none where there is no file. A torn last line is left out.

    Raises: WorkError for another line that no run writes so, or where something else than a file stands there.
    """
    events = parsed(path)
    check(events, path)
    return events


def parsed(path: Path) -> list[dict[str, Any]]:
    """The lines of what may be another program's metrics.jsonl; else as `read`.

    Raises: WorkError for a line with an end that is no JSON object: it was not torn in writing, and what it held is
        lost; or where something else than a file stands there, which one might wait for forever.
    """
    try:
        # Before it is opened: a pipe would be waited for.
        if not stat.S_ISREG(path.stat().st_mode):
            raise WorkError(f"{path} is no file; remove it")
        text = path.read_bytes()
    except OSError as error:
        if path.is_symlink() and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise WorkError(f"{path} is a link to no file; bring that back, or remove the link") from None
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise
        return []
    events: list[dict[str, Any]] = []
    said = text.rstrip()
    lines, behind = said.splitlines(), text[len(said) :]
    ended = len(lines) if b"\n" in behind or b"\r" in behind else len(lines) - 1
    for number, line in enumerate(lines, start=1):
        try:
            event: Any = json.loads(line.decode())
            if not isinstance(event, dict):
                raise ValueError
            events.append(cast("dict[str, Any]", event))
        except (ValueError, RecursionError):  # no object, no JSON or no UTF-8: a line may be torn inside a character
            if number <= ended:
                raise WorkError(f"line {number} of {path} is damaged; restore the file, or remove that line") from None
    return events


def finished(path: Path) -> bool:
    """Whether the run that writes `path` came to its end."""
    events = read(path)
    return bool(events) and events[-1].get("event") == "end"


def numbers(terms: Mapping[str, Tensor]) -> dict[str, Value]:
    """Tensors on any device as plain numbers: the log line's one wait for the device.

    Raises: RequestError for masked_share of more than 1, as a method of one's own may add it up.
    """
    tensors: Mapping[str, Any] = terms
    found = {name: value.tolist() for name, value in tensors.items()}
    if (most := max(found.get("masked_share", [0.0]))) > 1.001:
        why = "terms are added up over micro-batches and processes; divide the sum over rows by batch.total_rows"
        raise RequestError(f"masked_share = {most:.4g}, which is no share of pairs: {why}")
    return found


def processor() -> str:
    """The CPU's name where the system tells it, else its kind (x86_64)."""
    text = PROCESSORS.read_text() if PROCESSORS.is_file() else ""
    named = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def environment() -> dict[str, str]:
    """What a reader needs to repeat a run."""
    packages = ("torch", "triton", "transformers", "deepspeed", "datasets", "tokenizers", "scikit-learn", "scipy")
    versions = {name: _version(name) for name in (*packages, "seqeval")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    own = {"asa-pretrain": revision() or _version("asa-pretrain"), "cuda": torch.version.cuda or "none"}
    return {"python": platform.python_version(), "device": device, "system": platform.platform(), **own, **versions}


@functools.cache
def revision(root: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of a checkout, with -dirty where files it tracks are others; None of installed packages."""
    if not (root / ".git").exists():
        return None
    # Named, since hooks of git have another checkout in their environment.
    command = [
        "git",
        f"--git-dir={root / '.git'}",
        f"--work-tree={root}",
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a disk that does not answer
        return None
    return done.stdout.strip() or None


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def installed() -> dict[str, Any]:
    """Everything a run depends on: `environment`, the processors, every package with its version."""
    return {
        **environment(),
        "cores": os.cpu_count(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "packages": _packages(),
    }


@functools.cache
def _packages() -> dict[str, str]:
    """Read once for all runs of a sweep."""
    found = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    return dict(sorted(found.items()))
