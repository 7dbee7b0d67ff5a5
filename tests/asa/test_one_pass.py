"""The clean and the attacked pass are one over twice the rows; what it gives is what the two would."""

from typing import Any

import pytest
import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.losses import compared, divergence, task_loss
from asa.methods import METHODS, At, MethodsConfig
from asa.model import Output, TaskModel
from asa.signal import Perturb, Site
from tests.asa.conftest import KINDS, batch_for, gradients, tiny_batch, tiny_bert, tiny_engine, tiny_module
from tests.asa.encoders import PAIRS, tiny

# B rows, L length


def step(module: TaskModel, config: ASAConfig, batch: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    terms = METHODS["asa"](MethodsConfig(asa=config)).backward(tiny_engine(module), batch, At(0, 0))
    return terms, gradients(module)


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        atol = 1e-8 + 1e-4 * value.abs().max().item()
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol, msg=name)


# ModernBERT's eager attention takes its softmax in fp32, where fp64's minimum is infinite.
WIDE = [pair for pair in PAIRS if pair != ("modernbert", "eager")]


@pytest.mark.parametrize(("name", "attention"), WIDE)
@pytest.mark.parametrize("heads", ["shared", "each"])
def test_one_pass_equals_two_in_every_family(name: str, attention: str, heads: Any) -> None:
    """With no dropout, shared masks change nothing but that there are two passes. In fp64: an adversary's gradient is
    1e4 times a difference."""
    found = []
    for dropout in ("independent", "shared"):
        config = ASAConfig(heads=heads, dropout=dropout, reversal=1.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        torch.manual_seed(4)
        found.append(step(TaskModel(tiny(name, attention=attention).double(), "mlm", config), config, batch_for(name)))
    for one, two in zip(*found, strict=True):
        same(one, two)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{}, {"divergence": "one_sided"}, {"stop_gradient": True}, {"sentence": "head"}])
def test_one_pass_equals_two_for_every_task_and_divergence(kind: Any, change: dict[str, Any]) -> None:
    found = []
    for dropout in ("independent", "shared"):
        config = ASAConfig(dropout=dropout, **change)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        torch.manual_seed(4)
        found.append(step(TaskModel(tiny_bert(kind).double(), kind, config), config, tiny_batch(kind)))
    for one, two in zip(*found, strict=True):
        same(one, two)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token_mean", ["labelled", "rows"])
def test_terms_made_at_once_are_the_losses_apart(kind: Any, token_mean: Any) -> None:
    batch, config = tiny_batch(kind), ASAConfig(token_mean=token_mean)
    both = tiny_module(kind)(batch.twice(), Perturb(attend=some, last=len(batch.pad_BL)))
    clean, other = both.halves()
    expected = {"task": task_loss(clean, batch), **divergence(clean, other, batch, config)}
    found = compared(both, batch, config)
    same(found, expected)
    one, two = (
        torch.autograd.grad(torch.stack(list(t.values())).sum(), both.logits, retain_graph=True)
        for t in (found, expected)
    )
    torch.testing.assert_close(one, two)


def some(site: Site) -> Tensor:
    keep_BLL = torch.ones(len(site.h_BLD), site.h_BLD.shape[1], site.h_BLD.shape[1])
    keep_BLL[:, :, 1] = 0
    return keep_BLL


def test_only_the_last_rows_are_attacked() -> None:
    module, batch, asked = tiny_module(), tiny_batch(), []

    def attend(site: Site) -> Tensor:
        asked.append((len(site.h_BLD), len(site.seen_BLL), len(site.weights())))
        return some(site)

    rows = len(batch.pad_BL)
    clean, attacked = module(batch.twice(), Perturb(attend=attend, last=rows)).halves()
    assert set(asked) == {(rows, rows, rows)}
    torch.testing.assert_close(clean.logits, module(batch).logits)
    torch.testing.assert_close(attacked.logits, module(batch, Perturb(attend=some)).logits)


def test_the_two_halves_draw_their_own_dropout_masks() -> None:
    module, batch = tiny_module(dropout=0.3).train(), tiny_batch()
    one, two = module(batch.twice()).halves()
    assert isinstance(one, Output)
    assert not torch.allclose(one.logits, two.logits)
