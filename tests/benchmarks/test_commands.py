"""The command line of the benchmarks, before any of them is imported."""

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from asa.errors import WorkError
from benchmarks import commands
from benchmarks.__main__ import COMMANDS, command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_a_function_that_says_what_it_does(name: str) -> None:
    word = name.replace("-", "_")
    assert command(name).__doc__ == getattr(import_module(f"benchmarks.{word}"), word).__doc__ != ""


def test_help_waits_for_no_torch() -> None:
    program = "import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('benchmarks', run_name='__main__')"
    program = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[0].startswith("usage: python -m benchmarks {flops|traffic|kernel-time|step-time|")
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_a_command_is_run() -> None:
    command = [sys.executable, "-m", "benchmarks", "reader", "--nope", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: unknown key 'nope'; --help lists all keys\n")


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_exit_in_order_unless_it_is_ignored(stop: signal.Signals) -> None:
    program = "import os, signal\nfrom benchmarks.__main__ import end_in_order\n{before}\nend_in_order()\n"
    program += f"try:\n    os.kill(os.getpid(), {int(stop)})\n    print('goes on')\nfinally:\n    print('in order')\n"
    ignored = f"signal.signal({int(stop)}, signal.SIG_IGN)"
    for before, code, said in (("", 128 + stop, "in order\n"), (ignored, 0, "goes on\nin order\n")):
        command = [sys.executable, "-c", program.format(before=before)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (code, said)


WAITING = """
import multiprocessing, subprocess, sys, time
import benchmarks.__main__
benchmarks.__main__.GRACE = 2
benchmarks.__main__.end_in_order()
if __name__ == "__main__":
    lasting = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    lasting.start()
    command = ["sh", "-c", sys.argv[1] + "sleep 600 & echo $!; wait"]
    print(subprocess.Popen(command, stdout=subprocess.PIPE).stdout.readline())
    print(lasting.pid, flush=True)
    lasting.join()
"""


@pytest.mark.parametrize("heeds", ["", "trap '' TERM; "])
def test_a_signal_ends_what_is_waited_for_and_what_nobody_waits_for(heeds: str, tmp_path: Path) -> None:
    """Python waits for a process of multiprocessing before its own end, however long that works."""
    (tmp_path / "waiting.py").write_text(WAITING)
    command = [sys.executable, str(tmp_path / "waiting.py"), heeds]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        assert process.stdout is not None
        below = [psutil.Process(int(process.stdout.readline().strip(b"b'n\\\n"))) for _ in range(2)]
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert psutil.wait_procs(below, timeout=60)[1] == []


def program(text: str) -> list[str]:
    return [sys.executable, "-c", f"import os, pathlib, signal, sys, time\n{text}"]


def leave(lines: str, path: Path) -> subprocess.Popen[bytes]:
    """Start a program, and leave it once it has made a file."""
    made = f"pathlib.Path({str(path)!r}).touch()"
    with commands.started(program(f"{lines}\n{made}\ntime.sleep(600)")) as (process, _):
        while not path.exists():
            time.sleep(0.02)
    return process


def test_a_command_left_early_is_asked_to_end(tmp_path: Path) -> None:
    answer = f"time.sleep(0.5), pathlib.Path({str(tmp_path / 'asked')!r}).touch(), sys.exit(3)"
    process = leave(f"signal.signal(signal.SIGTERM, lambda *_: ({answer}))", tmp_path / "begun")
    assert process.returncode == 3
    assert (tmp_path / "asked").exists()


def test_a_command_that_does_not_end_is_made_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "GRACE", 0.2)
    process = leave("signal.signal(signal.SIGTERM, signal.SIG_IGN)", tmp_path / "begun")
    assert process.returncode == -signal.SIGKILL


def test_what_a_command_prints() -> None:
    text = "sys.stdout.buffer.write(b'\\xff'); print(os.environ['SAID'], file=sys.stderr)"
    assert commands.printed(program(text), {"SAID": "so"}) in (
        "\N{REPLACEMENT CHARACTER}so\n",
        "so\n\N{REPLACEMENT CHARACTER}",
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("print('error: no luck'); sys.exit(3)", "no luck"),
        ("sys.exit(1)", ".* -c .*"),
        ("print('so far', flush=True); os.kill(os.getpid(), signal.SIGKILL)", "so far"),
    ],
)
def test_a_command_that_fails_is_told_by_its_last_line_and_so_is_one_that_is_killed(text: str, why: str) -> None:
    with pytest.raises(WorkError, match=rf"(?s)^a run failed: {why}$"):
        commands.printed(program(text))
