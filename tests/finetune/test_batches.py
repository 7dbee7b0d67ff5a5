"""Tokenizing, batches, and how the processes of a run share them."""

import weakref
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch
from asa.errors import RequestError
from asa.losses import divergence, task_loss
from asa.methods import METHODS, At
from asa.tokenizer import for_words, load_tokenizer
from finetune.model import build, engine_of
from finetune.predictions import predict
from finetune.run import Run
from finetune.tasks.batches import Encoded, _visible, encode, evaluation_batches, steps_per_epoch, training_rows, window
from finetune.tasks.ragged import Ragged
from finetune.tasks.task import Kind, Split
from tests.finetune.conftest import WORDS, Make, small_task

KINDS: tuple[Kind, ...] = ("classification", "regression", "token", "choice")


def encoded(kind: Kind, folder: Path, length: int = 16, rows: int = 24) -> Encoded:
    return encode(kind, small_task(kind, rows).splits["train"], load_tokenizer(folder, "-"), length)


@pytest.fixture(scope="module")
def train(model_folder: Path) -> Encoded:
    return encoded("classification", model_folder)


def test_rows_become_ids_of_the_models_own_tokenizer(train: Encoded) -> None:
    split = small_task("classification").splits["train"]
    for row in (0, 3):
        words = str(split.texts[row][0]).split()
        expected = [WORDS.index(word) for word in ["[CLS]", *words, "[SEP]"]]
        assert train.columns["input_ids"][row].tolist() == expected
    assert train.gold == split.labels


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_cut_to_length(kind: Kind, model_folder: Path) -> None:
    cut = encoded(kind, model_folder, 8)
    assert cut.lengths.max() == 8
    ids = torch.cat([column.flatten() for column in cut.columns["input_ids"]])
    assert (ids == WORDS.index("[SEP]")).sum() >= len(cut)


def test_words_that_are_cut_off_have_no_mark_and_those_that_vanish_have_one(model_folder: Path) -> None:
    tokenizer = load_tokenizer(model_folder, "-")
    split = Split(["0", "1"], [("a", " ", "red"), (*"abcdefgh", "red")], [[0, 1, 2], [0] * 8 + [2]])
    found = encode("token", split, tokenizer, 8)
    assert found.labels is not None
    marks = [[mark for mark in labels.tolist() if mark != IGNORE] for labels in found.labels]
    assert marks == [[0, 1, 2], [0] * 6]
    assert found.columns["input_ids"][0].tolist()[2] == WORDS.index("[UNK]")


def test_words_are_cut_off_at_the_end_whatever_side_the_tokenizer_cuts_at(model_folder: Path) -> None:
    tokenizer = load_tokenizer(model_folder, "-")
    tokenizer.truncation_side = "left"
    found = encode("token", Split(["0"], [tuple("abcdefghi")], [list(range(9))]), tokenizer, 8)
    assert found.labels is not None
    assert [mark for mark in found.labels[0].tolist() if mark != IGNORE] == [0, 1, 2, 3, 4, 5]
    assert tokenizer.truncation_side == "left"


def test_answers_that_a_row_does_not_have_change_nothing(make: Make, still_model: Path) -> None:
    """Loss, divergence and predictions of rows with two answers, alone and beside rows with three."""
    data = encoded("choice", still_model)
    assert data.answers == [2 + row % 2 for row in range(24)]
    module, _ = build(Run("small", "tiny", "vanilla", 0), make(models={"tiny": still_model}), small_task("choice"))
    alone, both = data.batch([0, 2]), data.batch([0, 2, 1])
    assert [tuple(batch.inputs["input_ids"].shape[:2]) for batch in (alone, both)] == [(2, 2), (3, 3)]
    assert [batch.total_rows for batch in (alone, both)] == [4, 7]
    assert both.pad_BL.all(1).tolist() == [False, False, True, False, False, True, False, False, False]
    first, second = module(alone), module(both)
    torch.testing.assert_close(second.log_probs[:2, :2], first.log_probs)
    assert (second.log_probs[:2, 2].exp() == 0).all()
    moved = replace(second, logits=second.logits * 2)
    assert 0 < divergence(second, moved, both, ASAConfig())["asa"] < 1
    for size in (1, 24):
        found = predict(module, data, size, torch.device("cpu"))
        assert {row.shape for row in found.logits} == {(3,)}
        assert np.isneginf([row[2] for row in found.logits]).tolist() == [True, False] * 12
        assert found.loss == pytest.approx(task_loss(module(data.batch(range(24))), data.batch(range(24))).item())


@pytest.mark.parametrize("pre", ["alone", "behind another"])
def test_byte_level_tokenizers_read_each_word_with_its_space(tmp_path: Path, pre: str) -> None:
    letters = {"<unk>": 0, **{letter: 1 + n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}}
    core = Tokenizer(
        models.BPE(vocab={**letters, "Ġred": 300, "Ġr": 301, "ed": 302}, merges=[("Ġ", "r"), ("e", "d"), ("Ġr", "ed")])
    )
    step = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = step if pre == "alone" else pre_tokenizers.Sequence([pre_tokenizers.Digits(), step])  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", pad_token="<unk>").save_pretrained(tmp_path / "a")
    given = load_tokenizer(tmp_path / "a", "-")
    found = encode("token", Split(["0"], [("red", "red")], [[0, 1]]), given, 8)
    assert found.columns["input_ids"][0].tolist() == [300, 300]
    assert given("red")["input_ids"] != [300]
    for_words(given).save_pretrained(tmp_path / "b")
    assert load_tokenizer(tmp_path / "b", "-")("red")["input_ids"] == [300]


def test_a_batch_is_padded_to_its_longest_row_and_marks_padding(train: Encoded) -> None:
    batch = train.batch([0, 4])
    lengths = [len(train.columns["input_ids"][row]) for row in (0, 4)]
    assert batch.inputs["input_ids"].shape == (2, max(lengths))
    assert batch.pad_BL.sum(1).tolist() == [max(lengths) - length for length in lengths]
    assert (batch.inputs["input_ids"][batch.pad_BL] == WORDS.index("[PAD]")).all()


@pytest.mark.parametrize("buckets", [True, False])
def test_an_epoch_holds_every_row_once_and_one_batch_is_smaller(train: Encoded, buckets: bool) -> None:
    steps = steps_per_epoch(len(train), 10)
    batches = [training_rows(train, 10, 3, step, buckets) for step in range(steps)]
    assert sorted(len(rows) for rows in batches) == [4, 10, 10]
    assert sorted(chain(*(rows.tolist() for rows in batches))) == list(range(24))


def spaced(rows: int) -> Encoded:
    """Rows of all lengths."""
    ids = {"input_ids": Ragged.of([[0] * (1 + n) for n in range(rows)])}
    return Encoded("classification", ids, {"input_ids": 0}, labels=None, gold=None, answers=[])


def test_the_short_batch_is_of_any_length_since_its_rows_weigh_more() -> None:
    data = spaced(68)
    short = [next(rows for rows in data.order(16, 0, epoch, True) if len(rows) == 4) for epoch in range(50)]
    assert 25 < data.lengths[np.concatenate(short)].mean() < 45  # of all: 34.5
    assert len({tuple(sorted(rows)) for rows in short}) == 50


def test_buckets_of_a_small_set_do_not_hold_the_same_rows_in_every_epoch() -> None:
    def pairs(epoch: int, seed: int = 0) -> set[frozenset[int]]:
        batches = spaced(400).order(16, seed, epoch, True)
        return {frozenset(pair) for rows in batches for pair in combinations(rows.tolist(), 2)}

    first = pairs(0)
    for other in (pairs(1), pairs(0, seed=1)):
        assert len(first & other) < 0.25 * len(first)


def test_batches_follow_from_seed_and_step_alone(train: Encoded) -> None:
    def rows(seed: int, step: int) -> list[int]:
        return training_rows(train, 8, seed, step, True).tolist()

    late_first = rows(0, 5), rows(0, 0)
    other = replace(train)  # which remembers no epoch
    assert (training_rows(other, 8, 0, 0, True).tolist(), training_rows(other, 8, 0, 5, True).tolist()) == late_first[
        ::-1
    ]
    assert len({(*rows(seed, step), *rows(seed, step + 1)) for seed in (0, 1) for step in (0, 3)}) == 4


def test_the_order_of_batches_is_forgotten_with_its_rows(train: Encoded) -> None:
    copy = replace(train)
    training_rows(copy, 8, 0, 0, True)
    kept = weakref.ref(copy)
    del copy
    assert kept() is None


def test_rows_of_like_length_share_a_batch(model_folder: Path) -> None:
    train = encoded("classification", model_folder, rows=96)

    def padding(buckets: bool) -> int:
        batches = [train.batch(training_rows(train, 4, 0, step, buckets)) for step in range(24)]
        return int(sum(batch.pad_BL.sum() for batch in batches))

    assert padding(True) < padding(False) / 2
    orders = [training_rows(train, 4, seed, 0, True).tolist() for seed in range(8)]
    assert len({train.lengths[rows].max() for rows in orders}) > 2  # not the shortest first


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.lists(st.integers(0, 23), min_size=1, max_size=24, unique=True),
    micro=st.integers(1, 9),
    world=st.integers(1, 4),
)
def test_the_parts_of_a_step_add_up_to_it(
    model_folder: Path, kind: Kind, rows: list[int], micro: int, world: int
) -> None:
    data = CACHE.setdefault(kind, encoded(kind, model_folder))
    whole = data.batch(rows)
    parts = [window(data, np.array(rows), micro, rank, world) for rank in range(world)]
    assert len({len(slots) for slots in parts}) == 1
    real = [batch for slots in parts for batch in slots if batch.total_rows == whole.total_rows]
    assert all(batch.total_labels == whole.total_labels for batch in real)
    assert all(len(batch.labels) <= micro for slots in parts for batch in slots)
    assert sum(len(batch.labels) for batch in real) == len(rows)
    empty = [batch for slots in parts for batch in slots if batch.total_rows != whole.total_rows]
    assert all(len(batch.labels) == 1 and batch.total_rows == batch.total_labels == 2**60 for batch in empty)


CACHE: dict[str, Encoded] = {}


def test_losses_of_the_parts_add_up_to_that_of_the_step(make: Make, still_model: Path) -> None:
    for kind in KINDS:
        data = encoded(kind, still_model)
        module, _ = build(Run("small", "tiny", "vanilla", 0), make(models={"tiny": still_model}), small_task(kind))
        rows = np.arange(7)
        whole = task_loss(module(data.batch(rows)), data.batch(rows))
        parts = [batch for rank in range(3) for batch in window(data, rows, 2, rank, 3)]
        assert len(parts) == 6
        assert sum(float(task_loss(module(batch), batch).detach()) for batch in parts) == pytest.approx(
            whole.item(), rel=1e-5
        )


def test_the_loss_of_a_split_does_not_depend_on_how_many_rows_are_predicted_at_once(
    make: Make, still_model: Path
) -> None:
    for kind in KINDS:
        data = encoded(kind, still_model)
        module, _ = build(Run("small", "tiny", "vanilla", 0), make(models={"tiny": still_model}), small_task(kind))
        whole, parts = (predict(module, data, size, torch.device("cpu")).loss for size in (24, 7))
        assert parts == pytest.approx(whole, rel=1e-5)


def test_predictions_are_those_of_the_model_without_dropout(make: Make, model_folder: Path) -> None:
    data = encoded("classification", model_folder)
    module, _ = build(Run("small", "tiny", "vanilla", 0), make(), small_task("classification"))
    first, second = (predict(module.train(), data, 8, torch.device("cpu")).logits for _ in range(2))
    assert all(np.array_equal(*rows) for rows in zip(first, second, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_without_rows_of_its_own_adds_nothing(method: str, make: Make, still_model: Path) -> None:
    config = make(models={"tiny": still_model}, methods=[method])
    data, trained = encoded("classification", still_model), METHODS[method](config)
    module, _ = build(Run("small", "tiny", method, 0), config, small_task("classification"))
    engine = engine_of(config, module, 1)
    (nothing,) = window(data, np.array([5]), 8, 1, 2)
    (something,) = window(data, np.array([5]), 8, 0, 2)

    def gradients(batch: Batch) -> dict[str, Any]:
        torch.manual_seed(0)
        terms = trained.backward(engine, batch, At(0, 0))
        found = {name: p.grad.abs().max().item() for name, p in module.named_parameters() if p.grad is not None}
        module.zero_grad()
        assert all(torch.isfinite(term).all() for term in terms.values())
        return found

    real, none = gradients(something), gradients(nothing)
    assert real.keys() == none.keys()
    assert all(value < 1e-12 for value in none.values())
    assert max(real.values()) > 1e-4


def test_evaluation_sees_every_row_once_whatever_the_batch_size(train: Encoded) -> None:
    seen = [(rows, batch) for rows, batch in evaluation_batches(train, 7)]
    assert sorted(chain(*(rows.tolist() for rows, _ in seen))) == list(range(24))
    assert [batch.total_labels for _, batch in seen] == [7, 7, 7, 3]
    unlabelled = replace(train, labels=None, gold=None)
    assert sum(len(batch.labels) for _, batch in evaluation_batches(unlabelled, 7)) == 24


def test_words_of_which_a_tokenizer_leaves_nothing_keep_their_places_whichever_chunk_they_are_in(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.tasks.batches.CHUNK", 2)
    words = ("a", " ", "b", "c", "\u2003", "red")
    split = Split(["0"], [words], [[0] * len(words)])
    ((row,), lost) = _visible(split, load_tokenizer(model_folder, "--models.tiny"))
    assert row == ["a", "[UNK]", "b", "c", "[UNK]", "red"]
    assert lost == {" ", "\u2003"}
    assert [encode("token", split, load_tokenizer(model_folder, "--models.tiny"), at).unread for at in (4, 9)] == [1, 2]


def test_words_without_a_token_are_counted_in_every_chunk_of_rows(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.tasks.batches.CHUNK", 2)
    rows = [("a", "b"), ("", "b"), ("a", "", "red", ""), ("a",), ("b", " ")]
    split = Split([str(n) for n in range(5)], rows, [[0] * len(row) for row in rows])
    assert encode("token", split, load_tokenizer(model_folder, "-"), 16).unread == 4


@pytest.mark.parametrize(("kept", "instead"), [({"unk_token": "<unk>"}, 0), ({"mask_token": "<mask>"}, 1), ({}, None)])
def test_a_word_without_a_token_is_the_unknown_one_or_the_mask(kept: dict[str, str], instead: int | None) -> None:
    letters = {letter: 2 + n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab={"<unk>": 0, "<mask>": 1, **letters}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="a", **kept)
    split = Split(["0"], [("", "b")], [[0, 1]])
    if instead is None:
        with pytest.raises(RequestError, match=r"leaves nothing of the word ''.*by --models"):
            encode("token", split, tokenizer, 8)
    else:
        assert encode("token", split, tokenizer, 8).columns["input_ids"][0][0] == instead


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_however_many_texts_a_tokenizer_gets_at_once(
    kind: Kind, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoded(kind, model_folder)
    monkeypatch.setattr("finetune.tasks.batches.CHUNK", 5)
    parts = encoded(kind, model_folder)
    assert parts.cut == whole.cut
    for (_, one), (_, two) in zip(evaluation_batches(whole, 7), evaluation_batches(parts, 7), strict=True):
        assert torch.equal(one.labels, two.labels)
        assert one.inputs.keys() == two.inputs.keys()
        assert all(torch.equal(column, two.inputs[name]) for name, column in one.inputs.items())
