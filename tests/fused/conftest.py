"""Where Triton interprets, its kernels run on the CPU."""

import os

import pytest
import torch

from asa import fused
from tests.fused.interpreted import dot_of_numbers
from tests.fused.oracle import SEED


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="no Triton here")
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    builder = interpreter.InterpreterBuilder
    monkeypatch.setattr(builder, "create_dot", dot_of_numbers(builder.create_dot))
    monkeypatch.setattr(fused, "DEVICES", {"cpu"})


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms' dropout by SEED."""
    norms = pytest.importorskip("asa.fused.norms", reason="no Triton here")
    monkeypatch.setattr(norms, "seed_of", lambda device, _: torch.tensor([SEED], device=device))
