"""The SLURM job file, run by programs that stand in for SLURM's and for the launcher on one machine."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch import slurm
from launch.options import ClusterOptions, take
from tests.launch.conftest import Ask, program

SCONTROL = """#!/bin/bash
case $1 in
show) [ "$MANNER" = early ] && touch "$FOLDER/begun" && sleep 1; printf '%s\\n' ${3//,/ } ;;
requeue) echo "$2" > "$FOLDER/requeued" ;;
esac
"""
# Like the real one it makes SIGKILL of a SIGTERM.
SRUN = """#!/bin/bash
while [ "$1" != bash ]; do shift; done
SLURM_NODEID=0 "$@" &
trap 'kill -KILL $!' TERM
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
exit $code
"""
# Stands for the interpreter that would run the launcher.
PYTHON = """#!/bin/bash
echo "$@" > "$FOLDER/arguments"
trap 'touch "$FOLDER/saved"; exit 143' TERM
touch "$FOLDER/begun"
case $MANNER in train) while :; do sleep 0.05; done ;; *) exit "$MANNER" ;; esac
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """OUT/job.sbatch of a run on two machines; the stand-ins are on PATH."""
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("python", PYTHON)):
        program(tmp_path / "bin", name, text)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    out = tmp_path / "a run"
    options = ClusterOptions(slurm=True, nproc=8, nodes=2, time="1-0:00:00", partition="gpu", sbatch=("--account=x y",))
    text = slurm.job(options, out, ["pretrain", "--out", str(out), "--seed", "3"])
    (tmp_path / "job.sbatch").write_text(text)
    return tmp_path / "job.sbatch"


Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(job: Path, tmp_path: Path) -> Iterator[Start]:
    """Run the job with a launcher that trains, or that ends at once with this exit code."""
    jobs: list[subprocess.Popen[bytes]] = []

    def start_(manner: str) -> subprocess.Popen[bytes]:
        number = {"SLURM_JOB_ID": str(10_000_000 + os.getpid()), "SLURM_JOB_NODELIST": "alpha,beta"}
        variables = os.environ | number | {"FOLDER": str(tmp_path), "MANNER": manner}
        jobs.append(subprocess.Popen(["bash", str(job)], env=variables, start_new_session=True))
        deadline = time.monotonic() + 30
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return jobs[-1]

    yield start_
    for process in jobs:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_the_file_is_sound_bash_and_says_what_was_asked_for(job: Path) -> None:
    subprocess.run(["bash", "-n", str(job)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--severity=warning", str(job)], check=True)
    lines = job.read_text().splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--gpus-per-node=8", "--time=1-0:00:00", "--partition=gpu", "--requeue"} <= set(options)
    assert options[-1] == "--account=x y"
    # Options behind the first command are comments to sbatch.
    assert lines[1 : 1 + len(options)] == [f"#SBATCH {option}" for option in options]


def test_options_of_sbatch_are_all_kept_in_their_order() -> None:
    given = ["--slurm", "--sbatch", "--account=x", "--seed", "3", "--sbatch=--qos=long"]
    options, rest = take(ClusterOptions, given)
    assert options.sbatch == ("--account=x", "--qos=long")
    assert rest == ["--seed", "3"]


@pytest.mark.parametrize(
    ("sbatch", "gpus"),
    [
        ((), True),
        (("--gpus-per-node=0",), False),
        (("--gpus-per-node 0",), False),
        (("--gpus-per-node=0", "--gpus-per-node=h100:4"), True),
        (("--gpus-per-node=4", "--gpus-per-node=0", "--time=1"), False),
    ],
)
def test_a_job_without_gpus_is_known(sbatch: tuple[str, ...], gpus: bool) -> None:
    assert slurm.has_gpus(ClusterOptions(slurm=True, nproc=1, sbatch=sbatch)) == gpus


def test_a_percent_sign_in_the_folders_name_is_none_of_slurms(tmp_path: Path) -> None:
    text = slurm.job(ClusterOptions(slurm=True, nproc=1), tmp_path / "100%j", ["pretrain"])
    assert f"#SBATCH --output={tmp_path}/100%%j/slurm-%j.log" in text.splitlines()
    assert f"mkdir -p {tmp_path}/100%j || exit 1" in text.splitlines()


def test_every_machine_gets_the_launcher_with_all_machines_and_its_own_number(start: Start, tmp_path: Path) -> None:
    assert start("0").wait(30) == 0
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.startswith(f"-m launch pretrain --out {tmp_path / 'a run'} --seed 3 --hostfile ")
    assert arguments.strip().endswith("--node_rank 0")
    hosts = next((tmp_path / "a run").glob("job-*.hosts")).read_text()
    assert hosts == "alpha slots=8\nbeta slots=8\n"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_run_that_ends_by_itself_is_not_requeued(code: int, start: Start, tmp_path: Path) -> None:
    assert start(str(code)).wait(30) == code
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize(("number", "again"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_slurms_warning_saves_and_requeues_where_an_end_only_saves(
    number: signal.Signals, again: bool, start: Start, tmp_path: Path
) -> None:
    job = start("train")
    job.send_signal(number)
    assert job.wait(30) == (0 if again else 143)
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "requeued").exists() == again


@pytest.mark.parametrize(("number", "again"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_signal_before_the_launcher_starts_is_not_lost(
    number: signal.Signals, again: bool, start: Start, tmp_path: Path
) -> None:
    job = start("early")
    job.send_signal(number)
    assert job.wait(30) == (0 if again else 143)
    assert (tmp_path / "requeued").exists() == again
    assert not (tmp_path / "arguments").exists()


def test_the_file_is_shown_or_submitted(
    ask: Ask, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--config", config, "--out", tmp_path / "run", "--precision", "fp16", "--slurm", "--nproc", "4"]
    shown = ask("pretrain", *flags, "--dry-run")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("#!/bin/bash\n#SBATCH --job-name=run\n")
    assert f"-m launch pretrain --config {config} --out {tmp_path / 'run'} --precision fp16 " in shown.out
    assert not (tmp_path / "run").exists()

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    refused = ask("pretrain", *flags)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "sbatch is not on PATH" in refused.err
    program(tmp_path / "bin", "sbatch", '#!/bin/sh\necho "Submitted batch job 7"; read -r _ < "$1"\n')
    done = ask("pretrain", *flags)
    assert (done.code, done.out.splitlines()[-1]) == (0, "Submitted batch job 7")
    assert (tmp_path / "run" / "job.sbatch").read_text() == shown.out
    program(tmp_path / "bin", "sbatch", "#!/bin/sh\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    refused = ask("pretrain", *flags)
    assert (refused.code, "invalid partition" in refused.err, refused.err.count("\n")) == (1, True, 1)
    (tmp_path / "other" / "job.sbatch").mkdir(parents=True)
    refused = ask("pretrain", *flags, "--out", tmp_path / "other")
    assert (refused.code, "cannot write" in refused.err, refused.err.count("\n")) == (1, True, 1)
