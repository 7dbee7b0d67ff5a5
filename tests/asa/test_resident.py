"""The peak of resident memory, as Linux counts it."""

import os

import pytest

from asa import resident

SIZE = 200 << 20


@pytest.mark.skipif(not os.access(resident.CLEAR, os.W_OK), reason="counted by Linux alone")
def test_a_smaller_use_does_not_inherit_the_peak_of_the_one_before() -> None:
    resident.forget()
    before = resident.peak()
    taken = bytearray(SIZE)
    assert resident.peak() >= before + SIZE * 0.9
    del taken
    assert resident.peak() >= before + SIZE * 0.9
    resident.forget()
    assert resident.peak() < before + SIZE * 0.5
