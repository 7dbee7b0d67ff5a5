"""The search of settings: what is tried, that test is not looked at, what is chosen, kills, refusals."""

import csv
import math
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given as drawn
from hypothesis import strategies as st

from asa import record
from asa.config import from_dict
from asa.errors import RequestError, WorkError
from asa.methods import METHODS
from asa.record import Record
from finetune.config import FinetuneConfig, ReportConfig, TuneConfig
from finetune.loop import train
from finetune.predictions import FOLDER
from finetune.report.write import write
from finetune.run import Cell, Run
from finetune.sweep import Sweep, cells_of, sweep
from finetune.tasks.task import Task
from finetune.together import Alone
from finetune.tune import _choose, _scaled, prepared, trials_of, tune, unsearched
from tests.finetune.conftest import Given, Make, small_task

SEARCH = {"freelb.radius": [0.01, 0.5], "freelb.passes": [2, 4]}
USUAL: dict[str, Any] = {
    "methods": ["vanilla", "freelb"],
    "freelb": {"start": 0.0},
    "trials": 3,
    "search": SEARCH,
    "epochs": 1,
    "recipes": False,
}


def config_of(given: Given, **changes: Any) -> TuneConfig:
    return from_dict(TuneConfig, given(**(USUAL | changes)))


@drawn(st.floats(0, 1, exclude_max=True), st.floats(1e-8, 1e3), st.floats(1.01, 1e6))
def test_a_number_of_a_range_lies_in_it(share: float, low: float, factor: float) -> None:
    high = low * factor
    assert low <= _scaled(share, low, high, whole=False) <= high
    assert _scaled(0, low, high, whole=False) == pytest.approx(low, rel=0.006)


@drawn(st.integers(-5, 5), st.integers(1, 9))
def test_whole_numbers_are_tried_evenly(low: int, more: int) -> None:
    high = low + more
    found = [_scaled(index / (10 * (more + 1)), low, high, whole=True) for index in range(10 * (more + 1))]
    assert sorted(found) == found
    assert {number: found.count(number) for number in found} == dict.fromkeys(range(low, high + 1), 10)


def test_trials_fill_the_ranges_and_more_of_them_begin_with_the_same(given: Given) -> None:
    few, many = ([own for (own,) in trials_of(config_of(given, trials=count))] for count in (8, 17))
    assert few == many[:8]
    assert few[0] == {}
    radii = sorted(trial["freelb"]["radius"] for trial in many[1:])
    # Of 16 shares of a Halton sequence in base 3 none is far from its place in an even row.
    shares = [math.log(radius / 0.01, 50) for radius in radii]
    assert all((place - 2) / 16 <= share <= (place + 3) / 16 for place, share in enumerate(shares))
    assert {trial["freelb"]["passes"] for trial in many[1:]} == {2, 3, 4}
    assert all(trial["methods"] == ["freelb"] for trial in many[1:])


def test_a_method_is_tried_alike_whatever_is_beside_it(given: Given) -> None:
    alone = trials_of(config_of(given))
    beside = trials_of(config_of(given, methods=["freelb", "r3f"], search=SEARCH | {"r3f.noise": [1e-6, 1e-4]}))
    assert [freelb for (freelb,) in alone[1:]] == [freelb for freelb, _ in beside[1:]]
    assert [r3f["methods"] for _, r3f in beside[1:]] == [["r3f"]] * 2


def test_settings_of_two_groups_that_a_method_reads_are_drawn_apart(given: Given) -> None:
    search = {"asa.tau": [0.1, 10], "freelb.radius": [0.1, 10]}
    trials = trials_of(config_of(given, methods=["asa_freelb"], search=search, trials=33))
    pairs = [(math.log10(trial["asa"]["tau"]), math.log10(trial["freelb"]["radius"])) for (trial,) in trials[1:]]
    corners = [(tau > 0, radius > 0) for tau, radius in pairs]
    assert min(corners.count((weak, near)) for weak in (True, False) for near in (True, False)) >= 6


def test_a_search_has_one_seed_unless_told(given: Given) -> None:
    asked = {key: value for key, value in given(**USUAL).items() if key != "seeds"}
    _, work = prepared(asked)
    assert [cell.run.seed for cell in work.cells] == [0] * 4


def test_a_rank_that_fails_alone_ends_the_search(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    def lone(*rest: Any) -> dict[str, Any]:
        raise Alone("rank 1: out of memory")

    monkeypatch.setattr("finetune.sweep.train", lone)
    with pytest.raises(Alone, match="rank 1"):
        tune(given(**USUAL))


def test_the_best_on_dev_is_chosen_and_nothing_but_dev_is_scored(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []

    def watched(cell: Any, task: Any, data: Any, *rest: Any) -> dict[str, Any]:
        seen.append({*task.splits, *data})
        return train(cell, task, data, *rest)

    monkeypatch.setattr("finetune.sweep.train", watched)
    asked = given(**USUAL, seeds=[0, 1])
    tune(asked)
    assert seen == [{"train", "dev"}] * 8
    out = tmp_path / "runs"
    ends = {path.parent: record.read(path)[-1] for path in out.rglob(record.NAME)}
    assert len(ends) == 8
    assert not [key for end in ends.values() for key in end if key.startswith("test")]
    assert not list(out.rglob(FOLDER))
    rows = rows_of(out)
    assert [(row["method"], row["trial"]) for row in rows] == [
        ("vanilla", "0"), ("freelb", "0"), ("freelb", "1"), ("freelb", "2")
    ]  # fmt: skip
    for row in rows:
        folders = [out / f"trial-{row['trial']}/colours/tiny-{row['method']}-{seed}" for seed in (0, 1)]
        assert float(row["dev"]) == pytest.approx(sum(ends[folder]["dev_accuracy"] for folder in folders) / 2)
    best = max(rows[1:], key=lambda row: float(row["dev"]))
    chosen = yaml.safe_load((out / "best.yaml").read_text())
    assert chosen["colours"].keys() == {"freelb", "recipes"}
    assert settings_of(chosen["colours"]) == best["settings"]
    printed = capsys.readouterr().out
    assert re.search(r"^colours vanilla: dev accuracy 0\.\d{4}, nothing searched$", printed, re.MULTILINE)
    assert f"trial {best['trial']} of 3 (" in printed


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_all_trials_of_a_task_come_before_another_task(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """A task's tokenized rows are kept until the next one."""

    def plan(given: dict[str, Any], tasks: list[Task], checked: Any, trial: int) -> list[Cell]:
        return [Cell(Run(task.name, "tiny", "vanilla", 0, trial), make()) for task in tasks]

    monkeypatch.setattr("finetune.sweep.plan", plan)
    tasks = [replace(small_task("classification"), name=name) for name in ("second", "first")]
    found = [cell.run[::4] for cell in cells_of({}, tasks, [[{}], [{}]])]
    assert found == [("second", 0), ("second", 1), ("first", 0), ("first", 1)]


def test_what_is_chosen_is_taken_by_a_run_with_what_its_method_was_given(given: Given, tmp_path: Path) -> None:
    asked = USUAL | {"methods": ["vanilla", "freelb", "random_mask"], "random_mask": {"share": 0.3, "schedule": None}}
    _, work = prepared(given(**asked))
    tune(given(**asked))
    best = yaml.safe_load((tmp_path / "runs/best.yaml").read_text())["colours"]
    assert best["freelb"].keys() == {"start", "radius", "passes"}
    besides = {key: value for key, value in given(**asked).items() if key not in {"trials", "search", *best}}
    (_, freelb, masks) = Sweep({**besides, **best, "out": tmp_path / "final"}).cells
    tried = {cell.run.trial: cell.config.freelb for cell in work.cells if cell.run.method == "freelb"}
    chosen = next(row["trial"] for row in rows_of(tmp_path / "runs") if row["settings"] == settings_of(best))
    assert freelb.config.freelb == tried[int(chosen)]
    assert masks.config.random_mask.share == 0.3
    assert (best["recipes"], freelb.config.recipes) == (False, False)  # or a preset's settings would come under them


def settings_of(best: dict[str, Any]) -> str:
    """As the table of trials has those of SEARCH."""
    found = {name.partition(".")[2]: best["freelb"][name.partition(".")[2]] for name in SEARCH}
    return " ".join(f"freelb.{key}={value:g}" for key, value in found.items())


def test_a_search_goes_on_where_it_was_cut_off(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = given(**USUAL)
    tune(asked)
    out = tmp_path / "runs"
    before = (out / "best.yaml").read_bytes(), (out / "trials.csv").read_bytes()
    for name in ("best.yaml", "trials.csv"):
        (out / name).unlink()
    path = out / "trial-2/colours/tiny-freelb-0" / record.NAME
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    capsys.readouterr()
    tune(asked)
    assert capsys.readouterr().out.count("finished before") == 3
    assert before == ((out / "best.yaml").read_bytes(), (out / "trials.csv").read_bytes())


def test_an_earlier_choice_that_cannot_be_removed_is_told_before_anything_is_trained(
    given: Given, tmp_path: Path
) -> None:
    (tmp_path / "runs/best.yaml").mkdir(parents=True)
    (tmp_path / "runs/trials.csv").write_text("task,method,trial,dev,settings,error\n")
    with pytest.raises(WorkError, match=r"best\.yaml cannot be written: Is a directory"):
        tune(given(**USUAL))
    assert not list((tmp_path / "runs").glob("trial-*"))


@pytest.mark.parametrize("name", ["best.yaml", "trials.csv"])
def test_a_file_of_ones_own_is_not_taken_for_an_earlier_search(given: Given, tmp_path: Path, name: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / name).write_text("mine")
    with pytest.raises(RequestError, match=rf"{name} is no search's \(trials\.csv\).*move it, or set another --out"):
        tune(given(**USUAL))
    assert [(path.name, path.read_text()) for path in (tmp_path / "runs").iterdir()] == [(name, "mine")]


def test_worker_1_leaves_the_choice_to_worker_0(given: Given, tmp_path: Path) -> None:
    tune(given(**USUAL, worker=1))
    assert not (tmp_path / "runs/best.yaml").exists()
    tune(given(**USUAL))
    assert (tmp_path / "runs/best.yaml").exists()


def test_trials_that_another_process_has_are_waited_for_or_told(given: Given) -> None:
    config, work = prepared(given(**USUAL))
    with pytest.raises(WorkError, match=r"4 trials are not made \(trial-0/colours/tiny-vanilla-0, .*same command"):
        _choose(config, work, {})


def failing(methods: Sequence[str], trials: Sequence[int]) -> Any:
    def work(cell: Any, task: Any, data: Any, facts: Any, *rest: Any) -> dict[str, Any]:
        if cell.run.method in methods and cell.run.trial in trials:
            with closing(Record(cell.folder, facts)) as lines:
                lines.log("failed", 1, {"error": "loss of step 1 is not finite"})
            raise WorkError("loss of step 1 is not finite")
        return train(cell, task, data, facts, *rest)

    return work


def test_a_trial_that_fails_is_not_chosen_and_told(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.sweep.train", failing(["freelb"], [1]))
    with pytest.raises(WorkError, match=r"1 of 4 runs failed \(trial-1/colours/tiny-freelb-0\)"):
        tune(given(**USUAL))
    assert (tmp_path / "runs/best.yaml").exists()
    rows = rows_of(tmp_path / "runs")
    assert [row["error"] for row in rows] == ["", "", "loss of step 1 is not finite", ""]
    assert rows[2]["dev"] == ""
    printed = capsys.readouterr().out
    assert ", 1 failed): freelb.radius=" in printed


def test_a_method_whose_trials_all_fail_is_an_error(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.sweep.train", failing(["freelb"], [0, 1, 2]))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/best.yaml").write_text("colours: {freelb: {radius: 0.4}}")  # an earlier search's
    (tmp_path / "runs/trials.csv").write_text("task,method,trial,dev,settings,error\n")
    with pytest.raises(WorkError, match="colours: all trials of freelb have failed; the first: loss of step 1"):
        tune(given(**USUAL))
    assert yaml.safe_load((tmp_path / "runs/best.yaml").read_text()) == {}
    assert len(rows_of(tmp_path / "runs")) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search": {"freelb.radius": [0.5, 0.1]}}, r"search.freelb.radius = 0.5, 0.1: allowed: 0 < least < greatest"),
        ({"search": {"freelb.radius": [0, 0.1]}}, r"search.freelb.radius = 0, 0.1: allowed: 0 < least"),
        ({"search": {"freelb.passes": [3, 2]}}, r"search.freelb.passes = 3, 2: allowed: least < greatest"),
        ({"search": {"freelb.passes": [2, 3.5]}}, r"search.freelb.passes = 2, 3.5: allowed: two whole numbers"),
        (
            {"search": {"freelb.radios": [1, 2]}},
            r"freelb.radios is no number among the methods' settings \(allowed: freelb.radius, .*freelb.passes\); mend",
        ),
        ({"search": {"freelb": [1, 2]}}, "freelb is no number among"),
        ({"search": {"freelb.dropout": [1, 2]}}, "freelb.dropout is no number among"),
        ({"search": {"optim.lr": [1e-5, 1e-4]}}, "optim.lr is no number among the methods' settings; mend"),
        ({"search": {"outside.size": [1, 2]}}, "search has no range of vanilla, freelb"),
        ({"search": {}}, "search.* give at least 1"),
        ({"search": {"pgd.radius": [0.1, 0.2]}}, "search has no range of vanilla, freelb; set --search"),
        (
            {"methods": ["freelb", "asa_freelb"]},
            "freelb and asa_freelb share freelb.radius; tune one at a time, by --methods and",
        ),
        ({"trials": 1}, "trials = 1: .*allowed: 2 <= trials"),
        ({"paper_compat": True}, "paper_compat = true would choose settings by the scored rows"),
        ({"save_model": True}, "save_model = true: trials keep no models"),
        ({"freelb": {"start": 0.4}}, "freelb.start = 0.4 is outside the ball"),
        (
            {"freelb": {"start": 0.1}},
            r"trial 1, whose settings are of --search: freelb.start = 0.1 .*; or mend --search",
        ),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_trained(
    changes: dict[str, Any], message: str, given: Given, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=message):
        tune(given(**(USUAL | changes)))
    assert not (tmp_path / "runs").exists()


def test_a_tasks_recipe_that_keeps_models_is_refused(given: Given, task_folder: Path) -> None:
    task = {"folder": task_folder, "recipe": {"save_model": True}}
    with pytest.raises(RequestError, match="save_model = true: trials keep no models"):
        prepared(given(**(USUAL | {"recipes": True, "task": task})))


def test_a_search_finds_settings_of_a_method_from_outside(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "searched_method.py").write_text(
        "from asa.methods.vanilla import Vanilla\n\ndef build(config):\n    return Vanilla()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    method = "searched_method:build"
    monkeypatch.setitem(METHODS, method, None)
    del METHODS[method]
    changes = {"methods": ["vanilla", method], "search": {"outside.size": [0.01, 0.1]}, "outside": {"size": 0.02}}
    trials = [own for (own,) in trials_of(config_of(given, **changes))]
    assert trials[1]["methods"] == [method]
    assert all(0.01 <= trial["outside"]["size"] <= 0.1 for trial in trials[1:])
    for outside, message in (({}, "outside.size has no value to start from, trial 0's"), ({"size": "x"}, "no number")):
        with pytest.raises(RequestError, match=message):
            trials_of(config_of(given, **(changes | {"outside": outside})))
    for size, ends, kind in ((1, [1, 9], int), (1, [0.5, 9], float), (1.0, [1, 9], float)):
        changed = changes | {"outside": {"size": size}, "search": {"outside.size": ends}}
        tried = [own for (own,) in trials_of(config_of(given, **changed))][1:]
        assert {type(trial["outside"]["size"]) for trial in tried} == {kind}
    search = {"outside.size": [0.01, 0.1], "freelb.radius": [0.2, 0.3]}  # which it may read, but is freelb's
    both = given(**(USUAL | changes | {"methods": [method, "freelb"], "search": search}))
    monkeypatch.setitem(METHODS, method, METHODS["vanilla"])
    cells = {(cell.run.method, cell.run.trial): cell.config for cell in prepared(both)[1].cells}
    assert {cells[method, trial].freelb.radius for trial in range(3)} == {0.1}
    assert len({cells[method, trial].outside["size"] for trial in range(3)}) == 3
    assert len({cells["freelb", trial].freelb.radius for trial in range(3)}) == 3


def test_a_method_that_is_tried_less_than_the_others_is_told(given: Given, capsys: pytest.CaptureFixture[str]) -> None:
    tune(given(**(USUAL | {"methods": ["vanilla", "freelb", "r_drop"]})))
    printed = capsys.readouterr().out
    assert "r_drop: no range in search, so one trial, not 3; set --search" in printed
    assert "freelb: no range" not in printed
    assert "vanilla: no range" not in printed


def test_trials_that_are_alike_are_told(given: Given) -> None:
    changes = {"methods": ["freelb"], "search": {"freelb.passes": [2, 3]}}
    assert list(unsearched(config_of(given, **changes, trials=3))) == []
    (told,) = unsearched(config_of(given, **changes, trials=6))
    assert told.startswith("freelb: of its 5 trials beside the first 2 differ; widen its ranges")


def test_a_method_from_outside_beside_a_searched_group_is_told(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine:build", METHODS["vanilla"])
    changes = {"methods": ["freelb", "mine:build"], "search": SEARCH}
    assert list(unsearched(config_of(given, **changes))) == [
        "mine:build: no range in search, so one trial, not 3; set --search.GROUP.KEY",
        "mine:build: not tried with other freelb, which best.yaml changes for it as well",
    ]


def test_a_trial_that_could_not_begin_has_no_score_of_an_earlier_search(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(given(**USUAL))

    def refused(cell: Any, *rest: Any) -> dict[str, Any]:
        if cell.run.method == "freelb":
            raise RequestError("freelb cannot begin")
        return train(cell, *rest)

    monkeypatch.setattr("finetune.sweep.train", refused)
    changed = USUAL | {"search": {"freelb.radius": [0.6, 0.9]}, "freelb": {"radius": 0.7, "start": 0.0}}
    with pytest.raises(RequestError, match=r"3 of 4 runs failed .*freelb cannot begin"):
        tune(given(**changed, overwrite=True))
    assert not (tmp_path / "runs/best.yaml").exists()
    assert not (tmp_path / "runs/trials.csv").exists()


def test_a_trial_that_could_not_begin_has_no_failure_of_an_earlier_search(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.sweep.train", failing(["freelb"], [0, 1, 2]))
    with pytest.raises(WorkError, match="all trials of freelb"):
        tune(given(**USUAL))
    config, work = prepared(given(**(USUAL | {"epochs": 2}), overwrite=True))
    with pytest.raises(WorkError, match="4 trials are not made"):
        _choose(config, work, {})


def test_a_model_is_read_once_for_all_trials(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Any]()
    monkeypatch.setattr("finetune.sweep.check_model", lambda *rest: read.append(rest))
    prepared(given(**USUAL))
    assert len(read) == 1


def test_a_setting_that_was_not_given_may_be_searched(given: Given, tmp_path: Path) -> None:
    tune(given(methods=["random_mask"], search={"random_mask.share": [0.1, 0.9]}, trials=2, epochs=1))
    rows = rows_of(tmp_path / "runs")
    assert rows[0]["settings"] == "random_mask.share=null"
    assert re.fullmatch(r"random_mask\.share=0\.\d+", rows[1]["settings"])


def test_trials_are_no_runs_of_a_sweep_or_a_report(given: Given, tmp_path: Path) -> None:
    tune(given(**USUAL))
    own = {key: value for key, value in given(**USUAL).items() if key not in ("trials", "search")}
    with pytest.raises(RequestError, match="is a finished run with another stage"):
        sweep({**own, "out": tmp_path / "runs/trial-0"})
    alone = from_dict(ReportConfig, {"runs": tmp_path / "runs", "out": tmp_path / "report"})
    with pytest.raises(RequestError, match=r"trials alone, which their trials\.csv tells"):
        write(alone)
    sweep({**own, "out": tmp_path / "runs/final"})
    write(alone)
    page = (tmp_path / "report/report.md").read_text()
    assert "Not shown: 4 trial runs of settings (finetune tune), which are chosen by dev." in page
    assert "trial-1" not in page


def test_a_sweeps_keys_are_those_of_a_search(given: Given) -> None:
    """TuneConfig adds to them and changes the seeds alone."""
    plain, searched = from_dict(FinetuneConfig, given()), config_of(given, methods=["vanilla", "freelb"])
    assert searched.seeds == (0,)
    assert vars(searched).keys() - vars(plain).keys() == {"trials", "search"}
