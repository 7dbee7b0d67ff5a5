"""Where benchmarks leave their tables: NAME_MACHINE_DATE.md in one folder, a section per command."""

import hashlib
import os
import re
import shlex
from collections.abc import Collection, Sequence
from datetime import date
from pathlib import Path

import torch

from asa.config import config
from asa.errors import RequestError
from asa.places import whole
from asa.record import environment, processor, revision

# Where an absolute path begins, and what may be in one: a blank too, unless another path or a flag begins after it.
_ROOT = r"(?:file:/+|~[\w.-]*/|(?<!:)/+|/(?!/))"
_FOLDERS = re.compile(rf"(?<![\w./~-]){_ROOT}(?:(?:[^\s,\[\]{{}}'\"]| (?![-/~]))*/)?(?=[^/])")


@config
class Recorded:
    """What every benchmark takes."""

    results: Path | None = Path("benchmarks/results")
    """Folder of NAME_MACHINE_DATE.md, which gets the table under the command; null: none is written."""


def save(request: Recorded, name: str, argv: Sequence[str], table: str) -> None:
    """Put a table into the day's file of this benchmark and machine, in the place of an earlier one of the same
    command, and say where. Raises: WorkError where the folder cannot be written."""
    if request.results is None:
        return
    today = date.today().isoformat()
    path = request.results / f"{name}_{machine()}_{today}.md"
    command = shlex.join(["python", "-m", "benchmarks", name, *map(_without_folders, argv)])
    # Two models of one name in different folders make one command when these are cut.
    key = hashlib.sha256("\0".join(argv).encode()).hexdigest()[:8]
    title = f"`{command}` ({key})"
    with whole(path, "set --results") as partial:
        before = path.read_text().split("\n## ")[1:] if path.is_file() else []
        kept = [section.rstrip() for section in before if section.splitlines()[0] != title]
        sections = [*kept, f"{title}\n\n{facts()}\n\n```\n{table.strip()}\n```"]
        partial.write_text("\n\n## ".join([f"# {name}, {machine()}, {today}", *sections]) + "\n")
    print(f"in {path}", flush=True)


def check_gpus(processes: Collection[int]) -> bool:
    """Whether each process has a GPU of its own. Raises RequestError where some have: the table bears its name."""
    gpus = torch.cuda.device_count()
    if gpus and max(processes) > gpus:
        raise RequestError(f"processes = {max(processes)}: allowed: 1 to {gpus}, one a GPU; set --processes")
    return gpus > 0


def machine() -> str:
    """The GPU's name, or cpu with the number of cores."""
    if torch.cuda.is_available():
        return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    return f"cpu{os.cpu_count()}"


def facts() -> str:
    """The machine and what it ran, in a line."""
    found = environment()
    where = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    where += [f"{os.cpu_count()} cores ({processor()})", f"load {os.getloadavg()[1]:.1f}"]
    versions = [f"{name} {found[name]}" for name in ("python", "torch", "transformers", "deepspeed")]
    commit = [f"commit {made_by}"] if (made_by := revision()) else []
    return "; ".join([", ".join(where), ", ".join(versions + commit)])


def _without_folders(word: str) -> str:
    """An argument in which an absolute path has its last part only: a result says nothing of where it was made."""
    return _FOLDERS.sub("", word)
