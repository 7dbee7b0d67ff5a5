"""Naive masking: the shares asked for, no adversary, shares by schedule, a step count that survives a restart."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.engine import PlainEngine
from asa.errors import RequestError
from asa.losses import divergence, task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.random_mask import RandomMask, RandomMaskConfig
from asa.signal import Perturb
from tests.asa.conftest import KINDS, LAYERS, attend_to, gradients, tiny_batch, tiny_engine, tiny_module

# B rows, L length


def step(
    options: RandomMaskConfig, kind: Any = "mlm", method: RandomMask | None = None
) -> tuple[dict[str, Tensor], PlainEngine]:
    engine = tiny_engine(tiny_module(kind))
    torch.manual_seed(3)
    terms = (method or RandomMask(options)).backward(engine, tiny_batch(kind), At(0, 0))
    return terms, engine


def schedule(path: Path, steps: list[int], shares: list[list[float]]) -> RandomMaskConfig:
    lines = [{"event": "train", "step": s, "masked_share": share} for s, share in zip(steps, shares, strict=True)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"event": "start"}, *lines]))
    return RandomMaskConfig(strategy="scheduled", schedule=path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["bernoulli", "magnitude"])
def test_it_trains_without_an_adversary_on_every_kind_of_task(kind: Any, strategy: Any) -> None:
    terms, engine = step(RandomMaskConfig(strategy=strategy, share=0.4), kind)
    assert all(name.startswith("model.") for name in gradients(engine.module))
    parts = [value for name, value in terms.items() if name not in ("loss", "masked_share")]
    torch.testing.assert_close(terms["loss"], torch.stack(parts).sum())
    assert min(parts) > 0
    assert terms["masked_share"].shape == (LAYERS,)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_bernoulli_masks_its_share(share: float) -> None:
    found = step(RandomMaskConfig(share=share))[0]["masked_share"]
    units = 3 * 10 * 7 * LAYERS  # about as many pairs, each an independent draw
    assert (found.mean() - share).abs() < 4 * (share * (1 - share) / units) ** 0.5


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_magnitude_masks_exactly_its_share_and_the_heaviest_pairs(share: float) -> None:
    maps: list[tuple[Tensor, Tensor]] = []
    engine, batch = tiny_engine(tiny_module()), tiny_batch()
    original = engine.forward

    def watched(batch: Any, perturb: Perturb | None = None, tap: Any = None) -> Any:
        if perturb is None or perturb.attend is None:
            return original(batch, perturb, tap)
        attend = perturb.attend

        def note(site: Any) -> Tensor:
            keep_BLL = attend(site)
            assert isinstance(keep_BLL, Tensor)
            maps.append((keep_BLL, site.weights().mean(1)))
            return keep_BLL

        return original(batch, Perturb(attend=note), tap)

    engine.forward = watched  # type: ignore[method-assign]
    terms = RandomMask(RandomMaskConfig(strategy="magnitude", share=share)).backward(engine, batch, At(0, 0))
    for keep_BLL, weights_BLL in maps:
        for row, real in enumerate((~batch.pad_BL).sum(1).tolist()):
            masked = keep_BLL[row, :real, :real] == 0
            weights = weights_BLL[row, :real, :real]
            assert masked.sum() == round(share * real**2)
            assert weights[masked].min() >= weights[~masked].max()
    assert ((terms["masked_share"] - share).abs() < 0.02).all()


def test_magnitude_goes_by_weights_of_which_dropout_takes_none() -> None:
    """Those that it takes would count as the lightest."""
    module, batch, found = tiny_module(dropout=0.5), tiny_batch(), list[Tensor]()

    def note(site: Any) -> None:
        found.append(site.weights())

    module.train()
    module(batch, Perturb(attend=note))
    assert len(found) == LAYERS
    for weights_BHLL in found:
        assert (weights_BHLL > 0)[:, :, :, 0].all()
        torch.testing.assert_close(weights_BHLL.sum(-1), torch.ones(weights_BHLL.shape[:-1]))
    assert all(part.training for part in module.model.modules())


def test_shares_follow_the_schedule_step_by_step_and_layer_by_layer(tmp_path: Path) -> None:
    options = schedule(tmp_path / "metrics.jsonl", [1, 3], [[0.0, 1.0], [1.0, 0.0]])
    method = RandomMask(options)
    found = []
    for _ in range(4):
        terms, engine = step(options, method=method)
        found.append(terms["masked_share"].tolist())
        method.after_step(engine)
    assert found == [[0, 1], [0, 1], [1, 0], [1, 0]]


def test_a_restored_method_goes_on_at_its_step(tmp_path: Path) -> None:
    options = schedule(tmp_path / "metrics.jsonl", [1, 2], [[0.0, 0.0], [1.0, 1.0]])
    first, second = RandomMask(options), RandomMask(options)
    _, engine = step(options, method=first)
    first.after_step(engine)
    second.load_state_dict(first.state_dict())
    assert step(options, method=second)[0]["masked_share"].tolist() == [1, 1]


def test_the_objective_is_task_and_divergence() -> None:
    """With the same map for both, the method's gradients are those of the loss written out."""
    keeps = [torch.rand(3, 10, 10, generator=torch.Generator().manual_seed(n)) >= 0.3 for n in range(LAYERS)]
    module, batch = tiny_module(), tiny_batch()
    clean, other = module(batch), module(batch, Perturb(attend=attend_to([keep.float() for keep in keeps])))
    loss = task_loss(clean, batch) + torch.stack(list(divergence(clean, other, batch, ASAConfig()).values())).sum()
    loss.backward()
    expected = gradients(module)
    draws = iter(keeps)
    engine = tiny_engine(tiny_module())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asa.methods.random_mask.bernoulli", lambda share, pad_BL: next(draws))
        RandomMask(RandomMaskConfig(share=0.3)).backward(engine, batch, At(0, 0))
    found = gradients(engine.module)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"strategy": "scheduled"}, "random_mask.schedule"),
        ({"strategy": "scheduled", "schedule": "x", "share": 0.1}, "random_mask.share"),
        ({"schedule": "x"}, "random_mask.schedule"),
        ({"share": 1.0}, "share"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, Any], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        RandomMaskConfig(**values)


def test_a_schedule_without_shares_or_of_another_depth_is_refused(tmp_path: Path) -> None:
    options = schedule(tmp_path / "metrics.jsonl", [], [])
    with pytest.raises(RequestError, match="no masked share"):
        METHODS["random_mask"](MethodsConfig(random_mask=options))
    for number, shares in ((1, [None, 0.5]), (1, 0.5), (1, [0.5, 1.5]), ("1", [0.5, 0.5])):
        options = schedule(tmp_path / "metrics.jsonl", [number], [shares])  # type: ignore[list-item]
        with pytest.raises(RequestError, match=r"has step .* allowed: a whole number, and a number from 0 to 1 for"):
            METHODS["random_mask"](MethodsConfig(random_mask=options))
    options = schedule(tmp_path / "metrics.jsonl", [1], [[0.5]])
    with pytest.raises(RequestError, match="1 layers, this one has 2"):
        step(options)
