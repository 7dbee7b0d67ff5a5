"""Which runs are made, skipped, refused; the command line."""

import json
import math
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from asa import manifest, methods, record
from asa.config import from_dict
from asa.errors import RequestError, WorkError
from asa.hf import weights_sha256
from asa.methods import METHODS, MethodsConfig
from cli import given as read_flags
from finetune.__main__ import main
from finetune.claims import FOLDER, claimed
from finetune.config import FinetuneConfig, check
from finetune.facts import settings
from finetune.recipes import resolved
from finetune.run import Cell, Run
from finetune.sweep import Sweep, _answer, _line, _published, check_model, plan, sweep
from finetune.tasks.spec import TaskConfig
from tests.finetune.conftest import CLASSES, Given, Make, events, small_task, write_task

QUICKSTART = Path(__file__).parents[2] / "configs/finetune/quickstart.yaml"


def test_finished_runs_are_kept_and_unfinished_ones_start_anew(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = given(seeds=[0, 1])
    sweep(wanted)
    paths = [tmp_path / "runs" / "colours" / f"tiny-vanilla-{seed}" / record.NAME for seed in (0, 1)]
    before = [path.read_text() for path in paths]
    lines = before[1].splitlines()
    paths[1].write_text("\n".join(lines[:-1]) + "\n")
    capsys.readouterr()
    sweep({**wanted, "log_every": 5, "save_every": 1})  # no score depends on these
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("colours: train 24, dev 12, test 12; fewer than 20 rows of dev and of test")
    assert "finished before" in printed[1]
    assert "test_accuracy 0." in printed[2]
    assert paths[0].read_text() == before[0]
    evaluations = [
        [line for line in text.splitlines() if '"eval"' in line] for text in (before[1], paths[1].read_text())
    ]
    assert evaluations[0] == evaluations[1]


def test_a_finished_run_with_other_settings_is_refused_unless_overwritten(given: Given, tmp_path: Path) -> None:
    sweep(given())
    changed = given(optim={"lr": 0.02}, length=12)
    with pytest.raises(RequestError, match=r"with another length, optim.lr; set --out or --overwrite true"):
        sweep(changed)
    sweep({**changed, "overwrite": True})
    assert events(tmp_path / "runs", "tiny-vanilla-0")[0]["config"]["optim"]["lr"] == 0.02


def test_settings_of_other_methods_do_not_make_it_another_run(given: Given, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(given(methods=["vanilla", "pgd"]))
    capsys.readouterr()
    sweep(given(methods=["vanilla"], asa={"tau": 0.5}, pgd={"radius": 0.5}, adversary="exported"))
    assert "finished before" in capsys.readouterr().out
    with pytest.raises(RequestError, match=r"tiny-pgd-0 is a finished run with another pgd.radius; "):
        sweep(given(methods=["pgd"], asa={"tau": 0.5}, pgd={"radius": 0.5}))


def test_settings_of_other_methods_do_not_count(make: Make) -> None:
    config = make()
    assert {"asa", "adversary"} <= set(settings("asa", config))
    assert {"asa", "freelb", "adversary"} <= set(settings("asa_freelb", config))
    assert not {"adversary", "asa", "out", "methods"} & set(settings("freelb", config))


def test_a_finished_run_with_other_weights_is_refused(given: Given, model_folder: Path, tmp_path: Path) -> None:
    sweep(given())
    moved = shutil.copytree(model_folder, tmp_path / "moved")
    sweep(given(models={"tiny": moved}))
    (moved / "adversary.safetensors").write_bytes(b"none")  # vanilla reads none
    sweep(given(models={"tiny": moved}))
    model = AutoModelForSequenceClassification.from_pretrained(moved, num_labels=2)
    model.save_pretrained(moved)
    weights_sha256.cache_clear()  # the hash of a folder holds for the life of a process
    with pytest.raises(RequestError, match="with another model_sha256"):
        sweep(given(models={"tiny": moved}))


def test_a_finished_run_whose_texts_were_read_otherwise_is_refused(
    given: Given, model_folder: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(model_folder, tmp_path / "moved")
    sweep(given(models={"tiny": moved}))
    settings = moved / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"truncation_side": "left"}))
    with pytest.raises(RequestError, match="with another reader_sha256"):
        sweep(given(models={"tiny": moved}))
    path = tmp_path / "runs" / "colours" / "tiny-vanilla-0" / record.NAME
    path.write_text(re.sub(r'"reader_sha256": "\w+"', '"other": ""', path.read_text()))
    sweep(given(models={"tiny": moved}))  # older records do not tell


def test_a_record_from_before_a_setting_is_of_the_run_without_it(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(given())
    path = tmp_path / "runs" / "colours" / "tiny-vanilla-0" / record.NAME
    start, *others = path.read_text().splitlines()
    facts = json.loads(start)
    del facts["config"]["patience"]  # null
    path.write_text("\n".join([json.dumps(facts), *others, ""]))
    capsys.readouterr()
    sweep(given())
    assert "finished before" in capsys.readouterr().out


def test_an_encoder_whose_weights_are_not_there_is_refused(
    given: Given, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under another name, and of another shape than config.json says; a run would train from nothing."""
    renamed, reshaped = (shutil.copytree(model_folder, tmp_path / name) for name in ("renamed", "reshaped"))
    weights = load_file(renamed / "model.safetensors")
    save_file(
        {f"encoder.{name}": one for name, one in weights.items()}, renamed / "model.safetensors", {"format": "pt"}
    )
    settings = json.loads((reshaped / "config.json").read_text()) | {"intermediate_size": 48}
    (reshaped / "config.json").write_text(json.dumps(settings))
    with pytest.raises(RequestError, match="2 of 3 runs failed"):
        sweep(given(models={"tiny": model_folder, "renamed": renamed, "reshaped": reshaped}))
    told = capsys.readouterr().out
    for name in ("renamed", "reshaped"):
        assert re.search(rf"failed: \S+/{name} has no weights, or of another shape, for \d+ .*--models\.{name}", told)


def test_a_saved_model_is_of_its_own_task_whatever_its_start_was_of(
    given: Given, model_folder: Path, tmp_path: Path
) -> None:
    start = shutil.copytree(model_folder, tmp_path / "start")
    settings = json.loads((start / "config.json").read_text()) | {"problem_type": "multi_label_classification"}
    (start / "config.json").write_text(json.dumps(settings))
    sweep(given(models={"tiny": start}, save_model=True))
    found = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "runs" / "colours" / "tiny-vanilla-0" / "model"
    )
    assert found.config.problem_type is None


def test_a_method_from_outside_counts_by_its_file(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, name = tmp_path / "written_today.py", "written_today:build"
    file.write_text("from asa.methods.vanilla import Vanilla\n\n\ndef build(settings):\n    return Vanilla()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS, name, None)  # for monkeypatch to take it out again
    del METHODS[name]
    sweep(given(methods=[name]))
    capsys.readouterr()
    sweep(given(methods=[name]))
    assert "finished before" in capsys.readouterr().out
    file.write_text(file.read_text() + "# changed\n")
    sweep(given(methods=[name]))  # what is loaded is what runs
    for place in (METHODS, methods._loaded, sys.modules):  # as another process would find it
        monkeypatch.delitem(place, name if place is METHODS else "written_today")
    with pytest.raises(RequestError, match="is a finished run with another method_sha256; set --out"):
        sweep(given(methods=[name]))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_is_its_weights_its_shape_and_its_tokenizer(name: str, model_folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(model_folder, tmp_path / "moved")
    assert weights_sha256(moved) == weights_sha256(model_folder)
    (moved / name).write_bytes((moved / name).read_bytes() + b" ")
    weights_sha256.cache_clear()
    assert weights_sha256(moved) != weights_sha256(model_folder)


def test_a_schedule_and_an_exported_adversary_count_by_content(
    given: Given, model_folder: Path, tmp_path: Path
) -> None:
    lines = [{"event": "start"}, {"event": "train", "step": 1, "masked_share": [0.1, 0.2]}]
    for place, name in enumerate(("a", "b", "c")):
        lines[1]["masked_share"] = [0.1 * (1 + place // 2), 0.2]
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def wanted(name: str) -> dict[str, Any]:
        schedule = {"strategy": "scheduled", "schedule": tmp_path / name}
        return given(methods=["random_mask"], random_mask=schedule, max_steps=1)

    sweep(wanted("a"))
    assert len(Sweep(wanted("b")).finished) == 1
    with pytest.raises(RequestError, match="with another schedule_sha256; "):
        Sweep(wanted("c"))
    sweep(given(methods=["asa"], save_model=True, max_steps=1))
    saved = tmp_path / "runs" / "colours" / "tiny-asa-0" / "model"
    pretrained = shutil.copytree(model_folder, tmp_path / "pretrained")
    shutil.copy(saved / "adversary.safetensors", pretrained)
    with pytest.raises(RequestError, match="with another adversary, adversary_sha256; "):
        Sweep(given(methods=["asa"], models={"tiny": pretrained}, adversary="exported", max_steps=1))


def test_the_selected_model_is_kept_on_request(given: Given, tmp_path: Path) -> None:
    sweep(given(methods=["asa"], save_model=True))
    folder = tmp_path / "runs" / "colours" / "tiny-asa-0" / "model"
    assert manifest.verify(folder, "model", "-")["method"] == "asa"
    model, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert model.config.id2label == dict(enumerate(CLASSES))
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    sweep(given(models={"tiny": folder}, out=tmp_path / "second"))
    assert events(tmp_path / "second", "tiny-vanilla-0")[0]["new_weights"] == []


def test_a_finished_run_is_made_again_where_its_model_is_wanted_and_was_not_kept(given: Given, tmp_path: Path) -> None:
    sweep(given(max_steps=2))
    run = tmp_path / "runs" / "colours" / "tiny-vanilla-0"
    assert len(Sweep(given(max_steps=2)).finished) == 1
    sweep(given(max_steps=2, save_model=True))
    assert manifest.verify(run / "model", "model", "-")["method"] == "vanilla"
    assert [len(Sweep(given(max_steps=2, save_model=kept)).finished) for kept in (True, False)] == [1, 1]


def test_a_task_of_your_own_beside_standard_ones_is_refused(given: Given) -> None:
    with pytest.raises(RequestError, match=r"task\.\* describes a task of your own; leave it or --tasks out"):
        Sweep(given(tasks=["rte"]))


def test_methods_that_attack_as_published_for_a_task_are_told(given: Given) -> None:
    """FreeLB's settings for SST-2 are RoBERTa-large's, whatever model is trained."""

    def lines(**keys: Any) -> list[str]:
        wanted = given(**{"tasks": ["sst2", "rte"], "methods": ["vanilla", "freelb", "pgd", "r_drop"], **keys})
        found = _published(from_dict(FinetuneConfig, wanted), wanted)
        return [line.partition(" as published for this task, of whatever model")[0] for line in found]

    assert lines() == ["sst2: freelb, pgd", "rte: freelb, pgd"]
    said = {"radius": 0.1, "step_size": 0.1, "passes": 2, "start": 0.0}
    assert lines(freelb=said) == ["sst2: pgd", "rte: pgd"], "nothing of the preset is left"
    assert lines(freelb={"radius": 0.1}, methods=["freelb"]) == ["sst2: freelb", "rte: freelb"]
    assert lines(methods=["vanilla", "r_drop"]) == lines(recipes=False) == lines(tasks=[]) == []
    assert lines(methods=["tests.finetune.failing:Failing"]) == []


def test_a_line_shows_splits_with_an_underscore_in_their_names() -> None:
    end = {"dev_accuracy": 0.5, "test_hard_accuracy": 0.25, "test_loss": 1.0, "best_epoch": 1.0, "seconds": 1.0}
    line = _line(Run("small", "tiny", "vanilla", 0), small_task("classification"), end)
    assert "dev_accuracy 0.5000  test_hard_accuracy 0.2500  best epoch 1" in line


def test_nothing_is_trained_where_one_input_is_wrong(given: Given, model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"gone.*--models.gone"):
        sweep(given(models={"tiny": model_folder, "gone": tmp_path / "gone"}))
    assert not (tmp_path / "runs").exists()


def test_an_unsupported_family_is_refused(given: Given, model_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model_folder, tmp_path / "other")
    shape = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**shape, "model_type": "t5"}))
    with pytest.raises(RequestError, match=r"'t5' is not supported.*--models.tiny"):
        sweep(given(models={"tiny": other}))


def test_a_finished_folder_of_another_kind_is_no_place_for_runs(given: Given, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / manifest.NAME).write_text("{}")
    with pytest.raises(RequestError, match=r"docs is a finished folder .* must not be mixed with; set another --out"):
        sweep(given(out=str(tmp_path / "docs")))
    assert [path.name for path in (tmp_path / "docs").iterdir()] == [manifest.NAME]


def test_a_layer_that_the_model_has_not_is_refused_before_anything_is_trained(given: Given, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"the model has layers 0 to 1; set --asa_sparse\.layers"):
        sweep(given(methods=["vanilla", "asa_sparse"], asa_sparse={"layers": [2]}))
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_rows_longer_than_the_model_takes_are_refused(given: Given) -> None:
    with pytest.raises(RequestError, match=r"length = 64: .* at most 32 tokens; lower --length"):
        sweep(given(length=64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["vanila"]}, "no method 'vanila'; did you mean 'vanilla'\\? allowed: vanilla"),
        ({"methods": ["asa", "asa"]}, "given twice"),
        ({"seeds": [-1]}, "allowed: 0 <= seed"),
        ({"seeds": []}, "seeds"),
        ({"models": {"a/b": "x"}}, "'a/b' cannot name a run's folder"),
        ({"models": {"..": "x"}}, "'..' cannot name a run's folder"),
        ({"models": {"m" * 101: "x"}}, "cannot name a run's folder, allowed: up to 100 letters"),
        ({"worker": -1}, "allowed: 0 <= worker, set --worker"),
        ({"batch": 0}, "allowed: 1 <= batch, set --batch"),
        ({"patience": 0}, "greater than or equal to 1, set --patience"),
        ({"epochs": math.inf}, "epochs = inf: .*, allowed: 0 < epochs <= 1000000.0, set --epochs"),
        ({"epochs": 1e308}, "epochs = 1e\\+308: .*, allowed: 0 < epochs <= 1000000.0, set --epochs"),
        ({"save_every": math.inf}, "save_every = inf: .*finite.*, set --save_every"),
    ],
)
def test_wrong_settings_are_named(make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "bf16"}, "set --engine deepspeed or --precision fp32"),
        ({"zero": 2}, "set --engine deepspeed or --zero 0"),
        ({"engine": "deepspeed", "precision": "fp16"}, "needs a GPU"),
        ({"engine": "deepspeed", "zero": 3, "methods": ["yopo"]}, "set --zero 2"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check(make(**changes), cuda=False)


def test_the_quickstart_config_is_twelve_runs_a_seed_after_the_other(model_folder: Path) -> None:
    flags = [f"--models.{name}={model_folder}" for name in ("base", "mlm", "asa")]
    values = read_flags(
        FinetuneConfig, ["--config", str(QUICKSTART), *flags, "--seeds", "3,4", "--length", "16"], "finetune run"
    )
    runs = [cell.run for cell in plan(values, [small_task("classification")], check_model)]
    assert len(runs) == 12
    assert [run.seed for run in runs] == [3] * 6 + [4] * 6
    assert Run("small", "base", "asa", 3) in runs


@pytest.mark.parametrize("key", ["seeds", "methods", "models", "out", "train_rows", "holdout", "paper_compat"])
def test_a_recipe_has_settings_of_runs_and_nothing_else(key: str, given: Given, task_folder: Path) -> None:
    task = from_dict(TaskConfig, {"folder": task_folder, "recipe": {"batch": 4, key: "x"}})
    with pytest.raises(RequestError, match=rf"task.recipe has {key}, .*; set --{key} and leave it out"):
        resolved(given(), task, "vanilla")
    assert resolved(given(recipes=False), task, "vanilla").batch == 8


def test_a_standard_task_starts_from_its_recipe_and_flags_have_the_last_word(
    model_folder: Path, tmp_path: Path
) -> None:
    values = {"tasks": ["rte"], "models": {"tiny": model_folder}, "out": tmp_path, "length": 16, "methods": ["freelb"]}
    task = small_task("classification")
    (cell, *_) = plan(values, [task], check_model)
    assert cell.config.freelb.radius == 0.15
    assert cell.config.length == 16
    (cell, *_) = plan({**values, "freelb": {"radius": 0.3}}, [task], check_model)
    assert (cell.config.freelb.radius, cell.config.freelb.step_size) == (0.3, 0.03)
    (cell, *_) = plan({**values, "recipes": False}, [task], check_model)
    assert cell.config.freelb == from_dict(MethodsConfig, {}).freelb


def test_a_run_that_another_process_makes_is_left_to_it(given: Given, tmp_path: Path) -> None:
    wanted = given(seeds=[0, 1], worker=1)
    (first, _) = Sweep(wanted).cells
    with claimed(first.config.out, first.run.name) as mine:
        assert mine
        sweep(wanted)
    assert not (tmp_path / "runs" / first.run.name).exists()
    assert record.finished(tmp_path / "runs" / "colours" / "tiny-vanilla-1" / record.NAME)


@contextmanager
def held(cell: Cell, following: Cell, last: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Inside, the run is another's until the one that follows has been claimed; `last` is what the other does then."""
    begun, over = threading.Event(), threading.Event()
    claim = following.config.out / FOLDER / following.run.name

    def hold() -> None:
        with claimed(cell.config.out, cell.run.name):
            begun.set()
            while not claim.exists() and not over.wait(0.01):
                pass
            last()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    try:
        assert begun.wait(10)
        yield
    finally:
        over.set()
        holder.join(10)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_run_whose_process_has_gone_falls_to_who_is_left(worker: int, given: Given, tmp_path: Path) -> None:
    wanted = given(seeds=[0, 1], worker=worker)
    (first, second) = Sweep(wanted).cells
    with held(first, second):
        sweep(wanted)
    assert [events(tmp_path / "runs", f"tiny-vanilla-{seed}")[-1]["event"] for seed in (0, 1)] == ["end", "end"]


def test_what_is_no_part_of_a_run_is_not_removed_for_one(given: Given) -> None:
    asked = given(max_steps=1)
    notes = asked["out"] / "colours" / "tiny-vanilla-0" / "notes.txt"
    for again in (asked, {**asked, "save_model": True}):  # in place of nothing, and of a finished run without a model
        notes.parent.mkdir(parents=True, exist_ok=True)
        notes.write_text("mine")
        (notes.parent / ".DS_Store").write_text("a system's")
        with pytest.raises(RequestError, match=r"notes\.txt is no part of a run, and would be removed; move it or"):
            sweep(again)
        notes.unlink()
        sweep(again)
    shutil.rmtree(notes.parent)
    notes.parent.write_text("a file")
    with pytest.raises(RequestError, match="is no folder, so no run is put there"):
        sweep(asked)


@pytest.mark.parametrize("before", [True, False])
def test_a_failure_of_another_process_counts_and_one_of_an_earlier_command_is_made_good(
    before: bool, given: Given, tmp_path: Path
) -> None:
    wanted = given(seeds=[0, 1])
    (first, second) = Sweep(wanted).cells
    path = first.folder / record.NAME

    def fail() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"event": "start"}) + "\n" + json.dumps({"event": "failed", "error": "lost"}) + "\n")

    if before:
        fail()
        os.utime(path, (0, 0))
        with held(first, second):
            sweep(wanted)
    else:
        told = r"1 of 2 runs failed \(colours/tiny-vanilla-0\); the first: lost"
        with held(first, second, last=fail), pytest.raises(WorkError, match=told):
            sweep(wanted)
    assert events(tmp_path / "runs", "tiny-vanilla-0")[-1]["event"] == ("end" if before else "failed")


def test_the_command_line_trains_and_refuses(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make()
    given = ["--task.folder", str(config.task.folder), "--models.tiny", str(config.models["tiny"])]
    given += ["--out", str(config.out)]
    short = ["--methods", "vanilla", "--seeds", "0", "--max_steps", "2", "--length", "16", "--batch", "4"]
    assert command(monkeypatch, "run", *given, "--length") == 2
    assert capsys.readouterr().err.endswith(
        "--length has no value; one that begins with - is given as --length=VALUE\n"
    )
    assert command(monkeypatch, "run", *given[:2]) == 2
    assert capsys.readouterr().err == (
        "error: not given: models, out; set --models.NAME (names, each with a path), --out (a path)\n"
    )
    slow = ["--methods", "asa", *short[2:], "--recipes", "false"]
    assert command(monkeypatch, "run", *given, *slow, "--optim.eps", "1e-6") == 0
    assert (
        "asa: eps = 1e-06 with asa.reversal = 0.0001, a factor of the adversary's gradients: it learns more slowly;"
        " set --optim.eps or --asa.reversal"
    ) in capsys.readouterr().out
    assert command(monkeypatch, "run", *given, *short, "--asa.tau", "0.2", "--pgd.radius=1") == 0
    note, _, printed = capsys.readouterr().out.splitlines()
    assert note == "note: no method of this run reads --asa.tau, --pgd.radius"
    assert printed.startswith("colours/tiny-vanilla-0 ")
    assert "test_accuracy 0." in printed
    task = write_task(tmp_path / "unfinished")
    (task / manifest.NAME).unlink()
    assert command(monkeypatch, "run", *given, "--task.folder", str(task)) == 2
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


def test_where_wrong_requests_and_failed_work_come_together_the_work_has_failed() -> None:
    """Its exit code, 1, tells that to mend the request is not enough."""
    wrong, failed = RequestError("no such model"), WorkError("the disk is full")
    for errors, kind in (([wrong], RequestError), ([wrong, failed], WorkError), ([failed, wrong], WorkError)):
        with pytest.raises(kind, match=f"^{len(errors)} of 3 runs failed"):
            _answer({f"run {n}": error for n, error in enumerate(errors)}, [], 3)
