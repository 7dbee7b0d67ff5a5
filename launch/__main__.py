"""python -m launch pretrain | finetune: check the request, print the command lines, run them."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch

import cli
from asa import manifest
from asa.errors import RequestError
from finetune.config import FinetuneConfig
from finetune.sweep import check_model
from pretrain.config import PretrainConfig, check
from pretrain.resume import newest

NPROC = "--nproc N: processes to start; default: one per GPU, or two on a machine without"
GRACE = 30  # seconds between a forwarded signal and SIGKILL


def pretrain_(argv: list[str]) -> None:
    """Start pre-training under the deepspeed launcher, on every GPU or with --nproc processes."""
    given, rest = take_nproc(argv)
    request = cli.parse(PretrainConfig, rest, "python -m launch pretrain [--nproc N]", notes=NPROC)
    # Without --nproc: as many of the devices as can share the global batch.
    nproc = given or next(n for n in range(devices(), 0, -1) if request.global_batch % n == 0)
    check(request, nproc, torch.cuda.is_available())
    # Ranks verify as well; a damaged file found here is one line instead of one among the launcher's.
    manifest.verify(request.data, "shards", "--data")
    newest(request, nproc)
    command, settings = deepspeed_command(nproc, ["pretrain", "run", *rest]), environment(nproc)
    show(command, settings)
    sys.exit(run_together([command], os.environ | settings))


def finetune_(argv: list[str]) -> None:
    """Fine-tune models x methods x seeds, --nproc runs at a time, each on one device."""
    given, rest = take_nproc(argv)
    nproc = given or devices()
    request = cli.parse(FinetuneConfig, rest, "python -m launch finetune [--nproc N]", notes=NPROC)
    manifest.verify(request.task, "task", "--task")
    for name, path in request.models.items():
        check_model(name, path, request.length)
    settings = environment(nproc)
    workers = [[sys.executable, "-m", "finetune", "run", *rest, "--worker", f"{i}/{nproc}"] for i in range(nproc)]
    for command in workers:
        show(command, settings)
    sys.exit(run_together(workers, os.environ | settings))


def take_nproc(argv: list[str]) -> tuple[int | None, list[str]]:
    """Split --nproc N off. Raises RequestError unless 1 <= N <= the GPUs (without any: the cores) present."""
    value, rest = None, []
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--nproc":
            value = next(arguments, "")
        elif argument.startswith("--nproc="):
            value = argument.removeprefix("--nproc=")
        else:
            rest.append(argument)
    if value is None:
        return None, rest
    most = torch.cuda.device_count() or cores()
    if not value.isdigit() or not 1 <= int(value) <= most:
        raise RequestError(f"nproc = {value!r}: allowed: 1 to {most} on this machine; set --nproc")
    return int(value), rest


def devices() -> int:
    """Processes to start by default: one per GPU, or two on a machine without (one where it has one core)."""
    return torch.cuda.device_count() or min(2, cores())


def cores() -> int:
    return len(os.sched_getaffinity(0))


def deepspeed_command(nproc: int, module: list[str]) -> list[str]:
    launcher = str(Path(sys.executable).with_name("deepspeed"))
    options = ["--num_accelerators", str(nproc), "--master_port", str(free_port()), "--no_local_rank"]
    options += ["--log_level", "error"]
    return [launcher, *options, "--module", *module]


def free_port() -> int:
    """A port nobody listens on, so that several runs share a machine; the launcher's default is always the same."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(nproc: int) -> dict[str, str]:
    """What a command gets on top of the caller's environment."""
    settings = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # DeepSpeed calls collectives that torch is about to rename, and torch says so on every rank.
    settings["PYTHONWARNINGS"] = "ignore::FutureWarning:torch.distributed.c10d_logger"
    if not torch.cuda.is_available():
        settings |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(max(1, cores() // nproc))}
        # Every step frees and asks again for the same large buffers. Kept in the heap they cost no page faults, which
        # were a third of a step.
        settings |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    # The deepspeed launcher looks for ninja, python and the compiler by name.
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return settings


def show(command: list[str], settings: dict[str, str]) -> None:
    """Print a command as one could type it."""
    shown = [f"{name}={shlex.quote(value)}" for name, value in settings.items() if name != "PATH"]
    print("$ " + " ".join([*shown, *map(shlex.quote, command)]), flush=True)


def run_together(commands: list[list[str]], variables: dict[str, str]) -> int:
    """Run the commands side by side; SIGTERM and SIGINT go to all of their processes. The first failure's exit code.

    Each command leads a session of its own: the deepspeed launcher passes no SIGTERM on to the ranks.
    """

    def stop(number: int, frame: object) -> NoReturn:
        # Only unwinds: in here the interrupted wait() still holds the lock that another wait() would need.
        raise Stopped(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    children = [subprocess.Popen(command, env=variables, start_new_session=True) for command in commands]
    try:
        codes = [child.wait() for child in children]
    except Stopped as stopped:
        for child in children:
            end_session(child, stopped.number)
        return 128 + stopped.number
    # A negative code is a signal's number: the work failed.
    return next((code if code > 0 else 1 for code in codes if code), 0)


class Stopped(Exception):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        self.number = number


def end_session(child: subprocess.Popen[bytes], number: int) -> None:
    """Signal every process of the child's session; after GRACE seconds kill those that are left."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
        for _ in range(GRACE * 5):
            child.poll()
            time.sleep(0.2)
            os.killpg(child.pid, 0)  # raises when nobody is left
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    cli.main({"pretrain": pretrain_, "finetune": finetune_}, "launch")
