"""A hung run ends, and says who hung."""

import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch._C._distributed_c10d import Store

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


class Ended(BaseException):
    """Stands for the end of the process."""


def test_only_who_stands_still_for_as_long_as_the_timeout_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now, works_until = [NOW], NOW + 20
    dog = Watchdog(4.0, None)

    def wait(seconds: float) -> bool:
        now[0] += seconds
        if now[0] <= works_until:
            dog.beat()
        return False

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr("pretrain.watchdog.time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None))
    monkeypatch.setattr("pretrain.watchdog.os._exit", end)
    monkeypatch.setattr(dog._end, "wait", wait)
    with pytest.raises(Ended, match="1"):
        dog._watch()
    assert works_until + dog.timeout < now[0] <= works_until + dog.timeout + 2 * dog.interval


# The timeout is short from the line on that hangs, when the rank has published something: a busy machine may need
# long to come there, or a while between two publications.
HANG = """
import time
from pretrain import watchdog
watchdog.LOST = 10**6
dog = watchdog.Watchdog(3600, None)
dog.interval = 0.05
with dog.watching():
    while not dog.seen:
        time.sleep(0.01)
    dog.timeout = 0.5; time.sleep(600)
"""


def test_a_rank_that_is_stopped_is_silent_although_the_store_keeps_what_it_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [NOW]
    monkeypatch.setattr("pretrain.watchdog.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("asa.dist.world", lambda: 2)
    said = b'{"number": 1, "beats": 3, "at": "pretrain.loop:1"}'
    store = SimpleNamespace(set=lambda *_: None, check=lambda _: True, get=lambda _: said)
    dog = Watchdog(4.0, cast(Store, store))
    for number in (1, 2):
        dog._note(0, {"number": number, "beats": 3})
        now[0] += 10
    assert (dog.seen[0].at, dog.seen[1].at) == (NOW + 10, NOW)


def test_a_process_that_stands_still_ends_with_its_stack() -> None:
    found = subprocess.run([sys.executable, "-c", HANG], capture_output=True, text=True, timeout=120)
    assert found.returncode == 1
    assert re.search(r"error: no progress for \d+ s \(--hang_timeout\): all wait: rank 0", found.stderr)
    assert 'File "<string>", line 10, in <module>' in found.stderr


def test_a_timeout_of_zero_watches_nothing() -> None:
    with Watchdog(0, None).watching() as dog:
        assert not dog.timeout


class SlowStore:
    """A store that takes a while to answer."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def set(self, key: str, value: str) -> None:
        self.asked.set()
        time.sleep(0.3)


def test_nothing_waits_for_the_store_any_more_when_the_watch_is_over() -> None:
    # It would come back while the interpreter ends, and abort a process that has done its work.
    store = SlowStore()
    dog = Watchdog(3600, cast(Store, store))
    dog.interval = 0.001
    with dog.watching():
        assert store.asked.wait(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]
