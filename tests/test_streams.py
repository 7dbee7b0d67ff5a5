"""What a run tells may be lost; the run may not."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from io import BytesIO, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

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
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: the disk was too full for the output")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_written_at_once(unbuffered: str) -> None:
    """Or those of processes that share a file are mixed. A packet is what was written in one go."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = "import cli; cli.main({'show': lambda argv: print('one\\ntwo', 3, flush=True)}, 'prog', ['show'])"
    settings = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    subprocess.run([sys.executable, "-c", code], stdout=writer.fileno(), env=settings, check=True)
    writer.close()
    assert [reader.recv(100) for _ in "ab"] == [b"one\ntwo 3\n", b""]


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
