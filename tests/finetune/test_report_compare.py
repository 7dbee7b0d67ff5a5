"""What the report holds against what, and what it leaves out: settings, seeds, machines, weights, damaged files."""

import json
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from asa.errors import WorkError
from finetune.config import ReportConfig
from finetune.predictions import Predictions, Stored, save_predictions
from finetune.report import analysis, overview, plots, tables, tested
from finetune.report.attention import Layer, Maps, load, plot, save, told
from finetune.report.collect import Run, collect
from finetune.report.compare import Comparison, by_examples, by_seeds, comparisons, least_p
from finetune.report.examples import RESAMPLES, parts
from finetune.report.rows import Row, tuned_rows, where
from finetune.report.svg import Picture, draw
from finetune.report.tested import p_value
from finetune.report.write import write
from tests.finetune.test_report_tasks import predicted, put, tuned

TAU = {"asa": {"tau": 0.3}}
CONFIG = {"optim": {"lr": 1e-4}}  # of a run on sst2
ATTACK = {"stage": "robustness", "task": "rte", "model": "m", "reference": "r"}


def rows_of(runs: Path) -> list[Row]:
    return tuned_rows(collect(runs))


def written(runs: Path, out: Path) -> tuple[str, list[list[str]]]:
    """report.md, and the lines of report.csv."""
    write(ReportConfig(runs=runs, out=out))
    lines = (out / "report.csv").read_text().splitlines()
    return (out / "report.md").read_text(), [line.split(",") for line in lines]


def test_a_task_under_two_settings_has_two_columns_and_the_table_no_mean(tmp_path: Path) -> None:
    tuned(tmp_path, "sst2", "vanilla", 0, 40)
    tuned(tmp_path / "b", "sst2", "vanilla", 0, 50, config={"optim": {"lr": 5e-5}})
    tuned(tmp_path, "mrpc", "vanilla", 0, 45)
    tuned(tmp_path / "b", "mrpc", "vanilla", 0, 45, config={"optim": {"lr": 3e-4}, "length": 64})
    shown = overview.scores(rows_of(tmp_path), "Scores")
    assert shown.columns[2:] == ["mrpc A (F1)", "mrpc B (F1)", "sst2 C (accuracy)", "sst2 D (accuracy)"]
    assert "A: length=64. B: length=n/a. C: optim.lr=0.0001. D: optim.lr=5e-05." in shown.note
    assert "No mean over tasks, since mrpc, sst2" in shown.note


def test_scores_over_other_seeds_than_vanillas_are_marked(tmp_path: Path) -> None:
    for seed in (0, 1):
        tuned(tmp_path, "sst2", "vanilla", seed, 40 + seed)
        tuned(tmp_path, "sst2", "asa", seed, 45 + seed)
    tuned(tmp_path, "sst2", "pgd", 0, 50)
    tuned(tmp_path / "other", "sst2", "pgd", 0, 50, model="other")
    shown = overview.scores(rows_of(tmp_path), "Scores")
    assert [(row[1], "†" in row[2]) for row in shown.rows] == [
        ("vanilla", False),
        ("asa", False),
        ("pgd", True),
        ("pgd", False),  # no vanilla run of that model to be held against
    ]
    assert "Over other seeds than vanilla's" in shown.note


@pytest.mark.parametrize("changes", [{"environment": {"device": "gpu"}}, {"processes": 2}, {"threads": 2}])
def test_costs_are_not_compared_across_machines(tmp_path: Path, changes: dict[str, Any]) -> None:
    tuned(tmp_path, "sst2", "vanilla", 0, 40, environment={"device": "cpu"}, processes=1)
    tuned(tmp_path, "sst2", "pgd", 0, 45, environment={"device": "cpu"}, processes=1)
    tuned(tmp_path, "sst2", "asa", 0, 45, **{"environment": {"device": "cpu"}, "processes": 1, **changes})
    rows = rows_of(tmp_path)
    values = {row.method: row.values for row in rows}
    assert values["pgd"]["slowdown"] == pytest.approx(1.5)
    assert "slowdown" not in values["asa"]
    assert "The costs of its runs were not all taken alike" in tables.results(rows).note
    assert "taken alike" not in tables.results([row for row in rows if row.method != "asa"]).note
    assert values["asa"]["gain"] == pytest.approx(5 / 60)


def test_times_of_steps_alone_are_not_compared_with_those_of_whole_runs() -> None:
    """As older records have."""
    older, newer = (Run("a", Path(), {}, [], [], end) for end in ({"seconds": 9.0}, {"train_seconds": 6.0}))
    assert where(older) != where(newer)


def test_a_bare_method_means_one_setting_on_all_tasks_or_a_note_says_otherwise(tmp_path: Path) -> None:
    tuned(tmp_path, "sst2", "asa", 0, 40, own=TAU)
    tuned(tmp_path, "mrpc", "asa", 0, 40, own={"asa": {"tau": 0.5}})
    rows = rows_of(tmp_path)
    assert {row.method for row in rows} == {"asa"}
    assert "asa has settings of its own for each task" in overview.scores(rows, "Scores").note
    for seed in (1, 2):
        tuned(tmp_path, "mrpc", "asa", seed, 40, own=TAU)
    rows = rows_of(tmp_path)
    assert {(row.task, row.method) for row in rows} == {("sst2", "asa"), ("mrpc", "asa"), ("mrpc", "asa tau=0.5")}
    assert "settings of its own" not in overview.scores(rows, "Scores").note


def again(runs: Path, method: str, seed: int, right: int, task: str = "sst2", **changes: Any) -> None:
    """A run's model, scored on the run's own rows, of which its task has no others, or on as many of another task."""
    inputs = {"task_sha256": "t2", "start_sha256": "a" * 64, "trained_sha256": "t", "model_sha256": "x"}
    facts = {"stage": "score", "trained_on": "sst2", "request": {}, "classes": {"0": "0", "1": "1"}}
    facts |= changes | {"inputs": inputs | changes.get("inputs", {})}
    facts["config"] = changes.get("config", CONFIG) | {"length": 32, "merge": "sum"}
    tuned(runs / "score", task, method, seed, right, **facts)


def runs_of_two_methods(runs: Path, length: int = 32, more: int = 0) -> None:
    inputs = {"task_sha256": "t", "model_sha256": "a" * 64}
    for seed in range(3):
        for method, right in (("vanilla", 30 + seed), ("asa", 40 + seed + more)):
            config = CONFIG | {"length": length}
            tuned(runs, "sst2", method, seed, right, config=config, inputs=inputs)


def test_models_scored_on_the_rows_of_their_own_runs_are_tested_once(tmp_path: Path) -> None:
    """Twice in the table it would be two comparisons for Holm. The task's hash is of train and dev as well."""
    runs_of_two_methods(tmp_path)
    runs_of_two_methods(tmp_path / "longer", 48, more=1)
    for seed in range(3):
        for method, right in (("vanilla", 30 + seed), ("asa", 40 + seed)):
            again(tmp_path, method, seed, right, config=CONFIG)
    assert [one.row.run.stage for one in comparisons(rows_of(tmp_path)).methods] == ["finetune", "finetune"]
    rows = [row for row in rows_of(tmp_path) if row.run.stage == "score"]  # the runs lie elsewhere
    assert [one.row.task for one in comparisons(rows).methods] == ["sst2 after sst2"]


OTHERS: dict[str, dict[str, Any]] = {
    "other data": {"inputs": {"trained_sha256": "other"}},
    "other weights to begin with": {"inputs": {"start_sha256": "b" * 64}},
    "a setting that methods share": {"config": {"optim": {"lr": 5e-5}}},
    "a setting of the method": {"config": {"optim": {"lr": 1e-4}, "asa": {"tau": 0.5}}},
    "another gain, as of other lengths": {"right": (0, 1)},
    "another score of the method alone": {"right": (1, 0)},
    "other scores and no other gain": {"right": (1, 1)},
    "another task with as many rows": {"task": "hans"},
    "a seed more": {"seeds": 4},
    "another seed": {"seed": 7},
    "another method": {"method": "pgd"},
    "other examples": {"ids": "b"},
    "no predictions": {"bare": "base-*"},
    "no predictions of what it is held against": {"bare": "base-vanilla-*"},
    "no predictions of the method": {"bare": "base-asa-*"},
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_models_that_were_scored_on_a_runs_rows_are_tested_too(other: str, tmp_path: Path) -> None:
    runs_of_two_methods(tmp_path)
    changes = dict(OTHERS[other])
    defaults = (
        ("right", (0, 0)),
        ("seed", 0),
        ("seeds", 3),
        ("method", "asa"),
        ("ids", ""),
        ("task", "sst2"),
        ("bare", ""),
    )
    more, first, seeds, name, ids, task, bare = (changes.pop(*key) for key in defaults)
    for seed in range(first, first + seeds):
        for method, right in (("vanilla", 30 + seed % 7 + more[0]), (name, 40 + seed % 7 + more[1])):
            again(tmp_path, method, seed, right, task, **{"config": CONFIG, **changes})
            file = tmp_path / f"score/{task}/base-{method}-{seed}/predictions/test.npz"
            save_predictions(file, predicted("accuracy", right, ids))
    for file in tmp_path.rglob(f"{bare}/predictions/test.npz") if bare else ():
        file.unlink()
    assert [one.row.run.stage for one in comparisons(rows_of(tmp_path)).methods] == ["finetune", "score"]


def test_scored_models_without_runs_of_their_own_partners_are_tested(tmp_path: Path) -> None:
    for seed in range(3):
        inputs = {"task_sha256": "t", "model_sha256": "a" * 64}
        tuned(tmp_path, "sst2", "asa", seed, 40, config=CONFIG | {"length": 32}, inputs=inputs)
        again(tmp_path, "asa", seed, 40, config=CONFIG)
        again(tmp_path, "vanilla", seed, 30, config=CONFIG)
    assert [one.row.run.stage for one in comparisons(rows_of(tmp_path)).methods] == ["score"]


def test_attacks_with_other_settings_are_told_apart_and_in_the_csv(tmp_path: Path) -> None:
    for steps, median in ((10, 1.0), (2000, 2.0)):
        put(tmp_path / "runs" / str(steps), {**ATTACK, "config": {"steps": steps}}, [], {"median": median, "n": 9})
    page, lines = written(tmp_path / "runs", tmp_path / "out")
    assert "| rte A | m | - | - | r | 9 |" in page
    assert "A: steps=10. B: steps=2000." in page
    assert ["robustness", "rte", "m", "n/a", "B", "loss_increase_median_radii_from_r", "1", "2.0", "n/a"] in lines


def test_attacked_runs_are_named_by_method_and_seed_with_what_they_resist(tmp_path: Path) -> None:
    """Models that were compared with others have other rows, so each attack has its letter."""
    end = {"median": 1.0, "n": 9, "resisted": 0.75, "start_spread": 0.02}
    for seed in (0, 1):
        facts = {**ATTACK, "method": "asa", "seed": seed, "inputs": {"models_sha256": {"m": str(seed)}}}
        put(tmp_path / "runs" / str(seed), facts, [], {**end, "start_spread": None} if seed else end)
    shown = tested.loss_increase(collect(tmp_path / "runs"))
    assert shown is not None
    assert [row[:5] for row in shown.rows] == [["rte A", "m", "asa", "0", "r"], ["rte B", "m", "asa", "1", "r"]]
    assert shown.columns[-2:] == ["Still right, %", "Spread over starts"]
    assert [row[-2:] for row in shown.rows] == [["75.0", "0.0200"], ["75.0", "n/a"]]
    assert "A: models_sha256=" in shown.note
    assert "models_sha256: of the models compared" in shown.note


def test_ensembles_are_shown_and_other_records_are_left_out_by_name(tmp_path: Path) -> None:
    facts = {"stage": "ensemble", "task": "sst2", "metrics": ["accuracy"], "model": "base", "method": "asa+vanilla"}
    members = [
        {"model": "base", "method": "asa"},
        {"model": "base", "method": "asa"},
        {"model": "base", "method": "vanilla"},
    ]
    command = ["/x/finetune/__main__.py", "ensemble", "a b", "c"]
    put(tmp_path / "runs" / "all", {**facts, "members": members, "command": command}, [], {"test_accuracy": 0.875})
    put(tmp_path / "runs" / "new", {"stage": "quantise"}, [], {})
    page, lines = written(tmp_path / "runs", tmp_path / "out")
    assert "| all | sst2 | 2 x base asa, 1 x base vanilla | Test accuracy 87.50 |" in page
    assert "| new | unknown stage quantise |" in page
    assert "python -m finetune ensemble 'a b' c\n" in page
    assert ["ensemble", "sst2", "all", "asa+vanilla", "", "test_accuracy", "1", "0.875", "n/a"] in lines


def test_models_are_tested_against_those_before_them_in_the_request(tmp_path: Path) -> None:
    request = {"models": {"base": "x", "mlm": "y", "asa": "z"}}
    for place, model in enumerate(request["models"]):
        for seed in range(3):
            changes = {"model": model, "request": request}
            tuned(tmp_path / "runs" / model, "sst2", "vanilla", seed, 40 + 2 * place + seed, **changes)
    found = comparisons(rows_of(tmp_path / "runs"))
    assert found.methods == []
    gains = {(one.row.model, one.against): one.gains for one in found.models}
    assert gains == {
        ("mlm", "base"): pytest.approx((2 / 60,) * 3),
        ("asa", "base"): pytest.approx((4 / 60,) * 3),
        ("asa", "mlm"): pytest.approx((2 / 60,) * 3),
    }
    cells = tested.tests(found.models, "Models").rows
    assert cells[0][:4] == ["sst2", "mlm", "base", "vanilla"]
    page, lines = written(tmp_path / "runs", tmp_path / "out")
    assert "## Tests against other models" in page
    assert "3 comparisons." in page
    figures = {(line[2], line[5]): line for line in lines}
    assert figures["asa", "p_seeds against model base"][6:] == ["3", "0.25", "n/a"]
    assert float(figures["asa", "p_seeds_holm against model base"][7]) == pytest.approx(0.75)
    low, high = (float(figures["asa", f"{name} against model base"][7]) for name in ("low", "high"))
    assert low < 4 / 60 < high


def test_one_model_by_two_names_is_not_held_against_itself(tmp_path: Path) -> None:
    request = {"models": {"base": "x", "again": "x", "other": "y"}}
    for model, sha256 in (("base", "1"), ("again", "1"), ("other", "2")):
        for seed in range(2):
            tuned(
                tmp_path / model,
                "sst2",
                "vanilla",
                seed,
                40 + seed,
                model=model,
                request=request,
                inputs={"model_sha256": sha256},
            )
    found = comparisons(rows_of(tmp_path)).models
    assert {(one.row.model, one.against) for one in found} == {("other", "base")}  # again is base


def test_one_set_of_weights_under_two_tokenizers_is_two_models(tmp_path: Path) -> None:
    request = {"models": {"base": "x", "left": "y"}}
    for model, reader in (("base", "a" * 64), ("left", "b" * 64)):
        for seed in range(2):
            inputs = {"model_sha256": "1", "reader_sha256": reader}
            tuned(tmp_path / model, "sst2", "vanilla", seed, 40 + seed, model=model, request=request, inputs=inputs)
    found = comparisons(rows_of(tmp_path)).models
    assert [(one.row.model, one.against) for one in found] == [("left, tokenizer bbbbbbbb", "base, tokenizer aaaaaaaa")]


def test_names_that_are_no_formulas_are_drawn_as_they_stand() -> None:
    layer = Layer(np.eye(2), np.eye(2), np.eye(2), 0.5, np.eye(2))
    found = Maps(r"m$\frac$1", "t", "w", r"a$\frac$b cost$a$", [r"$\frac$", "$$"], {0: layer})
    picture = plot(found, "x").picture
    assert r"a$\frac$b cost$a$" in picture.svg
    assert picture.svg.count(r"$\frac$<") >= 2


def test_gains_over_runs_of_another_version_are_told(tmp_path: Path) -> None:
    for seed in range(2):
        tuned(tmp_path / "runs", "sst2", "vanilla", seed, 40, environment={"asa-pretrain": "1", "torch": "2"})
        tuned(tmp_path / "runs", "sst2", "asa", seed, 41, environment={"asa-pretrain": "1", "torch": "2"})
    told_ = "Its runs are of several versions"
    assert told_ not in written(tmp_path / "runs", tmp_path / "out")[0]
    tuned(tmp_path / "runs", "sst2", "asa", 2, 41, environment={"asa-pretrain": "3", "torch": "2"})
    assert f"{told_} (asa-pretrain), which gains hold as well." in written(tmp_path / "runs", tmp_path / "out")[0]


def test_a_model_called_vanilla_is_tested_as_any_other(tmp_path: Path) -> None:
    for place, model in enumerate(("vanilla", "asa")):
        for seed in range(2):
            changes = {"model": model, "models": ["vanilla", "asa"], "inputs": {"model_sha256": model}}
            for more, method in enumerate(("vanilla", "freelb")):
                tuned(tmp_path / "runs" / model, "sst2", method, seed, 40 + 2 * place + 3 * more, **changes)
    page, lines = written(tmp_path / "runs", tmp_path / "out")
    assert "| sst2 | asa | freelb | accuracy | 2 | +5.00 ± 0.00 |" in page
    assert "| sst2 | asa | vanilla | freelb | accuracy | 2 | +3.33 ± 0.00 |" in page
    names = [tuple(line[:6]) for line in lines]
    assert len(set(names)) == len(names)
    figures = {name[2:4] + name[5:]: float(line[7]) for name, line in zip(names[1:], lines[1:], strict=True)}
    assert figures["asa", "freelb", "gain against model vanilla"] == pytest.approx(2 / 60)
    assert figures["asa", "freelb", "low against vanilla"] < figures["asa", "freelb", "gain"] == pytest.approx(3 / 60)


@pytest.mark.parametrize("wrong", ["another run", "another kind", "nan"])
def test_predictions_that_are_not_those_of_their_record_are_refused(tmp_path: Path, wrong: str) -> None:
    for method, right in (("vanilla", 30), ("asa", 45)):
        tuned(tmp_path, "sst2", method, 0, right)
    path = tmp_path / "sst2/base-asa-0/predictions/test.npz"
    these, told = predicted("accuracy", 30), "gives accuracy 0.500000, the record beside it has 0.750000"
    if wrong == "nan":  # as numbers, all of the first class, which is right for half of the rows
        these, told = (
            replace(these, predictions=Predictions("classification", [np.full(2, np.nan)] * 60, None)),
            "damaged",
        )
    if wrong == "another kind":
        numbers = Predictions("regression", [np.ones(1)] * 60, None)
        these, told = replace(these, predictions=numbers), "is of kind regression, which has no accuracy"
    save_predictions(path, these)
    with pytest.raises(WorkError, match=rf"base-asa-0/predictions/test\.npz.* {told}"):
        write(ReportConfig(runs=tmp_path, out=tmp_path / "out"))


def test_runs_that_answer_all_rows_alike_are_told(tmp_path: Path) -> None:
    """Gains among them are 0 and their p 1, which says nothing of the methods."""
    for method in ("vanilla", "asa"):
        tuned(tmp_path, "sst2", method, 0, 30)
    one = Predictions("classification", [np.array([1.0, 0.0])] * 60, None)  # right for half of the rows
    path = tmp_path / "sst2/base-asa-0/predictions/test.npz"
    save_predictions(path, replace(predicted("accuracy", 30), predictions=one))
    assert written(tmp_path, tmp_path / "out")[0].count("All test rows get one answer from sst2/base-asa-0.") == 1


def test_a_score_that_is_no_finite_number_is_none(tmp_path: Path) -> None:
    for seed in (0, 1):
        tuned(tmp_path / "runs", "sst2", "vanilla", seed, 40)
        tuned(tmp_path / "runs", "sst2", "asa", seed, 45)
    path = tmp_path / "runs/sst2/base-asa-0/metrics.jsonl"
    path.write_text(path.read_text().replace('"test_accuracy": 0.75', '"test_accuracy": NaN'))
    page, _ = written(tmp_path / "runs", tmp_path / "out")
    assert "| sst2 | base | asa | accuracy | 1 | +8.33 ± n/a | n/a | n/a |" in page
    # Below the task: scores and gains of fewer seeds than the row has, of others than vanilla's.
    assert (
        "| base | asa | 2 | 75.00 ± n/a (1†) | 50.00 ± 0.00 | 40.00 ± 0.00 | 50.00 ± 0.00 | +8.33 ± n/a (1) |" in page
    )
    assert page.count("† Over other seeds than vanilla's") == 2


def test_examples_are_the_same_by_their_ids_and_the_majority_counts(tmp_path: Path) -> None:
    for seed in range(3):
        tuned(tmp_path, "sst2", "vanilla", seed, 40)
        tuned(tmp_path, "sst2", "asa", seed, 45)
    odd = tmp_path / "sst2" / "base-asa-0" / "predictions" / "test.npz"
    save_predictions(odd, predicted("accuracy", 45, ids="other "))
    (one,) = comparisons(rows_of(tmp_path)).methods
    assert len(one.gains) == 3
    assert math.isnan(one.p_examples)  # one of its three pairs has other examples
    assert one.bare == ("sst2/base-asa-0",)
    left_out = "None over examples where a run has no predictions beside it, or of other examples: sst2/base-asa-0."
    assert left_out in written(tmp_path, tmp_path / "report")[0]
    for path in (tmp_path / "sst2" / "base-asa-0").rglob("*"):
        path.unlink() if path.is_file() else None
    (one,) = comparisons(rows_of(tmp_path)).methods
    assert one.p_examples < 0.05
    assert one.bare == ()


def test_what_is_not_known_is_told_as_such_and_not_drawn(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    start = {"stage": "finetune", "task": "ax", "metrics": ["matthews"], "model": "a|b", "method": "asa", "seed": 0}
    masks = {"event": "train", "step": 5, "masked_share": [0.25, None]}
    put(runs / "tuned", start, [masks, {"event": "eval", "step": 5, "matthews": None}], {"dev_matthews": 0.5})
    put(runs / "pre", {"stage": "pretrain", "method": "vanilla", "model": "tiny", "seed": 0}, [], {"seconds": 1.0})
    page, lines = written(runs, tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text()
    assert html.count("<figure>") == 2  # the masked shares alone
    assert "nan" not in page.replace("finetune", "").lower()
    assert 'aria-label="Masked share of the last log line, bottom layer first: ax 25.0% / n/a."' in html
    assert "The task has no labelled test rows" in page
    assert "No run on ax has a test score." in page
    assert r"| a\|b | asa | 1 |" in page
    assert ["finetune", "ax", "a|b", "asa", "", "masked_share_layer_0", "1", "0.25", "n/a"] in lines


@pytest.mark.parametrize("count", [1, 2])
def test_a_series_of_one_is_drawn_as_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A line through one point shows nothing."""
    drawn: list[Figure] = []

    def keep(name: str, width: float, height: float, paint: Any) -> Picture:
        drawn.append(Figure())
        paint(drawn[-1])
        return Picture(name, "", b"")

    for module in (analysis, plots):
        monkeypatch.setattr(module, "draw", keep)
    steps = range(count)
    masks = [{"event": "train", "step": step, "masked_share": [0.2, 0.4], "task": 1.0} for step in steps]
    evals = [{"event": "eval", "step": step, "accuracy": 0.5} for step in steps]
    start = {"stage": "finetune", "task": "ax", "metrics": ["accuracy"], "model": "m", "method": "asa"}
    put(tmp_path / "0", {**start, "seed": 0}, masks + evals, {"test_accuracy": 0.5})
    rows = rows_of(tmp_path)
    run = rows[0].run
    analysis.masked_share([run], {run.name: "m"}, "masked")
    plots.dev_curves(rows, "dev")
    plots.pretraining_losses([run], "pre")
    assert len(drawn) == 3
    layers, dev, loss = ([line.get_marker() for line in figure.axes[0].lines] for figure in drawn)
    expected = "o" if count == 1 else "None"
    assert layers == [expected] * 2
    assert dev == [expected, "o"]  # the run, the mean over seeds
    assert loss[-1] == expected


def test_models_of_other_depth_have_no_mean_share(tmp_path: Path) -> None:
    start = {"stage": "finetune", "task": "ax", "metrics": ["matthews"], "model": "m", "method": "asa"}
    for seed, shares in enumerate(([0.2, 0.4], [0.2, 0.4, 0.6])):
        events = [{"event": "train", "step": 5, "masked_share": shares}]
        put(tmp_path / str(seed), {**start, "seed": seed}, events, {"test_matthews": 0.5})
    masked = analysis.masking(rows_of(tmp_path))
    assert [row[3:] for row in analysis.shares_by_layer(masked).rows] == [
        ["1", "20.0", "40.0", "-", "30.0 ± n/a"],
        ["1", "20.0", "40.0", "60.0", "40.0 ± n/a"],
    ]
    assert "ax, 3 layers 20.0% / 40.0% / 60.0%" in analysis.layers_and_tasks(masked, "x").alt


def test_a_share_or_a_score_that_is_none_is_left_out_and_the_others_counted(tmp_path: Path) -> None:
    start = {"stage": "finetune", "task": "ax", "metrics": ["matthews"], "model": "m", "method": "asa"}
    for tau in (0.1, 0.3):
        for seed, (shares, score) in enumerate((([0.2, 0.4], 0.5), ([0.4, None], None))):
            events = [{"event": "train", "step": 5, "masked_share": shares}]
            this = {**start, "seed": seed, "config": {"asa": {"tau": tau}}}
            put(tmp_path / f"{tau}-{seed}", this, events, {"test_matthews": score})
    masked = analysis.masking(rows_of(tmp_path))
    (row,) = analysis.shares_by_layer([one for one in masked if one.tau == 0.1]).rows
    assert row[3:] == ["2", "30.0", "40.0 (1)", "30.0 ± n/a (1)"]
    table = analysis.tau_table(analysis.swept(masked))
    assert [row[3:] for row in table.rows] == [
        [tau, "2", "50.00 ± n/a (1)", "30.0 ± n/a (1)"] for tau in ("0.1", "0.3")
    ]
    assert "30.0% / 40.0%" in analysis.layers_and_tasks(masked, "x").alt


def test_controls_have_a_table_of_their_own_beside_asa_alone(tmp_path: Path) -> None:
    tuned(tmp_path / "runs", "sst2", "r_drop", 0, 40)
    assert "ASA beside chance" not in written(tmp_path / "runs", tmp_path / "out")[0]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    save(
        Maps("m", "t", "w", None, ["a", "b"], {0: Layer(np.eye(2), np.eye(2), np.eye(2), 0.5)}),
        tmp_path / "whole.maps.json",
    )
    maps = json.loads((tmp_path / "whole.maps.json").read_text())
    for name, content in (
        ("a.maps.json", "{"),
        ("b.maps.json", "[]"),
        ("c.maps.json", json.dumps({"layers": {"0": []}})),
        ("d.maps.json", json.dumps(maps | {"layers": {}})),
        ("e.maps.json", json.dumps(maps | {"tokens": ["a"]})),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(WorkError, match=name):
            load(tmp_path / name)
    whole = tmp_path / "whole.npz"
    these = Predictions("regression", [np.ones(1), np.ones(1)], None)
    save_predictions(whole, Stored(these, ["0", "1"], [0.5, 1.0], [], ("pearson",)))
    for name, content in (("torn.npz", whole.read_bytes()[:200]), ("text.npz", b"no zip"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(WorkError, match=name):
            parts(tmp_path / name, "pearson")


def test_a_sweep_of_tau_holds_runs_that_differ_in_nothing_else(tmp_path: Path) -> None:
    for tau, heads in ((0.1, "shared"), (0.3, "shared"), (0.3, "each"), (0.5, "each"), (0.7, "none")):
        tuned(tmp_path / f"{tau}{heads}", "sst2", "asa", 0, 40, own={"asa": {"tau": tau, "heads": heads}})
    sweeps = analysis.swept(analysis.masking(rows_of(tmp_path)))
    assert [row[2:5] for row in analysis.tau_table(sweeps).rows] == [
        ["asa heads=shared", "0.1", "1"],
        ["asa heads=shared", "0.3", "1"],
        ["asa heads=each", "0.3", "1"],
        ["asa heads=each", "0.5", "1"],
    ]
    assert "asa heads=each: tau 0.3" in analysis.tau_sweep(sweeps, "x").alt
    assert not analysis.tau_table(sweeps).note
    tuned(tmp_path / "more", "sst2", "asa", 1, 40, own={"asa": {"tau": 0.5, "heads": "each"}})
    sweeps = analysis.swept(analysis.masking(rows_of(tmp_path)))
    told_ = "Of these not every tau has the same seeds: sst2, base, asa heads=each."
    assert analysis.tau_table(sweeps).note == told_


def test_the_file_of_a_schedule_is_told_only_where_nothing_else_tells_runs_apart(tmp_path: Path) -> None:
    def scheduled(folder: Path, task: str, seed: int, file: str) -> None:
        own = {"random_mask": {"strategy": "scheduled", "schedule": file}}
        tuned(folder, task, "random_mask", seed, 40, own=own)

    for task in ("sst2", "mrpc"):
        for seed in (0, 1):
            scheduled(tmp_path, task, seed, f"{task}-{seed}")
            tuned(tmp_path / "b", task, "random_mask", seed, 40, own={"random_mask": {"strategy": "bernoulli"}})
    methods = {row.method for row in rows_of(tmp_path)}
    assert methods == {f"random_mask strategy={strategy}" for strategy in ("scheduled", "bernoulli")}
    scheduled(tmp_path / "c", "sst2", 0, "another")
    assert "random_mask strategy=scheduled schedule=another" in {row.method for row in rows_of(tmp_path)}


def test_tokens_that_look_like_a_formula_are_drawn_and_equal_panels_have_ids_of_their_own() -> None:
    weights = np.full((2, 2), 0.5)
    found = Maps("asa", "$$ now", "head 1", None, ["$$", "$_$"], {0: Layer(weights, weights, weights, 0.25, None)})
    svg = plot(found, "x").picture.svg
    assert ">$$<" in svg
    ids = re.findall(r'\bid="([^"]*)"', svg)
    assert len(set(ids)) == len(ids) > 3
    assert set(re.findall(r'(?:url\(|xlink:href=")#([^")]*)', svg)) <= set(ids)
    (line,) = told(found)
    assert line.endswith("25.0% of the pairs masked, most $$ from 50% of the tokens; diverted most nothing")


def test_a_users_matplotlibrc_changes_nothing() -> None:
    def paint(figure: Figure) -> None:
        figure.subplots().plot([0, 1])

    plain = draw("x", 3, 2, paint)
    with matplotlib.rc_context({"font.size": 20, "xtick.direction": "in", "lines.marker": "o"}):
        assert draw("x", 3, 2, paint) == plain
        assert matplotlib.rcParams["font.size"] == 20


def test_the_least_p_is_that_of_random_flips_where_seeds_are_many() -> None:
    assert least_p(5) == 0.0625
    assert least_p(20) == pytest.approx(2 / (2**16 + 1))


def test_all_flips_of_sign_of_sixteen_seeds_are_taken() -> None:
    gains = np.random.default_rng(0).normal(0.5, 1.5, 16).round(3)
    signs = np.array(list(product((1, -1), repeat=16)))
    assert by_seeds(gains) == (abs(signs @ gains) >= abs(gains.sum()) - 1e-9).mean()
    assert p_value(least_p(16)) == "3e-05"


def test_a_gain_on_every_resampled_test_set_is_as_unlikely_as_their_number_can_tell() -> None:
    """And not impossible."""
    assert by_examples(np.full(RESAMPLES, 0.01)) == (0.01, 0.01, 2 / (RESAMPLES + 1))
    assert by_examples(np.zeros(RESAMPLES))[2] == 1


def test_a_loss_is_as_unlikely_as_a_gain() -> None:
    chance = np.linspace(-0.01, 0.09, RESAMPLES)
    p = by_examples(chance)[2]
    assert p == pytest.approx(0.2, rel=1e-2)
    assert by_examples(-chance)[2] == p


def test_both_kinds_of_p_are_corrected_for_their_number() -> None:
    row = Row(Run("a", Path(), {}, [], [], None), "sst2", "bert", "asa", "", {})
    found = [Comparison(row, None, (0.1, 0.2), p, -0.1, 0.2, 2 * p, ()) for p in (0.01, 0.03)]
    shown = tested.tests(found, "Tests").rows
    assert [cells[-5:-3] for cells in shown] == [["0.010", "0.020"], ["0.030", "0.030"]]
    assert [cells[-2:] for cells in shown] == [["0.020", "0.040"], ["0.060", "0.060"]]
