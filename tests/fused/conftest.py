"""Where Triton interprets, its kernels run on the CPU."""

import os

import pytest

from asa import fused
from tests.fused.interpreted import dot_of_numbers


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="no Triton here")
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    builder = interpreter.InterpreterBuilder
    monkeypatch.setattr(builder, "create_dot", dot_of_numbers(builder.create_dot))
    monkeypatch.setattr(fused, "DEVICES", {"cpu"})
