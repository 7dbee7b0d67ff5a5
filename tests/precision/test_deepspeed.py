"""DeepSpeed's FP16 and BF16 engines follow fp32, skip what overflows, and keep the adversary's gradient finite."""

import json
from itertools import product
from typing import Any

import pytest
import torch

from tests.precision.worker import FAMILIES, METHOD_NAMES, OVERFLOW_AT, STAGES, STEPS
from tests.ranks import run_ranks

CASES = list(product(FAMILIES, METHOD_NAMES, STAGES))
each_case = pytest.mark.parametrize(("family", "method", "zero"), CASES)


ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=ON_GPU)])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("precision") / "results.json"
    run_ranks(1, "tests.precision.worker", out, request.param, timeout=500, cuda=request.param == "cuda")
    return json.loads(out.read_text())


def tasks(run: dict[str, Any]) -> list[float]:
    """The task loss of every step whose update was applied."""
    return [terms["task"] for terms, applied in zip(run["terms"], run["applied"], strict=True) if applied]


@each_case
def test_low_precision_follows_the_fp32_curve(results: dict[str, Any], family: str, method: str, zero: int) -> None:
    full = tasks(results[f"{family}-{method}-{zero}-fp32"])
    assert full[-1] < 0.6 * full[0]
    for precision in ("fp16", "bf16"):
        low = tasks(results[f"{family}-{method}-{zero}-{precision}"])
        assert low == pytest.approx(full[: len(low)], rel=0.02)
        assert results[f"{family}-{method}-{zero}-{precision}"]["finite"]


@each_case
def test_overflow_skips_the_update_and_halves_the_scale(
    results: dict[str, Any], family: str, method: str, zero: int
) -> None:
    run = results[f"{family}-{method}-{zero}-fp16"]
    assert [step for step in range(STEPS) if not run["applied"][step]] == list(OVERFLOW_AT)
    first = OVERFLOW_AT[0]
    assert run["lr"][first] == run["lr"][first + 1] == run["lr"][first + 2] > run["lr"][first + 3]
    assert run["scale"][first] == 65536  # one overflow is forgiven (hysteresis)
    assert run["scale"][first + 1 :] == [32768.0] * (STEPS - first - 1)


@pytest.mark.parametrize(("family", "zero"), list(product(FAMILIES, STAGES)))
def test_the_adversary_is_trained_and_does_not_starve_the_model(
    results: dict[str, Any], family: str, zero: int
) -> None:
    for precision in ("fp32", "fp16", "bf16"):
        asa, vanilla = (results[f"{family}-{method}-{zero}-{precision}"] for method in ("asa", "vanilla"))
        shares = [terms["masked_share"] for terms in asa["terms"]]
        assert shares[0] != shares[-1]
        assert asa["norm"][0] == pytest.approx(vanilla["norm"][0], rel=0.05)
