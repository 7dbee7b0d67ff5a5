"""Resampled test scores: sums over examples give each metric's very value, and the tests their known p values."""

import math
from itertools import product
from operator import mul
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap

from finetune.metrics import METRICS
from finetune.predictions import Predictions, Stored, save_predictions
from finetune.report.compare import by_examples, by_seeds, holm
from finetune.report.examples import PARTS, RESAMPLES, WHOLE, parts, resampled

CLASSES = ["a", "b", "c"]
TAGS = ["O", "B-x", "I-x", "B-y"]
rows = st.integers(2, 30)


@given(st.data(), rows)
@settings(max_examples=40)
def test_the_sums_of_classes_give_the_metrics_value(data: st.DataObject, count: int) -> None:
    classes = CLASSES[: data.draw(st.integers(2, 3))]
    labels = st.lists(st.integers(0, len(classes) - 1), min_size=count, max_size=count)
    gold, found = data.draw(labels), data.draw(labels)
    for metric in ("accuracy", "macro_f1", "matthews", *(["f1"] if len(classes) == 2 else [])):
        assert of_sums(metric, gold, found, classes) == pytest.approx(METRICS[metric](gold, found, classes), abs=1e-9)


@given(st.data(), rows)
@settings(max_examples=40)
def test_the_sums_of_numbers_give_the_correlation(data: st.DataObject, count: int) -> None:
    numbers = st.lists(st.integers(-50, 50).map(lambda n: n / 8), min_size=count, max_size=count)
    gold, found = data.draw(numbers), data.draw(numbers)
    for metric in ("pearson", "spearman"):
        assert of_sums(metric, gold, found, []) == pytest.approx(METRICS[metric](gold, found, []), abs=1e-7)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_a_model_that_answers_all_alike_but_for_rounding_has_no_correlation(metric: str) -> None:
    """A collapsed one has a Pearson of up to 0.07 by the shapes of its batches, by which the best epoch was chosen."""
    gold, eps = [0.5, 1.0, 2.5, 4.0, 4.5], float(np.finfo(np.float32).eps)
    for sizes, told in (([0, 1, 2, 5, 8], False), ([0, 1, 2, 8, 26], True)):
        near = [2 * (1 + size * eps) for size in sizes]
        around_0 = [4 * size * eps for size in sizes]  # beside labels from -2 to 2
        for right, found in ((gold, near), ([value - 2.5 for value in gold], around_0)):
            assert (METRICS[metric](right, found, []) != 0) == told
            assert of_sums(metric, right, found, []) == pytest.approx(METRICS[metric](right, found, []))


@pytest.mark.parametrize(
    ("labels", "metrics"),
    [
        (TAGS, ("entity_f1", "token_f1", "accuracy")),
        (CLASSES, ("token_f1",)),
        (["B-x", "I-x"], ("entity_f1", "accuracy")),  # words that are cut off are of no class
    ],
)
@given(st.data())
@settings(max_examples=40)
def test_the_sums_of_words_give_the_score_of_entities_where_words_are_cut(
    labels: list[str], metrics: tuple[str, ...], data: st.DataObject
) -> None:
    tag = st.integers(0, len(labels) - 1)
    gold = data.draw(st.lists(st.lists(tag, min_size=1, max_size=8), min_size=1, max_size=6))
    found = [data.draw(st.lists(tag, min_size=len(row), max_size=len(row))) for row in gold]
    found = [row[: data.draw(st.integers(0, len(row)))] for row in found]
    for metric in metrics:
        assert of_sums(metric, gold, found, labels) == pytest.approx(METRICS[metric](gold, found, labels), abs=1e-9)


def of_sums(metric: str, gold: list, found: list, labels: list[str]) -> float:
    return float(WHOLE[metric](PARTS[metric](gold, found, labels).sum(0)))


def test_every_metric_can_be_resampled() -> None:
    assert set(PARTS) == set(WHOLE) == set(METRICS)


def test_a_predictions_file_gives_what_its_metric_needs(tmp_path: Path) -> None:
    logits = [np.array([0.1, 0.9]), np.array([0.8, 0.2]), np.array([0.7, 0.3])]
    path = tmp_path / "predictions" / "test.npz"
    these = Stored(
        Predictions("classification", logits, None), ["0", "1", "2"], [1, 0, 1], ["no", "yes"], ("accuracy",)
    )
    save_predictions(path, these)
    table = parts(path, "accuracy")
    assert table is not None
    assert table.ids == ("0", "1", "2")
    assert table.sums_NK.tolist() == [[1, 1], [1, 1], [0, 1]]
    assert parts(tmp_path / "gone.npz", "accuracy") is None


def test_the_interval_is_scipys_within_its_noise() -> None:
    rng = np.random.default_rng(1)
    vanilla, better = rng.random(400) < 0.7, rng.random(400) < 0.78
    tables = [np.stack([right, np.ones(400)], axis=1).astype(float) for right in (better, vanilla)]
    scores = resampled(tables, "accuracy")
    assert scores.shape == (RESAMPLES, 2)
    low, high, p = by_examples(scores[:, 0] - scores[:, 1])
    gains = better.astype(float) - vanilla
    theirs = bootstrap((gains,), np.mean, method="percentile", rng=np.random.default_rng(2)).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.005)
    assert (p < 0.05) == (theirs.low > 0)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_a_resampled_test_set_of_one_label_has_no_correlation_and_is_a_tie(metric: str) -> None:
    """Without the one row of another label, which a third of them are, no model is better than another."""
    rng = np.random.default_rng(3)
    gold = [1.3] * 12 + [4.7]
    found = [(factor * np.array(gold) + rng.normal(size=13)).tolist() for factor in (1.0, -0.5)]
    scores = resampled([PARTS[metric](gold, one, []) for one in found], metric)
    drawn = np.random.default_rng(0).integers(13, size=(RESAMPLES, 13))
    alike = ~(drawn == 12).any(axis=1)
    assert alike.mean() == pytest.approx((12 / 13) ** 13, abs=0.02)
    assert not scores[alike].any()
    assert (scores[~alike] != 0).all()
    assert by_examples(scores[:, 0] - scores[:, 1])[2] > 2 * alike.mean() * 0.99


@pytest.mark.parametrize("classes", [3, 150])
def test_resamples_are_scored_as_test_sets_whose_rows_stand_there_as_often(classes: int) -> None:
    rng = np.random.default_rng(3)
    labels = [f"label{index}" for index in range(classes)]
    gold, *found = rng.integers(classes, size=(3, 40))
    scores = resampled([PARTS["macro_f1"](gold, one, labels) for one in found], "macro_f1")
    drawn = np.random.default_rng(0).integers(40, size=(2, 40))
    theirs = [[METRICS["macro_f1"](gold[rows], one[rows], labels) for one in found] for rows in drawn]
    np.testing.assert_allclose(scores[:2], theirs, atol=1e-12)


def test_p_over_seeds_is_exact_and_no_smaller_than_it_can_be() -> None:
    assert by_seeds(np.array([0.01, 0.02, 0.03])) == pytest.approx(2 ** (1 - 3))
    assert by_seeds(np.array([0.03, 0.02, -0.01])) == pytest.approx(4 / 8)  # as large or larger: 4 of the 8 flips
    assert by_seeds(np.zeros(4)) == 1
    assert math.isnan(by_seeds(np.array([0.5])))


@given(st.integers(60, 2000), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=2, max_size=5))
@example(277, [(30, 33), (10, 7), (7, 4), (43, 43), (48, 51)])
@example(908, [(24, 27), (6, 2), (35, 37), (16, 17), (28, 26)])
@settings(max_examples=40)
def test_flips_of_equal_mean_are_ties_however_they_are_rounded(rows: int, right: list[tuple[int, int]]) -> None:
    """The exact p, of whole numbers of right rows."""
    gains = [mine - theirs for mine, theirs in right]
    sums = [abs(sum(map(mul, gains, signs))) for signs in product((1, -1), repeat=len(gains))]
    exact = sum(one >= abs(sum(gains)) for one in sums) / len(sums)
    assert by_seeds(np.array([mine / rows - theirs / rows for mine, theirs in right])) == pytest.approx(exact)


def test_resampled_gains_of_nothing_but_rounding_are_none() -> None:
    gains = np.array([-1e-17, 1e-17] * (RESAMPLES // 2))
    low, high, p = by_examples(gains)
    assert (f"{low:+.2f} {high:+.2f}", p) == ("+0.00 +0.00", 1)


def test_holm_is_the_step_down_worked_out_by_hand() -> None:
    assert holm([0.01, float("nan"), 0.04, 0.03]) == pytest.approx([0.03, float("nan"), 0.06, 0.06], nan_ok=True)
    assert holm([0.6, 0.7]) == [1.0, 1.0]
