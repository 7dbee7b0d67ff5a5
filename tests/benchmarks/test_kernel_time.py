"""What is timed of our kernels and of torch is the same; where there is no GPU nothing is."""

import os
from typing import Any

import pytest
import torch

from asa import fused
from asa.errors import RequestError, WorkError
from benchmarks.kernel_time import PAIRS, KernelTimeConfig, Pair, heading, kernel_time, measure, report, step, takes

pytest.importorskip("triton", reason="no Triton here")

CPU = torch.device("cpu")
PARTS = tuple(PAIRS)
SMALL = KernelTimeConfig(rows=(2,), length=16, width=32, heads=2, precision="fp32", dropout=0.0)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the kernels run on a GPU here")
def test_both_ways_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.kernel_time.CLASSES", 50)
    norm, gelu, attention, losses = (make(SMALL, 2, CPU) for make in PAIRS.values())
    for pair in (norm, gelu, losses):
        found = [function(*pair.operands) for function in (pair.ours, pair.torchs)]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
        grads = [torch.autograd.grad(out.cos().sum(), pair.operands) for out in found]
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)
    # Under a map that keeps all.
    *qkv, mask_q, mask_k, bias = attention.operands
    kept = [*qkv, torch.zeros_like(mask_q), mask_k, torch.ones_like(bias)]
    torch.testing.assert_close(attention.ours(*kept), attention.torchs(*kept), rtol=1e-4, atol=1e-4)
    for pair in (norm, gelu, attention, losses):
        arriving = torch.ones_like(pair.ours(*pair.operands))
        for function in (pair.ours, pair.torchs):
            for back in (False, True):
                step(pair, function, arriving, back)()


def test_a_line_tells_both_and_their_ratio() -> None:
    assert heading(SMALL, 2).startswith("2 rows of 16, 2 heads, width 32, fp32, dropout 0.0")
    assert report("norm", [0.05, 0.1, 0.15, 0.2]).split() == [
        "norm",
        "0.050",
        "0.100",
        "0.500",
        "0.150",
        "0.200",
        "0.750",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(
    ("flags", "told"), [((), "no CUDA device"), (("--width", "100"), "100 is no multiple of 12 heads; set --width")]
)
def test_what_cannot_be_timed_is_refused(flags: tuple[str, ...], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        kernel_time([*flags, "--results", "null"])


def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is asked for, and what is drawn is drawn here."""
    monkeypatch.setattr("benchmarks.kernel_time.check_gpu", lambda: None)
    for part, make in PAIRS.items():
        monkeypatch.setitem(PAIRS, part, lambda request, rows, _, make=make: make(request, rows, CPU))


def test_kernels_that_the_trial_refuses_are_not_timed_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cpu(monkeypatch)
    monkeypatch.setattr("benchmarks.kernel_time.takes", lambda *args: dict.fromkeys(PARTS, True) | {"norms": False})
    monkeypatch.setattr("benchmarks.kernel_time.measure", lambda *args: [1.0, 2.0, 3.0, 4.0])
    flags = "--rows", "2", "--length", "16", "--width", "32", "--heads", "2", "--precision", "fp32"
    with pytest.raises(WorkError, match="not timed: the kernels of norms at 2 rows; set --rows"):
        kernel_time([*flags, "--results", "null"])
    told = capsys.readouterr().out.splitlines()
    assert ["not taken here" in line for line in told[2:]] == [True, False, False, False]


def test_operands_that_find_no_memory_cost_the_other_lines_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> Pair:
        raise torch.OutOfMemoryError("CUDA out of memory")

    on_cpu(monkeypatch)
    monkeypatch.setitem(PAIRS, "norms", full)
    monkeypatch.setattr("benchmarks.kernel_time.takes", lambda *args: dict.fromkeys(PARTS, True))
    monkeypatch.setattr("benchmarks.kernel_time.measure", lambda *args: [1.0, 2.0, 3.0, 4.0])
    flags = "--rows", "2", "--length", "16", "--width", "32", "--heads", "2", "--precision", "fp32"
    with pytest.raises(WorkError, match="not measured: norms at 2 rows"):
        kernel_time([*flags, "--results", "null"])
    told = capsys.readouterr().out.splitlines()
    assert sum("0.500" in line for line in told) == 3
    assert told[-1].startswith("norms at 2 rows: not measured (")


def test_what_is_taken_goes_by_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, asks in zip(PARTS, ("norms_", "gelu_", "", "losses_"), strict=True):
        monkeypatch.setattr(fused, f"{asks}supported", lambda *args, right=part != "losses": right)
    assert takes(SMALL, 2, CPU) == dict.fromkeys(PARTS, True) | {"losses": False}


def test_what_is_timed_takes_turns_and_medians_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times, order = iter(range(100)), []

    def timed(run: Any, rep: int, return_mode: str) -> float:
        order.append(run)
        return float(next(times))

    monkeypatch.setattr("triton.testing.do_bench_cudagraph", timed)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    operand = torch.ones(2, requires_grad=True)
    found = measure(SMALL, Pair("square", torch.square, torch.square, [operand]))
    assert order[:4] * 3 == order
    assert found == [4.0, 5.0, 6.0, 7.0]
