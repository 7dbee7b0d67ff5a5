"""What a micro-batch knows of itself, and which attention masks a method can work with."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from asa.adversary import ASAConfig
from asa.batch import Batch, Kind
from asa.errors import RequestError
from asa.methods import METHODS, At, MethodsConfig
from tests.asa.conftest import KINDS, LENGTH, REAL, ROWS, gradients, tiny_batch, tiny_engine, tiny_module


def of_pairs(kind: Kind, *shape: int) -> Batch:
    batch = tiny_batch(kind)
    return replace(batch, inputs=batch.inputs | {"attention_mask": torch.ones(shape, dtype=torch.long)})


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_told_row_by_row_choices_too(kind: Kind) -> None:
    pad_BL = tiny_batch(kind).pad_BL
    choices = 2 if kind == "choice" else 1
    assert pad_BL.shape == (ROWS * choices, LENGTH)
    assert (~pad_BL).sum(1).tolist() == [real for real in REAL for _ in range(choices)]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mask_there_is_no_padding(kind: Kind) -> None:
    """The same step as with a mask of ones, by a method that looks at padding."""
    found = []
    for masked in (True, False):
        batch = tiny_batch(kind)
        batch.inputs["attention_mask"].fill_(1)
        if not masked:
            del batch.inputs["attention_mask"]
        assert not batch.pad_BL.any()
        module = tiny_module(kind, ASAConfig())
        terms = METHODS["asa"](MethodsConfig()).backward(tiny_engine(module), batch, At(0, 0))
        found.append(terms | gradients(module))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("shape", [(ROWS, 1, LENGTH, LENGTH), (ROWS, LENGTH, LENGTH)])
def test_a_mask_of_pairs_tells_no_padding_and_is_refused_in_one_line(shape: tuple[int, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        _ = of_pairs("classification", *shape).pad_BL
    told = f"attention_mask is {list(shape)} where input_ids are {[ROWS, LENGTH]}"
    assert str(caught.value).startswith(told)
    assert str(caught.value).endswith("give one number per token")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["mlm", "classification"])
@pytest.mark.parametrize("name", ["asa", "freelb", "random_mask"])
def test_a_method_refuses_it_before_any_gradient(name: str, kind: Any) -> None:
    module = tiny_module(kind, ASAConfig() if name == "asa" else None)
    with pytest.raises(RequestError, match="give one number per token"):
        METHODS[name](MethodsConfig()).backward(tiny_engine(module), of_pairs(kind, ROWS, 1, LENGTH, LENGTH), At(0, 0))
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("name", ["total_rows", "total_labels"])
@pytest.mark.parametrize("total", [0, -8, float("nan")])
def test_totals_by_which_losses_are_divided_are_one_at_least(name: str, total: float) -> None:
    with pytest.raises(RequestError, match=rf"^{name} = {total}: allowed: numbers from 1, .*; give 1 where nothing"):
        replace(tiny_batch("classification"), **{name: total})


def test_a_total_that_is_a_tensor_is_not_waited_for() -> None:
    total: Any = torch.tensor(0)
    assert replace(tiny_batch("classification"), total_labels=total).total_labels is total
