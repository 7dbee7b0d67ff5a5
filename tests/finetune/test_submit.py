"""Ensembles, and the files of the GLUE server."""

import json
import re
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from asa import record
from asa.config import from_dict
from asa.errors import RequestError, WorkError
from asa.record import Record
from finetune import __main__ as commands
from finetune.config import ReportConfig
from finetune.ensemble import ensemble
from finetune.evaluation_config import EnsembleConfig, SubmitConfig
from finetune.predictions import FOLDER, Predictions, Stored, load_predictions, save_predictions
from finetune.report.write import write
from finetune.submit import SHEETS, submit
from finetune.tasks.task import Kind, Label

LABELS = {
    "cola": ["unacceptable", "acceptable"],
    "sst2": ["negative", "positive"],
    "mrpc": ["not_equivalent", "equivalent"],
    "stsb": [],
    "qqp": ["not_duplicate", "duplicate"],
    "mnli": ["entailment", "neutral", "contradiction"],
    "qnli": ["entailment", "not_entailment"],
    "rte": ["entailment", "not_entailment"],
    "wnli": ["not_entailment", "entailment"],
    "ax": ["entailment", "neutral", "contradiction"],
}


def run_of(
    folder: Path, task: str, splits: dict[str, Stored], stage: str = "finetune", inputs: Any = None, **end: float
) -> Path:
    """A finished run's folder."""
    facts = {"stage": stage, "task": task, "model": "tiny", "method": "vanilla", "seed": 0, "inputs": inputs or {}}
    lines = Record(folder, facts | {"request": {"out": str(folder)}})
    for name, these in splits.items():
        save_predictions(folder / FOLDER / f"{name}.npz", these)
    lines.end(end)
    return folder


def rows(kind: Kind, logits: Any, labels: list[str], gold: list[Label] | None = None) -> Stored:
    metric = "pearson" if kind == "regression" else "accuracy"
    return Stored(Predictions(kind, list(logits), None), [str(n) for n in range(len(logits))], gold, labels, (metric,))


def glue_run(folder: Path, task: str, seed: int = 0, short: int = 0) -> Path:
    """A run that predicts the whole official file, or `short` rows too few, at random."""
    random, labels = np.random.default_rng(seed), LABELS[task]
    splits = {}
    for sheet in SHEETS:
        if sheet.task == task:
            logits = random.normal(2.5, 3, (sheet.rows - short, len(labels) or 1)).astype(np.float32)
            splits[sheet.split] = rows("classification" if labels else "regression", logits, labels)
    return run_of(folder, task, splits)


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("glue")
    return {task: glue_run(folder / task, task) for task in LABELS}


def test_the_submission_is_as_the_server_wants_it(glue: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "glue.zip"
    submit(SubmitConfig(runs=tuple(glue.values()), out=out))
    with zipfile.ZipFile(out) as archive:
        lines = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    counts = {name: len(content) - 1 for name, content in lines.items()}
    assert counts == {
        "CoLA.tsv": 1063,
        "SST-2.tsv": 1821,
        "MRPC.tsv": 1725,
        "STS-B.tsv": 1379,
        "QQP.tsv": 390965,
        "MNLI-m.tsv": 9796,
        "MNLI-mm.tsv": 9847,
        "QNLI.tsv": 5463,
        "RTE.tsv": 3000,
        "WNLI.tsv": 146,
        "AX.tsv": 1104,
    }
    for content in lines.values():
        assert content[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in content[1:]] == [str(n) for n in range(len(content) - 1)]
    found = {name: {line.split("\t")[1] for line in content[1:]} for name, content in lines.items()}
    assert found["MNLI-mm.tsv"] == found["AX.tsv"] == {"entailment", "neutral", "contradiction"}
    assert found["RTE.tsv"] == found["QNLI.tsv"] == {"entailment", "not_entailment"}
    assert found["CoLA.tsv"] == found["WNLI.tsv"] == found["QQP.tsv"] == {"0", "1"}
    numbers = sorted(float(answer) for answer in found["STS-B.tsv"])
    assert (numbers[0], numbers[-1]) == (0, 5)
    stored = load_predictions(glue["rte"] / FOLDER / "submit.npz")
    wanted = [stored.labels[int(label)] for label in stored.predictions.labels]  # type: ignore[arg-type]
    assert [line.split("\t")[1] for line in lines["RTE.tsv"][1:]] == wanted


@pytest.mark.parametrize(
    ("labels", "written"),
    [
        (["not_equivalent", "equivalent"], "1"),
        (["equivalent", "not_equivalent"], "0"),  # as they are where a task of one's own names none
        (["0", "1"], "1"),
        (["1", "0"], "0"),
        (["no", "yes"], None),
        (["a", "b", "c"], None),
    ],
)
def test_classes_that_are_written_as_numbers_go_by_their_names(
    tmp_path: Path, labels: list[str], written: str | None
) -> None:
    logits = np.tile(np.arange(len(labels), dtype=np.float32), (1725, 1))  # each row is of the run's last class
    run, out = run_of(tmp_path / "run", "mrpc", {"submit": rows("classification", logits, labels)}), tmp_path / "x.zip"
    asked = SubmitConfig(runs=(run,), out=out, partial=True)
    if written is None:
        told = f"has classes {', '.join(labels)}, MRPC.tsv not_equivalent, equivalent or 0, 1; leave it out of --runs"
        with pytest.raises(RequestError, match=told):
            submit(asked)
        return
    submit(asked)
    lines = zipfile.ZipFile(out).read("MRPC.tsv").decode().splitlines()[1:]
    assert {line.split("\t")[1] for line in lines} == {written}


def test_missing_tasks_are_told_and_nothing_is_written(
    glue: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "glue.zip"
    asked = ["finetune", "submit", str(glue["rte"]), str(glue["mnli"]), "--out", str(out)]
    codes = []
    for more in ([], ["--partial", "true"]):
        monkeypatch.setattr(sys, "argv", [*asked, *more])
        with pytest.raises(SystemExit) as stop:
            commands.main()
        codes.append((stop.value.code, out.exists()))
    assert codes == [(2, False), (0, True)]
    told = capsys.readouterr()
    assert "the server wants CoLA.tsv, SST-2.tsv" in told.err
    assert zipfile.ZipFile(out).namelist() == ["MNLI-m.tsv", "MNLI-mm.tsv", "RTE.tsv"]


def test_the_same_predictions_give_the_same_bytes(glue: dict[str, Path], tmp_path: Path) -> None:
    outs = [tmp_path / name / "glue.zip" for name in ("one", "two")]
    for out in outs:
        submit(SubmitConfig(runs=(glue["wnli"],), out=out, partial=True))
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_what_the_server_would_refuse_is_refused(glue: dict[str, Path], tmp_path: Path) -> None:
    short = glue_run(tmp_path / "short", "rte", short=1)
    twin = glue_run(tmp_path / "twin", "rte", seed=1)
    classes = run_of(tmp_path / "classes", "rte", {"submit": rows("classification", np.ones((3000, 2)), ["a", "b"])})
    numbers = run_of(tmp_path / "numbers", "cola", {"submit": rows("regression", np.ones((1063, 1)), [])})
    graded = run_of(tmp_path / "graded", "stsb", {"submit": rows("classification", np.ones((1379, 2)), ["a", "b"])})
    alien = run_of(tmp_path / "alien", "wnut17", {})
    blind = run_of(tmp_path / "blind", "cola", {})
    attack = run_of(tmp_path / "attack", "cola", {}, stage="robustness")
    for runs, told in (
        ([short], "predicts 2999 rows, RTE.tsv has 3000"),
        ([glue["rte"], twin], "are both of rte; give one of them, or their ensemble"),
        ([classes], "has classes a, b, RTE.tsv entailment, not_entailment"),
        ([numbers], r"numbers is of kind regression, CoLA\.tsv takes classification; leave it out of --runs"),
        ([graded], r"graded is of kind classification, STS-B\.tsv takes regression; leave it out of --runs"),
        ([alien], "is of task wnut17, GLUE has cola"),
        ([blind], "has no predictions/submit.npz: its data had no file for CoLA.tsv; make the run again with one"),
        ([attack], "is of stage robustness, allowed: finetune, score, ensemble"),
    ):
        with pytest.raises(RequestError, match=told):
            submit(SubmitConfig(runs=tuple(runs), out=tmp_path / "x.zip", partial=True))
    with pytest.raises(RequestError, match="allowed ending"):
        submit(SubmitConfig(runs=(short,), out=tmp_path / "x.tar"))
    assert not (tmp_path / "x.zip").exists()


def test_an_out_that_cannot_be_written_is_one_line_and_leaves_nothing(glue: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "glue.zip"
    out.mkdir()
    (file := tmp_path / "file").write_text("")
    for wrong, told in ((out, "glue.zip is a folder; set --out to a file"), (file / "x.zip", "set another --out")):
        with pytest.raises(RequestError, match=told):
            submit(SubmitConfig(runs=(glue["wnli"],), out=wrong, partial=True))
    assert sorted(tmp_path.iterdir()) == [file, out]


def test_an_ensemble_never_takes_the_place_of_a_member(tmp_path: Path) -> None:
    runs = [glue_run(tmp_path / str(seed), "wnli", seed) for seed in range(3)]
    pair = tmp_path / "pair"
    ensemble(EnsembleConfig(runs=tuple(runs[:2]), out=pair))
    before = (pair / FOLDER / "submit.npz").read_bytes()
    with pytest.raises(RequestError, match="pair is one of the runs and would be removed"):
        ensemble(EnsembleConfig(runs=(pair, runs[2]), out=tmp_path / "0" / ".." / "pair"))
    assert (pair / FOLDER / "submit.npz").read_bytes() == before


def test_a_run_is_one_member_by_whatever_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    glue_run(tmp_path / "a", "wnli")
    (tmp_path / "link").symlink_to("a")
    for same in (tmp_path / "a", Path("b/../a"), Path("link")):
        with pytest.raises(RequestError, match=f"a and {re.escape(str(same))} are one folder, allowed: each once"):
            from_dict(EnsembleConfig, {"runs": ["a", same], "out": "out"})
    assert from_dict(EnsembleConfig, {"runs": ["a", "b"], "out": "out"}).runs == (Path("a"), Path("b"))


def test_an_ensemble_averages_probabilities_and_can_be_submitted(tmp_path: Path) -> None:
    runs = [glue_run(tmp_path / str(seed), "rte", seed) for seed in range(3)]
    out = tmp_path / "three"
    ensemble(EnsembleConfig(runs=tuple(runs), out=out))
    members = [np.stack(load_predictions(run / FOLDER / "submit.npz").predictions.logits) for run in runs]
    found = np.stack(load_predictions(out / FOLDER / "submit.npz").predictions.logits)
    np.testing.assert_allclose(np.exp(found), np.mean([softmax(one, axis=-1) for one in members], axis=0), rtol=1e-6)
    submit(SubmitConfig(runs=(out,), out=tmp_path / "x.zip", partial=True))
    before = (out / record.NAME).read_bytes()
    ensemble(EnsembleConfig(runs=tuple(runs[::-1]), out=out))  # the same once more, which may be a member by now
    fewer = EnsembleConfig(runs=tuple(runs[:2]), out=out)
    with pytest.raises(
        RequestError, match=r"three is an ensemble of other runs, or .*; set another --out, or --overwrite"
    ):
        ensemble(fewer)
    assert (out / record.NAME).read_bytes() == before
    ensemble(replace(fewer, overwrite=True))
    assert len(record.read(out / record.NAME)[0]["members"]) == 2


def test_what_no_split_scored_is_none_of_an_ensembles_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end line has `event` and `seconds` beside its scores."""
    each = [stored("classification", [[0.0, 1.0 + n], [1.0, 0.0]], [1, 0]) for n in range(2)]
    runs = [run_of(tmp_path / str(n), "any", dict.fromkeys(("test", "e", "s"), one)) for n, one in enumerate(each)]
    ensemble(EnsembleConfig(runs=tuple(runs), out=tmp_path / "mean"))
    told = capsys.readouterr().out
    assert "e_accuracy 1.0000" in told
    assert "seconds" not in told


def stored(kind: Kind, logits: list, gold: list[Label]) -> Stored:
    labels = {"classification": ["no", "yes"], "token": ["O", "B-x", "I-x"]}.get(kind, [])
    return rows(kind, [np.array(row, dtype=np.float32) for row in logits], labels, gold)


def averaged(tmp_path: Path, *members: Stored) -> tuple[Stored, dict[str, Any]]:
    runs = [run_of(tmp_path / str(n), "any", {"test": one}) for n, one in enumerate(members)]
    out = tmp_path / "mean"
    ensemble(EnsembleConfig(runs=tuple(runs), out=out))
    start, end = record.read(out / record.NAME)
    return load_predictions(out / FOLDER / "test.npz"), {**start, **end}


def test_an_ensemble_says_what_trained_its_members(tmp_path: Path) -> None:
    makers = {
        "own": {"stage": "finetune"},
        "other": {"stage": "finetune"},
        "mnli": {"stage": "score", "trained_on": "mnli"},
        "elsewhere": {"stage": "score", "trained_on": None},
    }
    runs = {}
    for number, (name, facts) in enumerate(makers.items()):
        one = stored("classification", [[0, number]], [1])
        runs[name] = run_of(tmp_path / name, "rte", {"test": one})
        path = runs[name] / record.NAME
        start, end = record.read(path)
        path.write_text("".join(json.dumps(line) + "\n" for line in ({**start, **facts}, end)))
    for names, told in ((("own", "other"), None), (("mnli", "elsewhere"), "mnli"), (("own", "mnli"), "mnli+rte")):
        out = tmp_path / "-".join(("all", *names))
        ensemble(EnsembleConfig(runs=tuple(runs[name] for name in names), out=out))
        assert record.read(out / record.NAME)[0]["trained_on"] == told


def test_numbers_are_averaged_and_scored(tmp_path: Path) -> None:
    gold: list[Label] = [0.0, 1.0, 2.0]
    found, facts = averaged(
        tmp_path, stored("regression", [[0], [4], [1]], gold), stored("regression", [[0], [0], [3]], gold)
    )
    assert [float(row[0]) for row in found.predictions.logits] == [0, 2, 2]
    assert facts["stage"] == "ensemble"
    assert facts["test_pearson"] == pytest.approx(np.corrcoef([0, 2, 2], [0, 1, 2])[0, 1])


def test_answers_that_a_row_has_not_stay_impossible(tmp_path: Path) -> None:
    gold: list[Label] = [0, 2]
    one = stored("choice", [[2, 1, -np.inf], [0, 0, 1]], gold)
    found, facts = averaged(tmp_path, one, stored("choice", [[0, 3, -np.inf], [5, 0, 9]], gold))
    assert found.predictions.labels == [1, 2]
    assert found.predictions.logits[0][2] == -np.inf
    assert facts["test_accuracy"] == 0.5


def test_a_word_that_one_member_has_cut_off_counts_as_cut_off(tmp_path: Path) -> None:
    gold: list[Label] = [[1, 2, 0]]
    whole, cut = [[0, 2, 0], [0, 0, 2], [2, 0, 0]], [[0, 2, 0], [0, 0, 2]]
    found, facts = averaged(tmp_path, stored("token", [whole], gold), stored("token", [cut], gold))
    assert found.predictions.labels == [[1, 2]]
    assert facts["test_accuracy"] == 1


def test_a_run_counts_once_in_an_ensemble(tmp_path: Path) -> None:
    """The report said three models where two had voted, one of them twice."""
    made = {name: stored("classification", [[0, int(name)]], [1]) for name in "1234"}
    one, two, three = (run_of(tmp_path / name, "a", {"test": made[name]}) for name in "123")
    copy, both = tmp_path / "copy", tmp_path / "both"
    shutil.copytree(one, copy)
    ensemble(EnsembleConfig(runs=(one, two), out=both))
    ensemble(EnsembleConfig(runs=(both, three), out=tmp_path / "all"))
    for runs in ((one, two, copy), (both, three, two), (three, two, both), (tmp_path / "all", two)):
        with pytest.raises(RequestError, match=r"are, or have, the same run; leave one of them out of --runs"):
            ensemble(EnsembleConfig(runs=runs, out=tmp_path / "out"))


def test_one_model_counts_once_though_it_was_scored_again_or_made_again(tmp_path: Path) -> None:
    logits = np.array([[0.25, 1.5], [3, 0.5], [2, 1]])
    one, other = (stored("classification", [*(logits * by)], [1, 0, 0]) for by in (1, 1.1))
    near = stored(
        "classification", [*(log_softmax(logits + np.array([1e-6, 0]), axis=-1))], [1, 0, 0]
    )  # as score has it
    first, again, second = (
        run_of(tmp_path / name, "a", {"test": these}, stage)
        for name, these, stage in (("1", one, "finetune"), ("2", near, "score"), ("3", other, "finetune"))
    )
    ensemble(EnsembleConfig(runs=(first, second), out=tmp_path / "out"))
    with pytest.raises(RequestError, match=rf"^{first} and {again} predict the same, as one model; leave one of them"):
        ensemble(EnsembleConfig(runs=(first, second, again), out=tmp_path / "more"))
    assert not (tmp_path / "more").exists()


def test_predictions_of_another_run_are_refused(tmp_path: Path) -> None:
    one = stored("classification", [[0, 1]], [1])
    runs = (run_of(tmp_path / "1", "a", {"test": one}, test_accuracy=1), run_of(tmp_path / "2", "a", {"test": one}))
    save_predictions(runs[0] / FOLDER / "test.npz", stored("classification", [[2, 1]], [1]))
    with pytest.raises(WorkError, match=r"1/predictions/test.npz gives accuracy 0.000000, the record beside it has 1"):
        ensemble(EnsembleConfig(runs=runs, out=tmp_path / "out"))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"config": {"paper_compat": True}}, {"chosen_by_test": True}),
        ({"config": {"paper_compat": True}, "trained_on": "other"}, {}),
        ({"scored_rows_trained": True}, {"scored_rows_trained": True}),
        ({"partial": "half"}, {"partial": "half"}),
        ({"task_facts": {"partial": "half"}, "partial": ""}, {"partial": "half"}),
    ],
)
def test_an_ensemble_keeps_what_its_members_scores_are_not(
    tmp_path: Path, facts: dict[str, Any], told: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for number in range(2):
        runs.append(run_of(tmp_path / str(number), "a", {"test": stored("classification", [[0, number]], [1])}))
        start, end = record.read(runs[-1] / record.NAME)
        lines = ({**start, **(facts if number else {})}, end)
        (runs[-1] / record.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    ensemble(EnsembleConfig(runs=tuple(runs), out=tmp_path / "out"))
    start = record.read(tmp_path / "out" / record.NAME)[0]
    assert {name: start[name] for name in ("chosen_by_test", "scored_rows_trained", "partial") if name in start} == told
    write(ReportConfig(runs=tmp_path / "out", out=tmp_path / "report"))
    page = (tmp_path / "report" / "report.md").read_text()
    assert ("chose the epoch as well" in page) == ("chosen_by_test" in told)
    assert ("A file of the scored rows has trained" in page) == ("scored_rows_trained" in told)
    assert ("not the whole published set: half" in page) == ("partial" in told)


def test_an_ensemble_of_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    one = run_of(tmp_path / "1", "a", {"test": stored("classification", [[0, 1]], [1])})
    other = run_of(tmp_path / "2", "a", {"test": stored("classification", [[0, 1]], [0])})
    task = run_of(tmp_path / "3", "b", {"test": stored("classification", [[0, 1]], [1])})
    further = {name: stored("classification", [[0, 1]], [1]) for name in ("test", "mm")}
    more = run_of(tmp_path / "4", "a", further)
    bare = run_of(tmp_path / "5", "a", {})
    trial = run_of(tmp_path / "6", "a", {}, stage="tune")
    blind = rows("classification", np.ones((1, 2)), ["no", "yes"])
    files = [run_of(tmp_path / name, "a", {"submit": blind}, inputs={"task_sha256": name}) for name in ("x", "y")]
    for runs, told in (
        ((files[0], files[1]), "were trained, chosen or scored on other rows, classes or metrics of the task"),
        ((one, other), "have not the same rows in test.npz"),
        ((one, task), "several tasks: a, b"),
        ((one, more), rf"{more} and {one} have not both predictions/mm.npz; give others"),
        ((one, bare), rf"{bare} has no predictions \(.*; make the run anew"),
        ((one, trial), r"has no predictions \(.*; its stage is tune, which keeps none; give others by"),
    ):
        with pytest.raises(RequestError, match=told):
            ensemble(EnsembleConfig(runs=runs, out=tmp_path / "out"))
    with pytest.raises(
        RequestError, match=r"no record of ensemble, so it is not replaced|no part of a record of ensemble"
    ):
        ensemble(
            EnsembleConfig(
                runs=(one, run_of(tmp_path / "5", "a", {"test": stored("classification", [[0, 1]], [1])})), out=task
            )
        )
    assert not (tmp_path / "out").exists()
