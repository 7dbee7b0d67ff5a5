"""The command that holds a GPU to its bounds, with commands that need none."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from asa.errors import WorkError
from benchmarks import gpu, step_time
from benchmarks.cases import CasesConfig, cases
from benchmarks.gpu import BOUNDS, SHARES, Done, GpuConfig, commands, failures, perform, report
from benchmarks.half_precision import HalfPrecisionConfig
from benchmarks.kernel_time import KernelTimeConfig
from benchmarks.memory import MemoryConfig
from benchmarks.memory import report as memory_report
from benchmarks.peak import Peak
from benchmarks.startup import PARTS, Started, StartupConfig
from benchmarks.startup import report as startup_report
from benchmarks.step_time import StepTimeConfig
from benchmarks.upkeep import UpkeepConfig
from cli import parse

ROOT = Path(__file__).parents[2]
REQUEST = GpuConfig(data=Path("data"), model=Path("model"))
KINDS: dict[str, Any] = {
    "kernel-time": KernelTimeConfig,
    "step-time": StepTimeConfig,
    "memory": MemoryConfig,
    "half-precision": HalfPrecisionConfig,
    "startup": StartupConfig,
    "upkeep": UpkeepConfig,
}


def asked(line: list[str]) -> Any:
    """The request that a part's command of the benchmarks makes."""
    return parse(KINDS[line[1]], line[2:], f"python -m benchmarks {line[1]}")


def steps(part: Any, seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a part of steps prints, where they take these seconds."""
    request = asked(commands(part, REQUEST)[0])
    assert list(cases(request)) == list(seconds)
    monkeypatch.setattr(step_time, "utilisation", lambda *_: dict.fromkeys(seconds, 0.412))
    taken = {label: [one] for label, one in seconds.items()}
    return step_time.report(request, request.batch[0], request.lengths[0], torch.device("cpu"), taken)


def told(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Done]:
    """What the parts print that have bounds."""
    taken = {"vanilla fused": 0.1, "vanilla sdpa": 0.11, "asa fused": 0.21, "asa sdpa": 0.3, "stock sdpa": 0.2}
    found = {"steps": steps("steps", taken | {"twin": 0.42}, monkeypatch)}
    found["steps-large"] = steps("steps-large", {"vanilla": 0.4, "asa": 0.82}, monkeypatch)
    found["steps-512"] = steps("steps-512", {"vanilla": 0.2, "asa": 0.46}, monkeypatch)
    labels = cases(asked(commands("memory", REQUEST)[0]))
    peaks = {label: Peak(400, 100) if label == "twin" else Peak(220, 100) for label in labels}
    found["memory"] = memory_report("BERT", peaks)
    runs = [Started(dict.fromkeys(PARTS, 1.0), {"step": 2.0, "data": 0.0}, 10, 1)]
    found["startup"] = startup_report(asked(commands("startup", REQUEST)[0]), {"pretrain": runs, "finetune": runs}, [1])
    return {name: Done("ok", 1.0, text) for name, text in found.items()}


def test_the_bounds_are_read_from_what_the_benchmarks_print(monkeypatch: pytest.MonkeyPatch) -> None:
    done = told(monkeypatch)
    found = {bound.name: bound.found(done[bound.part].told) for bound in BOUNDS}
    assert list(found.values()) == [41.2, 2.1, 0.5, 41.2, 2.05, 2.3, 0.4, 0.0, 0.0]


def test_what_is_missed_is_named_and_zero_is_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    done = told(monkeypatch)
    assert failures(list(done), done) == ["ASA / vanilla, length 512"]
    lines = report(list(done), done).splitlines()
    assert [line.split()[-3:] for line in lines if "512" in line][1] == ["2.25", "2.3", "missed"]
    assert [line.split()[-1] for line in lines if line.startswith("data wait")] == ["0", "0"]


def test_a_part_that_said_nothing_or_was_not_begun_is_no_success() -> None:
    done: dict[Any, Done] = {"steps": Done("ok", 1.0, "")}
    names = [bound.name for bound in BOUNDS if bound.part == "steps"]
    assert failures(["steps", "memory"], done) == ["memory", *names]
    assert "not begun" in report(["steps", "memory"], done)


@pytest.mark.parametrize("part", list(SHARES))
def test_every_part_is_a_command_that_is_taken(part: Any) -> None:
    for line in commands(part, REQUEST):
        if line[0] == "benchmarks":
            request = asked(line)
            assert request.results == REQUEST.results
            assert not isinstance(request, CasesConfig) or request.batch == (256 if part == "steps-large" else 64,)
            assert not isinstance(request, HalfPrecisionConfig) or request.precision == "fp16"
        else:
            files = [word for word in line if word.startswith("tests/")]
            assert files
            assert all((ROOT / file).exists() for file in files)


def test_a_part_goes_on_after_a_command_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    done = perform("engine", [["no_such_module"], ["platform"]], 60)
    assert done.outcome == "failed (1)"
    assert "No module named no_such_module" in done.told
    out = capfd.readouterr().out
    assert [line in out for line in ["== engine: python -m platform", *done.told.splitlines()]] == [True] * 3


@pytest.mark.parametrize("own", ["", "1"])
def test_a_part_sees_the_first_gpu_unless_told(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "telling.py").write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if own:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    else:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert perform("engine", [["telling"]], 60).told == f"{own or 0}\n"


def test_a_part_out_of_time_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import pathlib, subprocess, time\nchild = subprocess.Popen(['sh', '-c', 'trap \"\" TERM; sleep 600'])\n"
    program += f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\nprint('begun', flush=True)\n"
    program += (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print('asked'), sys.exit()))\n"
    )
    (tmp_path / "lasting.py").write_text(program + "time.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = perform("run", [["lasting"], ["platform"]], 3)
    assert (done.outcome, done.told) == ("out of time", "begun\nasked\n")
    _gone(int((tmp_path / "pid").read_text()))


def _gone(child: int) -> None:
    until = time.monotonic() + 10
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until, "the part's child lives on"


def test_parts_are_done_in_the_order_given_and_the_page_tells_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "check", lambda request: None)
    monkeypatch.setattr(gpu, "commands", lambda name, request: [["this" if name == "engine" else "no_such_module"]])
    argv = ["--data", "d", "--model", "m", "--parts", "run,engine,run", "--results", str(tmp_path)]
    with pytest.raises(WorkError, match=r"^not held: run$"):
        gpu.gpu(argv)
    (page,) = tmp_path.glob("gpu_*.md")
    rows = [line.split()[:2] for line in page.read_text().splitlines() if line.startswith(("run", "engine"))]
    assert rows == [["run", "failed"], ["engine", "ok"]]
    assert "The Zen of Python" in capsys.readouterr().out


def test_each_part_has_its_share_of_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the page tells of each when the next begins."""
    limits, pages = dict[str, float](), list[int]()

    def take(name: Any, lines: object, limit: float) -> Done:
        limits[name] = limit
        pages.append(sum(path.read_text().count(" ok ") for path in tmp_path.glob("gpu_*.md")))
        now[0] += {"kernels": 60, "steps": 30}.get(name, limit)
        return Done("ok", 1.0, "")

    now = [0.0]
    monkeypatch.setattr(gpu, "check", lambda request: None)
    monkeypatch.setattr(gpu, "perform", take)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    argv = ["--data", "d", "--model", "m", "--minutes", "7", "--results", str(tmp_path)]
    with pytest.raises(WorkError, match=r"^not held: vanilla, MFU in %, length 256; ASA / vanilla"):
        gpu.gpu([*argv, "--parts", "kernels,steps,memory"])
    assert limits == {"kernels": 60 * 4, "steps": 60 * 6 * 2 / 3, "memory": 60 * 5.5}
    assert pages == [0, 1, 2]
    limits.clear()
    argv[argv.index("7")] = "0.5"  # less than the first one takes
    with pytest.raises(WorkError, match=r"^not held: engine$"):
        gpu.gpu([*argv, "--parts", "kernels,engine"])
    assert list(limits) == ["kernels"]


def test_the_commands_of_a_part_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limits = [0.0], list[float]()

    def run(command: list[str], limit: float) -> tuple[int | None, str]:
        limits.append(limit)
        now[0] += 20
        return (0 if len(limits) < 2 else None), ""

    monkeypatch.setattr(gpu, "_run", run)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert perform("kernels", [["a"], ["b"], ["c"]], 30).outcome == "out of time"
    assert limits == [30, 10]
    limits.clear()
    assert perform("kernels", [["a"], ["b"]], 20).outcome == "out of time"
    assert limits == [20]


def test_what_a_part_leaves_behind_is_ended_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import subprocess, tempfile\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid)\n"
    program += "print(tempfile.mkdtemp(), flush=True)\nimport sys\nsys.stdout.buffer.write(b'\\xff')\n"
    (tmp_path / "leaving.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = perform("run", [["leaving"]], 60)
    child, folder, wrong = done.told.split()
    assert wrong == "\N{REPLACEMENT CHARACTER}"
    assert done.outcome == "ok"
    assert not Path(folder).exists()
    _gone(int(child))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_it_is_a_wrong_request(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "gpu", "--data", "d", "--model", "m"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    said = "error: no CUDA device is here; python -m benchmarks traffic counts a GPU's step without one\n"
    assert done.stderr == said


def test_what_the_parts_need_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for part in ("run", "startup", "upkeep"):
        with pytest.raises(Exception, match=r"^no .*/shards; give a folder made by data_prep build, by --data$"):
            gpu.check(GpuConfig(data=tmp_path, model=tmp_path, parts=("steps", part)))
    gpu.check(GpuConfig(data=tmp_path, model=tmp_path, parts=("steps",)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=r"in the folder of the checkout$"):
        gpu.check(GpuConfig(data=tmp_path, model=tmp_path, parts=("steps",)))
    monkeypatch.setattr(gpu, "TESTS", ("no_such_module",))
    with pytest.raises(Exception, match=r"^no_such_module is not installed: "):
        gpu.check(GpuConfig(data=tmp_path, model=tmp_path, parts=("engine",)))
