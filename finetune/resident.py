"""The most memory that this process has had resident, which Linux counts; runs of one worker share the process."""

import os
import re
from pathlib import Path

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def forget() -> None:
    """Begin to count anew, where the system can."""
    if os.access(CLEAR, os.W_OK):
        CLEAR.write_text("5")  # sets the high-water mark to what is resident now


def peak() -> int:
    """Most bytes since the last `forget`; 0 where the system cannot begin anew, as they would be of other runs too."""
    if not os.access(CLEAR, os.W_OK):
        return 0
    found = re.search(r"VmHWM:\s*(\d+) kB", STATUS.read_text())
    return 1024 * int(found[1]) if found else 0
