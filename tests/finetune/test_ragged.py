"""Rows of numbers behind one another."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from finetune.tasks.ragged import Ragged

ROWS = st.lists(st.lists(st.integers(-100, 2**40), max_size=6), min_size=1, max_size=12)


@given(ROWS, st.integers(1, 5))
def test_rows_come_back_as_they_went_in_whatever_the_parts(rows: list[list[int]], part: int) -> None:
    found = Ragged.joined([Ragged.of(rows[at : at + part]) for at in range(0, len(rows), part)])
    assert [row.tolist() for row in found] == rows
    assert {row.dtype for row in found} == {torch.int64}
    assert (len(found), found.lengths_R.tolist()) == (len(rows), [len(row) for row in rows])
    assert found[-1].tolist() == rows[-1]
    padded = found.padded([0, len(rows) - 1], -1000)  # no number of a row
    assert [[n for n in row if n != -1000] for row in padded.tolist()] == [rows[0], rows[-1]]


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([0, 1], np.uint8),
        ([0, 30_521], np.uint16),
        ([0, 250_000], np.uint32),
        ([-100, 200], np.int16),
    ],
)
def test_they_take_no_more_than_they_need(numbers: list[int], dtype: type) -> None:
    assert Ragged.of([numbers]).numbers_N.dtype == dtype


def test_a_row_that_there_is_not_is_an_error() -> None:
    with pytest.raises(IndexError):
        Ragged.of([[1], [2]])[2]
