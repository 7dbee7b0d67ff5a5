"""Task folders, tokenizing, batches."""

import json
from pathlib import Path

import pytest
import torch

from asa import hf, manifest
from asa.errors import RequestError, WorkError
from finetune.tasks import folder
from finetune.tasks.batches import Encoded, encode, evaluation_batches, steps_per_epoch, training_batch
from tests.finetune.conftest import WORDS, write_task


@pytest.fixture
def train(task_folder: Path, model_folder: Path) -> Encoded:
    return encode(folder.load(task_folder).splits["train"], hf.load_tokenizer(model_folder, "--models.tiny"), 16)


def test_rows_become_ids_of_the_models_own_tokenizer(task_folder: Path, train: Encoded) -> None:
    split = folder.load(task_folder).splits["train"]
    expected = [WORDS.index(word) for word in ["[CLS]", *split.texts[3].split(), "[SEP]"]]
    assert train.columns["input_ids"][3].tolist() == expected
    assert train.labels_B.tolist() == split.labels


def test_texts_are_cut_to_length(task_folder: Path, model_folder: Path) -> None:
    tokenizer = hf.load_tokenizer(model_folder, "--models.tiny")
    cut = encode(folder.load(task_folder).splits["train"], tokenizer, 8)
    assert max(len(ids) for ids in cut.columns["input_ids"]) == 8
    assert all(ids[-1] == WORDS.index("[SEP]") for ids in cut.columns["input_ids"])


def test_a_batch_is_padded_to_its_longest_row_and_marks_padding(train: Encoded) -> None:
    batch = train.batch([0, 4], total=2)
    lengths = [len(train.columns["input_ids"][row]) for row in (0, 4)]
    assert batch.inputs["input_ids"].shape == (2, max(lengths))
    assert batch.pad_BL.sum(1).tolist() == [max(lengths) - length for length in lengths]
    assert (batch.inputs["input_ids"][batch.pad_BL] == WORDS.index("[PAD]")).all()


def test_an_epoch_holds_every_row_once_and_the_last_batch_is_smaller(train: Encoded) -> None:
    steps = steps_per_epoch(len(train), 10)
    batches = [training_batch(train, 10, seed=3, step=step) for step in range(steps)]
    assert [len(batch.labels) for batch in batches] == [10, 10, 4]
    assert [batch.total_rows for batch in batches] == [10, 10, 4]
    seen = sorted(row for batch in batches for row in _rows(batch.inputs["input_ids"]))
    assert seen == sorted(tuple(ids.tolist()) for ids in train.columns["input_ids"])


def test_batches_follow_from_seed_and_step_alone(train: Encoded) -> None:
    def labels(seed: int, step: int) -> list[int]:
        return training_batch(train, 8, seed, step).labels.tolist()

    late_first = labels(0, 5), labels(0, 0)
    assert (labels(0, 5), labels(0, 0)) == late_first
    orders = {(*labels(seed, step), *labels(seed, step + 1)) for seed in (0, 1) for step in (0, 3)}
    assert len(orders) == 4


def test_evaluation_sees_every_row_once_with_totals_of_the_split(train: Encoded) -> None:
    batches = list(evaluation_batches(train, 7))
    assert sum(len(batch.labels) for batch in batches) == len(train)
    assert {batch.total_labels for batch in batches} == {len(train)}


@pytest.mark.parametrize("label", [3, -1, "1", 1.0, True, None])
def test_a_label_out_of_range_is_named_with_its_line(tmp_path: Path, label: object) -> None:
    task = write_task(tmp_path / "wrong")
    with (task / "dev.jsonl").open("a") as file:
        file.write(json.dumps({"id": "x", "text": "a", "label": label}) + "\n")
    manifest.write(task, "task", {})
    with pytest.raises(RequestError, match=r"dev.jsonl:13: label .* allowed: 0 <= label < 3; .* --task"):
        folder.load(task)


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    task = write_task(tmp_path / "wrong")
    (task / "test.jsonl").write_text('{"id": "1", "text": "a", "label": 0}\n{"id": "2"}\n')
    manifest.write(task, "task", {})
    with pytest.raises(RequestError, match=r"test.jsonl:2: no JSON object with text and label"):
        folder.load(task)


def test_a_task_without_manifest_is_refused(task_folder: Path) -> None:
    (task_folder / manifest.NAME).unlink()
    with pytest.raises(RequestError, match=r"no manifest.json.*--task"):
        folder.load(task_folder)


def test_a_changed_byte_is_found(task_folder: Path) -> None:
    content = (task_folder / "dev.jsonl").read_text()
    (task_folder / "dev.jsonl").write_text(content.replace("red", "rad"))
    with pytest.raises(WorkError, match=r"dev.jsonl is damaged"):
        folder.load(task_folder)


def test_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="kind 'regression', allowed: 'classification'"):
        folder.load(write_task(tmp_path / "other", kind="regression"))


def _rows(ids_BL: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(row[row != 0].tolist()) for row in ids_BL]
