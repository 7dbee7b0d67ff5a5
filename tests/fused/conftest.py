"""The interpreter multiplies the bit patterns of bfloat16; here it multiplies the numbers."""

import os
from typing import Any

import numpy as np
import pytest

from asa import fused


def _widened(x: Any) -> Any:
    import triton.language as tl
    from triton.runtime import interpreter

    if x.dtype != tl.bfloat16:
        return x
    return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="no Triton here")
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    multiply = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, _widened(a), _widened(b), *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(fused, "DEVICES", {"cpu"})
