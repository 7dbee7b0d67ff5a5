"""Every method gives the same update on every engine, process count and accumulation: equal to 1e-6 in fp32."""

import json
from itertools import combinations
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from asa.adversary import merges
from asa.methods import METHODS
from tests.contract.worker import (
    ENGINES,
    FP16_METHODS,
    LENGTH,
    LOSS_SCALES,
    ROWS,
    SHORT,
    SLICES,
    STEPS,
    WORLDS,
    cases,
    every_case,
)
from tests.precision.matrix import THIN
from tests.precision.test_matrix import holds
from tests.ranks import run_ranks

TOLERANCE = 1e-6
CASES = [(engine, method, world, slots) for world in WORLDS for engine, method, slots in cases(world)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases of the quick suite, computed by one process and by two."""
    return computed(tmp_path_factory.mktemp("contract"), timeout=500)


def computed(out: Path, *more: str, timeout: int) -> Path:
    for world in WORLDS:
        run_ranks(world, "tests.contract.worker", out, *more, timeout=timeout)
    return out


def load(results: Path, engine: str, method: str, world: int, slots: int) -> dict[str, Tensor]:
    return load_file(results / f"{engine}-{method}-{world}-{slots}.safetensors")


@pytest.mark.parametrize(("engine", "method", "world", "slots"), CASES)
def test_update_equals_the_plain_reference(results: Path, engine: str, method: str, world: int, slots: int) -> None:
    expected = load(results, "plain", method, 1, 1)
    found = load(results, engine, method, world, slots)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, value.abs().max().item())
        assert (found[name] - value).abs().max().item() <= TOLERANCE * scale, name


@pytest.mark.slow
def test_every_method_on_every_engine_process_count_and_accumulation(tmp_path: Path) -> None:
    """The whole product of what the test above takes a part of."""
    found = computed(tmp_path, "every", timeout=3000)
    for world in WORLDS:
        for engine, method, slots in every_case():
            test_update_equals_the_plain_reference(found, engine, method, world, slots)


def test_on_two_processes_every_stage_resumes_bit_for_bit(results: Path) -> None:
    found = json.loads((results / "resume.json").read_text())
    for case in (case for case in THIN if case.precision == "fp32"):
        holds(case, found[case.name])


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_ranks_with_rows_of_two_lengths_give_the_gradients_of_plain_torch(results: Path, engine: str) -> None:
    """The adversary's scores are computed otherwise in few tokens; DeepSpeed adds up what comes first with what comes
    first."""
    width = 16
    assert [merges(torch.Size([ROWS // 2, length, width])) for length in (SHORT, LENGTH)] == [False, True]
    expected, found = (load_file(results / f"ragged-{name}.safetensors") for name in ("plain", engine))
    assert found.keys() == expected.keys()
    sizes = {name: value.norm().item() for name, value in expected.items() if "key.bias" not in name}  # these are 0
    assert sum("adversary" in name for name in sizes) == 6
    for name, size in sizes.items():
        assert (found[name] - expected[name]).norm().item() <= 1e-5 * size, name


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_weights_of_a_step_and_those_put_back_are_what_is_computed_with(
    results: Path, engine: str, autocast: bool
) -> None:
    """On ZeRO 3 several ranks scored a run's chosen weights by the last ones, which a pass had gathered; autocast keeps
    what it has made of weights."""
    found = json.loads((results / "restored.json").read_text())[f"{engine}-{autocast}"]
    taught, moved, stale, again, asked, *types = found
    assert taught == 0
    assert moved > 1e-2
    assert stale == 0
    assert again <= TOLERANCE
    assert not asked, "gradients have the types of their pass, whatever autocast is around"
    # DeepSpeed's engine has a precision of its own.
    assert set(types) == {"torch.bfloat16" if autocast and engine == "plain" else "torch.float32"}


def test_gradients_that_come_in_other_orders_are_not_mixed_up_in_silence(results: Path) -> None:
    said = json.loads((results / "mixed.json").read_text())
    assert "in different orders" in said.pop("zero2")
    assert set(said.values()) == {""}


def test_no_model_outlives_its_closed_engine(results: Path) -> None:
    # A sweep under DeepSpeed would have every run's in memory.
    assert json.loads((results / "outlive.json").read_text()) == []


def test_the_updates_compared_are_not_nothing(results: Path) -> None:
    """The weights moved, the clip was active, and every method moved them in its own way."""
    found = {method: load(results, "plain", method, 1, 1) for method in METHODS}
    assert all(found["vanilla"][f"norm.{step}.0"] > 1 for step in range(STEPS))
    assert found["asa"]["term.0.0.masked_share"].min() > 0
    name = "weight.model.bert.encoder.layer.0.attention.self.query.weight"
    names = [method for method in METHODS if method != "r_drop"]  # without dropout it is plain training
    for one, other in combinations(names, 2):
        assert (found[one][name] - found[other][name]).abs().max() > 1e-5, (one, other)


@pytest.mark.parametrize("method", FP16_METHODS)
def test_in_fp16_the_loss_scale_does_not_reach_the_perturbations(results: Path, method: str) -> None:
    low, high = (load_file(results / f"fp16-{method}-{scale:g}.safetensors") for scale in LOSS_SCALES)
    assert len(low) > 1
    assert low.keys() == high.keys()
    for name, value in low.items():
        assert value.isfinite().all()
        assert (high[name] - value).norm() <= 0.02 * value.norm(), name
    assert max(float((value - low["0"]).norm()) for value in low.values()) > 1e-2


def test_in_fp16_yopo_climbs_through_the_first_block_at_a_large_loss_scale_too(results: Path) -> None:
    expected = load_file(results / f"fp16-yopo-{LOSS_SCALES[-1]:g}.safetensors")
    found = load_file(results / "fp16-yopo-high.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 0.02 * value.norm(), name


def test_in_fp16_an_ascents_gradient_does_not_carry_the_loss_scale(results: Path) -> None:
    low, high = (load_file(results / "fp16-ascent.safetensors")[f"{scale:g}"] for scale in LOSS_SCALES)
    assert high.norm() > 1e-3
    assert (high - low).norm() <= 0.02 * high.norm()


@pytest.mark.parametrize("zero", SLICES)
def test_in_bf16_many_micro_batches_give_the_gradient_of_one(results: Path, zero: int) -> None:
    one, many = json.loads((results / "bf16-norms.json").read_text())[str(zero)]
    assert many == pytest.approx(one, rel=1e-6)
