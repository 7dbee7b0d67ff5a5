"""Who makes which run or record: processes that work on one sweep take runs as they come to them.

A claim is a lock on an empty file below OUT/.claims. The system frees it when its process ends, however that ends, so
that no claim outlives its holder. The files stay: a lock on a file that somebody removes is held by two.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from asa import dist
from asa.errors import WorkError

FOLDER = ".claims"


@contextmanager
def claimed(out: Path, name: str, wait: bool = False) -> Iterator[bool]:
    """Whether what is called so below `out` is this process's (or this group of ranks') until the end of the block; the
    same on all ranks.

    Args: wait, until whoever makes it has ended, so that the answer is yes.
    """
    with ExitStack() as stack:
        file = out / FOLDER / name
        yield dist.on_main(lambda: _lock(file, stack, wait))


@contextmanager
def in_turn(out: Path, name: str) -> Iterator[None]:
    """The same in one process, which waits, and says so, where another one has it."""
    with ExitStack() as stack:
        if not stack.enter_context(claimed(out, name)):
            print(f"{name}: another process is at it; waiting", flush=True)
            stack.enter_context(claimed(out, name, wait=True))
        yield


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
