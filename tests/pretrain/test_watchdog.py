"""A hung run ends, and says who hung."""

import re
import subprocess
import sys
from typing import Any

import pytest

from pretrain.watchdog import Seen, Watchdog, verdict

NOW = 1000.0


def state(beats: int, age: float = 0.0, at: str = "pretrain.loop:1") -> Seen:
    return Seen({"beats": beats, "at": at}, NOW - age)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({0: state(7), 1: state(7, age=99)}, "rank 1 gave no sign of life, stopped or lost"),
        ({0: state(7, age=99), 1: state(7, age=99)}, "rank 0 gave no sign of life, stopped or lost"),
        ({0: state(7), 1: None, 2: None}, "ranks 1, 2 gave no sign of life, stopped or lost"),
        (
            {0: state(8), 1: state(7, at="pretrain.data:90"), 2: state(8)},
            "rank 1 behind the others: rank 1 at pretrain.data:90",
        ),
        ({0: state(7), 1: state(7)}, "all wait: rank 0 at pretrain.loop:1, rank 1 at pretrain.loop:1"),
    ],
)
def test_the_verdict_names_the_silent_and_then_the_one_behind(states: dict[int, Any], said: str) -> None:
    assert verdict(31, states, since=NOW - 10) == f"no progress for 31 s (--hang_timeout): {said}"


HANG = """
import time
from pretrain.watchdog import Watchdog
with Watchdog(4.0, None).watching() as dog:
    for _ in range(10):
        time.sleep(0.5)
        dog.beat()
    print("worked", flush=True)
    time.sleep(60)
"""


def test_a_process_that_stands_still_ends_with_its_stack_and_one_that_works_does_not() -> None:
    found = subprocess.run([sys.executable, "-c", HANG], capture_output=True, text=True, timeout=50)
    assert found.returncode == 1
    assert found.stdout == "worked\n"
    assert re.search(r"error: no progress for \d+ s \(--hang_timeout\): all wait: rank 0", found.stderr)
    assert 'File "<string>", line 9, in <module>' in found.stderr


def test_a_timeout_of_zero_watches_nothing() -> None:
    with Watchdog(0, None).watching() as dog:
        assert not dog.timeout
