"""The FLOP count equals a hand formula, attention and its backward included, and the bounds bite."""

import pytest

from asa.errors import WorkError
from benchmarks.flops import check, flops, last_line, step_flops
from benchmarks.steps import ASA, STOCK, VANILLA, bert_config

LAYERS, WIDTH, VOCAB = 2, 64, 30522


def by_hand(length: int) -> dict[str, int]:
    """2 FLOPs per multiply-add; a product costs as much again for each input that needs a gradient."""
    masked = round(0.15 * length)
    linears = 3 * 2 * length * LAYERS * 12 * WIDTH**2  # query, key, value, output: 4; the two of the block: 8
    attention = 3 * 2 * 2 * length**2 * WIDTH * LAYERS
    head = 3 * 2 * (WIDTH**2 + WIDTH * VOCAB)
    # The adversary's input is detached: its linears have a gradient in the weights alone.
    adversary = LAYERS * (2 * 2 * 2 * length * WIDTH**2 + 3 * 2 * length**2 * WIDTH)
    vanilla = linears + attention + masked * head
    return {VANILLA: vanilla, ASA: 2 * vanilla + adversary, STOCK: linears + attention + length * head}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("length", [16, 40])
def test_the_count_is_the_hand_formula(attention: str, length: int) -> None:
    assert step_flops(bert_config(LAYERS, WIDTH, attention), length) == by_hand(length)


def test_bert_base_stays_within_its_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    flops([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["128", "256", "512"]
    assert lines[-1].startswith("length 256: ASA/vanilla 2.1")


@pytest.mark.parametrize(
    ("count", "named"),
    [
        ({VANILLA: 100, ASA: 214, STOCK: 125}, "ASA/vanilla is 2.1400, above 2.13"),
        ({VANILLA: 100, ASA: 210, STOCK: 120}, "vanilla/stock is 0.8333, above 0.83"),
    ],
)
def test_a_ratio_past_its_bound_is_failed_work(count: dict[str, int], named: str) -> None:
    with pytest.raises(WorkError, match=named):
        check(count)


def test_the_last_line_has_the_three_ratios() -> None:
    expected = "length 256: ASA/vanilla 2.1000, vanilla/stock 0.8000, ASA/stock 1.6800"
    assert last_line({VANILLA: 100, ASA: 210, STOCK: 125}) == expected
