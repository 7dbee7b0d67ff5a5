"""The runner that survives kills: workspace and parts, in this process and as real processes."""

import json
import multiprocessing.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

import interrupts
from asa import manifest
from asa.errors import RequestError, WorkError
from data_prep.parts import Part, run
from data_prep.workspace import Workspace, discard, workspace
from tests import stopping
from tests.data_prep.conftest import content, dump_xml, page_xml, prose
from tests.refusing import refuse_place

MADE_FROM = {"settings": 1}


def write(task: int, folder: Path) -> dict[str, int]:
    (folder / f"{task}.txt").write_text(f"part {task}")
    return {"task": task}


def write_unless_even(task: int, folder: Path) -> dict[str, int]:
    write(task, folder)
    if task % 2 == 0:
        raise WorkError(f"no {task}")
    return {"task": task}


def die(task: int, folder: Path) -> dict[str, int]:
    os._exit(task + 3)


def parts(count: int) -> list[Part]:
    return [Part(f"{number:03d}", 10, number) for number in range(count)]


def finish(space: Workspace, work: object = write, workers: int = 1, count: int = 4) -> list[dict[str, int]]:
    facts = space.run("stage", work, parts(count), space.out, workers)  # type: ignore[arg-type]
    manifest.write(space.out, "documents", {})
    return facts


@pytest.mark.parametrize("workers", [1, 2])
def test_facts_come_in_order_and_out_appears_whole(tmp_path: Path, workers: int) -> None:
    with workspace(tmp_path / "out", MADE_FROM, overwrite=False) as space:
        assert [fact["task"] for fact in finish(space, workers=workers)] == [0, 1, 2, 3]
        assert not (tmp_path / "out").exists()
    assert set(content(tmp_path / "out")) == {"manifest.json", *(f"{n}.txt" for n in range(4))}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_re_run_does_only_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(WorkError, match="no 2"), workspace(out, MADE_FROM, overwrite=False) as space:
        space.run("stage", write_unless_even, parts(4)[1:], space.out, 1)
    done = tmp_path / "out.partial" / "out" / "1.txt"
    assert done.read_text() == "part 1"
    before = done.stat().st_mtime_ns
    with workspace(out, MADE_FROM, overwrite=False) as space:
        finish(space)
        assert done.stat().st_mtime_ns == before
    assert len(content(out)) == 5


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_the_workspaces_name_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    root = tmp_path / "out.partial"
    root.mkdir()
    for name in ("thesis.txt", "lock"):
        (root / name).write_text("years of work")
    with pytest.raises(RequestError, match="no unfinished work"), workspace(tmp_path / "out", MADE_FROM, overwrite):
        pass
    assert content(root) == dict.fromkeys(("thesis.txt", "lock"), b"years of work")


def test_a_foreign_folder_with_settings_of_its_own_is_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "out.partial"
    root.mkdir()
    (root / "settings.json").write_text('{"editor": "dark"}')
    (root / "thesis.txt").write_text("years of work")
    before = content(root)
    with pytest.raises(RequestError, match="no unfinished work"), workspace(tmp_path / "out", MADE_FROM, True):
        pass
    assert content(root) == before


def test_a_part_whose_file_was_cut_is_done_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(WorkError), workspace(out, MADE_FROM, overwrite=False) as space:
        space.run("stage", write_unless_even, parts(3)[1:], space.out, 1)
    (tmp_path / "out.partial" / "out" / "1.txt").write_text("p")
    with workspace(out, MADE_FROM, overwrite=False) as space:
        finish(space)
    assert (out / "1.txt").read_text() == "part 1"


def test_a_parts_files_and_their_folder_are_on_disk_before_it_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut leaves a mark of files that are not there."""
    into, marks, forced = tmp_path / "out", tmp_path / "marks", list[str]()

    def note(path: Path) -> None:
        forced.append(path.name if not (marks / "000.json").exists() else "too late")

    monkeypatch.setattr("data_prep.parts.fsync", note)
    run("stage", write, parts(1), into=into, marks=marks, workers=1)
    assert forced[:2] == ["0.txt", "out"]


def test_nothing_stays_where_nothing_was_finished(tmp_path: Path) -> None:
    with pytest.raises(WorkError), workspace(tmp_path / "out", MADE_FROM, overwrite=False) as space:
        finish(space, write_unless_even)
    assert not list(tmp_path.iterdir())


def test_work_from_other_settings_is_kept_until_discarded(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(WorkError), workspace(out, MADE_FROM, overwrite=False) as space:
        space.run("stage", write_unless_even, parts(3)[1:], space.out, 1)
    with (
        pytest.raises(RequestError, match=r"out\.partial is unfinished work.*--overwrite true"),
        workspace(out, {"settings": 2}, overwrite=False),
    ):
        pass
    discard(out, {"settings": 2})
    assert (tmp_path / "out.partial" / "out" / "1.txt").exists()
    with workspace(out, {"settings": 2}, overwrite=True) as space:
        assert not list(space.out.iterdir())
        finish(space)
    assert len(content(out)) == 5


def test_what_a_kill_after_publishing_leaves_is_discarded(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with workspace(out, MADE_FROM, overwrite=False) as space:
        finish(space)
        shutil.copytree(space.root, tmp_path / "copy")
    shutil.move(tmp_path / "copy", tmp_path / "out.partial")
    discard(out, MADE_FROM)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_kill_after_publishing_leaves_does_not_end_a_later_replacement(tmp_path: Path) -> None:
    out, left = tmp_path / "out", tmp_path / "out.partial" / "old"
    out.mkdir()
    (out / "first").touch()
    with workspace(out, MADE_FROM, overwrite=False) as space:
        left.mkdir()
        (left / "of a killed attempt").touch()
        (space.out / "second").touch()
    assert [path.name for path in out.iterdir()] == ["second"]
    assert not left.parent.exists()


def test_what_stood_there_is_back_where_the_new_folder_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "first").touch()
    refuse_place(monkeypatch, OSError(28, "No space left on device"))
    with pytest.raises(WorkError, match="run the same command again"), workspace(out, MADE_FROM, False) as space:
        finish(space)
    assert [path.name for path in out.iterdir()] == ["first"]
    monkeypatch.undo()
    with workspace(out, MADE_FROM, overwrite=False) as space:
        finish(space, work=die)
    assert (out / "0.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_only_one_run_at_a_time(tmp_path: Path) -> None:
    with workspace(tmp_path / "out", MADE_FROM, overwrite=False) as space:
        with pytest.raises(RequestError, match="another run"), workspace(tmp_path / "out", MADE_FROM, overwrite=False):
            pass
        finish(space)


def test_a_dead_worker_is_one_line_not_a_hang(tmp_path: Path) -> None:
    with (
        pytest.raises(WorkError, match=r"0 of 4 parts of stage finished.*--workers below 2"),
        workspace(tmp_path / "out", MADE_FROM, overwrite=False) as space,
    ):
        finish(space, die, workers=2)
    assert not multiprocessing.active_children()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="--out"), workspace(tmp_path / "file" / "out", MADE_FROM, overwrite=False):
        pass


# As real processes, on a dump of a dozen parts.


@pytest.fixture(scope="module")
def big_dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "wiki.xml"
    pages = (page_xml(f"P{n}", f"'''{n}''' {{{{x}}}} [[a|{prose(n, 2_000)}]]", n) for n in range(1_200))
    path.write_text(dump_xml(*pages))
    return path


@pytest.fixture(scope="module")
def expected(big_dump: Path) -> dict[str, bytes]:
    out = big_dump.parent / "expected"
    assert subprocess.run(command(big_dump, out, workers=1), capture_output=True).returncode == 0
    files = content(out)
    assert len(files) > 10
    return files


def command(dump: Path, out: Path, workers: int = 2) -> list[str]:
    words = ["-m", "data_prep", "text", dump, "--out", out, "--workers", workers]
    return [sys.executable, *map(str, words)]


def start(dump: Path, out: Path, owner: str, name: str) -> subprocess.Popen[str]:
    """A run by two workers that stops itself right after the parent's first call of a function; the workers go on."""
    return subprocess.Popen(
        stopping.command(owner, name, 1, command(dump, out)),
        start_new_session=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    )


PART = ("data_prep.parts:_Progress", "add")
# After a part, another one, all parts, and in the clearing up after publishing.
POINTS = (PART, PART, ("asa.manifest", "write"), ("data_prep.workspace", "_clear"))


def heed_ctrl_c() -> None:
    """A shell lets its background jobs ignore SIGINT, and with them what they start: the tests may be one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finished_parts(out: Path) -> int:
    return len(list(out.with_name(f"{out.name}.partial").glob("marks/*/*.json")))


def group_is_gone(group: int) -> bool:
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def kill_again_and_again(dump: Path, out: Path, times: int, expected: dict[str, bytes]) -> None:
    """Kill the parent alone with SIGKILL at POINTS of a run, its workers thereby at random ones, then finish with
    another number of workers."""
    chance, killed = random.Random(times), 0
    for owner, name in islice(cycle(POINTS), times):
        process = start(dump, out, owner, name)
        if stopping.stopped(process):  # else so many parts had been finished that none was left to stop after
            time.sleep(chance.uniform(0, 0.3))
            process.kill()
            killed += 1
        process.wait()
        assert group_is_gone(process.pid), "workers outlived their parent"
        if out.exists():
            assert content(out) == expected
            shutil.rmtree(out)
    assert killed
    last = subprocess.run(command(dump, out, workers=3), capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    assert content(out) == expected
    assert not out.with_name(out.name + ".partial").exists()


def test_sigkill_twice_and_the_same_bytes(big_dump: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    kill_again_and_again(big_dump, tmp_path / "out", 2, expected)


@pytest.mark.reliability
def test_sigkill_at_twenty_points_and_the_same_bytes(
    big_dump: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    kill_again_and_again(big_dump, tmp_path / "out", 20, expected)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_is_one_line_and_resumable(
    number: signal.Signals, big_dump: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    process = start(big_dump, out, *PART)
    assert stopping.stopped(process)
    for each in (number, signal.SIGCONT):
        os.killpg(process.pid, each)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    line = said.strip().splitlines()[-1]
    assert "interrupted with" in line
    assert "run the same command again" in line
    assert group_is_gone(process.pid)
    kept = finished_parts(out)
    assert kept >= 1
    assert subprocess.run(command(big_dump, out), capture_output=True).returncode == 0
    assert content(out) == expected


def test_a_signal_that_another_thread_hears_breaks_no_start_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    starts, sent, started = threading.Event(), threading.Event(), list[int]()

    def send() -> None:  # from a thread that was there before the main thread's mask
        starts.wait(60)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        sent.set()

    def begin(*arguments: Any) -> int:  # a worker is there and waits for what it is to do
        process = real(*arguments)
        if any("spawn_main" in str(word) for word in arguments[1]):  # not multiprocessing's own helper
            started.append(process)
            starts.set()
            assert sent.wait(60)
        return process

    real = multiprocessing.util.spawnv_passfds
    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", begin)
    threading.Thread(target=send, daemon=True).start()
    before = signal.signal(signal.SIGTERM, interrupts.interrupt)
    try:
        with pytest.raises(WorkError, match="interrupted with 0 of 4 parts"):
            run("stage", write, parts(4), into=tmp_path / "into", marks=tmp_path / "marks", workers=2)
    finally:
        signal.signal(signal.SIGTERM, before)
    for process in started:
        with suppress(ChildProcessError):  # its end was seen
            os.waitpid(process, 0)
    assert capfd.readouterr().err == ""


def test_a_signal_is_kept_to_the_end_of_all_that_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_phase", "works")
    done: list[str] = []

    def nested() -> None:
        with interrupts.held():
            with interrupts.held():
                interrupts.interrupt(signal.SIGTERM, None)
            done.append("all")

    def twice() -> None:
        with interrupts.held():
            interrupts.interrupt(signal.SIGTERM, None)
            interrupts.interrupt(signal.SIGTERM, None)

    def failing() -> None:
        with interrupts.held():
            interrupts.interrupt(signal.SIGTERM, None)
            raise OSError

    for work, error in ((nested, KeyboardInterrupt), (twice, KeyboardInterrupt), (failing, OSError)):
        with pytest.raises(error):
            work()
        with interrupts.held():
            pass  # nothing is left of it
    assert done == ["all"]


def test_a_thread_that_has_not_begun_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [*real(), threading.Thread()])  # as a queue's, for a moment
    facts = run("stage", write, parts(2), into=tmp_path / "into", marks=tmp_path / "marks", workers=2)
    assert len(facts) == 2


def test_sigterm_before_the_parts_is_one_line() -> None:
    work = "import os, signal; import cli; cli.main = lambda *_: os.kill(os.getpid(), signal.SIGTERM)"
    command = [sys.executable, "-c", f"{work}; from data_prep.__main__ import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == "error: interrupted; run the same command again to go on\n"


def test_a_full_disk_is_one_line_and_resumable(big_dump: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    out = tmp_path / "out"
    most = sorted(len(data) for name, data in expected.items() if name != manifest.NAME)[3]
    limited = subprocess.run(
        command(big_dump, out),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )
    assert limited.returncode == 1
    (line,) = limited.stderr.strip().splitlines()
    assert "File too large" in line
    assert "run the same command again" in line
    assert not out.exists()
    assert subprocess.run(command(big_dump, out), capture_output=True).returncode == 0
    assert content(out) == expected


def test_where_not_a_byte_can_be_written_one_line_says_so_and_nothing_stays(big_dump: Path, tmp_path: Path) -> None:
    limited = subprocess.run(
        command(big_dump, tmp_path / "out"),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert limited.returncode == 1
    (line,) = limited.stderr.strip().splitlines()
    assert "out is not made: [Errno 27] File too large; mend it and run the same command again" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),  # of tokenizers
    ],
)
def test_a_full_disk_is_failed_work_whichever_library_meets_it(error: Exception, tmp_path: Path) -> None:
    with (
        pytest.raises(WorkError, match=r"out is not made: .*No space left on device.*run the same command again"),
        workspace(tmp_path / "out", MADE_FROM, overwrite=False),
    ):
        raise error
    assert not list(tmp_path.iterdir())


def test_a_bug_in_a_workspace_keeps_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), workspace(tmp_path / "out", MADE_FROM, overwrite=False):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_finished_folder_says_so_and_other_settings_are_refused(big_dump: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(big_dump, out, *PART)
    assert stopping.stopped(process)
    process.kill()
    process.wait()
    assert group_is_gone(process.pid)
    other = subprocess.run([*command(big_dump, out), "--min_chars", "50"], capture_output=True, text=True)
    assert other.returncode == 2
    assert "--overwrite true" in other.stderr
    made = json.loads((tmp_path / "out.partial" / "settings.json").read_text())
    assert made["made from"]["shard"] == "0/1"
