"""Which checkpoint a run continues from, and that what it may change on the way changes nothing but rounding."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asa import checkpoint, manifest, record
from asa.config import save_yaml
from asa.errors import RequestError, WorkError
from asa.methods import METHODS
from asa.methods.asa import ASA
from asa.methods.freelb import FreeLBConfig
from asa.optim import OptimConfig
from pretrain.config import PretrainConfig, RTDConfig, check
from pretrain.export import ExportConfig, export
from pretrain.loop import train
from pretrain.resume import newest
from tests.pretrain.conftest import flip_a_byte
from tests.ranks import run_ranks

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_process")


@pytest.fixture(scope="module")
def finished(model: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory, one_process: None) -> PretrainConfig:
    """A run of four steps with checkpoints 2 and 4."""
    out = tmp_path_factory.mktemp("finished")
    config = PretrainConfig(
        data=shards, model=model, out=out, steps=4, global_batch=8, micro_batch=4, save_every=2, log_every=1
    )
    train(config, CPU)
    return config


@pytest.fixture
def run(finished: PretrainConfig, tmp_path: Path) -> PretrainConfig:
    """A copy of it to do damage to."""
    shutil.copytree(finished.out, tmp_path / "run")
    return replace(finished, out=tmp_path / "run")


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "exp_avg.safetensors is damaged": lambda folder: flip_a_byte(folder / "exp_avg.safetensors"),
    "lacks model.safetensors": lambda folder: (folder / "model.safetensors").unlink(),
    "has no manifest.json": lambda folder: (folder / manifest.NAME).unlink(),
    "manifest.json is damaged": lambda folder: (folder / manifest.NAME).write_text("{"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_taken(run: PretrainConfig, message: str) -> None:
    root = run.out / "checkpoints"
    DAMAGE[message](root / "step-4")
    told: list[str] = []
    assert newest(run, 1, told.append) == root / "step-2"
    assert len(told) == 1
    assert "step-4" in told[0]
    assert message in told[0]
    assert told[0].endswith("continuing from step-2 instead")


def without_end(run: PretrainConfig) -> None:
    path = run.out / record.NAME
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def test_an_unfinished_save_is_named_and_counts_for_nothing(run: PretrainConfig) -> None:
    root = run.out / "checkpoints"
    (root / "step-4").rename(root / "step-4.partial")
    told: list[str] = []
    assert newest(run, 1, told.append) == root / "step-2"
    assert [line for line in told if "step-4.partial was not finished" in line] == told
    shutil.rmtree(root / "step-2")
    without_end(run)  # the run that has made no checkpoint yet has not ended
    told.clear()
    assert newest(run, 1, told.append) is None
    assert told == [f"warning: {root / 'step-4.partial'} was not finished; starting from the beginning"]


def test_when_all_are_damaged_the_run_does_not_start_from_nothing(run: PretrainConfig) -> None:
    for step in (2, 4):
        flip_a_byte(run.out / "checkpoints" / f"step-{step}" / "model.safetensors")
    before = (run.out / record.NAME).read_bytes()
    with pytest.raises(WorkError, match=r"no checkpoint .* is whole.*step-4.*step-2.*--out") as caught:
        train(run, CPU)
    assert "\n" not in str(caught.value)
    assert (run.out / record.NAME).read_bytes() == before


def test_a_run_whose_newest_checkpoint_is_damaged_ends_as_the_undisturbed_one(
    run: PretrainConfig, finished: PretrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_a_byte(run.out / "checkpoints" / "step-4" / "exp_avg_sq.safetensors")
    train(run, CPU)
    assert capsys.readouterr().out.count("exp_avg_sq.safetensors is damaged") == 1
    for name in checkpoint.FILES.values():
        expected, found = (load_file(c.out / "checkpoints" / "step-4" / name) for c in (finished, run))
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)


def change_facts(folder: Path, **changes: Any) -> None:
    facts = manifest.read(folder, checkpoint.KIND, "-") | changes
    manifest.write(folder, checkpoint.KIND, {name: value for name, value in facts.items() if value is not None})


@pytest.mark.parametrize(("number", "told"), [(None, 1), (checkpoint.FORMAT + 1, checkpoint.FORMAT + 1)])
def test_a_checkpoint_of_another_format_is_told_and_the_one_before_it_not_taken(
    run: PretrainConfig, number: int | None, told: int, tmp_path: Path
) -> None:
    change_facts(run.out / "checkpoints" / "step-4", format=number)
    message = rf"step-4 was made by another version .*format {told}, this one reads {checkpoint.FORMAT}.*; use that"
    with pytest.raises(WorkError, match=f"{message} version, or set another --out"):
        newest(run, 1)
    with pytest.raises(WorkError, match=f"{message} version, or set another --checkpoint"):
        export(ExportConfig(checkpoint=run.out, out=tmp_path / "export"))


def test_a_setting_that_is_unknown_here_is_named(run: PretrainConfig) -> None:
    newer = run.out / "checkpoints" / "step-4"
    change_facts(newer, config=manifest.read(newer, checkpoint.KIND, "-")["config"] | {"dreams": 3})
    with pytest.raises(RequestError, match=r"holds a run with another dreams \(3\); .* another --out"):
        newest(run, 1)


def test_a_run_from_before_is_told_that_other_held_out_rows_are_scored(run: PretrainConfig) -> None:
    last, told = run.out / "checkpoints" / "step-4", list[str]()
    known = manifest.read(last, checkpoint.KIND, "-")["inputs"]
    assert newest(run, 1, told.append) == last
    assert not told
    change_facts(last, inputs={name: value for name, value in known.items() if name != "heldout"})
    assert newest(run, 1, told.append) == last
    assert told == [
        "held-out rows beyond --eval_rows are left out at even distances, no more from the end: other scores"
    ]


def test_settings_of_methods_that_the_run_does_not_train_by_are_free(run: PretrainConfig) -> None:
    assert newest(replace(run, freelb=FreeLBConfig(radius=3.0)), 1) == run.out / "checkpoints" / "step-4"
    with pytest.raises(RequestError, match=r"another asa\.tau"):
        newest(replace(run, asa=replace(run.asa, tau=0.7)), 1)


def test_those_of_a_method_of_ones_own_are_not(run: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read any, also where it was put into the registry by hand."""
    monkeypatch.setitem(METHODS, "mine", lambda config: ASA(config.asa))
    newest_ = run.out / "checkpoints" / "step-4"
    facts = manifest.read(newest_, checkpoint.KIND, "-")
    change_facts(newest_, config=facts["config"] | {"method": "mine"})
    mine = replace(run, method="mine")
    assert newest(mine, 1) == newest_
    with pytest.raises(RequestError, match=r"another asa\.tau"):
        newest(replace(mine, asa=replace(run.asa, tau=0.7)), 1)


def test_a_damaged_record_is_told_before_the_ranks_are_started(run: PretrainConfig) -> None:
    path = run.out / record.NAME
    path.write_bytes(b"garbage\n" + path.read_bytes())
    with pytest.raises(WorkError, match=r"line 1 of .*metrics\.jsonl is damaged"):
        newest(run, 1)


def test_a_run_that_would_take_anothers_record_away_is_refused(run: PretrainConfig) -> None:
    shutil.rmtree(run.out / "checkpoints")
    with pytest.raises(RequestError, match=r"holds a finished run without its checkpoints; .* another --out"):
        newest(run, 1)
    without_end(run)
    assert newest(run, 1) is None  # killed before its first checkpoint, it begins again
    path = run.out / record.NAME
    path.write_text(path.read_text().replace('"stage": "pretrain"', '"stage": "finetune"'))
    with pytest.raises(RequestError, match="holds a run of stage finetune; set another --out"):
        newest(run, 1)


@pytest.mark.parametrize("name", ["tensorboard", "environment.json", "config.yaml"])
def test_what_no_run_made_is_not_taken_away(request_: PretrainConfig, name: str) -> None:
    mine = request_.out / name
    mine.mkdir(parents=True)
    with pytest.raises(RequestError, match=rf"/{name} is there without a record and would be replaced; move it or set"):
        train(request_, CPU)
    assert mine.is_dir()
    mine.rmdir()
    (request_.out / record.NAME).write_text("")  # killed before its first line was written
    mine.mkdir()
    with pytest.raises(RequestError, match=name):
        newest(request_, 1)
    mine.rmdir()
    assert newest(request_, 1) is None


def test_a_folder_is_known_as_a_runs_before_anything_else_is_in_it(
    request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pretrain.loop.save_yaml", killed)
    with pytest.raises(KeyboardInterrupt):
        train(request_, CPU)
    assert (request_.out / record.NAME).is_file()
    assert not (request_.out / "config.yaml").exists()
    assert newest(request_, 1) is None


def test_another_number_of_threads_is_told(run: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    newest(run, 1, told.append)
    assert not told
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 3)
    newest(run, 3, told.append)
    assert not told, "in a complete run nothing is drawn or summed any more"
    without_end(run)
    newest(run, 1, told.append)
    assert told == [f"from {threads} to {threads + 3} threads a process: sums round otherwise, OMP_NUM_THREADS sets it"]


def test_a_complete_run_is_left_as_it_is(run: PretrainConfig, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in run.out.rglob("*") if path.is_file()}
    train(replace(run, zero=3, offload=True, save_every=7), CPU)
    assert f"{run.out} is complete" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run.out.rglob("*") if path.is_file()} == before


def test_what_the_objective_does_not_read_may_change_on_the_way(run: PretrainConfig) -> None:
    others = replace(run, asa=replace(run.asa, token_mean="rows"), rtd=RTDConfig(generator_weight=5.0))
    assert newest(others, 1) == run.out / "checkpoints" / "step-4"
    with pytest.raises(RequestError, match=r"another asa\.sentence \(hidden_softmax\);"):
        newest(replace(run, asa=replace(run.asa, sentence="mse")), 1)


@pytest.mark.parametrize(
    "change",
    [
        {"zero": 0, "micro_batch": 8},
        {"zero": 3, "offload": True, "activation_checkpointing": True},
    ],
    ids=str,
)
def test_stage_offload_and_accumulation_may_change_on_the_way(
    model: Path, shards: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    whole = PretrainConfig(data=shards, model=model, out=tmp_path / "whole", steps=4, global_batch=8, micro_batch=4)
    whole = replace(whole, save_every=2, log_every=1, method="vanilla", **no_dropout(whole, tmp_path))
    train(whole, CPU)
    shutil.copytree(whole.out, tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "checkpoints" / "step-4")
    train(replace(whole, out=tmp_path / "other", **change), CPU)
    first, second = (losses(tmp_path / name) for name in ("whole", "other"))
    assert second == pytest.approx(first, rel=1e-5)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes want two cores")
def test_from_one_process_to_two_and_back_the_run_sees_the_same_samples_and_losses(
    request_: PretrainConfig, tmp_path: Path
) -> None:
    optim = OptimConfig(lr=3e-3, warmup=0.0)
    whole = replace(request_, keep=3, eval_every=6, optim=optim, **no_dropout(request_, tmp_path))
    train(whole, CPU)
    parts = replace(whole, out=tmp_path / "parts")
    shutil.copytree(whole.out, parts.out)
    for step in (4, 6):
        shutil.rmtree(parts.out / "checkpoints" / f"step-{step}")
    train_by_two(parts, tmp_path / "parts.yaml")
    by_two = losses(parts.out)
    shutil.rmtree(parts.out / "checkpoints" / "step-6")
    train(parts, CPU)
    assert by_two == pytest.approx(losses(whole.out), rel=1e-4)
    assert losses(parts.out) == pytest.approx(losses(whole.out), rel=1e-4)
    assert len(losses(parts.out)) == 6


def train_by_two(config: PretrainConfig, file: Path) -> None:
    save_yaml(config, file)
    said = run_ranks(2, "pretrain", "run", "--config", file, timeout=300)
    assert said.count("from 1 to 2 processes") == 1


def no_dropout(config: PretrainConfig, folder: Path) -> dict[str, Path]:
    """The model with dropout off, since draws follow how rows are cut."""
    copy = folder / "still"
    shutil.copytree(config.model, copy)
    text = (copy / "config.json").read_text()
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        assert f'"{name}": 0.1' in text
        text = text.replace(f'"{name}": 0.1', f'"{name}": 0.0')
    (copy / "config.json").write_text(text)
    return {"model": copy}


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in record.read(run / record.NAME) if event["event"] == "train"]


def test_offload_without_a_partitioned_optimizer_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    nowhere = PretrainConfig(data=tmp_path / "d", model=tmp_path / "m", out=tmp_path / "o", zero=0, offload=True)
    with pytest.raises(RequestError, match="--zero 1"):
        check(nowhere, 1, cuda=False)
