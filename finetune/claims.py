"""Who makes which run: processes that work on one sweep take runs as they come to them.

A claim is a lock on an empty file below OUT/.claims. The system frees it when its process ends, however that ends, so
that no claim outlives its holder. The files stay: a lock on a file that somebody removes is held by two.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from asa import dist
from asa.errors import WorkError
from finetune.run import Cell

FOLDER = ".claims"


@contextmanager
def claimed(cell: Cell, wait: bool = False) -> Iterator[bool]:
    """Whether the run is this process's (or this group of ranks') until the end of the block; the same on all ranks.

    Args: wait, until whoever makes it has ended, so that the answer is yes.
    """
    with ExitStack() as stack:
        file = cell.config.out / FOLDER / cell.run.name
        yield dist.on_main(lambda: _lock(file, stack, wait))


def _lock(file: Path, stack: ExitStack, wait: bool) -> bool:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = stack.enter_context(file.open("w"))
        fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise WorkError(f"{file} cannot be locked: {error.strerror}; set another --out") from None
    return True
