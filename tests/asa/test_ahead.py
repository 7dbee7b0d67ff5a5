"""The next step's batches are made ahead: when, never what."""

import threading

import pytest

from asa.ahead import Ahead


def test_whatever_order_steps_are_asked_for_in_each_gets_its_own() -> None:
    ahead = Ahead(lambda step, slots: (step, slots))
    asked = [(0, 1), (1, 1), (2, 1), (7, 1), (8, 1), (8, 1), (9, 2), (3, 2)]
    assert [ahead(*one) for one in asked] == asked
    ahead.close()


def test_the_next_one_is_made_while_the_caller_works_on_this_one() -> None:
    made: list[int] = []
    second = threading.Event()

    def make(step: int) -> int:
        made.append(step)
        if step == 1:
            second.set()
        return step

    ahead = Ahead(make)
    assert ahead(0) == 0
    assert second.wait(60)  # without being asked for
    assert ahead(1) == 1
    ahead.close()
    assert made[:2] == [0, 1]
    assert not any(thread.name.startswith("ahead") for thread in threading.enumerate())


def test_what_goes_wrong_is_told_to_who_asks_for_that_step() -> None:
    def make(step: int) -> int:
        if step == 1:
            raise MemoryError("step 1")
        return step

    ahead = Ahead(make)
    assert ahead(0) == 0
    with pytest.raises(MemoryError, match="step 1"):
        ahead(1)
    ahead.close()
