"""What a run tells may be lost; the run may not."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from io import BytesIO, FileIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

import streams
from streams import lasting_output


@pytest.fixture
def unread() -> Generator[int]:
    """The end of a pipe to write to, whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_nobody_reads_is_dropped(name: str, unread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = os.fdopen(unread, "w", closefd=False)
    monkeypatch.setattr(sys, name, stream)
    with lasting_output():
        print("at once", file=getattr(sys, name), flush=True)
        print("buffered", file=getattr(sys, name))
    assert getattr(sys, name) is stream
    stream.close()  # as the interpreter does: nothing is left that would fail
    os.write(unread, b"C++ libraries, or children")


def test_a_full_disk_is_no_success_of_what_prints() -> None:
    code = "import cli; cli.main({'show': lambda argv: print('found')}, 'prog', ['show'])"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        ends = code.replace("cli.main", "try: cli.main").replace("import cli; ", "import cli, os\n")
        ends += "\nexcept SystemExit as end: os._exit(end.code + 6)"
        untold = subprocess.run([sys.executable, "-c", ends], stdout=full, stderr=full, check=False)
    assert (done.returncode, done.stderr.count("\n"), untold.returncode) == (1, 1, 7)
    assert done.stderr.startswith("error: the disk was too full for the output")


def test_no_more_is_a_file_that_reached_its_limit(tmp_path: Path) -> None:
    code = "import cli; cli.main({'show': lambda argv: print('found ' * 1000)}, 'prog', ['show'])"
    words = ["bash", "-c", f'ulimit -f 4; exec "{sys.executable}" -B -c "$0" > "{tmp_path}/out"', code]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "larger than ulimit -f allows" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_written_at_once(unbuffered: str) -> None:
    """Or those of processes that share a file are mixed. A packet is what was written in one go."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = "import cli; cli.main({'show': lambda argv: print('one\\ntwo', 3, flush=True)}, 'prog', ['show'])"
    settings = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    subprocess.run([sys.executable, "-c", code], stdout=writer.fileno(), env=settings, check=True)
    writer.close()
    assert [reader.recv(100) for _ in "ab"] == [b"one\ntwo 3\n", b""]


def test_unbuffered_each_line_is_told_when_it_ends() -> None:
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lines = "print('one'); print('two'); print('three', end=''); sys.stdout.writelines([' of', ' four\\n'])"
    code = f"import sys; from streams import lasting_output\nwith lasting_output(): {lines}"
    subprocess.run([sys.executable, "-u", "-c", code], stdout=writer.fileno(), check=True)
    writer.close()
    assert [reader.recv(100) for _ in "abcd"] == [b"one\n", b"two\n", b"three of four\n", b""]


def test_a_thread_may_write_when_the_last_line_is_told() -> None:
    """It was inside of what was taken apart: a segmentation fault."""
    code = (
        "import sys, threading; from streams import lasting_output\n"
        "def chat():\n while True: print('x', file=sys.stderr)\n"
        "for _ in range(100):\n"
        " with lasting_output():\n"
        "  if not _: threading.Thread(target=chat, daemon=True).start()\n"
        "  print('y')\n"
    )
    words = [sys.executable, "-u", "-c", code]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    assert (done.returncode, done.stdout) == (0, 100 * b"y\n")


def test_a_signal_ends_what_waits_for_a_reader() -> None:
    code = (
        "import signal, sys, cli\n"
        "signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))\n"
        "def show(argv):\n while True: print('x' * 99)\n"
        "cli.main({'show': show}, 'prog', ['show'])\n"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=writer, stderr=subprocess.DEVNULL)
    try:
        fill(reader, process)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        os.close(reader)
        os.close(writer)


def fill(pipe: int, writer: "subprocess.Popen[bytes]") -> None:
    """Wait until a process has filled a pipe, or the rest of a test says nothing. How many bytes that are depends on
    the sizes of its writes, which with Python 3.13 leave 12 KiB of 64: it is when no more come."""
    before, found, until = 0, 0, time.monotonic() + 60
    while found < fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 2 or found != before:
        assert writer.poll() is None
        assert time.monotonic() < until
        time.sleep(0.2)
        before, found = found, unread_bytes(pipe)


def unread_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"0000"), sys.byteorder)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_does_not_block_loses_nothing_while_it_is_full(unbuffered: str) -> None:
    code = "import cli; cli.main({'show': lambda argv: [print(n, 'x' * 99) for n in range(2000)]}, 'prog', ['show'])"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    settings = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writer, env=settings)
    os.close(writer)
    fill(reader, process)
    with open(reader, "rb") as told:
        assert told.read() == b"".join(b"%d %s\n" % (n, 99 * b"x") for n in range(2000))
    assert process.wait(60) == 0


def test_a_pipe_that_ceases_to_block_is_not_given_up() -> None:
    """As a child that shares it may make it; and what a parent has so is given back so."""
    code = (
        "import os, sys; from streams import lasting_output\n"
        "with lasting_output():\n"
        " os.set_blocking(1, False)\n"
        " for n in range(3000): print(n, 'x' * 99)\n"
        " print('the end')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    fill(process.stdout.fileno(), process)
    assert process.stdout.read().endswith(b"the end\n")
    assert process.wait(60) == 0
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    subprocess.run(
        [sys.executable, "-c", "from streams import *\nwith lasting_output(): pass"], stdout=writer, check=True
    )
    assert not os.get_blocking(writer)
    os.close(reader)
    os.close(writer)


def test_a_descriptor_may_be_closed_meanwhile() -> None:
    code = (
        "import os; from streams import lasting_output\n"
        "with lasting_output():\n"
        " os.close(1); print('nowhere'); print('again')\n"
        " assert os.readlink('/proc/self/fd/1') == '/dev/null'\n"
    )
    subprocess.run([sys.executable, "-u", "-c", code], check=True, stdout=subprocess.PIPE)


class Filling(FileIO):
    """A disk on which there is room for five bytes more."""

    writes = 0

    def write(self, b: Any) -> int:
        self.writes += 1
        if self.writes == 2:
            raise OSError(errno.ENOSPC, "no room")
        return super().write(b[:5] if self.writes == 1 else b)


def test_a_disk_that_fills_within_a_line_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unbuffered, a write may be one of a part."""
    unbuffered = TextIOWrapper(Filling(tmp_path / "out", "w"), write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stdout", unbuffered)
    with lasting_output() as streams:
        print("hello world", flush=True)
    assert [stream.full for stream in streams] == [True, False]
    assert (tmp_path / "out").read_bytes() == b"hello"
    assert sys.stdout is unbuffered
    for held in (unbuffered, streams[0]):
        print("it is open still", file=held)


def test_what_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="ascii"))
    with lasting_output():
        print("Zürich")
    assert written.getvalue() == b"Z\\xfcrich\n"


def test_there_may_be_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with lasting_output():
        print("nowhere")
    assert sys.stdout is None


BAR = (
    "import streams; streams.SELDOM = {seldom}\n"
    "with streams.bar('work', 3, 'step') as bar: bar.update(); bar.write('said'); bar.update(2)"
)


@pytest.mark.parametrize(("seldom", "states"), [(0, ["0/3", "1/3", "3/3", "3/3"]), (30, ["0/3", "3/3"])])
def test_without_a_terminal_a_bar_tells_its_states_in_lines(seldom: int, states: list[str]) -> None:
    """What passes the output of other machines on keeps what has no end of a line."""
    done = subprocess.run(
        [sys.executable, "-c", BAR.format(seldom=seldom)], capture_output=True, check=True, stdin=subprocess.DEVNULL
    )
    assert done.stdout == b"said\n"
    assert b"\r" not in done.stderr
    assert [line.rsplit("| ", 1)[1].split()[0] for line in done.stderr.decode().splitlines()] == states


@pytest.mark.parametrize("size", [(24, 80), (0, 0)])
def test_on_a_terminal_a_bar_is_redrawn(size: tuple[int, int]) -> None:
    """Of a size that it does not tell, too."""
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, size)
    subprocess.run([sys.executable, "-c", BAR.format(seldom=30)], stdout=writer, stderr=writer, check=True)
    os.close(writer)
    shown = os.read(reader, 10000)
    os.close(reader)
    assert shown.count(b"\rwork") >= 2
    assert b"said" in shown


def test_a_bar_takes_a_stream_that_only_says_it_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    with streams.bar("work", 3, "step") as bar:
        bar.update(3)
    assert "work: 100%" in shown.getvalue()


@pytest.mark.parametrize("bar", ["streams.bar('work', 3, 'step')", "tqdm(total=3, mininterval=0, disable=None)"])
def test_a_bar_without_stderr_shows_nothing(bar: str) -> None:
    used = "bar.update(3); bar.write('said')"
    code = f"import streams; from tqdm import tqdm\nwith streams.lasting_output(), {bar} as bar: {used}"
    line = f'exec "{sys.executable}" -c "$0" 2>&-'
    done = subprocess.run(["bash", "-c", line, code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("said\n", "")
