"""Triton's interpreter as the tests use it: it multiplies the bit patterns of bfloat16; here it multiplies numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np


def dot_of_numbers(multiply: Callable) -> Callable:
    """InterpreterBuilder.create_dot for operands of every type."""

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, _widened(a), _widened(b), *rest)

    return create_dot


def _widened(x: Any) -> Any:
    import triton.language as tl
    from triton.runtime import interpreter

    if x.dtype != tl.bfloat16:
        return x
    return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
