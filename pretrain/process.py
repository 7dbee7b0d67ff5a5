"""One process of a pre-training run: what `python -m launch pretrain` starts, once per GPU or CPU process."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch

import cli
from asa import dist, fused
from asa.errors import Apart, RequestError, WorkError
from asa.methods import flags_of, flags_unread, groups_unread
from asa.typed import deterministic
from keys import apart, entry
from pretrain.config import PretrainConfig, check, unread_by

NEVER = timedelta(days=365)


def run(argv: list[str]) -> None:
    """Pre-train in this process, one of those the launcher started (or the only one)."""
    request = cli.parse(PretrainConfig, argv, "python -m pretrain run")
    from pretrain.loop import train  # takes seconds, for which --help and a wrong flag do not wait

    launched = "RANK" in os.environ
    cuda = torch.cuda.is_available()
    if (unread := flags_unread(argv, [request.method])) and not rank():
        print(f"note: method {request.method} does not read {', '.join(unread)}", flush=True)
    for unused in () if rank() else entries_unread(argv, request.method):
        print(f"note: method {request.method} reads nothing of {unused}; another one is set by --method", flush=True)
    others = [flag for flag in flags_of(unread_by(request.objective, request.method), argv) if flag not in unread]
    if others and not rank():
        both = f"method {request.method} with objective {request.objective}"
        print(f"note: {both} does not read {', '.join(others)}", flush=True)
    with told_on_each_machine():
        check(request, int(os.environ.get("WORLD_SIZE", "1")) if launched else 1, cuda)
    # DeepSpeed asks for it even where no launcher has set it.
    os.environ.setdefault("LOCAL_RANK", "0")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    fused.leave_out(os.environ)
    if request.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS refuses, and it is read once
        deterministic()
    # Longer than the watchdog's: it names the rank at fault, a collective that times out does not.
    timeout = timedelta(seconds=2 * request.hang_timeout + 60) if request.hang_timeout else NEVER
    with told_on_each_machine():
        dist.init(cuda, launched, timeout, dist.start_again(os.environ))
    with dist.left():
        try:
            with dist.loss_told():
                stopped = train(request, device)
        except Apart as error:
            if rank():  # rank 0's is printed in any case, and it may be the one that is gone
                print(f"error on rank {rank()}: {error}", file=sys.stderr, flush=True)
            raise
    if stopped and not launched:  # a launcher answers for its ranks, which have to end in order
        sys.exit(128 + stopped)


@contextmanager
def told_on_each_machine() -> Iterator[None]:
    """Inside, an error is told by the first process of each machine, since rank 0's may find all in order."""
    try:
        yield
    except (RequestError, WorkError) as error:
        if rank() and os.environ.get("LOCAL_RANK") == "0":
            print(f"error on rank {rank()}: {error}", file=sys.stderr)
        raise


def entries_unread(argv: list[str], method: str) -> Iterator[str]:
    """Of the FILE:ENTRY that a command is given those with settings of other methods alone."""
    for flag, value in pairwise(apart(argv, lambda part: part.startswith("--config="))):
        file, colon, name = value.rpartition(":")
        if flag == "--config" and colon and file.endswith(".yaml"):
            groups = {key.partition(".")[0] for key in entry(Path(file), name)}
            if groups and groups <= groups_unread(method):
                yield value


def rank() -> int:
    """Of this process; known before the ranks have met."""
    return int(os.environ.get("RANK", "0"))
