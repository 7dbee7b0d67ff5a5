"""The most memory that this process has had resident, which Linux counts; runs of one worker share the process."""

import re
from functools import cache
from pathlib import Path

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def forget() -> None:
    """Begin to count anew, where the system can."""
    if _anew(CLEAR):
        CLEAR.write_text("5")  # sets the high-water mark to what is resident now


def peak() -> int:
    """Most bytes since the last `forget`; 0 where the system cannot begin anew, as they would be of other runs too."""
    return most() if _anew(CLEAR) else 0


def most() -> int:
    """Most bytes since the process began, or the last `forget`; 0 where the system does not tell. Not ru_maxrss, which
    a process has from the one that started it."""
    found = re.search(r"VmHWM:\s*(\d+) kB", STATUS.read_text()) if STATUS.is_file() else None
    return 1024 * int(found[1]) if found else 0


@cache
def _anew(clear: Path) -> bool:
    try:
        clear.write_text("5")
    except OSError:  # no Linux, an old one, or a container that forbids it
        return False
    return True
