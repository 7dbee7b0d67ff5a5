"""Wrong requests end with one line before any process starts; --dry_run shows what would be run."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import cli
from asa import checkpoint, manifest, record
from asa.config import field_names, save_yaml
from asa.errors import RequestError
from finetune.config import FinetuneConfig
from launch.__main__ import finetune_commands, reads_the_hub
from launch.command import deepspeed_command, environment, inherited, remote_signals
from launch.nodes import Nodes, find_nodes
from launch.options import ClusterOptions, FinetuneOptions
from pretrain.config import PretrainConfig
from tests.finetune.conftest import Make, given, make, model_folder, task_folder
from tests.launch.conftest import Answer, Ask, program
from tests.pretrain.conftest import flip_a_byte, make_model

__all__ = ["given", "make", "model_folder", "task_folder"]  # fixtures


def assert_refused(done: Answer, code: int, expected: str) -> None:
    assert done.code == code, done.err
    assert expected in done.err
    assert len(done.err.strip().splitlines()) == 1, done.err


class Wrong(NamedTuple):
    """A request that must be refused; BAD in a flag stands for the folder of broken inputs."""

    flags: list[str]
    code: int
    expected: str


HOSTS = ["--hostfile", "BAD/hosts"]
SLURM = ["--slurm", "--nproc", "1"]
WRONG = {
    "misspelt key": Wrong(["--optim.lrr", "3"], 2, "did you mean 'optim.lr'"),
    "value out of range": Wrong(["--optim.lr", "3"], 2, "allowed: 0 < lr <= 1, set --optim.lr"),
    "more rows than memory": Wrong(["--global_batch", "1000000000000"], 2, "allowed: 1 <= global_batch <= 1048576"),
    "no steps": Wrong(["--steps", "0"], 2, "allowed: 1 <= steps"),
    "unknown method": Wrong(["--method", "freelbb"], 2, "vanilla"),
    "fp16 without a GPU": Wrong(["--precision", "fp16"], 2, "--precision fp32"),
    "no processes": Wrong(["--nproc", "0"], 2, "set --nproc"),
    "processes that are no number": Wrong(["--nproc=two"], 2, "set --nproc"),
    "processes left open": Wrong(["--nproc"], 2, "--nproc needs a value"),
    "more processes than cores": Wrong(["--nproc", "3"], 2, "allowed: 1 to 2"),
    "no such shards": Wrong(["--data", "nowhere"], 2, "--data"),
    "unfinished shards": Wrong(["--data", "BAD/unfinished"], 2, "has no manifest.json"),
    "another tokenizer": Wrong(["--model", "BAD/other-words"], 2, "another tokenizer"),
    "another tokenizer of fewer words": Wrong(["--model", "BAD/fewer-words"], 2, "another tokenizer"),
    "unsupported family": Wrong(["--model", "BAD/family"], 2, "gpt2"),
    "no weights": Wrong(["--model", "BAD/no-weights"], 2, "has no weights"),
    "unequal shares": Wrong(["--global_batch", "7", "--nproc", "2"], 2, "set --global_batch"),
    "damaged shards": Wrong(["--data", "BAD/flipped", "--nproc", "2"], 1, "is damaged"),
    "no hostfile": Wrong(["--hostfile", "nowhere"], 2, "no file nowhere"),
    "hostfile without slots": Wrong(["--hostfile", "BAD/words"], 2, "line 2: 'one slots=many'"),
    "a machine twice": Wrong(["--hostfile", "BAD/twice"], 2, "line 3: 127.0.0.1 a second time"),
    "a mark before the first machine": Wrong(["--hostfile", "BAD/marked"], 2, "begins with a byte order mark"),
    "hostfile of another encoding": Wrong(["--hostfile", "BAD/latin"], 2, "latin is not UTF-8"),
    "hostfile of comments": Wrong(["--hostfile", "BAD/empty"], 2, "names no machine"),
    "hostfile and nproc": Wrong([*HOSTS, "--nproc", "1"], 2, "leave --nproc out"),
    "node beyond the hostfile": Wrong([*HOSTS, "--node_rank", "2"], 2, "allowed: 0 to 1"),
    "node before the hostfile": Wrong([*HOSTS, "--node_rank=-1"], 2, "allowed: 0 <= node_rank"),
    "node without hostfile": Wrong(["--node_rank", "0"], 2, "--hostfile"),
    "more slots than cores": Wrong([*HOSTS, "--node_rank", "1"], 2, "slots=6, but this machine has 2"),
    "first machine unknown": Wrong(["--hostfile", "BAD/unknown", "--node_rank", "1"], 2, "set --master_addr"),
    "first machine no name can be": Wrong(["--hostfile", "BAD/dots", "--node_rank", "1"], 2, "set --master_addr"),
    "unequal shares of machines": Wrong(["--hostfile", "BAD/three", "--node_rank", "0"], 2, "3 processes"),
    "port out of range": Wrong([*HOSTS, "--master_port", "80"], 2, "allowed: 1024 <= master_port <= 65535"),
    "slurm without nproc": Wrong(["--slurm"], 2, "set --nproc"),
    "slurm and hostfile": Wrong([*SLURM, *HOSTS], 2, "leave --hostfile out"),
    "slurm and a node": Wrong([*SLURM, "--node_rank", "0"], 2, "--hostfile"),
    "slurm for unequal shares": Wrong([*SLURM, "--nodes", "3"], 2, "3 processes"),
    "slurm and a time of words": Wrong(
        [*SLURM, "--time", "long"], 2, "time = 'long': allowed: [days-]hours:minutes:seconds, set --time"
    ),
    "slurm and a time of dashes": Wrong([*SLURM, "--time=---"], 2, "time = '---': allowed: [days-]hours"),
    "slurm and no option": Wrong(
        [*SLURM, "--sbatch", "account=x"],
        2,
        "sbatch = 'account=x': allowed: an option with its dashes, such as --account=NAME, set --sbatch\n",
    ),
    "slurm and a partition of nothing": Wrong([*SLURM, "--partition", ""], 2, "--partition needs a value"),
    "slurm and damaged shards": Wrong([*SLURM, "--data", "BAD/flipped"], 1, "is damaged"),
    "slurm and a cut checkpoint": Wrong([*SLURM, "--out", "BAD/cut"], 1, "lacks model.safetensors"),
    "slurm and no run folder": Wrong([*SLURM, "--out", "BAD/hosts/run"], 2, "hosts is no folder; set another --out"),
    "slurm, fp16 and no GPU": Wrong([*SLURM, "--precision", "fp16", "--sbatch=--gpus-per-node=0"], 2, "needs a GPU"),
    "slurm and a line break": Wrong([*SLURM, "--dry_run", "--out", "a\nb"], 2, "'a\\nb': a job's file takes no line"),
    "nodes without slurm": Wrong(["--nodes", "2"], 2, "--slurm"),
    "a run folder that is a file": Wrong(["--out", "BAD/hosts"], 2, "hosts is no folder; set another --out"),
    "checkpoints that are a file": Wrong(["--dry_run", "--out", "BAD/filed"], 2, "filed/checkpoints is no folder"),
    "a checkpoint that lacks a file": Wrong(["--out", "BAD/cut"], 1, "lacks model.safetensors"),
    "a run folder of too long a name": Wrong(["--dry_run", "--out", "x" * 300], 2, "(File name too long); set another"),
    "layers that the model lacks": Wrong(
        ["--method", "asa_sparse", "--asa_sparse.layers", "0,9"], 2, "set --asa_sparse.layers to some of them"
    ),
    "a schedule of another model": Wrong(
        ["--method", "random_mask", "--random_mask.strategy", "scheduled", "--random_mask.schedule", "BAD/schedule"],
        2,
        "is of a model with 3 layers, this one has 2; set --random_mask.schedule",
    ),
    "words of a vocabulary without marks": Wrong(
        ["--masking", "word", "--data", "BAD/unmarked"], 2, "does not mark where words begin; set --masking token"
    ),
}


@pytest.fixture(scope="module")
def bad(model: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders and files that are each broken in one way."""
    folder = tmp_path_factory.mktemp("bad")
    (shutil.copytree(shards, folder / "unfinished") / manifest.NAME).unlink()
    flip_a_byte(next(shutil.copytree(shards, folder / "flipped").glob("train-*.arrow")))
    make_model(folder / "other-words", extra_words=3)
    settings = shutil.copytree(folder / "other-words", folder / "fewer-words") / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"vocab_size": 9}))
    (shutil.copytree(model, folder / "no-weights") / "model.safetensors").unlink()
    settings = shutil.copytree(model, folder / "family") / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_type": "gpt2"}))
    (folder / "hosts").write_text("# two machines\n127.0.0.1 slots=2\n\nother slots=6  # more\n")
    (folder / "words").write_text("127.0.0.1 slots=2\none slots=many\n")
    (folder / "twice").write_text("127.0.0.1 slots=1\nb slots=1\n127.0.0.1 slots=1\n")
    (folder / "empty").write_text("\n# nobody\n")
    (folder / "latin").write_bytes("# Größe\n127.0.0.1 slots=1\n".encode("latin-1"))
    (folder / "marked").write_text("\ufeff127.0.0.1 slots=1\n")
    (folder / "unknown").write_text("no-such-machine.invalid slots=1\n127.0.0.1 slots=1\n")
    (folder / "dots").write_text("a..b slots=1\n127.0.0.1 slots=1\n")
    (folder / "filed").mkdir()
    (folder / "filed" / "checkpoints").touch()
    (folder / "three").write_text("127.0.0.1 slots=1\nb slots=2\n")
    facts = manifest.read(shutil.copytree(shards, folder / "unmarked"), "shards", "-")
    words = folder / "unmarked" / "tokenizer" / "tokenizer.json"
    words.write_text(words.read_text().replace('"WordPiece"', '"WordLevel"'))
    manifest.write(folder / "unmarked", "shards", facts)
    (folder / "schedule").write_text('{"event": "train", "step": 1, "masked_share": [0.1, 0.2, 0.3]}\n')
    cut_checkpoint(folder / "cut")
    return folder


def cut_checkpoint(run: Path) -> None:
    """A run folder whose only checkpoint lacks a file that its manifest lists."""
    newest = run / "checkpoints" / "step-2"
    newest.mkdir(parents=True)
    (newest / "model.safetensors").write_bytes(b"weights")
    manifest.write(newest, checkpoint.KIND, {"step": 2})
    (newest / "model.safetensors").unlink()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_ends_with_one_line_before_anything_is_written(
    name: str, ask: Ask, config: Path, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, *_: object) -> None:
        if host.endswith(".invalid"):  # without asking the network, which may take long to deny it
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        host.encode("idna")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    flags = [flag.replace("BAD", str(bad)) for flag in WRONG[name].flags]
    done = ask("pretrain", "--config", config, "--out", tmp_path / "run", *flags)
    assert_refused(done, WRONG[name].code, WRONG[name].expected)
    assert not (tmp_path / "run").exists()
    assert not (bad / "cut" / record.NAME).exists()


TUNING = {
    "unknown method": (["--methods", "vanilla,freelp"], "no method 'freelp'; did you mean 'freelb'?"),
    "a flag of pre-training": (["--hostfile", "x"], "unknown key 'hostfile'"),
    "no such model": (["--models.tiny", "nowhere"], "give a Hugging Face model folder by --models.tiny"),
    "more processes than cores": (["--nproc", "3"], "nproc = 3: allowed: 1 to 2 on this machine"),
    "more ranks than cores": (["--ranks", "3"], "ranks = 3: allowed: 1 to 2 on this machine"),
    "side by side and together": (["--ranks", "2", "--nproc", "2"], "leave one of them out"),
    "the number of a process": (["--worker", "1"], "leave it out, set --nproc"),
    "half precision of plain torch": (["--precision", "bf16"], "set --engine deepspeed"),
}


@pytest.mark.parametrize("name", TUNING)
def test_a_wrong_request_of_fine_tuning_is_refused_before_anything_is_trained(
    name: str, make: Make, ask: Ask, tmp_path: Path
) -> None:
    config = make()
    save_yaml(config, tmp_path / "tune.yaml")
    flags, expected = TUNING[name]
    assert_refused(ask("finetune", "--config", tmp_path / "tune.yaml", *flags), 2, expected)
    assert not config.out.exists()


def test_the_processes_of_a_run_get_its_flags(make: Make, ask: Ask, tmp_path: Path) -> None:
    save_yaml(make(), tmp_path / "tune.yaml")
    done = ask("finetune", "--config", tmp_path / "tune.yaml", "--ranks", "2", "--dry_run")
    assert done.code == 0, done.err
    assert "deepspeed --num_accelerators 2 --master_port" in done.out
    assert done.out.strip().endswith(f"--module finetune run --config {tmp_path / 'tune.yaml'}")


@pytest.mark.parametrize("last", [["--out", "runs/asa"], ["--seed", "1"]])
def test_a_signal_to_other_machines_reaches_the_ranks_of_this_run_alone(last: list[str]) -> None:
    module = ["pretrain", "run", "--config", "a.yaml", *last]
    line = " ".join(["/venv/bin/python", "-u", "-m", *module])
    for command in remote_signals(Nodes({"a": 1, "b": 1}, node=0), module):
        pattern = shlex.split(command[-1])[-1]
        assert re.search(pattern, line)
        assert not any(re.search(pattern, line + more) for more in ("-seed1", "2", " --steps 9"))
        assert not re.search(pattern, command[-1])


@pytest.mark.parametrize("wrong", ["runs/a(b)", "runs/a&b", "runs/%h", "$HOME/run", "a $b", ""])
def test_what_the_shells_of_other_machines_would_read_otherwise_is_refused(wrong: str, config: Path) -> None:
    nodes = Nodes({"a": 1, "b": 1})
    options = ClusterOptions(hostfile=config)
    assert deepspeed_command(options, nodes, ["pretrain", "run", "--seeds", "{a: [0, 1]}", "--out", "runs/a_b-1"])
    with pytest.raises(RequestError, match=re.escape(repr(wrong))):
        deepspeed_command(options, nodes, ["pretrain", "run", "--out", wrong])


def test_a_pod_that_is_a_rank_itself_makes_no_ranks_of_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    found = inherited()
    assert found["NCCL_DEBUG"] == "INFO"
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & found.keys()


def test_the_callers_number_of_threads_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("launch.command.cores", lambda: 8)
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")  # torch's, and the tokenizers'

    def threads() -> list[str]:
        return [environment(2)[name] for name in names]

    assert threads() == ["4", "4"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads() == ["3", "3"]
    monkeypatch.setenv("RANK", "0")  # then it is torchrun's
    assert threads() == ["4", "4"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert [environment(4)[name] for name in names] == ["2", "2"]
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")  # OpenMP's, of nested regions
    assert environment(4)["RAYON_NUM_THREADS"] == "3"
    monkeypatch.setenv("RAYON_NUM_THREADS", "7")
    assert environment(4)["RAYON_NUM_THREADS"] == "7"


def test_machines_that_pdsh_does_not_reach_are_refused(
    ask: Ask, config: Path, bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    done = ask("pretrain", "--config", config, "--hostfile", bad / "hosts")
    assert_refused(done, 2, "not installed")
    program(tmp_path / "bin", "pdsh", "#!/bin/sh\necho 'other: ssh: connect to host other: refused' >&2\nexit 255\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    done = ask("pretrain", "--config", config, "--hostfile", bad / "hosts")
    assert_refused(done, 2, "other: ssh: connect to host other: refused")
    program(tmp_path / "bin", "pdsh", "#!/bin/sh\necho 'other: Welcome' >&2\n")
    assert ask("pretrain", "--config", config, "--hostfile", bad / "hosts", "--dry_run").code == 0
    (tmp_path / "run" / "deepspeed_env").mkdir(parents=True)
    done = ask("pretrain", "--config", config, "--hostfile", bad / "hosts", "--out", tmp_path / "run")
    assert_refused(done, 1, "cannot write")


VISIBLE = {
    "": "--num_accelerators 2",
    "2,3": "--include localhost:2,3",
    "4, 0,6": "--include localhost:4,0",
}


def test_the_gpus_that_the_caller_names_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> str:
        return " ".join(deepspeed_command(ClusterOptions(), Nodes({"localhost": 2}, node=0), ["pretrain", "run"]))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for visible, expected in VISIBLE.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert f"deepspeed {expected} --master_port" in command()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5a1b")
    with pytest.raises(RequestError, match="CUDA_VISIBLE_DEVICES = GPU-5a1b: allowed: numbers"):
        command()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--num_accelerators 2" in command()


def test_on_one_machine_deepspeed_reads_no_hostfile_that_a_cluster_may_have() -> None:
    command = deepspeed_command(ClusterOptions(), Nodes({"localhost": 2}, node=0), ["pretrain", "run"])
    file = command[command.index("--hostfile") + 1]
    assert not Path(file).is_file()  # which is what DeepSpeed asks


def test_a_python_without_deepspeed_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for found in (None, ModuleSpec("deepspeed", None)):  # the second is a folder of that name here
        monkeypatch.setattr("launch.command.find_spec", lambda name, found=found: found)
        with pytest.raises(RequestError, match=f"{tmp_path}/python has no deepspeed; install it"):
            deepspeed_command(ClusterOptions(), Nodes({"localhost": 2}, node=0), ["pretrain", "run"])


def test_a_deepspeed_without_a_program_beside_python_starts_as_a_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    command = deepspeed_command(ClusterOptions(), Nodes({"localhost": 2}, node=0), ["pretrain", "run"])
    module = command.index("--num_accelerators")
    assert command[:module] == [str(python), "-m", "deepspeed.launcher.runner"]
    done = subprocess.run([*command[:module], "--help"], capture_output=True, text=True, check=True)
    assert "--num_accelerators" in done.stdout or "--num_gpus" in done.stdout


HERE = [
    (["--nproc", "1"], "deepspeed --num_accelerators 1 --master_port"),
    (
        ["--hostfile", "BAD/hosts", "--node_rank", "0"],
        "--master_addr 127.0.0.1 --master_port 29500 --no_ssh --node_rank 0",
    ),
    (
        ["--hostfile=BAD/hosts", "--node_rank=0", "--master_addr=10.0.0.1", "--master_port=4000"],
        "--master_addr 10.0.0.1 --master_port 4000",
    ),
]


@pytest.mark.parametrize(("flags", "expected"), HERE)
def test_a_dry_run_shows_the_command_line_alone(
    flags: list[str], expected: str, ask: Ask, config: Path, bad: Path, tmp_path: Path
) -> None:
    own = ["--config", str(config), "--out", str(tmp_path / "run")]
    done = ask("pretrain", *own, *[flag.replace("BAD", str(bad)) for flag in flags], "--dry-run")
    assert done.code == 0, done.err
    assert expected in done.out
    assert "DS_ACCELERATOR=cpu" in done.out
    assert done.out.strip().endswith("--module pretrain run " + " ".join(own))
    assert not (tmp_path / "run").exists()


def test_help_lists_the_launchers_flags_after_the_stages(ask: Ask) -> None:
    done = ask("pretrain", "--help")
    assert done.code == 0
    stage, own = done.out.split("the launcher's own flags")
    assert "--steps" in stage
    assert [f"--{name}" for name in field_names(ClusterOptions) if f"  --{name}\n      " not in own] == []


def test_no_flag_of_the_launcher_is_also_a_key_of_a_stage() -> None:
    for stage, own in ((PretrainConfig, ClusterOptions), (FinetuneConfig, FinetuneOptions)):
        assert set(field_names(own)) & set(field_names(stage)) == set()


@pytest.mark.parametrize(
    ("flags", "offline"),
    [
        (["--tasks", "sst2"], False),
        (["--tasks", "sst2", "--data", "d"], True),
        (["--task.train", "a.csv"], True),
        (["--task.train", "a.csv", "--task.also", "rte"], False),
        (["--task.hub.path", "a/b", "--task.hub.splits", "{train: train}"], False),
    ],
)
def test_only_a_command_that_reads_tasks_from_the_hub_may_reach_it(flags: list[str], offline: bool) -> None:
    request = cli.parse(FinetuneConfig, [*flags, "--models.m", "m", "--out", "o"], "finetune")
    _, settings = finetune_commands(FinetuneOptions(nproc=1), flags, reads_the_hub(request))
    assert ("HF_HUB_OFFLINE" in settings) == offline


HELP = """
import sys
from {module}.__main__ import {command}
try:
    {command}(["--help"])
except SystemExit:
    print("loaded", *sys.modules)
"""


@pytest.mark.parametrize(
    ("module", "command", "stage", "other"),
    [
        ("launch", "pretrain_", "pretrain", "finetune"),
        ("launch", "finetune_", "finetune", "pretrain"),
        ("pretrain", "run", "pretrain", "finetune"),
        ("pretrain", "export_", "pretrain", "finetune"),
        ("finetune", "run", "finetune", "pretrain"),
    ],
)
def test_a_command_that_needs_no_model_loads_none_nor_the_other_stage(
    module: str, command: str, stage: str, other: str
) -> None:
    """They take seconds, which --help, --dry_run and refusals would wait."""
    code = HELP.format(module=module, command=command)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100).stdout
    loaded = set(said.splitlines()[-1].split())
    assert {f"{stage}.config", "asa.attention", "torch"} <= loaded
    assert not loaded & {"transformers.modeling_utils", "asa.biased", "sklearn", "scipy.stats", "deepspeed", other}


@pytest.mark.parametrize(("batch", "processes"), [(8, 4), (6, 3), (7, 1)])
def test_without_a_number_as_many_devices_are_taken_as_share_the_batch(
    batch: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.nodes.devices", lambda: 4)
    assert find_nodes(ClusterOptions(), batch).slots == {"localhost": processes}
