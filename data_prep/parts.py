"""Work cut into parts: a part's files appear whole or not at all, and a re-run goes on from the finished ones.

Which parts there are follows from input and settings alone, so any number of workers and any number of kills give the
same bytes. In the folder `marks` stand
    NAME.json   a finished part: its files with their bytes, its facts; written after the files
    NAME.PID/   the files of a part in the making
"""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tqdm import tqdm

import interrupts
from asa.errors import WorkError
from asa.places import FULL, fsync
from streams import bar

Facts = dict[str, Any]
# Gets a part's task and an empty folder, writes the part's files there under their final names, returns its facts
# (plain JSON). It runs in a spawned process, so it is a function of a module or a functools.partial of one.
Work = Callable[[Any, Path], Facts]
_POLL_SECONDS = 1.0
_END_SECONDS = 5.0  # that a pool's thread has for its end

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Part(NamedTuple):
    """One unit of work: `name` is unique within its stage, `size` its share of the progress (bytes of input)."""

    name: str
    size: int
    task: Any


def run(stage: str, work: Work, parts: Sequence[Part], *, into: Path, marks: Path, workers: int) -> list[Facts]:
    """Do the parts that are not done yet on `workers` processes (1: in this one); the facts of all, in their order.

    Args: stage names the work on the progress bar and in messages; into gets the files.
    Raises: what `work` raises; WorkError when interrupted, when a worker dies or the disk is full.
    """
    marks.mkdir(parents=True, exist_ok=True)
    into.mkdir(parents=True, exist_ok=True)
    for unfinished in (path for path in marks.iterdir() if path.is_dir()):
        shutil.rmtree(unfinished)
    todo = [part for part in parts if not _is_done(marks / f"{part.name}.json", into)]
    progress = _Progress(stage, parts, todo)
    one = partial(_do, work, marks, into)
    with progress.bar:
        try:
            _run_here(one, todo, progress) if workers == 1 else _run_spawned(one, todo, workers, progress)
        except KeyboardInterrupt:
            raise WorkError(f"interrupted with {progress}; run the same command again to go on") from None
        except BrokenProcessPool:
            advice = f"run again, with --workers below {workers}"
            raise WorkError(f"a worker process died (often: out of memory) with {progress}; {advice}") from None
        except OSError as error:
            if error.errno in FULL:  # which names no file
                told = f"{into} cannot be written: {error.strerror}, with {progress}; free some space"
                raise WorkError(f"{told} and run the same command again to go on") from None
            raise WorkError(f"{error}, with {progress}; mend it and run the same command again to go on") from None
    return [json.loads((marks / f"{part.name}.json").read_text())["facts"] for part in parts]


def write_whole(path: Path, text: str) -> None:
    """Put a file in place by one rename."""
    partial_path = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial_path.write_text(text)
    fsync(partial_path)
    partial_path.rename(path)
    fsync(path.parent)


def _is_done(mark: Path, into: Path) -> bool:
    if not mark.is_file():
        return False
    files = json.loads(mark.read_text())["files"]
    return all((into / name).is_file() and (into / name).stat().st_size == size for name, size in files.items())


def _do(work: Work, marks: Path, into: Path, part: Part) -> Part:
    # The process id keeps a re-run apart from a worker that has not yet noticed its parent's death.
    scratch = marks / f"{part.name}.{os.getpid()}"
    scratch.mkdir()
    facts = work(part.task, scratch)
    files = {path.name: path.stat().st_size for path in sorted(scratch.iterdir())}
    for name in files:
        fsync(scratch / name)
        (scratch / name).rename(into / name)
    fsync(into)
    write_whole(marks / f"{part.name}.json", json.dumps({"files": files, "facts": facts}))
    scratch.rmdir()
    return part


def bytes_bar(what: str, total: int, done: int = 0) -> tqdm:
    """A progress bar of bytes, with rate and time left, for what takes more than five seconds."""
    return bar(what, total, "B", initial=done, unit_scale=True, delay=5)


class _Progress:
    """The bar (bytes of input, rate, time left) and, as text, how many parts are finished."""

    def __init__(self, stage: str, parts: Sequence[Part], todo: Sequence[Part]) -> None:
        self.stage, self.all, self.done = stage, len(parts), len(parts) - len(todo)
        total = sum(part.size for part in parts)
        self.bar = bytes_bar(stage, total, total - sum(part.size for part in todo))

    def add(self, part: Part) -> None:
        self.done += 1
        self.bar.update(part.size)

    def __str__(self) -> str:
        return f"{self.done} of {self.all} parts of {self.stage} finished"


def _run_here(one: Callable[[Part], Part], todo: Sequence[Part], progress: _Progress) -> None:
    for part in todo:
        progress.add(one(part))


def _run_spawned(one: Callable[[Part], Part], todo: Sequence[Part], workers: int, progress: _Progress) -> None:
    others, threads = active_children(), threading.enumerate()
    # Spawned, because forking a process that runs tokenizer or Arrow threads can deadlock.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_follow_parent)
    try:
        # A worker whose start is broken off tells so in a traceback; the mask below keeps no other thread from hearing.
        with interrupts.held():
            # Workers inherit the mask: Ctrl-C, which a terminal sends to all, is the parent's to act on.
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            waiting: set[Future[Part]] = {pool.submit(one, part) for part in todo}
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        while waiting:
            finished, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                progress.add(future.result())
            progress.bar.update(0)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        # All is done, or what is not done is not wanted; by itself a worker frees its tables for a second or two.
        for child in set(active_children()) - set(others):
            child.kill()
            child.join()
        # The pool's own, which see their workers die: at the end of the program they would find their pipes closed.
        # One that has not begun yet is a queue's, whose end the pool's thread waits for.
        for thread in set(threading.enumerate()) - set(threads):
            if thread.is_alive():
                thread.join(_END_SECONDS)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _follow_parent() -> None:
    """End with the parent: a killed one cannot tell its workers to stop."""

    def follow() -> NoReturn:
        parent = parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
