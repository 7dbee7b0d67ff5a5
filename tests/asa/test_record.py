"""The record of a run survives being killed and resumed."""

import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asa import record
from asa.errors import NotWritten, RequestError, WorkError
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


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of every scalar, as TensorBoard shows them."""
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(e.step, e.value) for e in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


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


def test_numbers_are_plain() -> None:
    found = record.numbers({"loss": torch.tensor(0.5), "share": torch.tensor([0.25, 1.0])})
    assert json.dumps(found) == '{"loss": 0.5, "share": [0.25, 1.0]}'


def test_the_environment_names_what_a_reader_needs() -> None:
    found = record.environment()
    # What is installed may leave out the build that torch itself names.
    assert torch.__version__.startswith(found["torch"])
    assert all(found[name] for name in ("python", "device", "system", "transformers", "asa-pretrain", "scikit-learn"))


def test_a_processor_is_told_by_its_name_or_else_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of two x86 machines are not to be held against each other."""
    listed = tmp_path / "cpuinfo"
    monkeypatch.setattr(record, "PROCESSORS", listed)
    assert record.processor() in (platform.processor(), platform.machine())
    listed.write_text("processor\t: 0\nmodel name\t: A 100\nflags\t\t: x\nprocessor\t: 1\nmodel name\t: A 100\n")
    assert record.processor() == "A 100"


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_a_checkout_is_named_by_its_commit_and_whether_files_differ_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record.revision(tmp_path) is None
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "a"
    file.write_text("1")
    own = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "a"]):
        subprocess.run([*own, *command], check=True)
    record.revision.cache_clear()
    clean = record.revision(tmp_path)
    file.write_text("2")
    monkeypatch.setenv("GIT_DIR", "/another")  # as in its hooks
    record.revision.cache_clear()
    assert clean is not None
    assert record.revision(tmp_path) == f"{clean}-dirty"


def test_a_run_leaves_the_versions_of_everything_installed(tmp_path: Path) -> None:
    Record(tmp_path, {}).close()
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["cores"] > 0


def test_what_is_not_finite_is_null_and_no_scalar(tmp_path: Path) -> None:
    made = Record(tmp_path, {})
    made.log("train", 1, {"loss": float("nan"), "masked_share": [0.5, float("inf")], "skipped": 1})
    made.end({"test_loss": float("inf")})
    line, end = record.read(tmp_path / record.NAME)[-2:]
    assert end["test_loss"] is None
    assert (line["loss"], line["masked_share"], line["skipped"]) == (None, [0.5, None], 1)
    assert curves(tmp_path) == {"train/masked_share/0": [(1, 0.5)], "train/skipped": [(1, 1.0)]}


def test_curves_keep_the_steps_that_the_lines_keep(path: Path) -> None:
    resumed = Record(path.parent, {}, resume=2)
    resumed.log("train", 3, {"loss": 9.0})
    resumed.close()
    assert steps(path) == [1, 2, 3]
    assert curves(path.parent)["train/loss"] == [(1, 1.0), (2, 0.5), (3, 9.0)]


def test_a_fault_is_a_line_and_no_curve(tmp_path: Path) -> None:
    made = Record(tmp_path, {})
    made.log("fault", 1, {"step": 1, "rank": 0, "rows": [5.0, 7.0]})
    made.log("eval", 1, {"heldout_loss": 2.0})
    made.close()
    assert [event["event"] for event in record.read(tmp_path / record.NAME)] == ["start", "fault", "eval"]
    assert curves(tmp_path) == {"eval/heldout_loss": [(1, 2.0)]}


def test_a_full_disk_is_failed_work_that_names_the_file(tmp_path: Path) -> None:
    made = Record(tmp_path, {})
    made.path.unlink()
    made.path.symlink_to("/dev/full")
    for work in (lambda: made.log("train", 1, {"loss": 1.0}), lambda: made.end({})):
        with pytest.raises(WorkError, match=r"metrics\.jsonl cannot be written: No space left on device; free some"):
            work()
    made.close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "environment.json"])
def test_what_a_full_disk_refuses_at_the_start_leaves_nothing_by_half(tmp_path: Path, name: str) -> None:
    partial = tmp_path / f"{name}.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(WorkError, match=f"{re.escape(name)} cannot be written: No space left"):
        Record(tmp_path, {})
    assert not partial.is_symlink()
    assert not (tmp_path / name).exists()


def test_what_is_in_the_way_is_no_want_of_space(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with pytest.raises(WorkError, match=r"tensorboard cannot be written: File exists; mend that and give the same"):
        Record(tmp_path, {})


def test_a_line_after_a_torn_one_is_not_lost(tmp_path: Path) -> None:
    made = Record(tmp_path, {})
    made.log("train", 1, {"loss": 1.0})
    with made.path.open("a") as file:
        file.write('{"event": "train", "step": 2, "lo')
    made.log("train", 3, {"loss": 1.0})
    made.close()
    assert steps(made.path) == [1, 3]


def test_a_damaged_line_amid_others_is_named(path: Path) -> None:
    path.write_text(path.read_text().replace('"step": 2,', '"step" 2,'))
    with pytest.raises(WorkError, match=r"line 3 of .*metrics\.jsonl is damaged"):
        record.read(path)


@pytest.mark.parametrize("text", [b"\xef\xbb\xbf{0}", b"{0}{0}", b"{0}\n{0", b"{0}\n{0\n "])
def test_a_last_line_with_its_end_is_not_torn(path: Path, text: bytes) -> None:
    """Nor is the only one of a file that an editor has put a mark before: a run that went on would begin it anew."""
    line = path.read_bytes().splitlines()[0]
    path.write_bytes(text.replace(b"{0}", line).replace(b"{0", line[:-1]) + b"\n")
    with pytest.raises(WorkError, match=r"line \d of .*metrics\.jsonl is damaged"):
        record.read(path)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_empty_lines_at_the_end_and_other_ends_of_lines_are_nobodys_loss(path: Path, end: bytes) -> None:
    lines = path.read_bytes().splitlines()[:3]
    path.write_bytes(b"".join(line + end for line in [*lines, b"", b" "]))
    assert record.read(path) == [json.loads(line) for line in lines]
    path.write_bytes(b"".join(line + end for line in [lines[0], b"", lines[1]]))
    with pytest.raises(WorkError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        record.read(path)


def test_brackets_without_end_are_a_damaged_line(path: Path) -> None:
    item = "[" * 100_000
    lines = path.read_text().splitlines(keepends=True)[:3]
    path.write_text("".join([*lines, item]))  # as torn
    assert record.read(path) == [json.loads(line) for line in lines]
    path.write_text("".join([*lines, f"{item}\n", "{}\n"]))
    with pytest.raises(WorkError, match=r"line 4 of .*metrics\.jsonl is damaged"):
        record.read(path)


def test_a_link_to_nothing_is_no_run_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, target in (("gone", "nothing"), ("loop", "loop"), ("below", "file/inside")):
        (tmp_path / name).symlink_to(tmp_path / target)
        with pytest.raises(WorkError, match=rf"{name} is a link to no file; bring that back, or remove the link"):
            record.read(tmp_path / name)


def test_a_term_of_any_shape_that_a_method_gives_can_be_read_and_has_curves(tmp_path: Path) -> None:
    made = Record(tmp_path, {})
    terms = {"by_head": torch.tensor([[0.5, 1.0], [2.0, torch.nan]]), "last": torch.tensor(True)}
    made.log("train", 1, record.numbers(terms))
    made.end({})
    assert record.read(made.path)[1]["by_head"] == [[0.5, 1.0], [2.0, None]]
    assert curves(tmp_path)["train/by_head/1/0"] == [(1, 2.0)]


@pytest.mark.parametrize(
    ("event", "values", "said"),
    [
        ("train", {"masked_share": 0.25}, r"masked_share: input should be a valid list"),
        ("train", {"masked_share": []}, r"masked_share: "),
        ("train", {"split": 0.5}, r"split: "),
        ("train", {"step": 7}, r"step: is the line's own"),
        ("eval", {"accuracy": [0.5]}, r"accuracy: "),
    ],
)
def test_a_term_whose_name_means_something_else_is_refused_where_it_is_logged(
    tmp_path: Path, event: str, values: dict[str, Any], said: str
) -> None:
    """And not by a reader, when all is trained."""
    made = Record(tmp_path, {})
    with pytest.raises(RequestError, match=rf"has a name that means something else \({said}.*rename it"):
        made.log(event, 1, values)
    assert record.read(made.path) == [{"event": "start"}]


def test_curves_of_one_second_are_read_in_the_order_they_were_made(tmp_path: Path) -> None:
    for step in range(1, 13):
        made = Record(tmp_path, {}, resume=step - 1)
        made.log("train", step, {"loss": float(step)})
        made.log("train", step + 1, {"loss": -1.0})  # lost with what came after its checkpoint
    assert curves(tmp_path)["train/loss"] == [*((step, float(step)) for step in range(1, 13)), (13, -1.0)]


def test_curves_of_a_clock_that_went_back_are_read_in_the_order_they_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Record(tmp_path, {})
    for step in (1, 2, 3):
        made.log("train", step, {"loss": -1.0 if step == 3 else float(step)})
    earlier = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: earlier)
    second = Record(tmp_path, {}, resume=2)
    second.log("train", 3, {"loss": 3.0})
    second.log("train", 4, {"loss": -1.0})
    first, _ = sorted((tmp_path / "tensorboard").iterdir())
    first.unlink()
    second.log("train", 5, {"loss": -1.0})
    made.log("train", 1, {"loss": 1.0})
    made.log("train", 2, {"loss": 2.0})
    Record(tmp_path, {}, resume=3)
    assert curves(tmp_path)["train/loss"] == [(1, 1.0), (2, 2.0), (3, 3.0)]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_told_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "metrics.jsonl")
    with pytest.raises(WorkError, match=r"metrics\.jsonl is no file; remove it"):
        record.read(tmp_path / "metrics.jsonl")


def test_curves_have_no_thread_that_a_signal_or_a_full_disk_could_find(tmp_path: Path) -> None:
    before = threading.active_count()
    made = Record(tmp_path, {})
    made.log("train", 1, {"loss": 1.0})
    assert threading.active_count() == before
    assert curves(tmp_path) == {"train/loss": [(1, 1.0)]}, "what is logged is there, with no wait and no close"


def test_curves_that_the_system_refuses_for_a_while_go_on_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record by half would hide all that comes behind it."""
    told: list[Any] = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: FakeRun(told)))
    made = Record(tmp_path, {}, wandb="tests")
    shares = [0.5] * 9  # which need more room as curves than as a line
    made.log("train", 1, {"share": shares})
    (file,) = (tmp_path / "tensorboard").iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 9, limits[1]))
    try:
        with pytest.raises(NotWritten, match=r"tensorboard cannot be written: File too large"):
            made.log("train", 2, {"share": shares})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    made.log("train", 3, {"share": shares})
    made.end({})
    assert steps(made.path) == [1, 2, 3]
    assert record.finished(made.path)
    assert curves(tmp_path)["train/share/8"] == [(1, 0.5), (3, 0.5)]
    assert [len(found) if isinstance(found, dict) else found for found in told] == [9, 9, 9, 0]


def test_curves_that_somebody_removes_begin_anew(tmp_path: Path) -> None:
    made = Record(tmp_path, {})
    made.log("train", 1, {"loss": 1.0})
    shutil.rmtree(tmp_path / "tensorboard")
    made.log("train", 2, {"loss": 2.0})
    assert curves(tmp_path) == {"train/loss": [(2, 2.0)]}


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (1, {"config": None}, r"config: "),
        (1, {"inputs": []}, r"inputs: "),
        (1, {"event": "train", "step": 1}, r"the record's start is missing before it"),
        (2, {"event": None}, r"event: "),
        (3, {"event": "start"}, r"another record begins there"),
        (1, {"task_facts": None}, r"task_facts: "),
        (1, {"command": []}, r"command: "),
        (1, {"command": None}, r"command: "),
        (4, {"tokens_per_s": []}, r"tokens_per_s: "),
        (4, {"event": "failed", "error": "x", "step": "4"}, r"step: "),
        (4, {"event": "of a method", "step": None}, r"step: "),
        (-1, {"test_accuracy": "high"}, r"test_accuracy"),
        (-1, {"step": 0.5}, r"step: "),
        (1, {"step": -1}, r"step: "),
        (-1, {"two\nlines": "x"}, r"two lines"),
    ],
)
def test_a_line_that_no_run_writes_is_named(path: Path, line: int, change: dict[str, Any], said: str) -> None:
    Record(path.parent, {}, resume=4).end({"test_accuracy": 0.5})
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    number = line % (len(lines) + 1)
    lines[number - 1] |= change
    path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    with pytest.raises(WorkError, match=rf"line {number} of .*metrics\.jsonl is damaged \({said}.*restore the file"):
        record.read(path)


def test_bytes_that_are_no_utf8_are_a_damaged_line_and_a_torn_one_at_the_end(path: Path) -> None:
    whole, lines = record.read(path), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines) + b'{"event": "train", "note": "\xc3')  # half of a character
    assert record.read(path) == whole
    path.write_bytes(b"".join([lines[0], lines[1].replace(b'"step"', b'"st\xffp"'), *lines[2:]]))
    with pytest.raises(WorkError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        record.read(path)


def test_the_steps_of_an_event(path: Path) -> None:
    resumed = Record(path.parent, {}, resume=2)
    assert resumed.steps("train") == {1, 2}
    assert resumed.steps("eval") == set()
    resumed.close()


def test_weights_and_biases_gets_the_same_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    made = Record(tmp_path, {"seed": 3}, wandb="tests")
    made.log("train", 1, {"loss": 0.5})
    made.end({})
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"train/loss" in log.read_bytes()


class FakeRun:
    """What is asked of a Weights & Biases run, by whoever holds the list."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def log(self, scalars: dict[str, float], step: int) -> None:
        self.told.append(scalars)

    def finish(self, exit_code: int) -> None:
        self.told.append(exit_code)


def test_weights_and_biases_goes_on_where_the_run_does_and_knows_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def init(**settings: Any) -> FakeRun:
        told.append(settings["id"])
        return FakeRun(told)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    Record(tmp_path, {}, wandb="tests").close()
    Record(tmp_path, {}, resume=0, wandb="tests").end({})
    Record(tmp_path, {}, wandb="tests").close()
    first, failed, again, complete, new, _ = told
    assert (first == again, first == new) == (True, False), "a run from the beginning is another one"
    assert (failed, complete) == (1, 0)


def test_weights_and_biases_that_does_not_begin_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise OSError("api_key not configured (no-tty).\ncall wandb.login()")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    with pytest.raises(RequestError, match=r"wandb = tests: api_key not configured .* leave --wandb out"):
        Record(tmp_path, {}, wandb="tests")


def test_the_end_is_on_disk_before_anything_that_relies_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    monkeypatch.setattr(record, "fsync", lambda path: forced.append(path.read_text().splitlines()[-1]))
    lines = Record(tmp_path, {})
    lines.log("train", 1, {"loss": 1.0})
    assert forced == []  # a line costs no wait for the disk
    lines.sync()
    lines.end({})
    assert [json.loads(line)["event"] for line in forced] == ["train", "end"]
    lines.sync()  # closed: nothing
    assert len(forced) == 2
