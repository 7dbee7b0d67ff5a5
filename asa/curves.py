"""Numbers of a run as TensorBoard reads them, written at once and without a thread of one's own.

torch's SummaryWriter hands them to a thread, which a full disk ends with a traceback and for good, and which a signal
may find asleep for minutes.
"""

import io
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

_HEAD = "events.out.tfevents."
FORMAT = "brain.Event:2"  # which TensorBoard looks for at the head of a file


class Curves:
    """One event file in a folder that is made for it. Raises: OSError, in every call, where the system refuses; what
    was written before stays readable, and so does what is written after."""

    def __init__(self, folder: Path, purge: int | None) -> None:
        """Args: purge, the step from which on TensorBoard is to drop what earlier files in the folder hold."""
        folder.mkdir(parents=True, exist_ok=True)
        # They are read in the order of their names: two of one second need it as well, and a clock that went back.
        names = (re.match(rf"{_HEAD}(\d+)\.(?:(\d{{6,}})\.)?", path.name) for path in folder.iterdir())
        found = [(int(name[1]), int(name[2] or 0)) for name in names if name]
        second = max([int(time.time()), *(second for second, _ in found)])
        order = f"{second:010d}.{max([0, *(number for _, number in found)]) + 1:06d}"
        self._path = folder / f"{_HEAD}{order}.{socket.gethostname()}.{os.getpid()}"
        start = SessionLog(status=SessionLog.START)
        self._append([] if purge is None else [Event(wall_time=time.time(), step=purge, session_log=start)])

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """A point of each curve."""
        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._append([Event(wall_time=time.time(), step=step, summary=Summary(value=points))])

    def _append(self, events: list[Event]) -> None:
        self._path.parent.mkdir(exist_ok=True)  # which somebody may have removed, to see new curves alone
        records = io.BytesIO()
        writer = RecordWriter(records)
        with self._path.open("ab", buffering=0) as file:
            if not os.fstat(file.fileno()).st_size:
                events = [Event(wall_time=time.time(), file_version=FORMAT), *events]
            for event in events:
                writer.write(event.SerializeToString())
            _append_whole(file, records.getvalue())


def _append_whole(file: BinaryIO, data: bytes) -> None:
    """All of it or nothing: behind a record by half TensorBoard reads no more of a file."""
    before = os.fstat(file.fileno()).st_size
    try:
        left = memoryview(data)
        while left:  # a disk that gets full takes a part without a word
            left = left[file.write(left) :]
    except OSError:
        file.truncate(before)
        raise
