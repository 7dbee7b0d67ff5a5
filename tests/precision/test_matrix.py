"""Every ZeRO stage, precision and offload follows the plain engine, resumes bit for bit and survives a bad gradient."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from asa import zero_at_once
from tests.precision.matrix import AT_ONCE, THIN, WAIT, Case, every
from tests.ranks import run_ranks

# Largest differences from the plain engine after four steps of 1e-2: of a weight, and of a loss (relative).
BOUNDS = {"fp32": (1e-6, 1e-6), "fp16": (5e-3, 1e-3), "bf16": (5e-2, 5e-3)}


NORMS = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 5e-2}


def results_of(out: Path, which: str, world: int) -> dict[str, Any]:
    run_ranks(world, "tests.precision.matrix", out, which, timeout=1500)
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def thin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory.mktemp("thin"), "thin", 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results_of(tmp_path_factory.mktemp("two"), "at once", 2)


def holds(case: Case, result: dict[str, Any]) -> None:
    weights, losses = BOUNDS[case.precision]
    assert result["weights_off"] <= weights
    assert result["losses_off"] <= losses
    assert result["norms_off"] <= NORMS[case.precision]  # which clipping hides in the weights
    assert result["differing"] == []
    assert result["again"] == result["losses"][2:]
    assert result["counters"][0] == result["counters"][1]
    assert result["skipped"] == {"applied": False, "norms": [None, None], "changed": [], "counted": 0}
    assert result["losses"][0] != result["losses"][-1]


@pytest.mark.parametrize("case", THIN, ids=lambda case: case.name)
def test_it_follows_the_plain_engine_resumes_and_skips_a_bad_gradient(thin: dict[str, Any], case: Case) -> None:
    holds(case, thin[case.name])


@pytest.mark.parametrize("case", AT_ONCE, ids=lambda case: case.name)
def test_two_ranks_whose_gradients_are_summed_at_once_do_so_as_well(two: dict[str, Any], case: Case) -> None:
    holds(case, two[case.name])


def test_gradients_are_in_fp32_before_several_ranks_sum_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[torch.Tensor]()
    monkeypatch.setattr(zero_at_once.dist, "world", lambda: 3)
    monkeypatch.setattr(zero_at_once.dist, "reduce_scatter", lambda whole: sent.append(whole))
    zero_at_once._over_ranks(torch.full((6,), 1.0, dtype=torch.bfloat16))
    torch.testing.assert_close(sent[0], torch.full((6,), 1 / 3))


def test_every_pair_of_settings_is_among_them() -> None:
    for one, other in combinations(range(len(Case._fields)), 2):
        assert {(case[one], case[other]) for case in THIN} == {(case[one], case[other]) for case in every()}


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_growing_loss_scale_reaches_the_next_step_only(thin: dict[str, Any], stage: int) -> None:
    found = thin[f"scale-{stage}"]
    assert found["differing"] == []
    assert found["scales"] == [256, 256]
    assert found["after"] == [256, 512]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_an_overflow_at_the_smallest_scale_says_what_to_do(thin: dict[str, Any], stage: int) -> None:
    message = thin[f"scale-{stage}"]["lowest"]
    assert "smallest loss scale" in message
    assert "--precision bf16" in message


@pytest.mark.parametrize("stage", [2, 3])
def test_a_loss_that_is_not_finite_leaves_the_scale_alone(
    thin: dict[str, Any], two: dict[str, Any], stage: int
) -> None:
    for results in (thin, two):
        before, after, to_blame = results[f"faults-{stage}"]["kept"]
        assert after == before
        assert to_blame == [False] * 3


@pytest.mark.parametrize("stage", [2, 3])
def test_but_not_one_that_an_ascent_under_the_scale_has_made(
    thin: dict[str, Any], two: dict[str, Any], stage: int
) -> None:
    for results in (thin, two):
        assert results[f"faults-{stage}"]["climbed"] == [False, True, 256.0]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_second_engine_begins_from_what_the_first_has_left(
    thin: dict[str, Any], two: dict[str, Any], stage: int
) -> None:
    # Of weights that are spread over the ranks nobody has the whole, and zeros were put in their place.
    for results in (thin, two):
        assert results[f"faults-{stage}"]["again"] <= 2**-8


def test_training_begins_from_the_weights_that_were_given(thin: dict[str, Any], two: dict[str, Any]) -> None:
    # DeepSpeed's fp32 weights are those that it has rounded to half precision.
    nothing: dict[str, list[str]] = {"fp32": [], "bf16": [], "fp16": []}
    for results in (thin, two):
        found = {name: value for name, value in results.items() if name.startswith("begun")}
        assert len(found) == 4
        assert all(value == nothing for value in found.values())


def test_a_collective_of_deepspeeds_takes_as_long_as_ours_may(thin: dict[str, Any], two: dict[str, Any]) -> None:
    for results in (thin, two):
        assert results["seconds of DeepSpeed's group"] == WAIT.total_seconds()


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_the_whole_matrix(tmp_path: Path, world: int) -> None:
    results = results_of(tmp_path, "every", world)
    for case in every():
        holds(case, results[case.name])


def test_deepspeed_never_waits_for_its_device_on_its_own(thin: dict[str, Any], two: dict[str, Any]) -> None:
    for results in (thin, two):
        assert results["operations"]["waits"] == 0


def test_deepspeed_launches_few_operations_for_each_parameter(thin: dict[str, Any], two: dict[str, Any]) -> None:
    # By its own ways 18 in an update and 3 in a pass, for which a GPU waited longer than for its work.
    for results, most in ((thin, 1), (two, 1.5)):
        found = results["operations"]
        assert found["update"] < 3 * found["parameters"]
        assert found["further"] < most * found["parameters"]
