"""Rank helpers: two processes know the same after each, an error of one ends both; alone all are the identity."""

import json
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch

from asa import dist
from asa.errors import RequestError, WorkError
from tests.ranks import ON_CPU, run_ranks


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes was told, in the order of ranks."""
    out = tmp_path_factory.mktemp("told")
    run_ranks(2, "tests.asa.dist_worker", out, timeout=200)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def test_each_rank_knows_its_place_and_leaves_it(told: list[dict[str, Any]]) -> None:
    assert [found["place"] for found in told] == [[0, 2, True], [1, 2, False]]
    assert [found["after"] for found in told] == [[False, 1]] * 2


@pytest.mark.parametrize(
    ("what", "known"),
    [
        ("sum", [3.0]),
        ("any", [True, False]),
        ("alike", [True, False]),
        ("gathered", [{"rank": 0}, {"rank": 1}]),
        ("on_main", "made on 0"),
        ("from_main", [5.0]),
        ("store", "said"),
        ("deliberate", ["RequestError", "no such thing"]),
        ("agreed", [["WorkError", "rank 1: not read"], ["WorkError", "not read"], "made"]),
    ],
)
def test_all_ranks_know_the_same(what: str, known: Any, told: list[dict[str, Any]]) -> None:
    assert [found[what] for found in told] == [known, known]


def test_an_unforeseen_error_of_rank_0_is_itself_there_and_failed_work_elsewhere(told: list[dict[str, Any]]) -> None:
    assert told[0]["unforeseen"] == ["KeyError", "'lost'"]
    # By which rank 1 leaves without waiting for rank 0, which has left.
    assert told[1]["unforeseen"] == ["Apart", "rank 0 failed: KeyError('lost')"]


def test_a_rank_that_is_gone_is_told_in_a_line() -> None:
    told = run_ranks(2, "tests.asa.lost_worker", timeout=200)
    assert told == "another rank has ended, which this one waited for; what it told stands above or below\n"


def test_a_bug_of_ones_own_is_no_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for world, words in ((2, "shapes differ"), (1, "Connection closed by peer")):
        monkeypatch.setattr(dist, "world", lambda world=world: world)
        with pytest.raises(RuntimeError, match=words), dist.loss_told():
            raise RuntimeError(words)


def test_a_process_alone_is_rank_0_of_1_with_a_group_and_without() -> None:
    for group in (False, True):
        if group:
            dist.init(cuda=False, launched=False)
        assert dist.active() == group
        assert (dist.rank(), dist.world(), dist.is_main()) == (0, 1, True)
        value = torch.tensor([2.0])
        assert dist.all_reduce_(value) is value is dist.broadcast_(value)
        assert (dist.any_(True), dist.any_(False), dist.all_gather("x")) == (True, False, ["x"])
        assert dist.alike(5)
        assert dist.on_main(lambda: 7) == 7
        dist.barrier()
    dist.close()
    assert not dist.active()


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of two, the first, at a port that the system chooses; the other never comes."""
    settings = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "JOIN", timedelta(seconds=1))


@pytest.mark.usefixtures("first_of_two")
def test_a_port_that_is_taken_is_told_with_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(RequestError, match=rf"^port {port} .* is taken; set another --master_port, .*$"):
            dist.init(cuda=False, launched=True)


@pytest.mark.usefixtures("first_of_two")
def test_a_process_that_does_not_come_is_failed_work() -> None:
    with pytest.raises(WorkError, match=r"^not all processes have met \(.* 1/2 clients joined\); start .*$"):
        dist.init(cuda=False, launched=True)
    assert not dist.active()


@pytest.mark.parametrize("error", [WorkError("torn"), OSError("full")])
def test_alone_an_error_is_raised_as_it_is(error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        dist.on_main(work)
    assert caught.value is error


def test_draws_follow_from_all_parts_of_the_seed() -> None:
    drawn = []
    for parts in ((1, 2), (1, 2), (1, 3), (2, 1)):
        dist.seed_all(*parts)
        drawn.append(float(torch.rand(())))
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_a_sum_on_the_host_goes_through_the_hosts_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL, which the default group is on GPUs, refuses the tensors of an offloaded optimizer."""
    groups: list[Any] = []
    monkeypatch.setattr(dist, "world", lambda: 2)
    monkeypatch.setattr(dist, "_made", ["gloo"])
    monkeypatch.setattr(dist.torch_dist, "all_reduce", lambda tensor, group=None: groups.append(group))
    dist.all_reduce_(torch.ones(1))
    dist.all_reduce_(torch.ones(1, device="meta"))
    assert groups == ["gloo", None]


@pytest.mark.parametrize(
    ("error", "backend", "world", "waits"),
    [
        (None, "nccl", 2, True),
        (WorkError("all have it"), "nccl", 2, True),
        (dist.RankLost("gone"), "nccl", 2, False),
        (OSError("full"), "nccl", 2, False),
        (SystemExit(143), "nccl", 2, False),
        (OSError("full"), "gloo", 2, True),
        (OSError("full"), "nccl", 1, True),
    ],
)
def test_a_rank_that_fails_by_itself_does_not_wait_for_nccls_end(
    error: BaseException | None, backend: str, world: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(dist, "active", lambda: True)
    monkeypatch.setattr(dist, "world", lambda: world)
    monkeypatch.setattr("torch.distributed.get_backend", lambda: backend)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: left.append(1))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(type(error)) if error else nullcontext(), dist.left():
        if error:
            raise error
    assert bool(left) == waits


def test_threads_of_the_last_message_end_before_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that frees a tensor later aborts a process whose work is done."""
    done: list[Any] = []
    monkeypatch.setattr(dist, "active", lambda: True)
    monkeypatch.setattr(dist, "world", lambda: 2)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: done.append("left"))
    monkeypatch.setattr("time.sleep", done.append)
    dist.close()
    assert done == ["left", dist.LAST_THREADS]


def test_a_rank_without_the_rest_of_what_a_launcher_sets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "_timeout", None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(RequestError, match=r"^RANK is set, as by a launcher, but not all .*WORLD_SIZE.*; unset it"):
        dist.init(cuda=False, launched=True)


ELASTIC = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "2"}
ELASTIC |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({}, "start 2"),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, ""),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False", "GROUP_WORLD_SIZE": "2"}, ""),
        ({"TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RESTART_COUNT": "0", "GROUP_WORLD_SIZE": "2"}, ""),
    ],
)
def test_only_a_further_start_with_the_store_of_the_first_has_a_name(change: dict[str, str], start: str) -> None:
    assert dist.start_again(ELASTIC | change) == start
    assert dist.start_again({}) == ""


def test_further_starts_on_several_machines_are_told_at_the_first_how_they_can_be() -> None:
    several, told = ELASTIC | {"GROUP_WORLD_SIZE": "2"}, r"^--max_restarts 3 .* TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1$"
    with pytest.warns(UserWarning, match=told):
        assert dist.start_again(several | {"TORCHELASTIC_RESTART_COUNT": "0", "RANK": "0"}) == ""
    with pytest.raises(RequestError, match=told):
        dist.start_again(several)


@pytest.mark.slow
def test_processes_that_torchrun_starts_again_meet_each_other_and_not_those_before() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", "-m", "tests.asa.again_worker"]
    done = subprocess.run(command, env=os.environ | ON_CPU, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("start 1: 2") == 2  # perhaps in one line: their prints interleave
