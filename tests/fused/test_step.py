"""One step with fused attention and one step by step: the same loss, shares and gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from asa import fused
from asa.adversary import ASAConfig
from asa.attention import perturbed
from asa.batch import Kind
from asa.engine import PlainEngine
from asa.fused import products
from asa.hf import checkpoint_activations
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.asa import Map, ready
from asa.methods.asa_sparse import ASASparseConfig
from asa.methods.freelb import FreeLBConfig
from asa.model import TaskModel
from asa.optim import OptimConfig
from asa.signal import Perturb
from tests.asa.conftest import LAYERS, LENGTH, ROWS, gradients, tiny_batch, tiny_module
from tests.fused.oracle import DEVICE, error

launch: Any = pytest.importorskip("asa.fused.launch", reason="no Triton here")

OPTIONS: dict[str, tuple[str, Kind, MethodsConfig]] = {
    "mlm": ("asa", "mlm", MethodsConfig()),
    "choice": ("asa", "choice", MethodsConfig(asa=ASAConfig(penalty_rows="all", temperature=2.0))),
    "sparse": ("asa_sparse", "classification", MethodsConfig(asa_sparse=ASASparseConfig(every=1, layers=(1,)))),
    "freelb": ("asa_freelb", "classification", MethodsConfig(freelb=FreeLBConfig(passes=2, dropout="independent"))),
}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each fused forward, without those of the trial before the first."""
    monkeypatch.setattr(fused, "_works", lambda *_: True)
    rows: list[int] = []
    forward = launch.forward

    def counted(q_BHLK: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        rows.append(len(q_BHLK))
        return forward(q_BHLK, *args)

    monkeypatch.setattr(launch, "forward", counted)
    return rows


def step(options: str, checkpointed: bool = False, dropout: float = 0.0) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the method returns, and all gradients."""
    name, kind, config = OPTIONS[options]
    torch.manual_seed(3)
    module = tiny_module(kind, config.asa, dropout=dropout).train()
    assert module.adversary is not None
    for maker in module.adversary:
        for part in (maker.query, maker.key):  # type: ignore[union-attr]
            torch.nn.init.normal_(part.weight, std=0.5)  # type: ignore[union-attr]
    if checkpointed:
        checkpoint_activations(module.model)
    device = torch.device(DEVICE)
    engine = PlainEngine(module, OptimConfig(), steps=10, device=device)
    torch.manual_seed(7)
    terms = METHODS[name](config).backward(engine, tiny_batch(kind).to(device), At(0, 0))
    return terms, gradients(module)


def differences(found: dict[str, Tensor], wanted: dict[str, Tensor], least: float = 1e-3) -> dict[str, float]:
    """The error of each gradient, of its size, or of the share `least` of all where it is smaller: some are 0 but for
    rounding (a bias of keys moves no softmax)."""
    size = least * torch.stack([value.norm() for value in wanted.values()]).norm()
    return {key: ((found[key] - value).norm() / max(value.norm(), size)).item() for key, value in wanted.items()}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_step_is_the_same_fused(options: str, launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found_terms, found = step(options)
    attacks = 1 if options == "sparse" else LAYERS
    assert len(launched) == attacks
    monkeypatch.setattr(fused, "DEVICES", set())
    terms, wanted = step(options)
    assert len(launched) == attacks
    assert found_terms.keys() == terms.keys()
    assert found.keys() == wanted.keys()
    errors = {key: error(found_terms[key], value) for key, value in terms.items()} | differences(found, wanted)
    assert max(errors.values()) < 1e-4, errors
    adversaries = [value for key, value in found.items() if "adversary" in key and key.endswith("weight")]
    assert sum(bool(value.any()) for value in adversaries) == 2 * attacks


def test_what_is_made_of_a_mask_is_made_once_for_all_layers(
    launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Tensor] = []
    monkeypatch.setattr(products, "floors", lambda seen_BL: made.append(seen_BL) or fused.floors(seen_BL))
    module = tiny_module(asa=ASAConfig()).to(DEVICE)
    mask = tiny_batch().inputs["attention_mask"].to(DEVICE)
    maps = attacked(module, mask)
    assert len(launched) == len(maps) == LAYERS > 1
    assert len(made) == 1
    assert torch.equal(made[0], mask.bool())
    assert all(torch.equal(found.pairs()[1][:, 0], mask.sum(1)) for found in maps.values())


def test_autocast_decides_the_type_of_the_kernels(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer's half precision: fp32 weights, products in bfloat16."""
    with torch.autocast(DEVICE, torch.bfloat16):
        found_terms, found = step("mlm")
    assert len(launched) == LAYERS
    monkeypatch.setattr(fused, "DEVICES", set())
    with torch.autocast(DEVICE, torch.bfloat16):
        terms, wanted = step("mlm")
    assert error(found_terms["loss"], terms["loss"]) < 1e-2
    errors = differences(found, wanted, least=1e-2)
    assert max(errors[key] for key in errors if "adversary" not in key) < 0.1, errors


def test_what_is_recomputed_draws_the_same_dropout(launched: list[int]) -> None:
    terms, wanted = step("mlm", dropout=0.2)
    again_terms, again = step("mlm", checkpointed=True, dropout=0.2)
    assert len(launched) == 3 * LAYERS
    assert torch.equal(terms["loss"], again_terms["loss"])
    for key, value in wanted.items():
        torch.testing.assert_close(again[key], value, rtol=1e-5, atol=1e-7, msg=key)


def test_passes_that_share_their_dropout_are_not_fused(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    both = MethodsConfig(asa=ASAConfig(dropout="shared"))
    passes = MethodsConfig(freelb=FreeLBConfig(passes=2, dropout="shared"))
    for options, config in (("mlm", both), ("freelb", passes)):
        monkeypatch.setitem(OPTIONS, options, (*OPTIONS[options][:2], config))
        step(options, dropout=0.2)
    assert launched == []


def attacked(module: TaskModel, mask: Tensor) -> dict[int, Any]:
    """The maps of one attacked pass."""
    batch = tiny_batch().to(torch.device(DEVICE))
    batch = replace(batch, inputs=batch.inputs | {"attention_mask": mask})
    engine = PlainEngine(module, OptimConfig(), steps=10, device=torch.device(DEVICE))
    assert module.adversary is not None
    attend, maps = ready(engine, batch, module.adversary.config)
    with perturbed(module.model, Perturb(attend=attend)):
        module.model(**batch.inputs)
    return maps


def test_a_model_that_was_attached_eager_and_then_set_to_sdpa_is_attacked(launched: list[int]) -> None:
    module = tiny_module(asa=ASAConfig(), attention="eager").to(DEVICE)
    module.model.set_attn_implementation("sdpa")
    maps = attacked(module, tiny_batch().inputs["attention_mask"].to(DEVICE))
    assert [type(made) for made in maps.values()] == [Map] * LAYERS
    assert launched == []


def test_a_mask_in_which_queries_see_other_keys_is_not_fused(launched: list[int]) -> None:
    module = tiny_module(asa=ASAConfig()).to(DEVICE)
    pairs_B1LL = torch.ones(ROWS, 1, LENGTH, LENGTH, dtype=torch.bool, device=DEVICE).tril()
    maps = attacked(module, pairs_B1LL)
    assert [type(made) for made in maps.values()] == [Map] * LAYERS
    assert all(torch.equal(made.seen_BLL, pairs_B1LL[:, 0]) for made in maps.values())
    assert launched == []
