"""The peak of resident memory that a run records, as Linux counts it."""

import os

import pytest
import torch

from asa import resident
from finetune.sweep import sweep
from tests.finetune.conftest import Given, events

SIZE = 200 << 20

pytestmark = [
    pytest.mark.skipif(not os.access(resident.CLEAR, os.W_OK), reason="counted by Linux alone"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="runs go to the GPU, whose own memory is counted"),
]


def test_a_run_records_its_own_peak_and_not_one_from_before(given: Given) -> None:
    taken = bytearray(SIZE)
    most = resident.peak()
    del taken
    asked = given()
    sweep(asked)
    assert 0 < events(asked["out"], "tiny-vanilla-0")[-1]["peak_resident_bytes"] < most


def test_where_the_system_cannot_begin_anew_nothing_is_recorded(
    given: Given, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(resident, "CLEAR", tmp_path_factory.mktemp("system"))  # not to be written
    asked = given()
    sweep(asked)
    assert "peak_resident_bytes" not in events(asked["out"], "tiny-vanilla-0")[-1]
