"""Batches are a function of (seed, step): the same for any number of processes and micro-batches."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from asa import manifest
from asa.batch import Batch
from asa.errors import RequestError, WorkError
from pretrain.data import Batches, Order, Rows
from pretrain.masking import Masking

MASKINGS: tuple[Masking, ...] = ("token", "word", "span")


def batches(shards: Path, rank: int = 0, world: int = 1, seed: int = 5, masking: Masking = "token") -> Batches:
    return Batches(shards, seed, global_batch=8, share=0.15, rank=rank, world=world, masking=masking)


def whole_step(
    shards: Path, step: int, slots: int, world: int, seed: int = 5, masking: Masking = "token"
) -> list[Batch]:
    """All micro-batches of a step in the order of their rows."""
    by_rank = [batches(shards, rank, world, seed, masking).step(step, slots) for rank in range(world)]
    return [by_rank[rank][slot] for slot in range(slots) for rank in range(world)]


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize(("slots", "world"), [(2, 1), (1, 2), (2, 2), (4, 2)])
def test_samples_and_masks_do_not_depend_on_how_a_step_is_cut(
    shards: Path, slots: int, world: int, masking: Masking
) -> None:
    (expected,) = whole_step(shards, 3, 1, 1, masking=masking)
    parts = whole_step(shards, 3, slots, world, masking=masking)
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(torch.cat([part.inputs[name] for part in parts]), expected.inputs[name])
    assert torch.equal(torch.cat([part.labels for part in parts]), expected.labels)
    assert {(part.total_rows, part.total_labels) for part in parts} == {(8, len(expected.labels))}


def test_steps_and_seeds_give_other_batches_and_the_same_ones_again(shards: Path) -> None:
    def ids(step: int, seed: int) -> torch.Tensor:
        return whole_step(shards, step, 1, 1, seed)[0].inputs["input_ids"]

    assert torch.equal(ids(0, 5), ids(0, 5))
    assert not torch.equal(ids(0, 5), ids(1, 5))
    assert not torch.equal(ids(0, 5), ids(0, 6))


def test_a_row_is_masked_otherwise_in_every_step(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model would be asked for the same words in every epoch."""
    monkeypatch.setattr(Order, "__call__", lambda self, step: np.arange(self.global_batch))
    one, other = (whole_step(shards, step, 1, 1)[0].positions for step in (0, 1))
    assert one is not None
    assert other is not None
    assert not torch.equal(one, other)


def test_what_was_made_ready_for_another_step_is_never_given(shards: Path) -> None:
    """Forward, back, again, and cut otherwise: as a fresh reader gives it."""
    reader = batches(shards)
    for step, slots in ((0, 1), (1, 1), (1, 1), (0, 2), (5, 2), (6, 1)):
        found, expected = reader.step(step, slots), batches(shards).step(step, slots)
        assert len(found) == len(expected) == slots
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.equal(mine.inputs["input_ids"], theirs.inputs["input_ids"])
            assert torch.equal(mine.labels, theirs.labels)


def test_spans_are_not_words(shards: Path) -> None:
    words, spans = (whole_step(shards, 0, 1, 1, masking=kind)[0] for kind in MASKINGS[1:])
    assert len(words.labels) == len(spans.labels)
    assert not torch.equal(words.inputs["input_ids"], spans.inputs["input_ids"])


def test_every_row_is_read_once_an_epoch_across_steps_that_straddle_epochs() -> None:
    order = Order(rows=7, seed=0, global_batch=4)
    seen = np.concatenate([order(step) for step in range(7)])
    for epoch in range(4):
        assert Counter(seen[7 * epoch : 7 * epoch + 7].tolist()) == Counter(range(7))
    assert not np.array_equal(seen[:7], seen[7:14])


def test_a_batch_larger_than_the_data_reads_it_several_times() -> None:
    assert Counter(Order(rows=3, seed=0, global_batch=7)(0).tolist()).most_common()[-1][1] == 2


def test_labels_are_the_original_tokens_at_their_positions(shards: Path) -> None:
    reader = batches(shards)
    (batch,) = reader.step(2, 1)
    original = torch.from_numpy(reader.train[reader.order(2)].astype(np.int64))
    assert batch.positions is not None
    assert torch.equal(original.flatten()[batch.positions], batch.labels)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_heldout_rows_are_the_same_for_any_number_of_processes(shards: Path, world: int) -> None:
    per_rank = [batches(shards, rank, world).heldout_batches(limit=9, size=4) for rank in range(world)]
    assert len({len(mine) for mine in per_rank}) == 1, "a rank with fewer forwards would hang ZeRO-3"
    labels = sorted(label for mine in per_rank for batch in mine for label in batch.labels.tolist())
    (expected,) = batches(shards).heldout_batches(limit=9, size=9)
    assert labels == sorted(expected.labels.tolist())


def test_heldout_rows_are_of_every_part_of_the_text(shards: Path) -> None:
    """Sources lie one after the other."""
    reader = batches(shards)
    every, some = len(reader.heldout), len(reader.heldout) // 2
    (batch,) = reader.heldout_batches(limit=some, size=some)
    originals = batch.inputs["input_ids"].clone()
    assert batch.positions is not None
    originals.view(-1)[batch.positions] = batch.labels
    expected = reader.heldout[np.array([n * every // some for n in range(some)])]
    assert torch.equal(originals, torch.from_numpy(expected.astype(np.int64)))


def test_heldout_rows_and_their_masks_are_the_same_in_runs_of_other_seeds(shards: Path) -> None:
    """Else their figures would differ by what was masked."""
    one, other = (batches(shards, seed=seed).heldout_batches(limit=9, size=9)[0] for seed in (5, 6))
    assert torch.equal(one.inputs["input_ids"], other.inputs["input_ids"])
    assert torch.equal(one.labels, other.labels)


def test_a_stray_copy_of_a_shard_adds_no_rows(shards: Path, tmp_path: Path) -> None:
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    shutil.copy(copy / "train-00000.arrow", copy / "train-00000-copy.arrow")
    assert len(Rows(copy, "train")) == len(Rows(shards, "train"))


def test_rows_that_are_not_as_many_as_the_manifest_says_are_refused(shards: Path, tmp_path: Path) -> None:
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    facts = manifest.read(copy, "shards", "--data")
    rows = facts["rows"]["train"]
    manifest.write(copy, "shards", {**facts, "rows": {**facts["rows"], "train": rows + 1}})
    with pytest.raises(WorkError, match=rf"has {rows} train rows, of which its manifest\.json says {rows + 1}"):
        Rows(copy, "train")


@pytest.mark.parametrize("other", ["sep", "mask"])
def test_rows_whose_padding_is_another_special_token_are_refused(
    other: str, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = manifest.read(shards, "shards", "--data")
    facts["special_ids"][other] = facts["special_ids"]["pad"]
    monkeypatch.setattr(manifest, "read", lambda *_: facts)
    with pytest.raises(RequestError, match="one id for padding and for the ends of texts or masked tokens; make rows"):
        Batches(shards, 1, 4, 0.15, 0, 1)


def test_rows_are_read_across_arrow_chunks_without_copying_the_file(shards: Path) -> None:
    rows = Rows(shards, "train")
    assert not any(part.flags.owndata for part in rows.parts)
    last = len(rows) - 1
    assert (rows[np.array([last, 0])] == np.stack([rows[np.array([last])][0], rows[np.array([0])][0]])).all()
