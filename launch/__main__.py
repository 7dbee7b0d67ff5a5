"""python -m launch pretrain | finetune | tune: check the request, print the command lines, run them."""

import cli  # first: it tells Ctrl-C in a line, also during the other imports, which take seconds

# isort: split
import shlex
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from asa import manifest, places, record
from asa.errors import RequestError
from launch import slurm
from launch.command import deepspeed_command, environment, exported, inherited, remote_signals
from launch.nodes import Nodes, devices, find_nodes, local_nproc, most_processes
from launch.options import ClusterOptions, FinetuneOptions, read
from launch.processes import Outcome, run_together

if TYPE_CHECKING:  # a command loads its own stage
    from finetune.config import FinetuneConfig
    from pretrain.config import PretrainConfig


def pretrain_(argv: list[str]) -> None:
    """Start pre-training under the deepspeed launcher: on this machine, on those of --hostfile, or by --slurm."""
    from pretrain.config import PretrainConfig

    options, request, rest = read(ClusterOptions, PretrainConfig, argv, "python -m launch pretrain [--nproc N]")
    if options.slurm:
        _check_pretraining(request, (options.nodes or 1) * (options.nproc or 1), slurm.has_gpus(options))
        slurm.submit(options, request.out, ["pretrain", *rest])
        return
    nodes = find_nodes(options, request.global_batch)
    _check_pretraining(request, nodes.world, torch.cuda.is_available(), nodes.first)
    module = ["pretrain", "run", *rest]
    command, settings = deepspeed_command(options, nodes, module), environment(nodes.here)
    if nodes.remote and not options.dry_run:
        settings |= exported(settings, request.out)
    show(command, settings)
    if options.dry_run:
        return
    remote = remote_signals(nodes, module) if nodes.remote else None
    ended = run_together([command], inherited() | settings, "pretrain", remote)
    # Rank 0 writes the record, perhaps to another machine's disk.
    written = request.out / record.NAME
    sys.exit(answer(ended, record.finished(written) if written.exists() else None))


def _check_pretraining(request: "PretrainConfig", world: int, cuda: bool, first: bool = True) -> None:
    """Refuse here, in one line, what every rank would refuse among the launcher's own lines.

    Args: first, whether the run folder is the one that rank 0 writes.
    """
    from pretrain.config import check
    from pretrain.resume import newest

    if first:
        places.check_folder(request.out / "checkpoints", "--out")
    check(request, world, cuda)
    manifest.verify(request.data, "shards", "--data")
    if first:
        newest(request, world)


def finetune_(argv: list[str]) -> None:
    """Fine-tune tasks x models x methods x seeds, --nproc runs at a time on a device each, or a run on --ranks."""
    from finetune.config import FinetuneConfig
    from finetune.sweep import Sweep

    _sweep(argv, "finetune", "run", FinetuneConfig, Sweep)


def tune_(argv: list[str]) -> None:
    """Search the settings of each method, --nproc trials at a time on a device each, or a trial on --ranks."""
    from finetune.config import TuneConfig
    from finetune.tune import prepared

    _sweep(argv, "tune", "tune", TuneConfig, prepared)


def _sweep(
    argv: list[str], name: str, command: str, cls: "type[FinetuneConfig]", check: Callable[[dict[str, Any]], object]
) -> None:
    """Args: name, of the command here, and `command` that of the stage; check, raises what every process would."""
    prog = f"python -m launch {name} [--nproc N | --ranks N]"
    options, request, rest = read(FinetuneOptions, cls, argv, prog, show_defaults=False)
    if request.worker:
        raise RequestError(
            f"--worker numbers the processes of `python -m finetune {command}`; leave it out, set --nproc"
        )
    commands, settings = finetune_commands(options, [command, *rest], reads_the_hub(request))
    check(cli.given(cls, rest, prog))  # refused here, in one line
    for line in commands:
        show(line, settings)
    if not options.dry_run:
        sys.exit(answer(run_together(commands, inherited() | settings, "finetune"), finished=None))


def reads_the_hub(request: "FinetuneConfig") -> bool:
    """Whether a task may come from there: a standard one, or one of the user's own that says so or adds such."""
    own = request.task.hub is not None or bool(request.task.also)
    return request.data is None and (bool(request.tasks) or own)


def finetune_commands(options: FinetuneOptions, rest: list[str], hub: bool) -> tuple[list[list[str]], dict[str, str]]:
    """The command lines, and what their environment gets. Args: rest, the stage's command and its flags; hub, whether
    they read tasks from there."""
    module = ["finetune", *rest]
    if options.ranks == 1:
        nproc = local_nproc(options) or devices()
        settings = environment(nproc, hub)
        return [[sys.executable, "-m", *module, "--worker", str(number)] for number in range(nproc)], settings
    if options.nproc is not None:
        raise RequestError("--ranks is for one run at a time, --nproc for several; leave one of them out")
    if options.ranks > most_processes():
        raise RequestError(f"ranks = {options.ranks}: allowed: 1 to {most_processes()} on this machine; set --ranks")
    nodes = Nodes({"localhost": options.ranks}, node=0)
    return [deepspeed_command(ClusterOptions(), nodes, module)], environment(options.ranks, hub)


def show(command: list[str], settings: dict[str, str]) -> None:
    """Print a command as one could type it."""
    shown = [f"{name}={shlex.quote(value)}" for name, value in settings.items() if name != "PATH"]
    print("$ " + " ".join([*shown, *map(shlex.quote, command)]), flush=True)


def answer(ended: Outcome, finished: bool | None) -> int:
    """The exit code, and a line about a stop. Args: finished, whether the work is complete; None: if nothing failed."""
    if (ended.code == 0 and finished is None) or (finished and (ended.code == 0 or ended.signal)):
        return 0
    # Ranks that were asked themselves, not through this process, end in order as well.
    number = ended.signal or (signal.SIGTERM if ended.code == 0 else 0)
    if number:
        print("stopped; the same command continues it", flush=True)
        return 128 + number
    if ended.killed:
        name = signal.Signals(ended.killed).name
        why = " (often: out of memory, of which fewer processes take less)" if ended.killed == signal.SIGKILL else ""
        told = f"error: a process was ended by {name}{why}; the same command makes what is left, if anything is"
        print(told, file=sys.stderr, flush=True)
    return ended.code if ended.code in (1, 2) else 1  # another one tells which signal took a rank


if __name__ == "__main__":
    cli.main({"pretrain": pretrain_, "finetune": finetune_, "tune": tune_}, "launch")
