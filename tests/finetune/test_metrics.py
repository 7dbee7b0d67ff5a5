"""Scores against direct calls of the libraries, their edge cases, and the file that keeps predictions."""

import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from seqeval.metrics import f1_score as seqeval_f1
from sklearn import metrics as sklearn

from asa.errors import RequestError, WorkError
from finetune.metrics import FITTING, METRICS, USUAL, check_metrics, check_own, score, usual
from finetune.predictions import Predictions, Stored, load_predictions, save_predictions
from finetune.tasks.task import Kind, Label

TAGS = ["O", "B-person", "I-person", "B-place", "I-place"]
BINARY = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)
CLASSES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
NUMBERS = st.lists(st.tuples(st.integers(0, 50), st.integers(-9, 50)), min_size=2, max_size=40)
WORDS = st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8), min_size=1)


def columns(pairs: list) -> tuple[list, list]:
    return [gold for gold, _ in pairs], [found for _, found in pairs]


@settings(max_examples=60)
@given(BINARY)
def test_f1_is_that_of_the_second_class(pairs: list[tuple[int, int]]) -> None:
    gold, found = columns(pairs)
    both = sum(a == b == 1 for a, b in pairs)
    seen = sum(gold) + sum(found)
    assert METRICS["f1"](gold, found, ["no", "yes"]) == pytest.approx(2 * both / seen if seen else 0)
    assert METRICS["accuracy"](gold, found, ["no", "yes"]) == pytest.approx(np.mean(np.equal(gold, found)))


@settings(max_examples=60)
@given(CLASSES)
def test_matthews_and_macro_f1_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    gold, found = columns(pairs)
    names = list("abcd")
    one_class = len({*gold, *found}) == 1
    assert METRICS["matthews"](gold, found, names) == (0 if one_class else sklearn.matthews_corrcoef(gold, found))
    there = {*gold, *found}
    each = [sklearn.f1_score(np.equal(gold, c), np.equal(found, c), zero_division=0) for c in there]  # type: ignore[arg-type]
    assert METRICS["macro_f1"](gold, found, names) == pytest.approx(np.mean(each))
    assert METRICS["macro_f1"](gold, gold, names) == 1


@settings(max_examples=60)
@given(NUMBERS)
def test_correlations_are_those_of_scipy_and_0_where_there_is_none(pairs: list[tuple[int, int]]) -> None:
    gold, found = columns([(a / 10, b / 10) for a, b in pairs])
    for name, function in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            value = METRICS[name](gold, found, [])
        constant = len(set(gold)) == 1 or len(set(found)) == 1
        assert value == (0 if constant else pytest.approx(function(gold, found)[0]))
        assert -1.000001 <= value <= 1.000001


@settings(max_examples=60)
@given(WORDS)
def test_words_are_scored_as_seqeval_and_the_papers_do(rows: list[list[tuple[int, int]]]) -> None:
    gold, found = [columns(row)[0] for row in rows], [columns(row)[1] for row in rows]
    names = [[[TAGS[tag] for tag in row] for row in side] for side in (gold, found)]
    assert METRICS["entity_f1"](gold, found, TAGS) == pytest.approx(seqeval_f1(*names, zero_division=0))  # type: ignore[arg-type]
    flat = [pair for row in rows for pair in row]
    right = sum(a == b != 0 for a, b in flat)
    seen = sum(a != 0 for a, _ in flat) + sum(b != 0 for _, b in flat)
    assert METRICS["token_f1"](gold, found, TAGS) == pytest.approx(2 * right / seen if seen else 0)
    assert METRICS["accuracy"](gold, found, TAGS) == pytest.approx(np.mean([a == b for a, b in flat]))


def test_a_word_that_was_cut_off_counts_as_outside() -> None:
    gold: list[Label] = [[1, 2, 0, 3], [0, 1]]
    cut: list[Label] = [[1, 2], [0]]
    whole: list[Label] = [[1, 2, 0, 0], [0, 0]]
    for name in FITTING["token"]:
        assert METRICS[name](gold, cut, TAGS) == METRICS[name](gold, whole, TAGS) < 1
    assert METRICS["entity_f1"](gold, cut, TAGS) == pytest.approx(0.5)


@pytest.mark.parametrize("kind", USUAL)
def test_usual_metrics_fit_their_kind(kind: Kind) -> None:
    labels = {"token": TAGS, "classification": ["a", "b"]}.get(kind, [])
    check_metrics(usual(kind, labels), kind, labels)
    assert usual("token", ["NOUN", "VERB"]) == ("accuracy",)


@pytest.mark.parametrize("labels", [["O", "B", "I"], ["O", "B-x", "I-x", "E-x", "S-x"]])
def test_entities_are_marked_with_and_without_types_and_ends(labels: list[str]) -> None:
    assert usual("token", labels) == USUAL["token"]
    check_metrics(USUAL["token"], "token", labels)
    assert METRICS["entity_f1"]([[1, 2, 0, 1]], [[1, 2, 0, 0]], labels) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("metric", "kind", "labels", "told"),
    [
        ("bleu", "classification", ["a", "b"], "'bleu', allowed for kind classification: accuracy"),
        ("pearson", "choice", [], "allowed for kind choice: accuracy"),
        ("f1", "classification", ["a", "b", "c"], "macro_f1"),
        ("entity_f1", "token", ["NOUN", "VERB"], "B-"),
    ],
)
def test_metrics_that_do_not_fit_are_refused(metric: str, kind: Kind, labels: list[str], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        check_metrics((metric,), kind, labels)


def made(kind: Kind, logits: list, gold: list[Label] | None, labels: list[str]) -> Stored:
    found = Predictions(kind, [np.asarray(row, dtype=np.float32) for row in logits], None)
    return Stored(found, [f"row {n}" for n in range(len(logits))], gold, labels, usual(kind, labels))


STORED = [
    made("classification", [[0.5, 1], [2, 1]], [1, 1], ["no", "yes"]),
    made("regression", [[0.5], [1.25], [2]], [0.0, 2.5, 5.0], []),
    made("choice", [[1, 2, -np.inf], [1, 2, 3]], [0, 2], []),
    made("token", [[[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]], [[0, 0, 2, 0, 0]]], [[0, 1], [2, 2, 0]], TAGS),
    made("classification", [[0.5, 1]], None, ["no", "yes"]),
]


@pytest.mark.parametrize("these", STORED, ids=lambda these: these.predictions.kind)
def test_predictions_are_read_as_they_were_saved(these: Stored, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "test.npz"
    save_predictions(path, these)
    again = load_predictions(path)
    assert (again.ids, again.gold, again.labels, again.metrics) == (
        these.ids,
        these.gold,
        these.labels,
        these.metrics,
    )
    assert again.predictions.labels == these.predictions.labels
    for one, other in zip(again.predictions.logits, these.predictions.logits, strict=True):
        np.testing.assert_array_equal(one, other)
    if these.gold is not None:
        assert score(again.predictions, these.gold, again) == score(these.predictions, these.gold, these)


def test_predictions_that_a_full_disk_refuses_are_one_line_and_not_there_by_half(tmp_path: Path) -> None:
    path, partial = tmp_path / "test.npz", tmp_path / "test.npz.partial"
    save_predictions(path, STORED[0])
    partial.symlink_to("/dev/full")
    with pytest.raises(WorkError, match=r"test\.npz cannot be written: No space left on device; free some space"):
        save_predictions(path, STORED[1])
    assert not partial.is_symlink()
    assert load_predictions(path).ids == STORED[0].ids


def rewritten(path: Path, **changes: np.ndarray) -> None:
    """The file with other arrays in it."""
    with np.load(path) as file:
        found = dict(file)
    np.savez_compressed(path, allow_pickle=False, **(found | changes))


def flipped(path: Path, place: int, value: int) -> None:
    """The file with a byte of its zip directory's first entry changed."""
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + place] ^= value
    path.write_bytes(content)


def bare(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(3))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "zip version": lambda path: flipped(path, 6, 0x80),
    "encrypted": lambda path: flipped(path, 8, 1),
    "no zip": bare,
    "fewer logits": lambda path: rewritten(path, logits=np.ones((1, 2), dtype=np.float32)),
    "fewer rows": lambda path: rewritten(path, logits=np.ones((1, 2), dtype=np.float32), words=np.array([1])),
    "fewer labels": lambda path: rewritten(path, gold=np.array([1]), gold_words=np.array([1])),
    "fewer ids": lambda path: rewritten(path, ids=np.array(["0"])),
    "rows of two": lambda path: rewritten(path, logits=np.ones((4, 2)), words=np.array([2, 2])),
    "more logits": lambda path: rewritten(path, logits=np.ones((3, 2), dtype=np.float32)),
    "sizes below 0": lambda path: rewritten(path, words=np.array([3, -1])),
    "unknown kind": lambda path: rewritten(path, kind=np.array("ranking")),
    "unknown class": lambda path: rewritten(path, gold=np.array([0, 2])),
    "another number of classes": lambda path: rewritten(path, labels=np.array(["a", "b", "c"])),
    "regression with two numbers": lambda path: rewritten(path, kind=np.array("regression")),
    "not finite": lambda path: rewritten(path, logits=np.full((2, 2), np.nan)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_predictions_are_one_line_that_names_the_file(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "test.npz"
    save_predictions(path, STORED[0])
    DAMAGE[damage](path)
    with pytest.raises(WorkError, match=r"test\.npz is damaged; restore it"):
        load_predictions(path)


def test_predictions_that_the_system_does_not_give_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    path = tmp_path / "test.npz"
    save_predictions(path, STORED[0])
    monkeypatch.setattr(np, "load", refused)
    with pytest.raises(WorkError, match=r"test\.npz cannot be read \(Too many open files\)"):
        load_predictions(path)


def test_no_rows_of_words_are_damage(tmp_path: Path) -> None:
    save_predictions(tmp_path / "test.npz", STORED[3])
    nothing = np.empty((0, 2), dtype=np.float32), np.empty(0, dtype=int), np.empty(0, dtype=np.str_)
    names = {"logits": nothing[0], "words": nothing[1], "gold": nothing[1], "gold_words": nothing[1], "ids": nothing[2]}
    rewritten(tmp_path / "test.npz", **names)
    with pytest.raises(WorkError, match="damaged"):
        load_predictions(tmp_path / "test.npz")


def test_more_words_predicted_than_a_row_has_are_damage(tmp_path: Path) -> None:
    save_predictions(tmp_path / "test.npz", STORED[3])
    rewritten(tmp_path / "test.npz", gold=np.array([0, 1, 2, 2, 0]), gold_words=np.array([1, 4]))
    with pytest.raises(WorkError, match="damaged"):
        load_predictions(tmp_path / "test.npz")


def test_no_answer_that_a_row_has_not_is_predicted_and_what_is_not_finite_is_told() -> None:
    assert STORED[2].predictions.labels == [1, 2]
    broken = made("classification", [[np.nan, 1]], [0], ["no", "yes"])
    with pytest.raises(WorkError, match="not finite"):
        score(broken.predictions, [0], broken)
    with pytest.raises(WorkError, match="not finite"):
        score(made("regression", [[-np.inf]], [0.0], []).predictions, [0.0], broken)
    with pytest.raises(RequestError, match="finished"):
        load_predictions(Path("nowhere.npz"))


@pytest.mark.parametrize(
    ("kind", "rows", "alike"),
    [
        ("regression", [np.array([2.5]), np.array([2.5 + 1e-6])], True),
        ("regression", [np.array([2.5]), np.array([2.5 + 1e-5])], False),
        ("regression", [np.array([2.5]), np.array([2.6])], False),
        ("classification", [np.array([1.0, 0.0, 0.0])], False),  # a single row
        ("token", [np.eye(3)[[0, 0]], np.eye(3)[[0]]], True),
        ("token", [np.eye(3)[[0, 0]], np.eye(3)[[1]]], False),
        ("choice", [np.array([1.0, 0.0])] * 2, False),
    ],
)
def test_rows_answered_alike_are_noticed(kind: Kind, rows: list[np.ndarray], alike: bool, tmp_path: Path) -> None:
    gold: list[Label] = [[0] * len(row) if kind == "token" else 0 for row in rows]
    metric = "pearson" if kind == "regression" else "accuracy"
    these = Stored(Predictions(kind, rows, None), [str(n) for n in range(len(rows))], gold, ["O", "B", "I"], (metric,))
    save_predictions(tmp_path / "test.npz", these)
    end = {f"test_{metric}": METRICS[metric](gold, these.predictions.labels, these.labels)}
    assert check_own(tmp_path, end) == (["test"] if alike else [])
