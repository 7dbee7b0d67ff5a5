"""What a sweep shows while it works: the table off the records, and who prints which line."""

import json
import os
import pty
import re
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from asa.record import NAME
from finetune import live
from finetune.live import Board, Status, _cell, _duration, read
from finetune.run import Cell, Run
from finetune.sweep import sweep
from tests.finetune.conftest import Given, Make

ACCURACY = {"a": "accuracy", "b": "mcc"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time as the table knows it, in seconds: before every record of the test, until it is set."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(time=lambda: found.now))
    return found


@pytest.fixture
def cells(make: Make) -> list[Cell]:
    """Two tasks with two methods and two seeds each."""
    return [Cell(Run(t, "tiny", m, seed), make()) for t in ACCURACY for seed in (0, 1) for m in ("vanilla", "asa")]


def write(cell: Cell, event: str = "", step: int = 0, **values: float | str) -> None:
    """A record as far as an event, of a run that was evaluated before at every second step."""
    lines: list[dict[str, Any]] = [{"event": "eval", "step": at, "dev_accuracy": 0.5} for at in range(2, step, 2)]
    if event:
        lines.append({"event": event, **({} if event == "end" else {"step": step}), **values})
    cell.folder.mkdir(parents=True, exist_ok=True)
    (cell.folder / NAME).write_text("".join(json.dumps(line) + "\n" for line in [{"event": "start"}, *lines]))


def shown(board: Board) -> tuple[list[list[str]], list[str]]:
    """The table's cells row by row, its head first, and the lines below."""
    console = Console(width=120, color_system=None)
    with console.capture() as found:
        console.print(board.render())
    lines = found.get().splitlines()
    rows = [[part.strip() for part in line[1:-1].replace("┃", "│").split("│")] for line in lines if line[0] in "│┃"]
    return rows, [line.strip() for line in lines if line[0] not in "│┃┏┡└"]


def test_it_shows_what_waits_works_has_ended_and_has_failed(cells: list[Cell], clock: SimpleNamespace) -> None:
    board = Board(cells, ACCURACY, [], worker=0)
    empty = [["task", "vanilla", "asa"], ["a (accuracy)", "0/2", "0/2"], ["b (mcc)", "0/2", "0/2"]]
    assert shown(board) == (empty, ["0 of 8 runs"])
    by_name = {cell.run.name: cell for cell in cells}
    write(by_name["a/tiny-vanilla-0"], "end", 4, test_accuracy=0.25, dev_accuracy=0.9)
    write(by_name["a/tiny-vanilla-1"], "end", 4, test_accuracy=0.5)
    write(by_name["a/tiny-asa-0"], "failed", 3, error="lost")
    write(by_name["a/tiny-asa-1"], "train", 7, loss=1.0)
    write(by_name["b/tiny-vanilla-0"])
    write(by_name["b/tiny-vanilla-1"], "end", 4, test_accuracy=0.5, test_mcc=-0.125)
    clock.now = 90.0
    rows, below = shown(board)
    assert rows[1:] == [["a (accuracy)", "2/2  37.5", "0/2  1 failed"], ["b (mcc)", "1/2  -12.5", "0/2"]]
    assert below == ["4 of 8 runs, about 2 min left", "a/tiny-asa-1 step 7", "b/tiny-vanilla-0 step 0"]
    for cell in cells:
        write(cell, "end", 4, test_accuracy=1.0, test_mcc=1.0)
    rows, below = shown(board)
    assert rows[1] == ["a (accuracy)", "2/2  37.5", "1/2  100.0  1 failed"], "what has ended is not read again"
    assert below == ["8 of 8 runs"]


def test_several_models_have_a_row_each(make: Make) -> None:
    cells = [Cell(Run("a", model, "vanilla", 0), make()) for model in ("tiny", "other")]
    rows, _ = shown(Board(cells, {"a": "accuracy"}, [], worker=0))
    assert rows == [["task", "model", "vanilla"], ["a (accuracy)", "tiny", "0/1"], ["a (accuracy)", "other", "0/1"]]


def test_what_earlier_commands_left_is_shown_of_finished_runs_alone(
    cells: list[Cell], clock: SimpleNamespace, make: Make
) -> None:
    kept, left, *_, waits = cells
    write(kept, "end", 4, test_accuracy=0.25)
    write(left, "failed", 3, error="lost")
    clock.now = 2.0 * (left.folder / NAME).stat().st_mtime
    board = Board([kept, left, waits], ACCURACY, [kept], worker=0)
    rows, below = shown(board)
    assert (rows[1], below) == (["a (accuracy)", "1/1  25.0", "0/1"], ["1 of 3 runs"]), "no time of this command's"
    write(left, "train", 2)
    os.utime(left.folder / NAME, (clock.now + 60, clock.now + 60))
    assert shown(board)[1] == ["1 of 3 runs", f"{left.run.name} step 2"]
    write(left, "end", 4, test_accuracy=0.5)
    os.utime(left.folder / NAME, (clock.now + 60, clock.now + 60))
    clock.now += 3600
    assert shown(board)[1] == ["2 of 3 runs, about 1 h 00 min left"], "a run of an hour, and one is to come"


def test_a_record_that_another_process_is_writing_counts_as_far_as_it_is_whole(
    cells: list[Cell], clock: SimpleNamespace
) -> None:
    path = cells[0].folder / NAME
    assert read(path, "accuracy") == Status("none")
    write(cells[0], "train", 5, loss=1.0)
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write('{"event": "end", "test_accuracy": 0.5, "note": "ü'.encode()[:-1])
    assert read(path, "accuracy") == Status("train", 5)
    board = Board(cells, ACCURACY, [], worker=0)
    assert shown(board)[1] == ["0 of 8 runs", f"{cells[0].run.name} step 5"]
    path.write_bytes(whole[:9])
    assert read(path, "accuracy") == Status("none")
    path.write_bytes(whole + b'{"event": "end", "test_accuracy": 0.5}\n')
    assert shown(board)[1] == ["1 of 8 runs, about 1 min left"]


@pytest.mark.parametrize(
    ("values", "main"),
    [
        ({"test_accuracy": 0.25, "dev_accuracy": 0.5}, 0.25),
        ({"dev_accuracy": 0.5}, 0.5),
        ({"test_accuracy": 0.0, "dev_accuracy": 0.5}, 0.0),
        ({"test_f1": 0.5}, None),
    ],
)
def test_the_score_is_that_of_test_or_else_of_dev(cells: list[Cell], values: dict[str, float], main: float) -> None:
    write(cells[0], "end", 4, **values)
    assert read(cells[0].folder / NAME, "accuracy") == Status("end", 2, main)


def test_a_mean_is_of_the_runs_that_have_ended() -> None:
    train, failed = Status("train", 3, 0.9), Status("failed", 3, 0.9)
    assert _cell([train, Status("none")]) == "0/2"
    assert _cell([Status("end", 0, 0.0), Status("end", 5, 0.5), train, failed, failed]) == "2/5  25.0  2 failed"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "1 min"), (89, "1 min"), (91, "2 min"), (3569, "59 min"), (3571, "1 h 00 min"), (90_240, "25 h 04 min")],
)
def test_durations_are_in_minutes_and_hours(seconds: float, told: str) -> None:
    assert _duration(seconds) == told


@pytest.mark.parametrize(
    ("terminal", "worker", "lines"),
    [(False, 0, "run sweep task"), (False, 1, "run task"), (True, 0, "sweep task"), (True, 1, "")],
)
def test_over_a_table_nobody_prints_but_worker_0(
    terminal: bool, worker: int, lines: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    board = Board([], {}, [], worker)
    for told, line in ((board.say, "run"), (board.note, "sweep"), (board.warn, "task")):
        told(line)
    assert capsys.readouterr().out.split() == lines.split()


def drained(source: int, into: list[bytes]) -> None:
    """All that is written to a terminal, until its other end is closed, which Linux tells as an error."""
    try:
        while part := os.read(source, 1 << 16):
            into.append(part)
    except OSError:
        pass


def test_on_a_terminal_a_sweep_draws_its_table(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    ours, theirs = pty.openpty()
    parts: list[bytes] = []
    reader = threading.Thread(target=drained, args=(ours, parts))
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        sweep(given(seeds=[0, 1], max_steps=1))
    reader.join()
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(parts).decode())  # where to, in which style
    assert "colours: train 24, dev 12, test 12" in text
    assert "test_accuracy" not in text, "no line per run beside the table"
    first, last = text.index("┃ task"), text.rindex("│ colours (accuracy)")
    assert "0 of 2 runs" in text[first:last]
    assert "2/2  " in text[last:]
    assert "2 of 2 runs" in text[last:]
