"""Two machines for real: two network namespaces with addresses of their own, joined by a virtual cable.

Each starts its own part of one run by the deepspeed launcher. They train, stop, fail and resume together.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from asa import checkpoint, record
from asa.config import save_yaml
from pretrain.config import PretrainConfig
from tests.pretrain.conftest import model, request_, shards

__all__ = ["model", "request_", "shards"]  # fixtures

pytestmark = pytest.mark.reliability

ADDRESSES = ("10.213.77.1", "10.213.77.2")
STEPS = 120


def ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check)


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Names of two network namespaces that reach each other and nothing else."""
    if shutil.which("ip") is None:
        pytest.skip("needs the program ip (iproute2)")
    names = [f"asa-{os.getpid()}-{letter}" for letter in "ab"]
    made = ip("netns", "add", names[0], check=False)
    if made.returncode:
        pytest.skip(f"network namespaces are not allowed here: {made.stderr.strip()}")
    try:
        ip("netns", "add", names[1])
        ends = [f"asa{os.getpid()}{letter}" for letter in "ab"]
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            ip("-n", name, "link", "set", end, "name", "eth0")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            for pid in ip("netns", "pids", name, check=False).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", name, check=False)


Part = subprocess.Popen[str]
Start = Callable[[Path], list[Part]]


@pytest.fixture
def start(machines: list[str], request_: PretrainConfig, tmp_path: Path) -> Start:
    """Start both machines' parts of a run into this folder, one process each."""
    config, hosts = tmp_path / "run.yaml", tmp_path / "hosts"
    save_yaml(replace(request_, steps=STEPS, save_every=10, eval_every=STEPS, micro_batch=2), config)
    hosts.write_text("".join(f"{address} slots=1\n" for address in ADDRESSES))

    cores = sorted(os.sched_getaffinity(0))

    def start_(out: Path) -> list[Part]:
        settings = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "eth0"}
        flags = ["--config", str(config), "--out", str(out), "--hostfile", str(hosts), "--node_rank"]
        command = [sys.executable, "-m", "launch", "pretrain", *flags]
        return [
            subprocess.Popen(
                # A core for each: a launcher takes all that it sees for its threads.
                ["ip", "netns", "exec", name, "taskset", "-c", str(cores[node % len(cores)]), *command, str(node)],
                env=settings,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for node, name in enumerate(machines)
        ]

    return start_


def end(parts: list[Part], timeout: float = 600) -> list[tuple[int, str]]:
    """Exit code and output of each part."""
    said = [part.communicate(timeout=timeout)[0] for part in parts]
    return [(part.returncode, text) for part, text in zip(parts, said, strict=True)]


def wait_for_checkpoint(parts: list[Part], out: Path, after: int) -> int:
    """The newest complete step once it is beyond `after`."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        found = checkpoint.complete(out / "checkpoints")
        step = int(found[-1].name.removeprefix("step-")) if found else 0
        if step > after:
            return step
        assert [part.poll() for part in parts] == [None, None], "the run ended too early"
        time.sleep(0.05)
    raise AssertionError(f"no checkpoint after step {after} in ten minutes")


def processes_of(machine: str) -> list[psutil.Process]:
    return [psutil.Process(int(pid)) for pid in ip("netns", "pids", machine).stdout.split()]


def test_two_machines_train_stop_fail_and_resume_as_one_undisturbed_run(
    start: Start, machines: list[str], tmp_path: Path
) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    assert [code for code, _ in end(start(calm))] == [0, 0]
    started = json.loads((calm / record.NAME).read_text().splitlines()[0])
    assert started["processes"] == 2

    # The second machine, rank 0 not on it, is asked to stop: both save, and say so.
    parts = start(rough)
    reached = wait_for_checkpoint(parts, rough, 0)
    parts[1].send_signal(signal.SIGTERM)
    (first, text), (second, _) = end(parts)
    assert (first, second) == (128 + signal.SIGTERM, 128 + signal.SIGTERM), text
    stopped = re.search(r"stopped at step (\d+)", text)
    assert stopped, text
    reached = int(stopped[1])
    assert checkpoint.complete(rough / "checkpoints")[-1].name == f"step-{reached}"

    # The second machine loses its power: the first ends in bounded time, with a failure.
    parts = start(rough)
    reached = wait_for_checkpoint(parts, rough, reached)
    for process in processes_of(machines[1]):
        process.kill()
    (first, text), _ = end(parts, timeout=600)
    assert first == 1, text
    assert [process for machine in machines for process in processes_of(machine)] == []

    # Of the second machine only the launcher is killed: its rank is asked to stop all the same.
    parts = start(rough)
    reached = wait_for_checkpoint(parts, rough, reached)
    parts[1].kill()
    (first, text), _ = end(parts, timeout=600)
    assert first == 128 + signal.SIGTERM, text

    (first, text), (second, _) = end(start(rough))
    assert (first, second) == (0, 0), text
    expected, found = (load_file(out / "checkpoints" / f"step-{STEPS}" / "model.safetensors") for out in (calm, rough))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
