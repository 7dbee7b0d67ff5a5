"""Which machines run how many processes, from --nproc or a hostfile; refused before anything is started."""

import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import torch

from asa.errors import RequestError
from launch.options import ClusterOptions, Options

LINE = re.compile(r"(\S+)\s+slots=([1-9]\d*)\s*(?:#.*)?")
REACH = "set another --hostfile, or start one command on each machine with --node_rank"


@dataclass(frozen=True)
class Nodes:
    """Processes on each machine, by name in the order of ranks; `node` is the line that is started from here."""

    slots: dict[str, int] = field(default_factory=dict)
    node: int | None = None

    @property
    def world(self) -> int:
        return sum(self.slots.values())

    @property
    def here(self) -> int:
        """Processes that this machine gets, or one of several alike."""
        return list(self.slots.values())[self.node or 0]

    @property
    def remote(self) -> bool:
        """Whether the processes are started through pdsh."""
        return self.node is None

    @property
    def first(self) -> bool:
        """Whether rank 0, which writes the run folder, may run here."""
        return not self.node


def find_nodes(options: ClusterOptions, global_batch: int) -> Nodes:
    """Those of the hostfile, or this machine alone. Raises RequestError where they cannot be used."""
    if options.hostfile is None:
        # Without --nproc: as many of the devices as can share the global batch.
        default = next(n for n in range(devices(), 0, -1) if global_batch % n == 0)
        return Nodes({"localhost": local_nproc(options) or default}, node=0)
    nodes = Nodes(read_hostfile(options.hostfile), options.node_rank)
    if nodes.remote:
        _check_reachable(list(nodes.slots))
        return nodes
    if options.node_rank not in range(len(nodes.slots)):
        last = len(nodes.slots) - 1
        raise RequestError(f"node_rank = {options.node_rank}: allowed: 0 to {last}, the lines of {options.hostfile}")
    name, most = list(nodes.slots)[nodes.node or 0], most_processes()
    if nodes.here > most:
        raise RequestError(f"{options.hostfile} gives {name} slots={nodes.here}, but this machine has {most}")
    _check_name(options.master_addr or next(iter(nodes.slots)))
    return nodes


def read_hostfile(path: Path) -> dict[str, int]:
    """Processes by machine. Raises RequestError naming the line that is not `NAME slots=N`."""
    if not path.is_file():
        raise RequestError(f"no file {path}; set --hostfile")
    slots: dict[str, int] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # DeepSpeed, which reads it again, would end in a traceback
        raise RequestError(f"{path} is not UTF-8; save it as such, or set --hostfile") from None
    if text.startswith("\ufeff"):  # DeepSpeed, which reads the file again, would take it for a part of the name
        raise RequestError(f"{path} begins with a byte order mark; save it as UTF-8 without one")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise RequestError(
                f"{path}, line {number}: {line.strip()!r} is not `NAME slots=N`; mend it or set --hostfile"
            )
        if match[1] in slots:
            raise RequestError(f"{path}, line {number}: {match[1]} a second time; mend it or set --hostfile")
        slots[match[1]] = int(match[2])
    if not slots:
        raise RequestError(f"{path} names no machine; add lines `NAME slots=N` or set --hostfile")
    return slots


def local_nproc(options: Options) -> int | None:
    """--nproc. Raises RequestError beyond the GPUs, or without any the cores, of this machine."""
    if options.nproc is not None and options.nproc > most_processes():
        raise RequestError(f"nproc = {options.nproc}: allowed: 1 to {most_processes()} on this machine; set --nproc")
    return options.nproc


def most_processes() -> int:
    return torch.cuda.device_count() or cores()


def devices() -> int:
    """Processes to start by default: one per GPU, or two on a machine without (one where it has one core)."""
    return torch.cuda.device_count() or min(2, cores())


def cores() -> int:
    return len(os.sched_getaffinity(0))


def pdsh(names: list[str]) -> list[str]:
    """The beginning of a command that runs on every one of these machines."""
    return ["env", "PDSH_RCMD_TYPE=ssh", "pdsh", "-S", "-w", ",".join(names)]


def _check_reachable(names: list[str]) -> None:
    """Raises RequestError unless a command runs on every machine."""
    if shutil.which("pdsh") is None:
        raise RequestError("pdsh, which reaches the machines of --hostfile, is not installed; install it, or " + REACH)
    command = [*pdsh(names), "true"]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode:  # -S; ssh may print a banner where all is well
        said = (answer.stderr.strip() or f"exit code {answer.returncode}").splitlines()[0]
        raise RequestError(f"pdsh cannot reach every machine ({said}); {REACH}")


def _check_name(name: str) -> None:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:  # the latter for what no name of a machine can be
        why = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"no address for the first machine {name!r} ({why}); set --master_addr") from None
