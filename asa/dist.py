"""Rank helpers that are the identity in a single process, so one code path serves both."""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from asa.errors import RequestError, WorkError


def active() -> bool:
    return torch_dist.is_available() and torch_dist.is_initialized()


def rank() -> int:
    return torch_dist.get_rank() if active() else 0


def world() -> int:
    return torch_dist.get_world_size() if active() else 1


def is_main() -> bool:
    return rank() == 0


def barrier() -> None:
    if active():
        torch_dist.barrier()


def sum_(tensor: Tensor) -> Tensor:
    """In-place sum over ranks; returns its argument."""
    if active() and world() > 1:
        torch_dist.all_reduce(tensor)
    return tensor


def seed_all(*parts: int) -> None:
    """Seed torch from (seed, step, ...), so that a resumed run draws what the uninterrupted one drew."""
    torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]))


def init(cuda: bool, launched: bool) -> None:
    """Join the launcher's process group, or make one of a single process (DeepSpeed wants one in any case)."""
    backend = "nccl" if cuda else "gloo"
    if launched:
        torch_dist.init_process_group(backend)
    else:
        torch_dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


def close() -> None:
    if active():
        torch_dist.destroy_process_group()


def on_main(work: Callable[[], None]) -> None:
    """Run `work` on rank 0. Its deliberate errors are raised on every rank, so that none waits for a lost one."""
    outcome: list[Exception | None] = [None]
    if is_main():
        try:
            work()
        except (RequestError, WorkError) as error:
            outcome = [error]
    if world() > 1:
        torch_dist.broadcast_object_list(outcome)
    if outcome[0] is not None:
        raise outcome[0]
