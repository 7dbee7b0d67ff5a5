"""The launcher's own flags: how many processes, on which machines. The rest of a command line is the stage's."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

from pydantic import AfterValidator, Field

import cli
from asa.config import config, from_dict
from asa.errors import RequestError

T = TypeVar("T")
Own = TypeVar("Own", bound="Options")


def _like(pattern: str, allowed: str) -> AfterValidator:
    """Text that matches `pattern` as a whole; where it does not, `allowed` says what does."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"allowed: {allowed}")
        return text

    return AfterValidator(check)


Word = Annotated[str, _like(r"\S+", "text without spaces")]


@config
class Options:
    """How processes are started."""

    nproc: Annotated[int | None, Field(ge=1)] = None
    """Processes on each machine; default: one per GPU, or two on a machine without, as can share the global batch.
    SLURM jobs need it."""
    dry_run: bool = False
    """Check the request, print what would be run, and start nothing."""


@config
class FinetuneOptions(Options):
    """How the processes of a sweep are started."""

    nproc: Annotated[int | None, Field(ge=1)] = None
    """Runs at a time, each on a device of its own; default: one per GPU, or two on a machine without."""
    ranks: Annotated[int, Field(ge=1)] = 1
    """Processes that share the batches of a run, one run at a time; --nproc is for runs side by side."""


@config
class ClusterOptions(Options):
    """How processes are started on one or several machines."""

    hostfile: Path | None = None
    """Machines and their processes, a line `NAME slots=N` each; reached by pdsh over ssh, or see node_rank."""
    node_rank: Annotated[int | None, Field(ge=0)] = None
    """Start here what this line of the hostfile says, counted from 0; each machine gets its own command."""
    master_addr: Word | None = None
    """Address at which all machines reach the first one; default: its name in the hostfile."""
    master_port: Annotated[int | None, Field(ge=1024, le=65535)] = None
    """Free port of the first machine, the same in the command of every machine; default: 29500."""
    slurm: bool = False
    """Write OUT/job.sbatch, which requeues itself, and submit it by sbatch."""
    nodes: Annotated[int | None, Field(ge=1)] = None
    """Machines of the SLURM job; default: 1."""
    time: Annotated[str, _like(r"(\d+-)?\d+(:\d+){0,2}", "[days-]hours:minutes:seconds")] | None = None
    """Time limit of the SLURM job, [days-]hours:minutes:seconds; default: the partition's."""
    partition: Word | None = None
    """Partition of the SLURM job; default: the cluster's."""
    sbatch: tuple[Annotated[str, _like(r"-\S.*", "an option with its dashes, such as --account=NAME")], ...] = ()
    """Any other option of sbatch, such as --account=NAME; may be given several times."""


NEEDS = {"hostfile": ("node_rank", "master_addr", "master_port"), "slurm": ("nodes", "time", "partition", "sbatch")}


def read(
    own: type[Own], stage: type[T], argv: Sequence[str], prog: str, show_defaults: bool = True
) -> tuple[Own, T, list[str]]:
    """The launcher's options, the stage's request, and the arguments that the stage's processes get.

    Args: show_defaults as cli.parse has it.
    Raises: RequestError for options that are wrong or do not go together; SystemExit as cli.parse does.
    """
    options, rest = take(own, argv)
    if isinstance(options, ClusterOptions):
        refuse_mixed(options)
    try:
        return options, cli.parse(stage, rest, prog, show_defaults=show_defaults), rest
    except SystemExit as end:
        if not end.code and {"-h", "--help"} & set(rest):
            print(describe(own))
        raise


def take(own: type[T], argv: Sequence[str]) -> tuple[T, list[str]]:
    """Split the flags named after the fields of `own` off; the others keep their order."""
    fields = get_type_hints(own)
    values: dict[str, Any] = {}
    rest, left = [], list(argv)
    while left:
        flag, equals, value = (part := left.pop(0)).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in fields:
            rest.append(part)
            continue
        if not equals:
            # A switch may stand alone; everything else is followed by its value, even one that starts with a dash.
            alone = fields[name] is bool and left[:1] not in (["true"], ["false"])
            value = "true" if alone else "".join(left[:1])
            left = left if alone else left[1:]
        if not value:
            raise RequestError(f"--{name} needs a value; see --help")
        values[name] = [*values.get(name, []), value] if get_origin(fields[name]) is tuple else value
    return from_dict(own, values), rest


def refuse_mixed(options: ClusterOptions) -> None:
    """Raises RequestError where one option makes no sense without, or beside, another."""
    for base, others in NEEDS.items():
        for name in others:
            if getattr(options, name) not in (None, ()) and not getattr(options, base):
                raise RequestError(f"--{name} is for runs with --{base}; give that too or leave --{name} out")
    if options.hostfile and options.slurm:
        raise RequestError("--slurm finds its machines itself; leave --hostfile out")
    if options.hostfile and options.nproc:
        raise RequestError("--hostfile says by slots=N how many processes each machine gets; leave --nproc out")
    if options.slurm and not options.nproc:
        raise RequestError("--slurm cannot see the GPUs of its machines from here; set --nproc, their number on each")


def describe(own: Any) -> str:
    """The launcher's flags and their meaning, as text."""
    docs: dict[str, str] = {}
    for base in reversed(own.__mro__):
        fields = getattr(base, "__pydantic_fields__", {})
        docs |= {name: field.description for name, field in fields.items() if field.description}
    lines = [line for name, doc in docs.items() for line in (f"  --{name}", f"      {doc}")]
    return "\n".join(["the launcher's own flags, on the command line only:", *lines])
