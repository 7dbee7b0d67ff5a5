"""The deepspeed command line, and what its processes find in their environment."""

import os
import re
import shlex
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from asa.errors import RequestError, WorkError
from launch.nodes import Nodes, cores, pdsh
from launch.options import ClusterOptions
from launch.session import Remote

RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"}
PORT = 29500  # DeepSpeed's, at which the ranks of several machines meet


def deepspeed_command(options: ClusterOptions, nodes: Nodes, module: list[str]) -> list[str]:
    launcher = _launcher()
    if options.hostfile is None:
        # No file there is: DeepSpeed's own default, /job/hostfile, is some clusters' and would lead to other machines.
        where = [*_accelerators(nodes.here), "--master_port", str(free_port()), "--hostfile", "/dev/null"]
    else:
        where = ["--hostfile", str(options.hostfile), "--master_addr", options.master_addr or next(iter(nodes.slots))]
        where += ["--master_port", str(options.master_port or PORT)]
        if nodes.remote:
            _check_for_shells([str(Path.cwd()), sys.executable], module)
        where += ["--force_multi", "--no_ssh_check"] if nodes.remote else ["--no_ssh", "--node_rank", str(nodes.node)]
    return [*launcher, *where, "--no_local_rank", "--log_level", "error", "--module", *module]


def _launcher() -> list[str]:
    """DeepSpeed's launcher of this Python. Raises RequestError where it has none."""
    program = Path(sys.executable).with_name("deepspeed")  # one on PATH may be another Python's
    if program.exists():
        return [str(program)]
    found = find_spec("deepspeed")
    if found is None or found.origin is None:  # or any folder of that name here
        raise RequestError(f"{sys.executable} has no deepspeed; install it for this Python")
    return [sys.executable, "-m", "deepspeed.launcher.runner"]  # as pip install --user leaves it, its program elsewhere


def _check_for_shells(bare: list[str], arguments: list[str]) -> None:
    """Raises: RequestError for what would reach the machines changed. DeepSpeed makes one line of all for pdsh and
    their shells, in which it quotes arguments with a space and nothing else."""
    for text in (*bare, *arguments):
        quoted = " " in text and text not in bare
        if not re.fullmatch(r"[^$`\\!%\n]+" if quoted else r"[\w@+=:,./\[\]-]+", text):
            raise RequestError(
                f"{text!r} would not reach the machines as it is, for their shells: letters, digits and @+=:,./- do;"
                " name it otherwise, put it into the --config file, or start each machine itself with --node_rank"
            )


def _accelerators(nproc: int) -> list[str]:
    """Which GPUs of this machine: the first of CUDA_VISIBLE_DEVICES, which deepspeed does not heed with a number."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not visible or not torch.cuda.is_available():
        return ["--num_accelerators", str(nproc)]
    numbers = [number.strip() for number in visible.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise RequestError(f"CUDA_VISIBLE_DEVICES = {visible}: allowed: numbers of GPUs, such as 2,3; set it to those")
    return ["--include", "localhost:" + ",".join(numbers[:nproc])]


def free_port() -> int:
    """A port nobody listens on, so that several runs share a machine; the launcher's default is always the same."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(nproc: int, hub: bool = False) -> dict[str, str]:
    """What a command gets on top of the caller's environment.

    Args: nproc, processes on one machine; hub tells that the command reads from the Hugging Face hub.
    """
    settings = {} if hub else {"HF_HUB_OFFLINE": "1"}
    # The caller's own number is kept, since another command may share the cores and too many threads make both crawl;
    # that of a surrounding rank is torchrun's.
    own = os.environ.get("OMP_NUM_THREADS") if not {"RANK", "LOCAL_RANK"} & os.environ.keys() else None
    threads = own or str(max(1, cores() // nproc))
    # Tokenizers take every core unless told.
    settings["RAYON_NUM_THREADS"] = os.environ.get("RAYON_NUM_THREADS", threads.partition(",")[0])
    # DeepSpeed calls collectives that torch is about to rename, and torch says so on every rank.
    settings["PYTHONWARNINGS"] = "ignore::FutureWarning:torch.distributed.c10d_logger"
    # On GPUs too, whose hosts update offloaded weights: torch's own default is all cores for each process.
    settings["OMP_NUM_THREADS"] = threads
    if not torch.cuda.is_available():
        settings["DS_ACCELERATOR"] = "cpu"
        # Every step frees and asks again for the same large buffers. Kept in the heap they cost no page faults, which
        # were a third of a step.
        settings |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    # The deepspeed launcher looks for python by name.
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return settings


def inherited() -> dict[str, str]:
    """The caller's environment, but for what makes a process a rank: a pod or torchrun may have set it for this one."""
    return {name: value for name, value in os.environ.items() if name not in RANKS and name[:13] != "TORCHELASTIC_"}


def exported(settings: dict[str, str], folder: Path) -> dict[str, str]:
    """Write FOLDER/deepspeed_env, which DeepSpeed sets on every machine; the variable that tells it so.

    It holds our settings, those of the network, and what the user's own ~/.deepspeed_env says. Raises WorkError.
    """
    network = {name: value for name, value in os.environ.items() if name.startswith(("GLOO_", "NCCL_", "TORCH_NCCL_"))}
    own = Path(os.environ.get("DS_ENV_FILE", "~/.deepspeed_env")).expanduser()
    lines = [f"{name}={value}\n" for name, value in (network | settings).items()]
    file = folder.absolute() / "deepspeed_env"
    try:
        lines += [f"{line}\n" for line in own.read_text().splitlines() if line] if own.is_file() else []
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines))
    except OSError as error:
        raise WorkError(f"cannot write {file}: {error}") from None
    return {"DS_ENV_FILE": str(file)}


def remote_signals(nodes: Nodes, module: list[str]) -> Remote:
    """How to signal the ranks on all machines: by their command line, which no other run has."""
    # The brackets keep the expression from matching the shell that carries it; nothing follows a rank's arguments.
    pattern = shlex.quote(f"-m [{module[0][0]}]" + re.escape(" ".join(module)[1:]) + "$")
    stop, kill = ([*pdsh(list(nodes.slots)), f"pkill -{name} -f -- {pattern}"] for name in ("TERM", "KILL"))
    return Remote(stop, kill)
