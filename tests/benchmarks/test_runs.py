"""The benchmarks of whole runs do real work on little and report all of it; how long anything takes is not tested."""

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import TCPStore

from asa.errors import RequestError, WorkError
from benchmarks import finetune_throughput, scaling, scaling_rank, startup
from benchmarks.finetune_throughput import CASES, ThroughputConfig, make, rows
from benchmarks.fused import attention
from benchmarks.scaling import Found, ScalingConfig
from benchmarks.scaling_rank import collective, covered
from benchmarks.startup import PARTS, Started, StartupConfig
from benchmarks.startup_run import PARTS as WATCHED
from benchmarks.startup_run import Clock, watch
from benchmarks.steps import bert_config
from tests.asa.conftest import tiny_batch
from tests.finetune.conftest import write_task
from tests.pretrain.conftest import model, shards

__all__ = ["model", "shards"]  # fixtures

CPU = torch.device("cpu")
DATA = os.environ.get("ASA_DATA")
MODEL = Path(__file__).parents[2] / "assets" / "bert-tiny"
sst2 = pytest.mark.skipif(not (DATA and MODEL.is_dir()), reason="needs ASA_DATA with SST-2, and assets/bert-tiny")


@sst2
def test_every_case_trains_on_the_same_rows_padded_its_own_way() -> None:
    request = ThroughputConfig(data=Path(DATA or ""), batch=8, batches=16, length=64)  # stretches of 4 batches
    data = rows(request)
    seen, tokens = {}, {}
    for label, case in CASES.items():
        batches = [make(request, data, case, number, CPU) for number in range(request.batches)]
        ids = torch.cat([torch.nn.functional.pad(b.inputs["input_ids"], (0, 64))[:, :64] for b in batches])
        seen[label] = sorted(map(tuple, ids.tolist()))
        tokens[label] = sum(batch.inputs["input_ids"].numel() for batch in batches)
    first = next(iter(seen.values()))
    assert all(found == first for found in seen.values())
    padded, plain, ours, buckets, _ = tokens.values()
    assert padded == 8 * 16 * 64
    assert padded > plain == ours > buckets >= int(data.lengths.sum())


@sst2
def test_the_throughput_of_a_few_batches(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"data": DATA, "layers": 1, "width": 64, "batch": 4, "batches": 3, "every": 2, "results": "null"}
    finetune_throughput.finetune_throughput(
        [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line[:24].strip() for line in lines[2:]] == [label.replace("LENGTH", "128") for label in CASES]
    assert lines[2].split()[-2] == lines[3].split()[-1] == "1.000"


def test_more_rows_than_there_are_is_a_wrong_request(tmp_path: Path) -> None:
    folder = tmp_path / "glue_sst2"
    folder.mkdir()
    for name in ("train", "dev", "test"):
        lines = [f"{name} film number {number}\t{number % 2}\n" for number in range(40)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    with pytest.raises(RequestError, match=r"sst2 has \d+ training rows, not 1600; lower --batches"):
        rows(ThroughputConfig(data=tmp_path))


@pytest.mark.slow
def test_processes_scale_through_the_real_engines() -> None:
    settings: dict[str, Any] = {"layers": 1, "width": 64, "length": 16, "rows": 2, "repeats": 2, "profiled": 1}
    request = ScalingConfig(processes=(1, 2), zero=(0, 1, 2, 3), **settings)
    found = scaling.measure(request)
    every = [(world, name) for world in request.processes for name in scaling.engines(request)]
    assert {key: len(taken) for key, taken in found.steps.items()} == dict.fromkeys(every, 2)
    assert all(found.waits[2, name][0] > 0 for name in scaling.engines(request)), "two processes talk"
    assert len(scaling.report(request, found).splitlines()) == 2 + len(every)


def test_a_number_of_processes_asked_for_twice_is_one_group() -> None:
    found = Found({(1, "plain"): [1.0]}, {(1, "plain"): [0.25]})
    assert (
        len(
            scaling.report(
                ScalingConfig(processes=(1, 1), zero=(0,)),
                found._replace(steps=found.steps | {(1, "ZeRO 0"): [1.0]}, waits=found.waits | {(1, "ZeRO 0"): [0.1]}),
            ).splitlines()
        )
        == 2 + 2
    )


def test_the_table_of_scaling() -> None:
    steps = {(1, "plain"): [1.0], (2, "plain"): [2.0], (1, "ZeRO 0"): [0.5], (2, "ZeRO 0"): [1.0]}
    found = Found(steps, {key: [0.25] for key in steps})
    lines = scaling.report(ScalingConfig(zero=(0,)), found).splitlines()
    assert lines[3].split() == ["plain", "2", "2000.0", "1.000", "8.0", "0.500", "12.5%"]
    assert lines[5].split() == ["ZeRO", "0", "2", "1000.0", "0.500", "16.0", "0.500", "25.0%"]


def test_an_engine_of_scaling_is_named_by_the_stage_that_works() -> None:
    named = {precision: scaling.engines(ScalingConfig(precision=precision)) for precision in ("fp32", "bf16", "fp16")}
    assert named["fp32"] == {"plain": None, "ZeRO 0": 0, "ZeRO 1": 1, "ZeRO 2": 2, "ZeRO 3": 3}
    assert named["bf16"] == named["fp16"] == {"plain": None, "ZeRO 2": 2, "ZeRO 3": 3}


def test_processes_that_fail_are_failed_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # no module benchmarks.scaling_rank
    with pytest.raises(WorkError, match=r"1 processes failed: .*No module named .benchmarks"):
        scaling.measure(ScalingConfig())


def test_processes_that_never_answer_or_end_are_failed_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "LONGEST", timedelta(seconds=0.1))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sleeper = subprocess.Popen(["sleep", "60"])
    group = scaling.Group(2, sleeper, store, tmp_path / "log")
    try:
        with pytest.raises(WorkError, match=r"2 processes gave no answer within 0:00:00\.1"):
            group.answer("done/2/0")
        with pytest.raises(WorkError, match="2 processes did not end within"):
            group.end(0)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_on_a_gpu_the_heading_names_the_fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    names, shape = ["vanilla", "asa", "twin"], bert_config(1, 64, "sdpa")
    assert attention(names, shape, 2, 16, "fp32") == "sdpa"
    monkeypatch.setattr("asa.fused.supported", lambda *args: True)
    assert attention(names, shape, 2, 16, "fp32") == "sdpa (fused: asa under attack)"
    monkeypatch.setattr("asa.fused.losses_supported", lambda *args: True)
    assert attention(names, shape, 2, 16, "fp32") == "sdpa (fused: asa under attack, our losses)"
    monkeypatch.setattr("asa.fused.norms_supported", lambda *args: True)
    assert attention(names, shape, 2, 16, "fp32") == "sdpa (fused: asa under attack, our losses)"
    monkeypatch.setattr("asa.fused.FEWEST_NUMBERS", 2 * 2 * 16 * 64)
    three = "sdpa (fused: asa under attack, our losses, our norms of the largest tensors)"
    assert attention(names, shape, 2, 16, "fp32") == three
    assert attention(names, shape, 2, 16, "fp32", [None, 2, 3]) == three[:-1] + " but for ZeRO 3's)"
    assert attention(names, shape, 2, 16, "fp32", [3]) == "sdpa (fused: asa under attack, our losses)"
    monkeypatch.setattr("asa.fused.gelu_supported", lambda *args: True)
    assert attention(names, shape, 2, 16, "fp32") == three.replace("norms", "norms and activations")
    assert attention(["vanilla"], shape, 2, 16, "fp32") == "sdpa (fused: our losses)"
    assert attention(["stock", "twin"], shape, 2, 16, "fp32") == "sdpa"


def test_what_cannot_scale_here_is_a_wrong_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RequestError, match="fp16 needs a GPU"):
        scaling.check(ScalingConfig(precision="fp16"))
    with pytest.raises(RequestError, match="no bf16; set --plain false"):
        scaling.check(ScalingConfig(precision="bf16"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RequestError, match=r"processes = 2: allowed: 1 to 1.*set --processes"):
        scaling.check(ScalingConfig())


def test_a_method_whose_steps_differ_takes_as_many_as_its_cycle_has(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 3.0])
    monkeypatch.setattr(scaling_rank, "_step_seconds", lambda *rest: (True, next(seconds)))
    monkeypatch.setattr(scaling_rank.dist, "barrier", lambda: None)
    assert scaling_rank.step_seconds(lambda batch: True, tiny_batch(), profiled=False, times=2) == 2.0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_what_spans_cover_is_counted_once(spans: list[tuple[int, int]]) -> None:
    points = {point for start, length in spans for point in range(start, start + length)}
    assert covered([(start, start + length) for start, length in spans]) == len(points)


def test_a_nested_part_has_its_own_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = Clock(), 0.0
    monkeypatch.setattr("benchmarks.startup_run.time.time", lambda: clock.created + now)
    now = 1.0
    clock.switch("rest")
    now = 3.0
    with clock.during("step"):
        now = 4.0
        with clock.during("data"):
            now = 8.0
        now = 10.0
    expected = {"imports": 1.0, "rest": 2.0, "first step": 3.0, "data": 4.0}
    assert clock.until == pytest.approx(expected)
    with clock.during("evaluation"):
        now = 15.0
    assert clock.told()["later"] == pytest.approx({"evaluation": 5.0, "rest": 0.0})
    for _ in range(2):
        with clock.during("step"):
            now += 1.0
    told = clock.told()
    assert (told["evaluations"], told["steps"], told["later"]["step"]) == (1, 2, 2.0)


@pytest.mark.parametrize("stage", WATCHED)
def test_every_part_of_a_stage_is_still_where_it_is_watched(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[tuple[object, str]] = []
    monkeypatch.setattr(
        "benchmarks.startup_run.setattr", lambda owner, name, _: put.append((owner, name)), raising=False
    )
    for part, places in WATCHED[stage].items():
        for place in places:
            watch(Clock(), part, place)
    assert len(put) == sum(map(len, WATCHED[stage].values()))


@pytest.mark.slow
def test_real_runs_from_the_command_to_the_first_step(model: Path, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").symlink_to(shards)
    write_task(tmp_path / "task")
    request = StartupConfig(data=tmp_path, model=model, batch=8, steps=3, rounds=1)
    runs, bare = startup.measure(request)
    for (one,) in runs.values():
        assert set(one.until) == set(PARTS)
        assert all(one.until[part] > 0 for part in ("launch", "imports", "data", "model", "engine", "first step"))
        assert one.later["step"] > one.later["data"] > 0
        assert one.evaluations >= 1
    assert len(startup.report(request, runs, bare).splitlines()) == 2 + len(PARTS) + 4


def test_the_table_of_starts() -> None:
    until: dict[str, float] = dict.fromkeys(PARTS, 1.0)
    one = Started(until, {"step": 1.9, "data": 0.1, "evaluation": 3.0}, steps=20, evaluations=1)
    # A task so small that its run ends before them.
    request = StartupConfig(data=Path("d"), model=Path("a/m"), steps=60)
    lines = startup.report(request, {"pretrain": [one], "finetune": [one]}, [0.5]).splitlines()
    assert lines[2].split() == ["launch", "1.00", "12.5%", "1.00", "12.5%"]
    assert (
        lines[-1]
        == "finetune: imports / bare imports 2.00; a step 100.0 ms, of it data wait 5.00%; an evaluation 30.0 steps"
    )
    assert np.isclose(sum(until.values()), 8)
    with pytest.raises(RequestError, match="no d/shards; give a folder made by data_prep build"):
        startup.startup(["--data", "d", "--model", "m"])


@pytest.mark.parametrize(
    ("gpu", "device", "name", "counts"),
    [
        (False, DeviceType.CPU, "gloo:all_reduce", True),
        (False, DeviceType.CPU, "aten::add", False),
        (True, DeviceType.CUDA, "ncclDevKernel_AllReduce", True),
        (True, DeviceType.CPU, "record_param_comms", False),  # the call alone, which ends at once
        (True, DeviceType.CUDA, "gemm", False),
    ],
)
def test_on_a_gpu_its_own_events_alone_are_communication(
    gpu: bool, device: DeviceType, name: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert collective(SimpleNamespace(device_type=device, name=name)) == counts
