"""The FLOP count equals a hand formula, attention and its backward included, and the bounds bite."""

from typing import Any

import pytest

from asa.errors import WorkError
from asa.methods import METHODS
from benchmarks.flops import ROWS, check, flops, last_line, method_costs, methods_table, step_flops
from benchmarks.steps import ASA, STOCK, VANILLA, bert_config

LAYERS, WIDTH, VOCAB = 2, 64, 30522


def by_hand(length: int) -> dict[str, int]:
    """Of ROWS rows. 2 FLOPs per multiply-add; a product costs as much again for each input that needs a gradient."""
    masked = round(0.15 * length)
    read = masked + 1  # and [CLS]: ours computes no others after the last attention
    # query, key, value, output: 4; the two of the block: 8
    linears, left_out = (3 * 2 * tokens * WIDTH**2 for tokens in (length * LAYERS * 12, (length - read) * 9))
    attention = 3 * 2 * 2 * length**2 * WIDTH * LAYERS
    head = 3 * 2 * (WIDTH**2 + WIDTH * VOCAB)
    # The adversary's input is detached: one linear has a gradient in its weights, the scores in one factor. What it is
    # made of once: the product of two maps, and of each with the other's bias.
    adversary = LAYERS * ROWS * (2 * 2 * length * WIDTH**2 + 2 * 2 * length**2 * WIDTH)
    adversary += LAYERS * (3 * 2 * WIDTH**3 + 2 * 3 * 2 * WIDTH**2)
    vanilla = ROWS * (linears - left_out + attention + masked * head)
    stock = ROWS * (linears + attention + length * head)
    return {VANILLA: vanilla, ASA: 2 * vanilla + adversary, STOCK: stock}


def slow(*case: Any) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(("attention", "length"), [("sdpa", 16), ("eager", 40), slow("sdpa", 40), slow("eager", 16)])
def test_the_count_is_the_hand_formula(attention: str, length: int) -> None:
    found = step_flops(bert_config(LAYERS, WIDTH, attention), length)
    assert {name: one * ROWS for name, one in found.items()} == by_hand(length)


@pytest.mark.parametrize("lengths", [(256,), pytest.param((128, 256, 512), marks=pytest.mark.slow)])
def test_bert_base_stays_within_its_bounds(
    lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.flops.LENGTHS", lengths)
    flops(["--results", "null"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == [str(length) for length in lengths]
    assert lines[-1].startswith("length 256: ASA/vanilla 2.07")


@pytest.mark.parametrize(
    ("count", "named"),
    [
        ({VANILLA: 100, ASA: 214, STOCK: 125}, "ASA/vanilla is 2.1400, above 2.08"),
        ({VANILLA: 100, ASA: 207, STOCK: 120}, "vanilla/stock is 0.8333, above 0.79"),
    ],
)
def test_a_ratio_past_its_bound_is_failed_work(count: dict[str, int], named: str) -> None:
    with pytest.raises(WorkError, match=named):
        check(count)


def test_the_last_line_has_the_three_ratios() -> None:
    expected = "length 256: ASA/vanilla 2.1000, vanilla/stock 0.8000, ASA/stock 1.6800"
    assert last_line({VANILLA: 100, ASA: 210, STOCK: 125}) == expected


PASSES = {  # forwards, backwards, backwards that reach the weights
    "vanilla": (1, 1, 1),
    "asa": (2, 1, 1),
    "asa_sparse": (1.5, 1, 1),
    "asa_freelb": (2, 2, 2),
    "random_mask": (2, 1, 1),
    "pgd": (3, 3, 1),
    "freeat": (2, 2, 2),
    "yopo": (7, 7, 3),
    "freelb": (2, 2, 2),
    "fgm": (2, 2, 2),
    "smart": (4, 2, 1),
    "smart_released": (3, 2, 1),
    "alum": (3, 2, 1),
    "vat": (3, 2, 1),
    "r3f": (2, 1, 1),
    "r_drop": (2, 1, 1),
    "creat": (3, 3, 2),
}


# One of each way of passing.
SOME = ("vanilla", "asa", "random_mask", "freelb", "pgd", "smart", "yopo")


@pytest.mark.parametrize("names", [SOME, pytest.param(tuple(METHODS), marks=pytest.mark.slow)])
def test_every_methods_passes_are_counted_and_its_flops_follow(names: tuple[str, ...]) -> None:
    """A pass is a third forward; a backward that stops at the words is another third."""
    assert PASSES.keys() == METHODS.keys()
    costs = method_costs(bert_config(LAYERS, WIDTH, "sdpa"), list(names), 16, "mlm")
    passes = {name: PASSES[name] for name in names}
    assert {name: one[:3] for name, one in costs.items()} == passes
    plain = costs[VANILLA].flops
    for name, (forwards, backwards, weights) in passes.items():
        # Part of a pass is run, or an adversary beside it, or (CreAT) more of the last block than the head reads.
        if name in ("yopo", ASA, "asa_sparse", "asa_freelb", "creat"):
            assert plain < costs[name].flops < max(forwards, backwards) * plain * 1.2
            continue
        trained = weights if backwards > 1 else forwards  # one backward may reach through several forwards
        if name in ("smart", "smart_released", "alum", "vat"):
            trained = 2
        words, teacher = backwards - weights, name == "smart"
        expected = trained + teacher / 3 + words * 2 / 3
        assert costs[name].flops / plain == pytest.approx(expected, rel=0.05), name


def test_the_methods_table_has_a_line_each() -> None:
    costs = method_costs(bert_config(LAYERS, WIDTH, "sdpa"), [VANILLA, "freelb"], 16, "classification")
    lines = methods_table({16: costs, 32: costs}, "classification").splitlines()
    assert lines[1].split() == ["method", "forwards", "backwards", "of", "weights", "16", "32"]
    assert lines[3].split() == ["freelb", "2", "2", "2", "2.000", "2.000"]
