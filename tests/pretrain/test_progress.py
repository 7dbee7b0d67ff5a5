"""What the bar shows."""

import pytest

from asa.methods import METHODS
from pretrain.progress import SHOWN, postfix
from tests.asa.test_methods import LOUD, run


@pytest.mark.parametrize("name", METHODS)
def test_no_term_of_a_loss_is_hidden(name: str) -> None:
    _, terms = run(name, "mlm", LOUD)
    assert {key for key in terms if terms[key].ndim == 0} - {"loss"} <= set(SHOWN)


def test_terms_stand_before_the_rate() -> None:
    values = {"task": 7.25, "smooth": 0.5, "proximal": 1.5, "masked_share": [0.25, 0.5], "lr": 1e-4, "skipped": 2}
    assert postfix(values) == "task 7.250  smooth 0.500  proximal 1.500  masked 0.25/0.50  lr 1.0e-04  skipped 2"
