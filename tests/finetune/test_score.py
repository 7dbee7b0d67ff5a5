"""Saved models on other tasks: label sets, what is recorded, what is refused."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as generated
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.special import softmax
from transformers import BertConfig

from asa import record
from asa.config import from_dict
from asa.errors import RequestError, WorkError
from finetune import claims
from finetune import score as module
from finetune.claims import claimed
from finetune.config import FinetuneConfig
from finetune.evaluation_config import RobustnessConfig, ScoreConfig
from finetune.labels import Merge, by_number_note, label_map, merged
from finetune.lineage import scored_ones, stages
from finetune.metrics import METRICS
from finetune.model import HEADS
from finetune.predictions import FOLDER, Predictions, load_predictions, predict
from finetune.report.collect import collect
from finetune.report.rows import tuned_rows
from finetune.report.tables import caveats
from finetune.robustness import _facts, _record, robustness
from finetune.saved import Saved, _splitting, encoded, find, kept, module_of, tasks_of
from finetune.score import _mapped, pair, score_all, score_one
from finetune.sweep import Sweep, sweep
from finetune.tasks import spec
from finetune.tasks.load import load
from finetune.tasks.spec import TaskConfig
from finetune.tasks.task import Kind, Split
from tests.finetune.conftest import CLASSES, Given, small_task

NLI = ["entailment", "neutral", "contradiction"]
TRAINED = r"was trained on rows of \w+, whose test is held out of them; leave out"


def saved(folder: Path, model_folder: Path, labels: list[str], seed: int = 0, kind: Kind = "classification") -> Path:
    """A model of the tiny shape with a random head, as others publish them."""
    shutil.copytree(model_folder, folder)
    torch.manual_seed(seed)
    shape = BertConfig.from_pretrained(model_folder, num_labels=len(labels))
    shape.id2label, shape.label2id = dict(enumerate(labels)), {name: index for index, name in enumerate(labels)}
    HEADS[kind].from_config(shape).save_pretrained(folder)
    return folder


def request(task: Path, out: Path, *models: Path, **changes: Any) -> ScoreConfig:
    values: dict[str, Any] = {"task": {"folder": task}, "out": out, "models": models, **changes}
    return ScoreConfig(**values)


def test_a_run_scored_on_its_own_task_gives_what_it_recorded(
    given: Given, task_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = given(max_steps=2, save_model=True)
    asked["models"]["other"] = asked["models"]["tiny"]
    sweep(asked)
    run = asked["out"] / "colours" / "tiny-vanilla-0"
    out = tmp_path / "scores"
    score_all(request(task_folder, out, run))
    folder = out / "colours" / "colours-tiny-vanilla-0"
    start, end = record.read(folder / record.NAME)
    told = {name: start[name] for name in ("stage", "task", "model", "method", "seed", "trained_on")}
    assert told == {
        "stage": "score",
        "task": "colours",
        "model": "tiny",
        "method": "vanilla",
        "seed": 0,
        "trained_on": "colours",
    }
    begun, *_, ended = record.read(run / record.NAME)
    assert start["inputs"]["start_sha256"] == begun["inputs"]["model_sha256"]
    assert start["inputs"]["trained_sha256"] == begun["inputs"]["task_sha256"]
    assert start["models"] == ["tiny", "other"]
    assert {name: end[name] for name in end if name.startswith("test_")} == {
        name: ended[name] for name in ended if name.startswith("test_") and name != "test_loss"
    }
    one, other = (load_predictions(path / FOLDER / "test.npz") for path in (run, folder))
    for row, same in zip(one.predictions.logits, other.predictions.logits, strict=True):
        np.testing.assert_allclose(softmax(row), np.exp(same), rtol=1e-5)
    capsys.readouterr()
    score_all(request(task_folder, out, run))
    assert "finished before" in capsys.readouterr().out
    with pytest.raises(RequestError, match="another config"):
        score_all(request(task_folder, out, run, length=8))
    score_all(request(task_folder, out, run, length=8, overwrite=True))
    assert record.read(folder / record.NAME)[0]["config"]["length"] == 8


def test_a_model_is_scored_on_the_rows_that_its_own_run_held_out(
    given: Given, model_folder: Path, tmp_path: Path
) -> None:
    lines = [f"{filler} {colour},{colour}" for filler in "abcdefgh" for colour in CLASSES]
    (tmp_path / "train.csv").write_text("\n".join(["text,y", *lines, ""]))
    task = {"name": "held", "train": [tmp_path / "train.csv"], "text": ["text"], "label": "y"}
    asked = given(task=task, max_steps=2, save_model=True, holdout=0.4)
    sweep(asked)
    run, other = asked["out"] / "held" / "tiny-vanilla-0", saved(tmp_path / "other", model_folder, CLASSES)
    score_all(ScoreConfig(task=task, out=tmp_path / "scores", models=(run, other), length=16))  # type: ignore[arg-type]
    folders = [tmp_path / "scores" / "held" / name for name in ("held-tiny-vanilla-0", "other")]
    ids = [load_predictions(folder / FOLDER / "test.npz").ids for folder in (run, *folders)]
    assert ids[0] == ids[1]
    assert len(ids[2]) < len(ids[0])
    assert (
        record.read(folders[0] / record.NAME)[0]["inputs"]["task_sha256"]
        == (record.read(run / record.NAME)[0]["inputs"]["task_sha256"])
    )


def test_models_are_not_attacked_on_rows_that_trained_one_of_them(given: Given, tmp_path: Path) -> None:
    """Each is right about its own held-out rows; but all are attacked on the same."""
    lines = [f"{filler} {colour},{colour}" for filler in "abcdefgh" for colour in CLASSES]
    (tmp_path / "train.csv").write_text("\n".join(["text,y", *lines, ""]))
    runs = {}
    for name, share in (("held", 0.4), ("again", 0.1)):
        task = {"name": name, "train": [tmp_path / "train.csv"], "label": "y"}
        asked = given(task=task, max_steps=1, save_model=True, holdout=share)
        sweep(asked)
        runs[name] = asked["out"] / name / "tiny-vanilla-0"
    task = {"name": "held", "train": [tmp_path / "train.csv"], "label": "y"}
    config = {"models": runs, "reference": "held", "task": task, "out": tmp_path / "attacks"}
    with pytest.raises(RequestError, match=r"again/tiny-vanilla-0/model was trained on rows of held, whose test"):
        robustness(from_dict(RobustnessConfig, config))
    assert not (tmp_path / "attacks").exists()


def test_a_folder_is_named_after_itself_however_it_is_given(
    task_folder: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record's folder is removed before it is written; one without a name would be that of all records."""
    folder = saved(tmp_path / "other", model_folder, CLASSES)
    out = tmp_path / "scores"
    score_all(request(task_folder, out, saved(tmp_path / "first", model_folder, CLASSES), length=16))
    monkeypatch.chdir(folder)
    score_all(request(task_folder, out, Path(), length=16))
    assert sorted(path.name for path in (out / "colours").iterdir()) == ["first", "other"]


def test_a_model_is_not_scored_on_rows_that_trained_it_by_way_of_another_task(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{filler} {colour},{colour}" for filler in "abcdefgh" for colour in CLASSES]
    (tmp_path / "added.csv").write_text("\n".join(["text,y", *lines, ""]))
    (tmp_path / "own.csv").write_text("\n".join(["text,y", *(f"h {line}" for line in lines), ""]))
    (tmp_path / "standard").mkdir()
    described = f"train: [{tmp_path / 'added.csv'}]\nlabel: y\n"
    (tmp_path / "standard" / "added.yaml").write_text(described)
    monkeypatch.setattr(spec, "STANDARD", tmp_path / "standard")
    task = {"name": "joint", "train": [tmp_path / "own.csv"], "label": "y", "also": ["added"]}
    asked = given(task=task, max_steps=2, save_model=True)
    sweep(asked)
    run = asked["out"] / "joint" / "tiny-vanilla-0"
    # Under the run's own name, but of other files.
    both = {"name": "joint", "train": [tmp_path / "own.csv", tmp_path / "added.csv"], "label": "y"}
    for wanted in ({"tasks": ("added",)}, {"task": both}):
        for model in (run, run / "model"):
            with pytest.raises(RequestError, match=TRAINED):
                score_all(ScoreConfig(out=tmp_path / "scores", models=(model,), **wanted))  # type: ignore[arg-type]
    assert not (tmp_path / "scores").exists()
    again: Any = {"name": "again", "train": [tmp_path / "own.csv"], "label": "y"}
    score_all(ScoreConfig(out=tmp_path / "scores", models=(run,), task=again, length=16))
    ids = [load_predictions(path).ids for path in (run / FOLDER / "test.npz", *(tmp_path / "scores").rglob("test.npz"))]
    assert ids[0] == ids[1], "the rows that its run held out, whatever the task is called"
    (tmp_path / "standard" / "added.yaml").write_text(f"{described}test: [{tmp_path / 'own.csv'}]\n")
    capsys.readouterr()
    score_all(ScoreConfig(out=tmp_path / "scores", models=(run,), tasks=("added",), length=16))
    assert f"added: {run / 'model'} was trained on a file of its scored rows" in capsys.readouterr().out
    rows = tuned_rows(collect(tmp_path / "scores"))
    assert {row.task: row.trained_by for row in rows} == {"added after joint": True, "again after joint": False}
    (trained,) = (row.run.name for row in rows if row.trained_by)
    assert caveats(rows) == f"A file of the scored rows has trained {trained}."
    clean = tmp_path / "clean.csv"
    clean.write_text((tmp_path / "own.csv").read_text().replace("h ", "i "))
    own = tmp_path / "own.csv"
    # Of a dev beside a test nothing is scored, but robustness may attack it; a file may be test and train.
    wanted = {("own", "clean"): {"dev"}, ("clean", "own"): {"test"}, ("", "own"): {"test"}, ("own", ""): {"test"}}
    facts = find(run, "--models").run
    for (dev, test), found in wanted.items():
        paths = {"own": (own,), "clean": (clean,), "": ()}
        described: Any = TaskConfig(train=(clean,) if dev else (own,), dev=paths[dev], test=paths[test], label="y")
        one = load(described, FinetuneConfig(task=described, models={"any": tmp_path}, out=tmp_path))
        assert {split for split in ("train", "dev", "test") if scored_ones(facts, one.facts, [split])} == found
        for split in ("dev", "test"):
            asked_ = RobustnessConfig(models={"m": run}, reference="m", out=tmp_path / "attack", split=split)
            saved_ = find(run, "--models")
            start = _record("m", saved_, one, asked_, _facts(one, {"m": saved_}, asked_))[1]
            assert start.get("scored_rows_trained", False) is (split in found)
            assert "chosen_by_test" not in start
            for name, chosen in ((one.name, True), ("other", False)):
                compat_ = saved_._replace(run={**saved_.run, "config": {"paper_compat": True}, "task": name})
                start = _record("m", compat_, one, asked_, _facts(one, {"m": compat_}, asked_))[1]
                assert start.get("chosen_by_test", False) is chosen
    described = TaskConfig(train=(clean,), dev=(own,), label="y")
    compat = FinetuneConfig(task=described, models={"any": tmp_path}, out=tmp_path, paper_compat=True)
    assert scored_ones(facts, load(described, compat).facts, ["dev"]), "where test chooses, dev is that"
    with pytest.raises(RequestError, match="was trained on rows of added, whose dev is held out of them"):
        tasks_of(ScoreConfig(out=tmp_path, models=(run,), tasks=("added",)), [find(run, "--models")], tmp_path, "dev")


def test_a_run_whose_start_or_own_training_read_the_file_of_the_scored_rows_is_told(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{filler} {colour},{colour}" for filler in "abcdefgh" for colour in CLASSES]
    own, clean = tmp_path / "own.csv", tmp_path / "clean.csv"
    own.write_text("\n".join(["text,y", *lines, ""]))
    clean.write_text(own.read_text().replace(" ", " x "))
    tasks: dict[str, Any] = {"first": {"train": [own]}, "second": {"train": [clean], "test": [own]}}
    tasks["same"] = {"train": [own], "dev": [own]}
    rows = [dict(zip(("text", "y"), line.split(","), strict=True)) for line in lines]
    (both := tmp_path / "both.json").write_text(json.dumps({"old": rows, "new": rows[::-1]}))
    tasks["old"] = {"train": [both], "entry": "old"}
    start = tmp_path / "runs" / "first" / "tiny-vanilla-0" / "model"
    for name, task in tasks.items():
        models = {"models": {"tiny": start}} if name == "second" else {}
        asked = {"task": {"name": name, "label": "y", **task}, "paper_compat": name == "same"}
        sweep(given(**asked, max_steps=1, save_model=True, **models))
    assert f"second: {start} was trained on a file of its scored rows" in capsys.readouterr().out
    found = tuned_rows(collect(tmp_path / "runs"))
    told = {"first": False, "second": True, "same": True, "old": False}
    assert {row.task: row.trained_by for row in found} == told
    # Another entry of a file is other rows.
    old = find(tmp_path / "runs" / "old" / "tiny-vanilla-0", "--models").run
    for entry, expected in (("new", False), ("old", True)):
        described: Any = TaskConfig(test=(both,), entry=entry, label="y")
        one = load(described, FinetuneConfig(task=described, models={"any": tmp_path}, out=tmp_path))
        assert scored_ones(old, one.facts, ["test"]) is expected


def test_a_record_that_lacks_a_fact_is_one_of_other_facts(tmp_path: Path) -> None:
    record.Record(tmp_path, {"stage": "score"}).end({})
    facts: dict[str, Any] = {"stage": "score", "environment": {}}
    assert kept(tmp_path, facts, overwrite=False)
    with pytest.raises(RequestError, match="is finished with another partial; set --out or --overwrite true"):
        kept(tmp_path, facts | {"partial": "half of it"}, overwrite=False)
    assert not kept(tmp_path, facts | {"partial": "half of it"}, overwrite=True)


def test_rows_of_earlier_stages_are_no_test_rows_either(
    given: Given, task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{filler} {colour},{colour}" for filler in "abcdefgh" for colour in CLASSES]
    (tmp_path / "train.csv").write_text("\n".join(["text,y", *lines, ""]))
    first: Any = {"name": "first", "train": [tmp_path / "train.csv"], "label": "y"}
    asked = given(task=first, max_steps=1, save_model=True, holdout=0.4)
    sweep(asked)
    start = asked["out"] / "first" / "tiny-vanilla-0" / "model"
    sweep(given(models={"second": start}, max_steps=1, save_model=True))
    run = asked["out"] / "colours" / "second-vanilla-0"
    score_all(request(task_folder, tmp_path / "scores", run, length=16))
    for model in (run, start):
        with pytest.raises(RequestError, match=TRAINED):
            score_all(ScoreConfig(out=tmp_path / "scores", models=(model,), task={**first, "name": "other"}))  # type: ignore[arg-type]
    score_all(ScoreConfig(out=tmp_path / "scores", models=(run, start), task=first, length=16))  # split as it was then
    later = {"name": "later", "train": [tmp_path / "later.csv"], "label": "y", "also": ["added"]}
    (tmp_path / "later.csv").write_text("\n".join(["text,y", *(f"h {line}" for line in lines), ""]))
    (tmp_path / "standard").mkdir()
    (tmp_path / "standard" / "added.yaml").write_text(f"train: [{tmp_path / 'train.csv'}]\nlabel: y\n")
    monkeypatch.setattr(spec, "STANDARD", tmp_path / "standard")
    sweep(given(task=later, models={"first": start}, max_steps=1))  # its own test rows come of another file
    again = given(task={**first, "name": "third"}, models={"third": start}, max_steps=1)
    with pytest.raises(RequestError, match=TRAINED):
        sweep(again)
    sweep({**again, "holdout": 0.4})
    chosen = {**first, "name": "fourth", "test": [tmp_path / "later.csv"]}
    assert Sweep(given(task=chosen)).notes == []
    (note,) = Sweep(given(task=chosen, models={"first": start})).notes
    assert "may have been trained on rows of its dev, which choose the epoch" in note


def test_a_models_folder_that_was_changed_is_its_runs_no_more_but_has_seen_its_rows(
    given: Given, task_folder: Path, tmp_path: Path
) -> None:
    sweep(given(max_steps=1, save_model=True))
    folder = tmp_path / "runs" / "colours" / "tiny-vanilla-0" / "model"
    assert find(folder, "--models").method == "vanilla"
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    changed = find(folder, "--models")
    assert (changed.model, changed.method, changed.trained_on) == ("model", None, None)
    assert stages(changed.run)[0]["trained"]
    (folder / "manifest.json").write_text('{"another": "program\'s"}')
    assert find(folder, "--models").run == {}
    (folder / "manifest.json").write_text('{"kind": "model", "facts": {')
    with pytest.raises(WorkError, match="is damaged: it is no JSON"):
        find(folder, "--models")


def test_a_runs_model_that_has_lost_a_byte_since_is_not_scored(given: Given, tmp_path: Path) -> None:
    sweep(given(max_steps=1, save_model=True))
    run = tmp_path / "runs" / "colours" / "tiny-vanilla-0"
    weights = run / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(WorkError, match=r"model\.safetensors is damaged"):
        find(run, "--models")


def test_of_two_runs_on_a_task_the_last_says_how_its_rows_are_split(tmp_path: Path) -> None:
    earlier = [{"task": "mine", "split": {"holdout": 0.4}}, {"task": "other", "split": {"holdout": 0.3}}]
    run = {"task": "mine", "task_facts": {"rows": {}}, "config": {"holdout": 0.2}, "earlier": earlier}
    model = Saved(tmp_path, "classification", ("a", "b"), "m", run)
    assert (_splitting(model, "mine"), _splitting(model, "other")) == ({"holdout": 0.2}, {"holdout": 0.3})


def test_a_file_of_ones_own_in_a_finished_record_is_no_hindrance_and_is_never_removed(
    task_folder: Path, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path / "mine", model_folder, CLASSES)
    score_all(request(task_folder, tmp_path / "out", model, length=16))
    notes = tmp_path / "out" / "colours" / "mine" / "predictions" / "notes.txt"
    notes.write_text("mine")
    score_all(request(task_folder, tmp_path / "out", model, length=16))
    assert "finished before" in capsys.readouterr().out
    with pytest.raises(RequestError, match=r"since predictions/notes\.txt in it is no part of a record of score"):
        score_all(request(task_folder, tmp_path / "out", model, length=8, overwrite=True))
    assert notes.read_text() == "mine"


def test_nothing_but_a_score_is_replaced_by_one(
    given: Given, task_folder: Path, model_folder: Path, tmp_path: Path
) -> None:
    model = saved(tmp_path / "models" / "colours" / "mine", model_folder, CLASSES)
    asked = given(max_steps=1, save_model=True, models={"colours-mine": model})
    sweep(asked)
    run = asked["out"] / "colours" / "colours-mine-vanilla-0"
    begun = asked["out"] / "colours" / f"colours-{run.name}" / record.NAME
    begun.parent.mkdir()
    begun.write_text(json.dumps({"event": "start", "stage": "finetune"}) + "\n")
    for out, one in ((tmp_path / "models", model), (asked["out"], run)):
        before = sorted(out.rglob("*"))
        with pytest.raises(
            RequestError, match=r"is not replaced, since .* is no part of a record of score; move|no record of score"
        ):
            score_all(request(task_folder, out, one, length=16))
        assert sorted(out.rglob("*")) == before


def test_a_refused_length_leaves_the_record_before(task_folder: Path, model_folder: Path, tmp_path: Path) -> None:
    model = saved(tmp_path / "mine", model_folder, CLASSES)
    score_all(request(task_folder, tmp_path / "out", model, length=16))
    before = (tmp_path / "out" / "colours" / "mine" / record.NAME).read_bytes()
    with pytest.raises(RequestError, match="reads at most 32 tokens"):
        score_all(request(task_folder, tmp_path / "out", model, length=64, overwrite=True))
    assert (tmp_path / "out" / "colours" / "mine" / record.NAME).read_bytes() == before


def test_what_a_kill_has_left_of_a_score_is_scored_again(task_folder: Path, model_folder: Path, tmp_path: Path) -> None:
    model = saved(tmp_path / "mine", model_folder, CLASSES)
    left = tmp_path / "out" / "colours" / "mine"
    left.mkdir(parents=True)
    (left / f"{record.NAME}.partial").write_text("{")
    score_all(request(task_folder, tmp_path / "out", model, length=16))
    assert record.finished(left / record.NAME)


def test_two_commands_on_one_record_take_turns(
    task_folder: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds what the first has made, and makes it itself where the first was killed."""
    asked = request(task_folder, tmp_path / "out", saved(tmp_path / "mine", model_folder, CLASSES), length=16)
    path, aside = tmp_path / "out" / "colours" / "mine" / record.NAME, tmp_path / "aside"
    made: list[Path] = []
    monkeypatch.setattr(module, "score_one", lambda one, *rest: made.append(one.folder) or score_one(one, *rest))
    for finished in (False, True):
        with waiting(lambda: score_all(asked), asked.out, "colours/mine", monkeypatch):
            assert path.exists() == finished
            if finished:
                aside.rename(path)
        assert record.finished(path)
        assert len(made) == 1
        path.rename(aside)
        path.write_text("")


@contextmanager
def waiting(command: Callable[[], None], out: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, another process has what is called so and the command waits for it; afterwards it has ended."""
    said = threading.Event()
    monkeypatch.setattr(claims, "print", lambda line, flush: said.set() if "waiting" in line else None, raising=False)
    with ThreadPoolExecutor(1) as second:
        with claimed(out, name):
            answer = second.submit(command)
            assert said.wait(60)
            yield
        answer.result(60)


@pytest.mark.parametrize(
    ("theirs", "ours", "given", "places"),
    [
        (NLI, NLI[::-1], {}, [2, 1, 0]),
        (["CONTRADICTION", "Neutral", "ENTAILMENT"], NLI, {}, [2, 1, 0]),
        (["entailment", "not_entailment"], ["entailment", "non-entailment"], {}, [0, 1]),
        (NLI, ["entailment", "non-entailment"], {}, [0, 1, 1]),
        (NLI, ["not_entailment", "entailment"], {}, [1, 0, 0]),
        (["LABEL_0", "LABEL_1"], ["negative", "positive"], {}, [0, 1]),
        (["LABEL_0", "LABEL_1"], ["1", "0"], {}, [1, 0]),
        (["LABEL_1", "LABEL_0"], ["negative", "positive"], {}, [1, 0]),
        (["down", "up"], ["4", "0"], {}, [1, 0]),
        (["LABEL_0", "LABEL_1"], ["1", "2"], {}, [0, 1]),
        (["0", "1"], ["1", "2"], {}, [0, 1]),
        (["2", "1"], ["1", "0"], {}, [0, 1]),
        (["0", "1"], ["1", "2"], {"0": "2", "1": "1"}, [1, 0]),
        (["0", "1"], ["1", "2"], {"0": "2"}, [1, 0]),
        (["1", "0"], ["0", "1"], {}, [1, 0]),
        (["us", "US", "a_b"], ["a_b", "US", "us"], {}, [2, 1, 0]),
        (["same", "other"], ["not_duplicate", "duplicate"], {"same": "duplicate", "other": "not_duplicate"}, [1, 0]),
    ],
)
def test_classes_find_their_counterpart(
    theirs: list[str], ours: list[str], given: dict[str, str], places: list[int]
) -> None:
    assert label_map(theirs, ours, given, "it") == places


def test_classes_that_go_by_their_numbers_are_told() -> None:
    def note(theirs: Sequence[str], ours: Sequence[str], **given: str) -> str:
        return by_number_note(theirs, ours, label_map(theirs, ours, given, "it"), given, "it")

    told = "note: it: LABEL_0 -> no, LABEL_1 -> yes, by their numbers; where the order is another, set --map.LABEL_0"
    assert note(["LABEL_0", "LABEL_1"], ["no", "yes"]) == told
    assert note(["LABEL_0", "LABEL_1"], ["no", "yes"], LABEL_0="yes", LABEL_1="no") == ""
    assert note(["LABEL_0", "LABEL_1"], ["1", "0"]) == "", "the same numbers"
    assert note(["0", "1"], ["1", "2"]).startswith("note: it: 0 -> 1, 1 -> 2, by")
    assert note(NLI, ["not_entailment", "entailment"]) == ""
    many = [f"class {n:02d}" for n in range(10)]
    assert "LABEL_7 -> class 07 and 2 more, by" in note([f"LABEL_{n}" for n in range(10)], many)
    assert by_number_note(["score"], [], [], {}, "it") == "", "no classes"


@pytest.mark.parametrize(
    ("theirs", "ours", "given", "told"),
    [
        (
            ["same", "other", "x"],
            NLI,
            {},
            "class 'same' of it is none of entailment, neutral, contradiction; set --map",
        ),
        (
            ["same", "b", "c"],
            NLI,
            {"same": "no"},
            "map.same = 'no' is none of entailment, neutral, contradiction; set --map",
        ),
        (["same", "other"], NLI, {}, r"it has 2 classes \(same, other\), the task 3 \(.*\); leave the task out"),
        (
            ["x", "y", "z"],
            ["x", "y"],
            {},
            "set --map.z, which counts it as another, or, where its rows merely lack it, --task.labels x,y,z",
        ),
        (["entailment", "neutral", "x"], NLI, {"x": "neutral"}, "it never predicts 'contradiction'"),
        (["entailment", "not_entailment", "x"], NLI, {}, "set --map.not_entailment"),
        (NLI, NLI, {"neutrl": "neutral"}, "map.neutrl: it has the classes"),
        (["LABEL_0", "LABEL_1", "LABEL_2"], ["negative", "positive"], {}, "set --map.LABEL_0"),
    ],
)
def test_classes_without_a_counterpart_are_named(
    theirs: list[str], ours: list[str], given: dict[str, str], told: str
) -> None:
    with pytest.raises(RequestError, match=told):
        label_map(theirs, ours, given, "it")


@generated(st.lists(st.floats(-20, 20), min_size=3, max_size=3))
def test_the_sum_of_probabilities_loses_none_and_the_largest_keeps_the_one(logits: list[float]) -> None:
    row, chances = np.array(logits), softmax(logits)
    summed = np.exp(merged(row, [0, 1, 1], "sum"))
    np.testing.assert_allclose(summed, [chances[0], chances[1] + chances[2]], rtol=1e-9)
    largest = np.exp(merged(row, [0, 1, 1], "max"))
    np.testing.assert_allclose(largest, [chances[0], max(chances[1:])], rtol=1e-9)
    np.testing.assert_allclose(np.exp(merged(row, [2, 0, 1], "sum")), chances[[1, 2, 0]], rtol=1e-9)


@pytest.mark.parametrize(("merge", "answer"), [("sum", 1), ("max", 0)])
def test_sum_and_max_can_disagree(merge: Merge, answer: int) -> None:
    assert merged(np.log([0.4, 0.35, 0.25]), [0, 1, 1], merge).argmax() == answer


@pytest.mark.parametrize("kind", ["classification", "token"])
@pytest.mark.parametrize("merge", ["sum", "max"])
def test_all_rows_are_mapped_at_once_as_one_by_one(kind: Kind, merge: Merge) -> None:
    rng = np.random.default_rng(0)
    shapes = [(3,)] * 5 if kind == "classification" else [(words, 3) for words in (2, 0, 1, 4)]
    found = Predictions(kind, [rng.normal(size=shape).astype(np.float32) for shape in shapes], None)
    rows = _mapped(found, [0, 1, 1], merge)
    assert len(rows) == len(shapes)
    for row, before in zip(rows, found.logits, strict=True):
        np.testing.assert_array_equal(row, merged(before, [0, 1, 1], merge))


def test_models_of_three_ways_are_scored_on_two_and_parts_of_test_need_no_further_pass(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of one's own with a column of subsets, as HANS has it, and rows without labels."""
    rows = [{"a": f"a {colour}", "b": "c d", "why": colour, "y": "entailment"} for colour in ("red", "green", "red")]
    rows[0]["y"] = "non-entailment"
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "blind.csv").write_text("a,b\nred a,c\nb blue,d\n")
    task = {
        "name": "twoway",
        "test": [tmp_path / "test.jsonl"],
        "submit": [tmp_path / "blind.csv"],
        "text": ["a", "b"],
        "label": "y",
        "labels": ["entailment", "non-entailment"],
        "subsets": "why",
    }
    passes = []
    counted = module.predict
    monkeypatch.setattr(module, "predict", lambda *given: passes.append(len(given[1])) or counted(*given))
    model = saved(tmp_path / "nli", model_folder, NLI)
    config = ScoreConfig(task=task, out=tmp_path / "out", models=(model,), length=16)  # type: ignore[arg-type]
    score_all(config)
    folder = tmp_path / "out" / "twoway" / "nli"
    start, end = record.read(folder / record.NAME)
    assert start["classes"] == {
        "entailment": "entailment",
        "neutral": "non-entailment",
        "contradiction": "non-entailment",
    }
    assert {"test_accuracy", "red_accuracy", "green_accuracy"} <= end.keys()
    assert end["test_accuracy"] == pytest.approx((2 * end["red_accuracy"] + end["green_accuracy"]) / 3)
    assert not any(name.startswith("submit") for name in end)
    assert sorted(passes) == [2, 3]
    blind = load_predictions(folder / FOLDER / "submit.npz")
    assert (len(blind.ids), blind.gold, len(blind.predictions.logits[0])) == (2, None, 2)


@pytest.mark.parametrize("kind", ["regression", "token", "choice"])
def test_models_of_every_kind_are_scored(kind: Kind, model_folder: Path, tmp_path: Path) -> None:
    task = small_task(kind)
    labels = task.labels[::-1] or ["score"]  # the model numbers its classes otherwise
    model = find(saved(tmp_path / "model", model_folder, labels, kind=kind), "--models")
    config = request(tmp_path, tmp_path / "out", model.folder, length=16)
    one = pair(model, task, config)
    if kind != "token":
        with pytest.raises(RequestError, match=rf"map\.a: .* is of kind {kind}, which has no classes; leave --map out"):
            pair(model, task, replace(config, map={"a": "b"}))
    module = module_of(model, torch.device("cpu"), "--models")
    end = score_one(one, module, config, {})
    kept = load_predictions(one.folder / FOLDER / "test.npz")
    rows = predict(module, encoded(model, task, "test", 16, "--models"), 8, torch.device("cpu")).logits
    if kind == "token":
        expected = [[1 - int(word) for word in row.argmax(-1)] for row in rows]
    else:
        expected = [float(row[0]) if kind == "regression" else int(row.argmax()) for row in rows]
    assert kept.predictions.labels == (pytest.approx(expected, abs=1e-6) if kind == "regression" else expected)
    assert kept.gold == task.splits["test"].labels
    assert kept.gold is not None
    for name in task.metrics:
        assert end[f"test_{name}"] == pytest.approx(METRICS[name](kept.gold, kept.predictions.labels, task.labels))


def test_rows_of_splits_with_other_numbers_of_answers_are_one_split(model_folder: Path, tmp_path: Path) -> None:
    """Whose texts need no further pass."""
    task = small_task("choice")
    answers = tuple((f"a {word}",) for word in ("red", "green", "blue", "a"))
    four, two = Split(["a"], [answers], [1]), Split(["b"], [answers[:2]], [0])
    both = Split(["b", "a"], [answers[:2], answers], [0, 1])
    task = replace(task, splits={"test": four, "test-two": two, "test-both": both})
    model = find(saved(tmp_path / "model", model_folder, ["score"], kind="choice"), "--models")
    config = request(tmp_path, tmp_path / "out", model.folder, length=16)
    one = pair(model, task, config)
    score_one(one, module_of(model, torch.device("cpu"), "--models"), config, {})
    found = [load_predictions(one.folder / FOLDER / f"{name}.npz").predictions.logits for name in task.splits]
    assert [np.isfinite(row).sum() for row in found[2]] == [2, 4]
    np.testing.assert_array_equal(found[2][0][:2], found[1][0])
    np.testing.assert_array_equal(found[2][1], found[0][0])


def test_a_model_of_broken_weights_is_named(model_folder: Path, task_folder: Path, tmp_path: Path) -> None:
    model = with_nan(saved(tmp_path / "model", model_folder, CLASSES))
    with pytest.raises(
        WorkError, match=r"a prediction of \S+/model is not finite; give another by --models \(the first"
    ):
        score_all(request(task_folder, tmp_path / "out", model, length=16))
    config = RobustnessConfig(
        models={"a": model}, reference="a", out=tmp_path / "out", task=TaskConfig(folder=task_folder), length=16
    )
    with pytest.raises(WorkError, match=r"a prediction of \S+/model is not finite; give another by --models\.a"):
        robustness(config)


def test_a_model_whose_weights_are_not_those_of_its_config_is_named(
    model_folder: Path, task_folder: Path, tmp_path: Path
) -> None:
    model = saved(tmp_path / "model", model_folder, CLASSES)
    settings = json.loads((model / "config.json").read_text()) | {"intermediate_size": 48}
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(RequestError, match=r"\S+/model cannot be loaded \(.*\); give a complete folder by --models"):
        score_all(request(task_folder, tmp_path / "out", model, length=16))


def with_nan(model: Path) -> Path:
    weights = load_file(model / "model.safetensors")
    weights["classifier.bias"][0] = torch.nan
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    return model


def test_wrong_requests_are_one_line(model_folder: Path, task_folder: Path, tmp_path: Path) -> None:
    head = saved(tmp_path / "head", model_folder, CLASSES)
    numbers = saved(tmp_path / "numbers", model_folder, ["score"])
    again = saved(tmp_path / "again" / "head", model_folder, CLASSES)
    begun = tmp_path / "begun"
    record.Record(begun, {"task": "colours"}).close()
    bare = tmp_path / "bare"
    record.Record(bare, {"task": "colours"}).end({})
    mean = tmp_path / "mean"
    record.Record(mean, {"task": "colours", "stage": "ensemble"}).end({})
    for models, told in (
        ([model_folder], "BertForMaskedLM, which has no head for a task"),
        ([tmp_path / "nowhere"], r"there is no folder .* by --models \(the first arguments\)"),
        ([begun], "unfinished run"),
        ([mean], "mean is of stage ensemble, which keeps no model; set --models"),
        ([bare], "kept no model; run it again with --save_model true"),
        ([numbers], "for kind regression, colours is classification"),
        ([head], "reads at most 32 tokens, rows have 128"),
    ):
        with pytest.raises(RequestError, match=told):
            score_all(request(task_folder, tmp_path / "out", *models))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "colours").write_text("")
    with pytest.raises(RequestError, match=r"colours is no folder; set another --out"):
        score_all(request(task_folder, tmp_path / "taken", head, length=16))
    with pytest.raises(RequestError, match="two of the models would be"):
        score_all(request(task_folder, tmp_path / "out", head, again, length=16))
    with pytest.raises(RequestError, match="describes a task of your own; leave it or --tasks out"):
        score_all(request(task_folder, tmp_path / "out", head, tasks=("sst2",)))
    assert not (tmp_path / "out").exists()
