"""Which runs are made, skipped, refused; the command line."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from asa import manifest, record
from asa.config import to_dict
from asa.errors import RequestError
from cli import parse
from finetune.__main__ import main
from finetune.config import FinetuneConfig
from finetune.loop import Run
from finetune.sweep import plan, share, sweep
from tests.finetune.conftest import Make, write_task

QUICKSTART = Path(__file__).parents[2] / "configs/finetune/quickstart.yaml"


def test_every_run_goes_to_one_worker_and_each_gets_as_many_of_each_method(make: Make, model_folder: Path) -> None:
    config = make(models={"a": model_folder, "b": model_folder}, methods=["vanilla", "asa"], seeds=[0, 1])
    every = plan(config)
    parts = [share(every, f"{part}/2") for part in range(2)]
    assert sorted(parts[0] + parts[1]) == sorted(every)
    assert len(set(every)) == 8
    for part in parts:
        assert [run.method for run in part] == ["vanilla", "vanilla", "asa", "asa"]


def test_finished_runs_are_kept_and_unfinished_ones_start_anew(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    config = make(seeds=[0, 1])
    sweep(config)
    paths = [config.out / f"tiny-vanilla-{seed}" / record.NAME for seed in (0, 1)]
    before = [path.read_text() for path in paths]
    lines = before[1].splitlines()
    paths[1].write_text("\n".join(lines[:-1]) + "\n")
    capsys.readouterr()
    sweep(config)
    printed = capsys.readouterr().out.splitlines()
    assert "finished before" in printed[0]
    assert "test 0." in printed[1]
    assert paths[0].read_text() == before[0]
    assert paths[1].read_text().splitlines()[:-1] == lines[:-1]


def test_a_worker_does_its_part_only(make: Make) -> None:
    sweep(make(seeds=[0, 1], worker="1/2"))
    config = make()
    assert not (config.out / "tiny-vanilla-0").exists()
    assert record.finished(config.out / "tiny-vanilla-1" / record.NAME)


def test_a_finished_run_with_other_settings_is_refused_unless_overwritten(make: Make) -> None:
    sweep(make())
    changed = {"optim": {"lr": 0.02}, "length": 12}
    with pytest.raises(RequestError, match=r"with another length, optim.lr; set --out or --overwrite true"):
        sweep(make(**changed))
    sweep(make(**changed, overwrite=True))
    start = record.read(make().out / "tiny-vanilla-0" / record.NAME)[0]
    assert start["config"]["optim"]["lr"] == 0.02


def test_a_finished_run_with_other_weights_is_refused(make: Make, model_folder: Path, tmp_path: Path) -> None:
    sweep(make())
    moved = shutil.copytree(model_folder, tmp_path / "moved")
    sweep(make(models={"tiny": moved}))
    model = AutoModelForSequenceClassification.from_pretrained(moved, num_labels=2)
    model.save_pretrained(moved)
    with pytest.raises(RequestError, match="with another model_sha256"):
        sweep(make(models={"tiny": moved}))


def test_the_selected_model_is_kept_on_request(make: Make) -> None:
    config = make(methods=["asa"], save_model=True)
    sweep(config)
    folder = config.out / "tiny-asa-0" / "model"
    manifest.verify(folder, "model", "-")
    model, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert model.config.id2label == {0: "red", 1: "green", 2: "blue"}
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert (folder / "tokenizer.json").is_file()


def test_nothing_is_trained_where_one_input_is_wrong(make: Make, model_folder: Path, tmp_path: Path) -> None:
    config = make(models={"tiny": model_folder, "gone": tmp_path / "gone"})
    with pytest.raises(RequestError, match=r"gone.*--models.gone"):
        sweep(config)
    assert not config.out.exists()


def test_an_unsupported_family_is_refused(make: Make, model_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model_folder, tmp_path / "other")
    shape = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**shape, "model_type": "t5"}))
    with pytest.raises(RequestError, match=r"'t5' is not supported.*--models.tiny"):
        sweep(make(models={"tiny": other}))


def test_rows_longer_than_the_model_takes_are_refused(make: Make) -> None:
    with pytest.raises(RequestError, match=r"length = 64: .* at most 32 tokens; lower --length"):
        sweep(make(length=64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["vanila"]}, "no method 'vanila'; did you mean 'vanilla'\\? allowed: vanilla"),
        ({"methods": ["asa", "asa"]}, "given twice"),
        ({"seeds": [-1]}, "allowed: 0 <= seed"),
        ({"seeds": []}, "seeds"),
        ({"models": {"a/b": "x"}}, "'a/b' cannot name a run's folder"),
        ({"worker": "2/2"}, "allowed: i/n with 0 <= i < n"),
        ({"batch": 0}, "allowed: 1 <= batch, set --batch"),
    ],
)
def test_wrong_settings_are_named(make: Make, changes: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make(**changes)


def test_the_quickstart_config_is_valid() -> None:
    config = parse(FinetuneConfig, ["--config", str(QUICKSTART), "--seeds", "3,4"], "finetune run")
    assert len(plan(config)) == 12
    assert to_dict(config)["seeds"] == [3, 4]
    assert Run("base", "asa", 3) in plan(config)


def test_the_command_line_trains_and_refuses(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make()
    given = ["--task", str(config.task), "--models.tiny", str(config.models["tiny"]), "--out", str(config.out)]
    short = ["--methods", "vanilla", "--seeds", "0", "--max_steps", "2", "--length", "16", "--batch", "4"]
    assert command(monkeypatch, "run", *given, *short) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tiny-vanilla-0 ")
    assert "test 0." in printed
    task = write_task(tmp_path / "unfinished")
    (task / manifest.NAME).unlink()
    assert command(monkeypatch, "run", *given, "--task", str(task)) == 2
    refused = capsys.readouterr().err
    assert refused.startswith("error: ")
    assert refused.count("\n") == 1


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of `python -m finetune ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["finetune", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert isinstance(stop.value.code, int)
    return stop.value.code
