"""Where attention is fused, and that nothing needs Triton where it is not."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from asa import fused
from asa.adversary import ASAConfig
from tests.fused.oracle import DEVICE

HERE = torch.device(DEVICE)
SHAPE = (4, 12, 2048, 128)


def test_the_defaults_are_fused_in_the_types_that_the_kernels_know() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert fused.supported(ASAConfig(), HERE, dtype, SHAPE)
    assert not fused.supported(ASAConfig(), HERE, torch.float64, SHAPE)


@pytest.mark.parametrize("changes", [{"mask": "gumbel"}, {"heads": "each"}, {"masked_score": "replaced"}], ids=str)
def test_other_kinds_of_map_are_not(changes: dict[str, Any]) -> None:
    assert not fused.supported(ASAConfig(**changes), HERE, torch.float16, SHAPE)


@pytest.mark.parametrize("shape", [(4, 12, 2049, 64), (4, 12, 128, 136), (6000, 12, 128, 64)])
def test_nor_are_sizes_that_the_kernels_were_not_made_for(shape: tuple[int, int, int, int]) -> None:
    assert not fused.supported(ASAConfig(), HERE, torch.float16, shape)


def test_gpus_without_the_units_or_the_shared_memory_are_left_alone() -> None:
    narrow, wide = [
        [c for c in ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)) if fused._fits(c, w)] for w in (64, 65)
    ]
    assert narrow == [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]
    assert wide == [(9, 0), (10, 0)]


def test_a_cpu_is_left_alone_unless_a_test_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not fused.supported(ASAConfig(), torch.device("cpu"), torch.float16, SHAPE)


def test_a_triton_that_cannot_compile_is_told_once_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launch = pytest.importorskip("asa.fused.launch")
    tried = []

    def pack(*args: Any) -> None:
        tried.append(args)
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    monkeypatch.setattr(launch, "pack", pack)
    fused._compiles.cache_clear()
    try:
        assert not any(fused.supported(ASAConfig(), HERE, torch.float16, SHAPE) for _ in range(2))
    finally:
        fused._compiles.cache_clear()
    assert len(tried) == 1
    assert caplog.messages == ["Triton cannot run here, so attention is not fused: Failed to find C compiler."]


@pytest.mark.slow
def test_without_triton_all_is_as_before() -> None:
    program = """
import sys
sys.modules["triton"] = None
import torch, asa.attention, asa.fused, asa.methods
asa.fused.DEVICES.add("cpu")
print(asa.fused.supported(asa.ASAConfig(), torch.device("cpu"), torch.float16, (4, 12, 128, 64)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
