"""Every kernel compiles for GPUs that asa.fused.supported accepts, which the interpreter cannot tell. Needs no GPU."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

# KiB that a block may have: A100; A10 and RTX 3090, L4 and RTX 4090, RTX 5090; H100 and H200; B200, B300
NARROW, WIDE = {80: 163, 86: 99, 89: 99, 120: 99}, {90: 227, 100: 227, 103: 227}
SHARED = NARROW | WIDE
# Bytes of a thread on sm_90: fp32 and heads of 128 do not fit into 255 registers. Compilers' versions differ by a few.
SPILLED, SPILLED_ELSE = 32, 512
# For 1024 scores on sm_90 in half precision, heads of 64, dropout; a tenth more than Triton 3.7.1's programs do.
ISSUED = {"forward": 940, "query": 970, "key": 1210, "slope": 670}


def compiled(folder: Path, *variants: tuple[int, str, int, int]) -> list[dict[str, Any]]:
    """In a process of its own, in which Triton is not interpreted, without what an earlier one has compiled."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    words = [str(word) for variant in variants for word in variant]
    command = [sys.executable, "-m", "tests.fused.compiled", *words]
    environment["TRITON_CACHE_DIR"] = str(folder)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: list[dict[str, Any]]) -> None:
    for kernel in found:
        products = kernel["kernel"] in ("pack", "forward", "query", "key", "slope")
        # Triton 3.7.1 has made an empty program of tiles that sm_100 has no room for, without a word.
        assert kernel["registers"] >= 24, kernel
        assert kernel["matrix_units"] if products else kernel["spilled"] <= SPILLED, kernel
        assert not kernel["transposed"], kernel
        assert kernel["shared"] <= SHARED[kernel["architecture"]] * 1024, kernel
        fits = kernel["dtype"] != "fp32" and kernel["head"] <= 64
        assert kernel["architecture"] != 90 or kernel["spilled"] <= (SPILLED if fits else SPILLED_ELSE), kernel
        warps_units = kernel["architecture"] in NARROW and kernel["kernel"] in ("forward", "key")
        assert not (warps_units and fits) or kernel["spilled"] <= SPILLED, kernel


def test_kernels_compile_and_use_the_matrix_units(tmp_path: Path) -> None:
    found = compiled(tmp_path, (90, "fp16", 64, 1), (90, "fp16", 30522, 1), (90, "bf16", 768, 1))
    assert len(found) == 5 + 2 + 4
    check(found)
    if Version(version("triton")) >= Version("3.7"):
        issued = {kernel["kernel"]: kernel["issued"] for kernel in found if kernel["kernel"] in ISSUED}
        assert issued.keys() == ISSUED.keys()
        assert all(issued[name] <= most for name, most in ISSUED.items()), issued


@pytest.mark.slow
def test_every_variant_compiles(tmp_path: Path) -> None:
    wide = product(WIDE, ("fp16", "bf16", "fp32"), (32, 64, 128), (0, 1))
    narrow = product(NARROW, ("fp16", "bf16", "fp32"), (32, 64), (0, 1))
    losses = product(SHARED, ("fp16", "bf16", "fp32"), (30522,), (0, 1))
    norms = product(SHARED, ("fp16", "bf16", "fp32"), (384, 768, 1024, 2048), (0, 1))
    variants = [*wide, *narrow, *losses, *norms]
    with ThreadPoolExecutor(2) as pool:  # of processes; each takes every other variant
        halves = pool.map(lambda n: compiled(tmp_path / str(n), *variants[n::2]), range(2))
    found = [kernel for half in halves for kernel in half]
    assert len(found) == 5 * (54 + 48) + 2 * 42 + 4 * 168
    check(found)


def test_a_product_that_is_transposed_is_found() -> None:
    compiled = pytest.importorskip("tests.fused.compiled")
    wrong = (
        "%a = tt.dot %x, %y, %z : t\n%b = arith.truncf %a : t\n%c = tt.trans %b {order} : t\n%d = tt.dot %c, %x, %e : t"
    )
    assert compiled.transposed_products(wrong) == ["%b"]
    assert compiled.transposed_products(wrong.replace("tt.trans %b", "tt.trans %x")) == []
