"""Several processes of one group, for tests."""

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

from torch._C._distributed_c10d import TCPStore

ON_CPU = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
FORKS = multiprocessing.get_context("forkserver")
# What ranks take seconds to import; DeepSpeed's optimizers import the last, and with it torch's compiler.
PRELOADED = ["torch", "deepspeed", "transformers.models.bert.modeling_bert"]
PRELOADED += ["deepspeed.runtime.zero.muon.original_muon"]
FORKS.set_forkserver_preload(PRELOADED)


def run_ranks(world: int, module: str, *args: object, timeout: float, cuda: bool = False) -> str:
    """What `python -m MODULE ARGS` prints as so many processes of one thread, all of which must end well."""
    words = [module, *map(str, args)]
    return _launched(world, words, timeout) if cuda else _forked(world, words, timeout)


def _launched(world: int, words: list[str], timeout: float) -> str:
    """By torch's launcher. Standalone, it keeps the port that it was given by the system."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", str(world), "-m", *words]
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _forked(world: int, words: list[str], timeout: float) -> str:
    """From a process that has imported torch and DeepSpeed, for a CPU, already; they meet as torch's launcher has it.
    How an interpreter with all of that ends is seen in tests/launch, not here."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(world)}
    meet |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "LOCAL_WORLD_SIZE": str(world)}
    with mock.patch.dict(os.environ, ON_CPU):
        forkserver.ensure_running()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{rank}.{kind}" for rank in range(world) for kind in ("out", "err")]
        ranks: list[Any] = []
        try:
            for rank in range(world):
                variables = dict(os.environ) | ON_CPU | meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(FORKS.Process(target=_rank, args=(words, variables, *paths[2 * rank : 2 * rank + 2])))
                ranks[-1].start()
            ended = _ended(ranks, timeout)
        finally:  # also where the test is interrupted
            for rank in ranks:
                rank.kill()
                rank.join()
        texts = [path.read_text() if path.exists() else "" for path in paths]
    told = "\n".join(text[-3000:] for text in texts[1::2])
    assert ended, f"no end after {timeout} s\n{told}"
    assert (codes := [rank.exitcode for rank in ranks]) == [0] * world, f"exit codes {codes}\n{told}"
    return "".join(texts[::2])


def _ended(ranks: list[Any], timeout: float) -> bool:
    """Waits until all have ended, or one has failed, for which the others may wait; False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while any(rank.is_alive() for rank in ranks) and not any(rank.exitcode for rank in ranks):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _rank(words: list[str], variables: dict[str, str], out: Path, err: Path) -> None:
    gc.freeze()  # what was imported: ZeRO 3 asks for a collection of everything whenever an engine is made
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which a forked process does not do by itself
