"""One of two processes of the test of asa.dist: what each is told, to a file."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from asa import dist
from asa.errors import RequestError, WorkError


def failing(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def told(error: Exception) -> list[str]:
    """What a failure on rank 0 is on this rank."""
    try:
        dist.on_main(failing(error))
    except Exception as caught:
        return [type(caught).__name__, str(caught)]
    return []


def agreed(wrong: int) -> list[str]:
    """What a failure on one rank is on this one."""
    try:
        dist.agreed(failing(WorkError("not read")) if dist.rank() == wrong else lambda: None)
    except Exception as caught:
        return [type(caught).__name__, str(caught)]
    return []


def main(out: Path) -> None:
    dist.init(cuda=False, launched=True)
    rank = dist.rank()
    found: dict[str, Any] = {
        "place": [rank, dist.world(), dist.is_main()],
        "sum": dist.all_reduce_(torch.tensor([rank + 1.0])).tolist(),
        "any": [dist.any_(rank == 1), dist.any_(False)],
        "alike": [dist.alike(2**61 - 2), dist.alike(7 + rank)],
        "gathered": dist.all_gather({"rank": rank}),
        "on_main": dist.on_main(lambda: f"made on {rank}"),
        "from_main": dist.broadcast_(torch.tensor([5.0 + rank])).tolist(),
        "deliberate": told(RequestError("no such thing")),
        "agreed": [agreed(wrong=1), agreed(wrong=0), dist.agreed(lambda: "made")],
        "unforeseen": told(KeyError("lost")),
    }
    if dist.is_main():
        dist.store().set("word", "said")
    dist.barrier()
    found["store"] = dist.store().get("word").decode()
    dist.close()
    found["after"] = [dist.active(), dist.world()]
    (out / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
