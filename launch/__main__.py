"""python -m launch pretrain | finetune: check the request, print the command line, become it."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

import pretrain.config
from asa import config
from asa.errors import RequestError


def pretrain_(argv: list[str]) -> None:
    """Start pre-training under the deepspeed launcher on every GPU, or with --nproc processes."""
    nproc, rest = take_nproc(argv)
    request = config.parse(pretrain.config.PretrainConfig, rest, "python -m launch pretrain [--nproc N]")
    pretrain.config.check(request, nproc, torch.cuda.is_available())
    become(deepspeed_command(nproc, ["pretrain", "run", *rest]), environment(nproc))


def take_nproc(argv: list[str]) -> tuple[int, list[str]]:
    """Split --nproc N off; default: one process per GPU, or two on a machine without (one where it has one core).

    Raises: RequestError for a count below 1 or above the GPUs present.
    """
    gpus = torch.cuda.device_count()
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
        return gpus or min(2, cores()), rest
    most = gpus or cores()
    if not value.isdigit() or not 1 <= int(value) <= most:
        raise RequestError(f"nproc = {value!r}: allowed: 1 to {most} on this machine; set --nproc")
    return int(value), rest


def cores() -> int:
    return len(os.sched_getaffinity(0))


def deepspeed_command(nproc: int, module: list[str]) -> list[str]:
    launcher = str(Path(sys.executable).with_name("deepspeed"))
    options = ["--num_accelerators", str(nproc), "--no_local_rank", "--log_level", "error"]
    return [launcher, *options, "--module", *module]


def environment(nproc: int) -> dict[str, str]:
    """What the command sets on top of the caller's environment."""
    settings = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # DeepSpeed calls collectives that torch is about to rename, and torch says so on every rank.
    settings["PYTHONWARNINGS"] = "ignore::FutureWarning:torch.distributed.c10d_logger"
    if not torch.cuda.is_available():
        settings |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(max(1, cores() // nproc))}
    # The deepspeed launcher looks for ninja, python and the compiler by name.
    settings["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return settings


def become(command: list[str], extra: dict[str, str]) -> Any:
    """Print the command as one could type it, then replace this process by it, so signals and exit code are its own."""
    shown = [f"{name}={value}" for name, value in extra.items() if name != "PATH"]
    print("$ " + " ".join([*shown, *map(shlex.quote, command)]), flush=True)
    os.execvpe(command[0], command, os.environ | extra)


if __name__ == "__main__":
    config.main({"pretrain": pretrain_}, "launch")
