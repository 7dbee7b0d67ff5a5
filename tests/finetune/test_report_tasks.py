"""The report over many tasks: which runs are compared, the papers' tables, the tests, and the page in a browser."""

import csv
import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.config import ReportConfig
from finetune.predictions import Predictions, Stored, save_predictions
from finetune.report.attention import Layer, Maps, save
from finetune.report.write import write

METRICS = {"sst2": "accuracy", "mnli": "accuracy", "mrpc": "f1", "paws-wiki": "accuracy", "hans": "accuracy"}
WIDTHS = (360, 1280)


def put(folder: Path, start: dict[str, Any], events: list[dict], end: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    lines = [{"event": "start", **start}, *events, {"event": "end", **end}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def tuned(
    out: Path, task: str, method: str | None, seed: int | None, right: int, own: dict | None = None, **changes: Any
) -> None:
    """A run whose main score on test is right / 60, beside one, kappa, that its predictions are not held against."""
    config = {"optim": {"lr": 1e-4 if task == "sst2" else 3e-4}, **(own or {})}
    start = {"stage": "finetune", "task": task, "metrics": [METRICS[task], "kappa"], "model": "base"}
    start |= {"method": method, "seed": seed, "config": config, "request": {"tasks": [task]}, **changes}
    name = METRICS[task]
    end = {f"test_{name}": right / 60, "test_kappa": 0.5, f"dev_{name}": 0.5, "mm_kappa": 0.4}
    end |= {"steps": 10, "train_seconds": 20.0 if method == "vanilla" else 30.0, "seconds": 100.0}
    masks = [{"event": "train", "step": step, "masked_share": [0.3, 0.1]} for step in (5, 10)] if own else []
    evals = [{"event": "eval", "step": 10, "split": "dev", name: 0.5}]
    folder = out / task / f"base-{method}-{seed}"
    put(folder, start, masks + evals, end)
    save_predictions(folder / "predictions" / "test.npz", predicted(name, right))


def predicted(metric: str, right: int, ids: str = "") -> Stored:
    """Accuracy: the first `right` of 60 examples. F1: as many of 60 of the second class, and as few of 60 others."""
    gold = [0, 1] * 30 if metric == "accuracy" else [1] * 60 + [0] * 60
    found = [label if index % 60 < right else 1 - label for index, label in enumerate(gold)]
    logits: list[np.ndarray] = list(np.eye(2)[found])
    names = [f"{ids}{index}" for index in range(len(gold))]
    return Stored(Predictions("classification", logits, None), names, list(gold), ["0", "1"], (metric,))


def write_runs(out: Path) -> Path:
    """Three tasks, three methods, a second tau, a transfer, an attack, a sentence."""
    for task in ("sst2", "mrpc", "paws-wiki"):
        for seed in range(3):
            tuned(out, task, "vanilla", seed, 39 + seed)
            tuned(out, task, "random_mask", seed, 38 + 2 * seed)
            tuned(out, task, "asa", seed, 53 - seed, own={"asa": {"tau": 0.3}})
    tuned(out / "tau", "sst2", "asa", 0, 45, own={"asa": {"tau": 0.1}})
    for method in ("vanilla", "asa"):
        tuned(out / "score", "hans", method, 0, 30, stage="score", trained_on="rte")
        facts = {"stage": "robustness", "task": "rte", "model": method, "reference": "vanilla"}
        end = {"median": 1.25, "q25": 0.5, "q75": 2.0, "mean": 1.5, "sd": None, "n": 227, "radius_median": 0.1}
        put(out / "attack" / method, facts, [], end)
    weights, keep = np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([[1.0, 0.0], [1.0, 1.0]])
    layer = Layer(weights, keep, np.array([[1.0, 0.0], [0.3, 0.7]]), 0.25, weights)
    save(Maps("asa", "so <good>", "head 1", "vanilla", ["so", "<good>"], {0: layer}), out / "so.maps.json")
    return out


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write(ReportConfig(runs=write_runs(folder / "runs"), out=folder / "report"))
    return folder / "report"


@pytest.fixture(scope="module")
def page(report: Path) -> str:
    return (report / "report.md").read_text()


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    lines = page[page.index(f"# {heading}\n") :].splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def reported(folder: Path) -> str:
    """report.md of the runs below the folder."""
    write(ReportConfig(runs=folder / "runs", out=folder / "report"))
    return (folder / "report" / "report.md").read_text()


def test_tasks_stand_side_by_side_with_their_own_metric_and_a_mean(page: str) -> None:
    head, vanilla, asa, *rest = table(page, "Scores by task")
    assert head == ["Model", "Method", "mrpc (F1)", "sst2 (accuracy)", "Mean"]
    assert vanilla == ["base", "vanilla", "66.67 ± 1.67 (3)", "66.67 ± 1.67 (3)", "66.67"]
    assert asa[1:] == ["asa", "86.67 ± 1.67 (3)", "86.67 ± 1.67 (3)", "86.67"]
    assert rest[0][1:] == ["asa tau=0.1", "-", "75.00 ± n/a (1†)", "-"]
    assert table(page, "Scores by task, robustness sets")[0][2:] == ["paws-wiki (accuracy)"]


def test_mnli_that_a_model_was_only_scored_on_is_the_mean_of_its_two_files_as_well(tmp_path: Path) -> None:
    tuned(tmp_path / "runs", "mnli", "vanilla", 0, 30, stage="score", trained_on="anli")
    path = tmp_path / "runs/mnli/base-vanilla-0/metrics.jsonl"
    path.write_text(path.read_text().replace('"mm_kappa": 0.4', '"mm_accuracy": 0.3'))
    head, row = table(reported(tmp_path), "Transfer")
    assert (head[2], row[2]) == ("mnli after anli m/mm (accuracy)", "40.00 ± n/a (1)")


def test_what_is_a_part_of_a_published_set_is_told_and_on_how_many_processes_a_request_ran(tmp_path: Path) -> None:
    facts = {"partial": "half of it trains"}
    for seed, processes in ((0, 1), (1, 2)):
        asked = {"request": {"seeds": [seed]}, "processes": processes, "task_facts": facts}
        tuned(tmp_path / "runs", "mrpc", "vanilla", seed, 40, **asked)
    tuned(tmp_path / "runs" / "scored", "hans", "vanilla", 0, 40, stage="score", trained_on="mrpc", partial="a tenth")
    page = reported(tmp_path)
    assert "hans after mrpc is not the whole published set: a tenth." in page
    assert page.count("mrpc is not the whole published set: half of it trains.") == 2
    for command, count in (("finetune run", 2), ("launch finetune --ranks 2", 1)):
        assert page.count(f"# python -m {command} --config FILE, this text in FILE:") == count


def test_tasks_whose_scored_rows_chose_the_epoch_are_named(tmp_path: Path) -> None:
    """Of a model scored elsewhere they are those of the task it was trained on."""
    compat = {"paper_compat": True}
    tuned(tmp_path / "runs", "sst2", "vanilla", 0, 40)
    tuned(tmp_path / "runs", "mrpc", "vanilla", 0, 40, own=compat)
    tuned(tmp_path / "runs" / "scored", "hans", "vanilla", 0, 40, own=compat, stage="score", trained_on="mrpc")
    page = reported(tmp_path)
    told = "mrpc: the scored rows chose the epoch as well (paper_compat)."
    assert page.count("the scored rows chose") == page.count(told) == 2  # below all scores, and in the task's section
    assert page.index(told) < page.index("## Transfer and robustness")


@pytest.mark.parametrize("whole", [True, False])
def test_mnli_counts_once_by_the_mean_of_its_two_files(tmp_path: Path, whole: bool) -> None:
    """Where a run has one file alone, all runs are compared by the one that all have."""
    for method, right in (("vanilla", 30), ("asa", 45)):
        tuned(tmp_path / "runs", "sst2", method, 0, 36)
        tuned(tmp_path / "runs", "mnli", method, 0, right)
        path = tmp_path / f"runs/mnli/base-{method}-0/metrics.jsonl"
        mm = "mm_accuracy" if whole or method == "asa" else "mm_other"
        path.write_text(path.read_text().replace('"mm_kappa": 0.4', f'"{mm}": 0.3'))
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    page = (tmp_path / "report/report.md").read_text()
    head, vanilla, asa = table(page, "Scores")
    assert head[2:] == [f"mnli{' m/mm' if whole else ''} (accuracy)", "sst2 (accuracy)", "Mean"]
    assert vanilla[2] == ("40.00 ± n/a (1)" if whole else "50.00 ± n/a (1)")
    assert asa[-1] == ("56.25" if whole else "67.50")
    assert table(page, "Methods: gain and cost")[1][2] == ("+12.50 ± n/a (1)" if whole else "+25.00 ± n/a (1)")
    assert ("mnli m/mm: the mean over" in page) is whole


def test_the_settings_of_one_method_part_its_own_rows_alone(page: str) -> None:
    """Vanilla is compared with both taus; another learning rate per task is no other setting of a task."""
    rows = {row[0]: row for row in (line[1:] for line in table(page, "Methods: gain and cost"))}
    assert rows["asa"][2] == rows["asa"][3] == "+20.00 ± 3.33 (3)"
    assert rows["asa tau=0.1"][3] == "+10.00 ± n/a (1)"
    assert "settings A" not in page[: page.index("## Settings")]


def test_costs_are_ratios_to_the_vanilla_run_of_the_seed(page: str) -> None:
    head, *rows = table(page, "Methods: gain and cost")
    assert head[-1] == "Time per step / vanilla"
    assert [row[-1] for row in rows] == ["1.50"] * 3


def test_what_a_task_costs_is_shown_without_a_vanilla_run_as_well(tmp_path: Path) -> None:
    """A figure that no run has is no column; of runs on several devices a note warns."""
    tuned(tmp_path / "runs", "sst2", "asa", 0, 40)
    assert table(reported(tmp_path), "Fine-tuning: sst2")[0][-2:] == ["Seconds per run", "ms per step"]
    for seed, memory in ((1, 400), (2, 500)):
        tuned(tmp_path / "runs", "sst2", "pgd", seed, 40, environment={"device": "gpu"})
        path = tmp_path / f"runs/sst2/base-pgd-{seed}/metrics.jsonl"
        path.write_text(path.read_text().replace('"steps"', f'"peak_memory_bytes": {memory}000000, "steps"'))
    page = reported(tmp_path)
    head, asa, pgd = table(page, "Fine-tuning: sst2")
    assert head[-2:] == ["ms per step", "Peak memory, MB"]
    assert asa[-2:] == ["3,000.0 ± n/a", "-"]
    assert pgd[-2:] == ["3,000.0 ± 0.0", "450 ± 71"]
    assert "The costs of its runs were not all taken alike" in page


def test_chance_stands_beside_the_adversary(page: str) -> None:
    methods = [row[1] for row in table(page, "ASA beside chance")[1:]]
    assert methods == ["vanilla", "asa", "asa tau=0.1", "random_mask"]


def test_transfer_and_attack_are_shown(page: str) -> None:
    assert table(page, "Transfer")[0][2:] == ["hans after rte (accuracy)"]
    assert table(page, "hans after rte: every score")[0][3:5] == ["Test accuracy, %", "Test kappa, %"]
    attack = table(page, "Largest increase of the loss within the ball, nats")
    assert attack[1][:9] == ["rte", "asa", "-", "-", "vanilla", "227", "0.1000", "1.2500", "0.5000 to 2.0000"]
    assert attack[0][-1] == "Median loss without attack"  # these records have no more


def test_every_gain_has_its_tests_and_the_least_p_is_told(page: str) -> None:
    rows = {(row[0], row[2]): row for row in table(page, "Tests against vanilla")[1:]}
    assert len(rows) == 8
    assert rows["sst2", "asa"][4:8] == ["3", "+20.00 ± 3.33", "0.250", "1.000"]
    low, high = (float(part) for part in rows["sst2", "asa"][8].split(" to "))
    assert 8 < low < 20 < high < 32  # 12 of 60 examples: their share has a standard error of 5.2 points
    assert rows["sst2", "asa"][9] == "0.0002"
    assert rows["sst2", "random_mask"][6] == "1.000"
    assert rows["hans after rte", "asa"][6] == "n/a"
    assert "8 comparisons." in page
    assert "cannot fall below 0.25 with 3 seeds" in page


def test_masking_is_told_by_layer_and_by_tau(page: str) -> None:
    assert table(page, "Masked share, last log line")[1] == ["mrpc", "base", "asa", "3", "30.0", "10.0", "20.0 ± 0.0"]
    assert [row[3:6] for row in table(page, "Score and masked share by tau")[1:]] == [
        ["0.1", "1", "75.00 ± n/a"],
        ["0.3", "3", "86.67 ± 1.67"],
    ]


def test_a_sentences_maps_are_drawn_and_told(page: str, report: Path) -> None:
    row = table(page, "Attention under attack")[1]
    assert row[3:6] == ["0", "25.0%", "&lt;good> from 50% of the tokens"]
    assert row[6].startswith("so to so 0.60 → 1.00; so to &lt;good> 0.40 → 0.00")
    html = (report / "report.html").read_text()
    assert "<good>" not in html
    assert html.count("data:image/png") == 4
    assert {reference[:15] for reference in re.findall(r'href="([^"#]+)', html)} == {"data:image/png;"}


def test_runs_with_other_shared_settings_are_named_by_them(tmp_path: Path) -> None:
    tuned(tmp_path / "runs", "sst2", "vanilla", 0, 40)
    tuned(tmp_path / "runs" / "b", "sst2", "vanilla", 0, 50, config={"optim": {"lr": 5e-5}})
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    page = (tmp_path / "report" / "report.md").read_text()
    assert "Fine-tuning: sst2, settings A: optim.lr=0.0001" in page
    assert table(page, "Scores")[0][2:4] == ["sst2 A (accuracy)", "sst2 B (accuracy)"]


def test_models_from_elsewhere_that_were_only_scored_are_shown(tmp_path: Path) -> None:
    for name, right in (("a", 30), ("b", 40)):
        weights = {"model_sha256": name * 64}
        tuned(tmp_path / "runs" / name, "hans", None, None, right, stage="score", trained_on=None, inputs=weights)
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    rows = table((tmp_path / "report" / "report.md").read_text(), "Transfer and robustness")
    assert [row[:2] for row in rows[1:]] == [[f"base ({name * 8})", "n/a"] for name in "ab"]


def test_scored_models_that_began_with_other_weights_are_told_apart_and_never_paired(tmp_path: Path) -> None:
    for start, method, right in (("a", "vanilla", 30), ("b", "asa", 45), ("a", "asa", 36)):
        inputs = {"model_sha256": f"{method}{start}", "start_sha256": start * 64}
        facts = {"stage": "score", "trained_on": "rte", "inputs": inputs}
        tuned(tmp_path / "runs" / start, "hans", method, 0, right, **facts)
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    page = (tmp_path / "report" / "report.md").read_text()
    assert "| base (bbbbbbbb) | asa | 75.00 ± n/a (1) |" in page
    with (tmp_path / "report" / "report.csv").open() as file:
        gains = [(row["model"], float(row["mean"])) for row in csv.DictReader(file) if row["metric"] == "gain"]
    assert gains == [("base (aaaaaaaa)", pytest.approx(0.1))]


def test_copies_of_attacked_models_and_ensembles_count_once(tmp_path: Path) -> None:
    facts = {"stage": "robustness", "task": "rte", "model": "asa", "reference": "vanilla"}
    ensemble = {"stage": "ensemble", "task": "rte", "metrics": ["accuracy"], "model": "base", "method": "asa"}
    for name in ("a", "b"):
        put(tmp_path / "runs" / name, facts, [], {"median": 1.25, "n": 10})
        put(tmp_path / "runs" / "ensembles" / name, ensemble, [], {"test_accuracy": 0.5})
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    page = (tmp_path / "report" / "report.md").read_text()
    assert "| b | the same run as a | robustness |" in page
    assert "| ensembles/b | the same run as ensembles/a | ensemble |" in page


def test_scores_of_models_that_differ_in_a_setting_stay_apart(tmp_path: Path) -> None:
    for tau, right in ((0.1, 30), (0.3, 45)):
        config = {"asa": {"tau": tau}, "length": 32}
        tuned(tmp_path / "runs" / str(tau), "hans", "asa", 0, right, stage="score", trained_on="rte", config=config)
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    rows = table((tmp_path / "report" / "report.md").read_text(), "Transfer and robustness")
    assert [row[1:] for row in rows[1:]] == [["asa tau=0.1", "50.00 ± n/a (1)"], ["asa tau=0.3", "75.00 ± n/a (1)"]]


def test_scores_of_models_of_other_training_rows_are_neither_paired_nor_averaged(tmp_path: Path) -> None:
    """On as many test rows equal scores are likely, and no copies."""
    for rows, method, right in (("a", "vanilla", 30), ("b", "vanilla", 30), ("b", "asa", 45)):
        inputs = {"model_sha256": rows + method, "start_sha256": "c", "trained_sha256": rows * 8}
        facts = {"stage": "score", "trained_on": "qqp", "inputs": inputs}
        tuned(tmp_path / "runs" / rows, "hans", method, 0, right, **facts)
    page = reported(tmp_path)
    head, *rows = table(page, "Transfer and robustness")
    assert head[2:] == ["hans after qqp A (accuracy)", "hans after qqp B (accuracy)"]
    assert rows == [
        ["base", "vanilla", "50.00 ± n/a (1)", "50.00 ± n/a (1)"],
        ["base", "asa", "-", "75.00 ± n/a (1)"],
    ]
    assert "A: trained_sha256=aaaaaaaa. B: trained_sha256=bbbbbbbb." in page


def test_scores_by_another_map_of_the_classes_stay_apart(tmp_path: Path) -> None:
    for ours, right in (("no", 30), ("yes", 45)):
        facts = {"stage": "score", "trained_on": "mnli", "classes": {"neutral": ours}}
        facts["inputs"] = {"trained_sha256": "a"}
        tuned(tmp_path / "runs" / ours, "hans", "vanilla", 0, right, **facts)
    head = table(reported(tmp_path), "Transfer and robustness")[0]
    assert head[2:] == ["hans after mnli A (accuracy)", "hans after mnli B (accuracy)"]


def test_a_model_from_elsewhere_scored_by_two_maps_is_two_models(tmp_path: Path) -> None:
    for good, right in (("yes", 45), ("no", 15)):
        facts = {"stage": "score", "trained_on": None, "classes": {"LABEL_0": good}, "inputs": {"model_sha256": "a"}}
        tuned(tmp_path / "runs" / good, "hans", None, None, right, **facts)
    tuned(tmp_path / "runs" / "yes", "paws-wiki", None, None, 30, **{**facts, "classes": {"LABEL_0": "yes"}})
    rows = table(reported(tmp_path), "Transfer and robustness")[1:]
    assert [row[0] for row in rows] == ["base, map.LABEL_0=no", "base, map.LABEL_0=yes"]
    assert [row[2:4] for row in rows] == [["25.00 ± n/a (1)", "-"], ["75.00 ± n/a (1)", "50.00 ± n/a (1)"]]


def test_tables_of_one_scored_task_under_two_settings_are_told_apart(tmp_path: Path) -> None:
    for merge in ("sum", "max"):
        config = {"merge": merge}
        tuned(tmp_path / "runs" / merge, "hans", "vanilla", 0, 30, stage="score", trained_on="rte", config=config)
    page = reported(tmp_path)
    assert [f"### hans after rte {letter}: every score" in page for letter in "AB"] == [True, True]


def test_scores_after_fresh_and_exported_adversaries_are_two_rows(tmp_path: Path) -> None:
    for seed, adversary in enumerate(("fresh", "exported")):
        facts: dict[str, Any] = {"stage": "score", "trained_on": "rte", "adversary": adversary}
        tuned(tmp_path / "runs" / adversary, "hans", "asa", seed, 30, own={"asa": {"tau": 0.3}}, **facts)
    rows = table(reported(tmp_path), "Transfer and robustness")[1:]
    assert [row[1] for row in rows] == ["asa adversary=exported", "asa adversary=fresh"]


def test_scored_models_are_held_against_each_other_in_the_order_of_their_request(tmp_path: Path) -> None:
    for model, right in (("mlm", 30), ("asa-pre", 36)):
        facts = {"stage": "score", "trained_on": "rte", "models": ["mlm", "asa-pre"], "model": model}
        tuned(tmp_path / "runs" / model, "hans", "vanilla", 0, right, **facts)
    assert "| hans after rte | asa-pre | mlm | vanilla | accuracy | 1 | +10.00 ± n/a |" in reported(tmp_path)


def test_a_task_without_labels_takes_no_mean_away(tmp_path: Path) -> None:
    for task in ("hans", "sst2", "mrpc"):
        tuned(tmp_path / "runs", task, "vanilla", 0, 30, stage="score", trained_on="mnli")
    path = tmp_path / "runs" / "mrpc" / "base-vanilla-0" / "metrics.jsonl"
    path.write_text("".join(line for line in path.open() if '"end"' not in line) + '{"event": "end"}\n')
    head, row = table(reported(tmp_path), "Transfer and robustness")
    assert (head[-1], row[3], row[-1]) == ("Mean", "-", "50.00")


def test_ensembles_have_no_mean_and_say_what_trained_them(tmp_path: Path) -> None:
    facts = {"stage": "ensemble", "task": "hans", "metrics": ["accuracy"], "model": "base", "method": "asa"}
    for source, score in (("rte", 0.5), ("mnli", 0.7)):
        put(tmp_path / "runs" / source, {**facts, "trained_on": source}, [], {"test_accuracy": score})
        put(tmp_path / "runs" / f"{source}-2", {**facts, "trained_on": source}, [], {"test_accuracy": score / 2})
    assert "| rte | hans after rte | " in reported(tmp_path)
    with (tmp_path / "report" / "report.csv").open() as file:
        assert {row["n"] for row in csv.DictReader(file)} == {"1"}


def test_masked_shares_carry_the_letter_of_their_settings(tmp_path: Path) -> None:
    for lr in (1e-4, 3e-4):
        tuned(tmp_path / "runs" / str(lr), "sst2", "asa", 0, 30, own={"asa": {"tau": 0.3}, "optim": {"lr": lr}})
    page = reported(tmp_path)
    assert all(f"| sst2 {letter} | base | asa | 1 | 30.0 | 10.0 | " in page for letter in "AB")


def test_the_requests_that_made_the_runs_are_in_the_page(page: str) -> None:
    assert re.search(
        r"### Request, finetune \(runs: 9\)\n\n```yaml\n# python -m finetune run .*\ntasks:\n- mrpc\n", page
    )


def test_a_browser_shows_the_page_on_a_phone_and_on_a_desk_without_overflow(report: Path, tmp_path: Path) -> None:
    """Frames of both widths report the widths of their content, and of what reaches out of it."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on PATH")
    content = escape((report / "report.html").read_text())
    frames = "".join(f'<iframe width="{width}" height="900" srcdoc="{content}"></iframe>' for width in WIDTHS)
    script = """onload = () => { document.title = [...document.querySelectorAll("iframe")].map(frame => {
        const page = frame.contentDocument, shown = page.querySelectorAll("svg");
        const drawn = [...shown].filter(svg => svg.getBoundingClientRect().height > 50).length;
        return [page.documentElement.scrollWidth, drawn, page.querySelectorAll("table").length].join(" ");
    }).join("; ") }"""
    (tmp_path / "frames.html").write_text(f"<!doctype html><script>{script}</script>{frames}")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"]
    profile, address = f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "frames.html").as_uri()
    shown = subprocess.run(
        [browser, *options, profile, "--virtual-time-budget=5000", "--dump-dom", address],
        capture_output=True,
        text=True,
        check=True,
    )
    title = re.search(r"<title>(.*?)</title>", shown.stdout)
    assert title is not None
    plots = (report / "report.html").read_text().count("<figure>")
    tables = (report / "report.html").read_text().count("<table>")
    assert title[1] == "; ".join(f"{width} {plots} {tables}" for width in WIDTHS)
