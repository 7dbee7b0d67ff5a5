"""The command line of the benchmarks, before any of them is imported."""

import signal
import subprocess
import sys
from importlib import import_module

import pytest

from benchmarks.__main__ import COMMANDS, command


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_a_function_that_says_what_it_does(name: str) -> None:
    word = name.replace("-", "_")
    assert command(name).__doc__ == getattr(import_module(f"benchmarks.{word}"), word).__doc__ != ""


def test_help_waits_for_no_torch() -> None:
    program = "import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('benchmarks', run_name='__main__')"
    program = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[0].startswith("usage: python -m benchmarks {flops|traffic|step-time|")
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
