"""The record of a run survives being killed and resumed."""

import json
from pathlib import Path

import pytest
import torch

from asa import record
from asa.record import Record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record killed after step 4, in the middle of a line."""
    made = Record(tmp_path, {"seed": 3})
    for step in (1, 2, 3, 4):
        made.log("train", step, {"loss": 1 / step, "masked_share": [0.5, 0.25]})
    made.close()
    with (tmp_path / record.NAME).open("a") as file:
        file.write('{"event": "train", "step": 5, "lo')
    return tmp_path / record.NAME


def steps(path: Path) -> list[int]:
    return [event["step"] for event in record.read(path) if event["event"] == "train"]


def test_read_gives_events_in_order_without_a_torn_last_line(path: Path) -> None:
    events = record.read(path)
    assert events[0] == {"event": "start", "seed": 3}
    assert events[2] == {"event": "train", "step": 2, "loss": 0.5, "masked_share": [0.5, 0.25]}
    assert steps(path) == [1, 2, 3, 4]


def test_read_of_no_file_is_empty(tmp_path: Path) -> None:
    assert record.read(tmp_path / "none.jsonl") == []


def test_resuming_drops_what_came_after_the_checkpoint(path: Path) -> None:
    resumed = Record(path.parent, {"seed": 99}, resume=2)
    assert steps(path) == [1, 2]
    resumed.log("train", 3, {"loss": 9.0})
    resumed.end({"seconds": 1.0})
    assert steps(path) == [1, 2, 3]
    assert [event["seed"] for event in record.read(path) if event["event"] == "start"] == [3]
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()][-1] == "end"


def test_resuming_a_finished_run_makes_it_unfinished(path: Path) -> None:
    made = Record(path.parent, {}, resume=4)
    made.end({})
    assert record.finished(path)
    Record(path.parent, {}, resume=4).close()
    assert not record.finished(path)


def test_a_fresh_record_replaces_the_old_one(path: Path) -> None:
    Record(path.parent, {"seed": 5}).close()
    assert record.read(path) == [{"event": "start", "seed": 5}]


def test_only_a_record_with_an_end_line_is_finished(path: Path) -> None:
    assert not record.finished(path)
    assert not record.finished(path.parent / "none.jsonl")


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    silent = Record(tmp_path / "run", {}, active=False)
    silent.log("train", 1, {"loss": 1.0})
    silent.end({})
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_plain(tmp_path: Path) -> None:
    found = record.numbers({"loss": torch.tensor(0.5), "share": torch.tensor([0.25, 1.0])})
    assert json.dumps(found) == '{"loss": 0.5, "share": [0.25, 1.0]}'


def test_the_environment_names_what_a_reader_needs() -> None:
    found = record.environment()
    assert found["torch"] == torch.__version__
    assert all(found[name] for name in ("python", "device", "system", "transformers"))
