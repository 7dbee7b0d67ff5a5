"""Asking the launcher in this process, and programs that stand in for those it starts."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import cli
from asa.config import save_yaml
from launch import __main__ as launcher
from pretrain.config import PretrainConfig
from tests.pretrain.conftest import model, shards

__all__ = ["model", "shards"]  # fixtures


class Answer(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


Ask = Callable[..., Answer]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ask:
    """`python -m launch ARGUMENTS` in this process, on a machine without GPU and with two cores; starts nothing."""

    def refuse(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr("launch.nodes.cores", lambda: 2)
    monkeypatch.setattr(launcher, "run_together", refuse)

    def ask_(*arguments: str | Path) -> Answer:
        commands = {"pretrain": launcher.pretrain_, "finetune": launcher.finetune_}
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main(commands, "launch", list(map(str, arguments)))
        code = end.value.code
        assert isinstance(code, int)
        said = capfd.readouterr()
        return Answer(code, str(said.out), str(said.err))

    return ask_


@pytest.fixture(scope="session")
def config(model: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run.yaml of a request in order, whose run folder does not exist."""
    folder = tmp_path_factory.mktemp("config")
    request = PretrainConfig(data=shards, model=model, out=folder / "run", global_batch=8, micro_batch=4)
    save_yaml(request, folder / "run.yaml")
    return folder / "run.yaml"


def program(folder: Path, name: str, text: str) -> Path:
    """An executable for PATH; @PYTHON@ in its text is this interpreter."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text.replace("@PYTHON@", sys.executable))
    path.chmod(0o755)
    return path
