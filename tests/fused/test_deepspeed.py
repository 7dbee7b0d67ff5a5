"""Under DeepSpeed's stages and precisions fused attention trains as unfused attention does."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fused.oracle import DEVICE, SLOW_HERE
from tests.ranks import run_ranks

pytest.importorskip("triton", reason="no Triton here")

STEPS, LAYERS = 3, 2
# Relative, of losses and of the norm of the model's gradient: half precision rounds the probabilities at another place,
# and scores near the threshold, so that the adversary's own gradient, of few pairs here, is another one then.
TOLERANCES = {"fp32": (1e-5, 1e-4), "fp16": (1e-3, 1e-2), "bf16": (2e-3, 3e-2)}
CASES = [
    (2, "fp32"),
    (3, "fp16"),
    *(pytest.param(*case, marks=SLOW_HERE) for case in ((2, "fp16"), (3, "bf16"))),
]


@pytest.mark.parametrize(("zero", "precision"), CASES)
def test_fused_steps_are_the_unfused_ones(zero: int, precision: str, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    run_ranks(1, "tests.fused.worker", out, DEVICE, zero, precision, timeout=500, cuda=DEVICE == "cuda")
    results: dict[str, Any] = json.loads(out.read_text())
    fused, plain = results["fused"], results["plain"]
    assert (fused["launched"], plain["launched"]) == (STEPS * LAYERS, 0)
    # Stage 3 gathers weights by hooks of the modules that have them.
    assert (fused["normed"], plain["normed"]) == (STEPS * LAYERS * 2 * (zero < 3), 0)
    assert (fused["intermediate"], plain["intermediate"]) == (STEPS * LAYERS * (zero < 3), 0)
    of_loss, of_norm = TOLERANCES[precision]
    losses = [[step["task"] for step in run["terms"]] for run in (fused, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=of_loss)
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert fused["norms"]["model"] == pytest.approx(plain["norms"]["model"], rel=of_norm)
    of_norm = of_norm if precision == "fp32" else 0.5
    assert fused["norms"]["adversary"] == pytest.approx(plain["norms"]["adversary"], rel=of_norm)
