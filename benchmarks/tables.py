"""Where benchmarks leave their tables: NAME_MACHINE_DATE.md in one folder, a section per command."""

import fcntl
import hashlib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import TypeVar

import torch

from asa.config import config
from asa.errors import RequestError
from asa.places import atomic_write, check_folder, refusal_told
from asa.record import environment, processor, revision
from cli import parse

# Where an absolute path begins, and what may be in one: a blank too, unless another path or a flag begins after it.
_ROOT = r"(?:file:/+|~[\w.-]*/|(?<!:)/+|/(?!/))"
_FOLDERS = re.compile(rf"(?<![\w./~-]){_ROOT}(?:(?:[^\s,\[\]{{}}'\"]| (?![-/~]))*/)?(?=[^/])")
# Of the environment: what may change how fast or in how much memory a benchmark runs.
_SETTINGS = (
    "MALLOC_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "ATEN_",
    "PYTORCH_",
)
_SETTINGS += ("TORCH_CUDNN_", "TORCH_ALLOW_TF32", "NVIDIA_TF32", "CUDA_LAUNCH_BLOCKING", "CUBLAS_", "NCCL_", "TRITON_")


@config
class Recorded:
    """What every benchmark takes."""

    results: Path | None = Path("benchmarks/results")
    """Folder of NAME_MACHINE_DATE.md, which gets the table under the command; null: none is written."""


T = TypeVar("T", bound=Recorded)


def asked(kind: type[T], argv: list[str], name: str, positional: str = "") -> T:
    """The request of the benchmark `name`. Raises RequestError where its results cannot be a folder."""
    request = parse(kind, argv, f"python -m benchmarks {name}", positional)
    if request.results is not None:
        check_folder(request.results, "--results")
    return request


def save(request: Recorded, name: str, argv: Sequence[str], table: str) -> None:
    """Put a table into the day's file of this benchmark and machine, in the place of an earlier one of the same
    command and environment, and say where. Raises: WorkError where the folder cannot be written."""
    if request.results is None:
        return
    today = date.today().isoformat()
    path = request.results / f"{name}_{machine()}_{today}.md"
    words = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_SETTINGS)]
    shown = [*words, "python", "-m", "benchmarks", name, *argv]
    command = shlex.join(map(_without_folders, shown))
    # Two models of one name in different folders make one command when these are cut.
    key = hashlib.sha256("\0".join([*words, *argv]).encode()).hexdigest()[:8]
    title = f"`{command}` ({key})"
    with _alone(path), atomic_write(path, "set --results") as partial:
        before = path.read_text().split("\n## ")[1:] if path.is_file() else []
        kept = [section.rstrip() for section in before if section.splitlines()[0] != title]
        sections = [*kept, f"{title}\n\n{facts()}\n\n```\n{table.strip()}\n```"]
        partial.write_text("\n\n## ".join([f"# {name}, {machine()}, {today}", *sections]) + "\n")
    print(f"in {path}", flush=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Inside, no other benchmark puts a table into a file of this folder; the lock goes with the process."""
    with ExitStack() as stack:
        with refusal_told(path, "set --results"):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path.parent, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def check_gpu() -> None:
    """Raises RequestError where there is none, for what has no meaning without."""
    if not torch.cuda.is_available():
        raise RequestError("no CUDA device is here; python -m benchmarks traffic counts a GPU's step without one")


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
    named = ["python", "torch", "transformers", "deepspeed", *(["cuda", "triton"] if torch.cuda.is_available() else [])]
    versions = [f"{name} {found[name]}" for name in named]
    commit = [f"commit {made_by}"] if (made_by := revision()) else []
    return "; ".join([", ".join(where), ", ".join(versions + commit)])


def _without_folders(word: str) -> str:
    """An argument in which an absolute path has its last part only: a result says nothing of where it was made."""
    return _FOLDERS.sub("", word)
