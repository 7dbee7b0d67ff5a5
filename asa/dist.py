"""Rank helpers that are the identity in a single process, so one code path serves both."""

import re
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, ProcessGroup, Store

from asa.errors import Apart, RequestError, WorkError
from asa.typed import manual_seed

torch_dist: Any = torch.distributed  # which has types for some of its functions' arguments only
T = TypeVar("T")
JOIN = timedelta(minutes=10)  # that ranks may be apart at their start
LAST_THREADS = 0.2  # seconds that gloo's threads have for their end


class RankLost(Apart):
    """A rank that this one waits for is gone."""


def active() -> bool:
    return torch_dist.is_initialized()


def rank() -> int:
    return torch_dist.get_rank() if active() else 0


def world() -> int:
    return torch_dist.get_world_size() if active() else 1


def is_main() -> bool:
    return rank() == 0


def barrier() -> None:
    if active():
        torch_dist.barrier(group=_hosts())  # of NCCL's it would say which device it waits for


@contextmanager
def loss_told() -> Generator[None]:
    """Inside, RankLost and not gloo's traceback where a rank that this one waits for is gone."""
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not re.search("(closed|reset) by peer", str(error)):
            raise
        told = "another rank has ended, which this one waited for; what it told stands above or below"
        raise RankLost(told) from None


def all_reduce_(tensor: Tensor) -> Tensor:
    """In-place sum over ranks; returns its argument, which may lie on the host, as an offloaded optimizer's does."""
    if world() > 1:
        torch_dist.all_reduce(tensor, group=_hosts() if tensor.device.type == "cpu" else None)
    return tensor


def reduce_scatter(tensor: Tensor) -> Tensor:
    """This rank's share of the sum over ranks: its own of as many equal parts of a row as there are ranks. On the
    engine's device."""
    share = tensor.new_empty(len(tensor) // world())
    torch_dist.reduce_scatter_tensor(share, tensor)  # an older torch does not know its new name
    return share


def any_(flag: bool) -> bool:
    """Whether it is true on any rank. Between hosts: no device is waited for."""
    if world() == 1:
        return flag
    alone = _hosts() is None and torch_dist.get_backend() == "nccl"  # of a user's own, which takes no host's memory
    found = torch.tensor([int(flag)], dtype=torch.int32, device="cuda" if alone else "cpu")
    torch_dist.all_reduce(found, op=torch_dist.ReduceOp.MAX, group=_hosts())
    return bool(found)


def alike(number: int) -> bool:
    """Whether all ranks have the same number, of 62 bits. Between hosts, as any_."""
    if world() == 1:
        return True
    found = torch.tensor([number, -number])
    torch_dist.all_reduce(found, op=torch_dist.ReduceOp.MAX, group=_hosts())
    return not found.sum()


def all_gather(value: Any) -> list[Any]:
    """Every rank's value, in the order of ranks, on every rank; values are small and picklable."""
    if world() == 1:
        return [value]
    found: list[Any] = [None] * world()
    torch_dist.all_gather_object(found, value, group=_hosts())
    return found


_made: list[Any] = []  # the gloo group beside NCCL, once init has made it
_timeout: timedelta | None = None  # of a collective, as init was told


def _hosts() -> ProcessGroup | None:
    """The group whose messages are host memory. None: the only group there is, which is gloo."""
    return _made[0] if _made else None


def store() -> Store:
    """The key-value store that the ranks have met through."""
    return torch_dist.distributed_c10d._get_default_store()


def seed_all(*parts: int) -> None:
    """Seed torch from (seed, step, ...), so that a resumed run draws what the uninterrupted one drew."""
    manual_seed(int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]))


def start_again(environment: Mapping[str, str]) -> str:
    """Which start of its processes by torchrun this is, "" for the first one or another launcher's.

    The store that torchrun keeps for all starts has the addresses of the processes before, which others would look for.
    Several machines each count their own: warns of that at the first start, raises RequestError at a further one.
    """
    starts, number = (environment.get(f"TORCHELASTIC_{name}", "0") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    if starts == "0" or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ""
    if environment.get("GROUP_WORLD_SIZE", "1") != "1":
        told = (
            f"--max_restarts {starts} of torchrun on several machines: processes that it starts again would look for"
            " those before; give torchrun --rdzv_backend c10d, --rdzv_endpoint HOST:PORT and in its environment"
            " TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        )
        if number != "0":
            raise RequestError(told)
        if environment.get("RANK") == "0":
            warnings.warn(told, stacklevel=2)
    return "" if number == "0" else f"start {number}"


def init(cuda: bool, launched: bool, timeout: timedelta | None = None, start: str = "") -> None:
    """Join the launcher's process group, or make one of a single process (DeepSpeed wants one in any case).

    Args: timeout of a collective; torch's own where None (NCCL 10 minutes, gloo 30). start: as start_again tells.
    Raises: RequestError where the port they are to meet at is taken, WorkError where one of them does not come.
    """
    global _timeout
    _timeout = timeout
    backend = "nccl" if cuda else "gloo"
    if launched:
        meeting, rank_, world_ = _meet()
        if start:
            meeting = PrefixStore(start, meeting)
        torch_dist.init_process_group(backend, timeout=timeout, store=meeting, rank=rank_, world_size=world_)
    else:
        torch_dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if cuda:
        _made.append(torch_dist.new_group(backend="gloo", timeout=timeout))


def wait_as_long(group: ProcessGroup) -> None:
    """In a group that another library has made, wait as long as in ours: it gives the groups that it makes torch's
    timeout, at which NCCL ends a process that only waits."""
    if _timeout is not None:
        torch_dist.distributed_c10d._set_pg_timeout(_timeout, group)


def _meet() -> tuple[Store, int, int]:
    """The store that all processes have come to, the rank of this one, and their number. Raises: as `init`."""
    try:
        # Its own, short timeout: where one machine has failed before, the others need not wait for it long.
        return next(torch_dist.rendezvous("env://", timeout=JOIN))
    except ValueError as error:
        raise RequestError(
            f"RANK is set, as by a launcher, but not all that goes with it ({error}); unset it, or start by a launcher"
        ) from None
    except torch_dist.DistError as error:
        said = str(error).splitlines()[0].rstrip(".")
        if taken := re.search(r"port: (\d+),.*EADDRINUSE", said):
            advice = "set another --master_port, alike on all machines, or on one machine give the same command again"
            raise RequestError(f"port {taken[1]} of this machine, where all are to meet, is taken; {advice}") from None
        raise WorkError(
            f"not all processes have met ({said}); start the command on every machine within {JOIN.seconds // 60}"
            " minutes, with the same --master_addr and --master_port, at which the first one can be reached"
        ) from None


@contextmanager
def left() -> Generator[None]:
    """At the end, leave the process group as it can be left then: with the others, or by oneself after an error that
    the others do not have."""
    try:
        yield
    except BaseException as error:
        close(together=isinstance(error, RequestError | WorkError) and not isinstance(error, Apart))
        raise
    close()


def close(together: bool = True) -> None:
    """Leave the process group. Args: together tells that all ranks do now. NCCL waits for them, and an error that one
    of them has would never be told: by itself it ends as it is."""
    _made.clear()
    if active():
        several = world() > 1
        if together or not several or torch_dist.get_backend() != "nccl":
            torch_dist.destroy_process_group()
        if several:
            # A thread of gloo's that has the last message's tensor asks Python to free it, and aborts the process where
            # that has begun to end.
            time.sleep(LAST_THREADS)


def on_main(work: Callable[[], T]) -> T:
    """What `work` gives on rank 0, on every rank. An error is raised on every rank, so that none waits for a lost one:
    deliberate ones as they are, any other as itself on rank 0, which ends by it, and as Apart elsewhere."""
    outcome: list[Any] = [None, None]
    unforeseen: Exception | None = None
    if is_main():
        try:
            outcome[0] = work()
        except (RequestError, WorkError) as error:
            outcome[1] = error
        except Exception as error:
            unforeseen = error
            outcome[1] = Apart(f"rank 0 failed: {error!r}")
    if world() > 1:
        torch_dist.broadcast_object_list(outcome, group=_hosts())
    if outcome[1] is not None:
        raise unforeseen or outcome[1]
    return outcome[0]


def agreed(work: Callable[[], T]) -> T:
    """What `work` gives, in which no rank waits for another. Where it fails on one rank, it fails on all of them:
    the first deliberate error, which names its rank; any other as itself where it is, and as Apart elsewhere."""
    done: list[T] = []
    error: Exception | None = None
    try:
        done.append(work())
    except Exception as found:
        error = found
    if any_(error is not None):
        deliberate = error is None or isinstance(error, RequestError | WorkError)
        _raise(error, all_gather(error if deliberate else repr(error)))
    return done[0]


def _raise(error: Exception | None, told: list[Exception | str | None]) -> None:
    """Args: told, of each rank None, its deliberate error, or what another was."""
    bugs = [f"rank {number} failed: {found}" for number, found in enumerate(told) if isinstance(found, str)]
    if bugs:
        raise error if error and not isinstance(error, RequestError | WorkError) else Apart(bugs[0])
    for number, found in enumerate(told):
        if isinstance(found, Exception):
            raise found if number == 0 else type(found)(f"rank {number}: {found}")


def broadcast_(tensor: Tensor) -> Tensor:
    """In place, rank 0's values of a tensor; returns its argument."""
    if world() > 1:
        torch_dist.broadcast(tensor, src=0, group=_hosts() if tensor.device.type == "cpu" else None)
    return tensor
