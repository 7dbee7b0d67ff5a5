"""The report: its numbers against figures worked out by hand, its files against the laws of a report."""

import csv
import json
import math
import re
import shutil
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from asa.errors import RequestError, WorkError
from finetune.__main__ import main
from finetune.config import ReportConfig
from finetune.report.collect import NEUTRAL, collect
from finetune.report.rows import tuned_rows
from finetune.report.write import write
from pretrain.resume import FREE

CONFIG = {"optim": {"lr": 0.001}, "length": 32, "batch": 32}


def put(folder: Path, start: dict[str, Any] | None, events: list[dict], end: dict[str, Any] | None) -> None:
    folder.mkdir(parents=True)
    lines = ([{"event": "start", **start}] if start else []) + events + ([{"event": "end", **end}] if end else [])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def tuned(runs: Path, method: str, seed: int, test: float | None, **changes: Any) -> None:
    """A fine-tuning run of 20 steps; without `test` it is unfinished."""
    start = {"stage": "finetune", "model": "base", "task": "topics", "method": method, "seed": seed, "config": CONFIG}
    start |= {"environment": {"python": "3.11"}, **changes}
    events: list[dict] = []
    for step in (10, 20):
        share = {"masked_share": [0.4 / step, 0.1 / step]} if method == "asa" else {}
        events.append({"event": "train", "step": step, "loss": 5 / step, "task": 4 / step, **share})
        events.append({"event": "eval", "step": step, "split": "dev", "accuracy": 0.4 + step / 100, "loss": 1.0})
    end = None
    if test is not None:
        end = {"dev_accuracy": 0.6, "test_accuracy": test, "test_macro_f1": test / 2, "seconds": 10.0 + seed}
        end |= {"steps": 20, "best_epoch": 1.5}
    put(runs / f"{start['model']}-{method}-{seed}{changes.get('suffix', '')}", start, events, end)


def pretrained(runs: Path, method: str, seed: int = 0, shards: str = "", **config: Any) -> None:
    start = {"stage": "pretrain", "method": method, "model": "tiny", "seed": seed, "config": {"steps": 20, **config}}
    start |= {"inputs": {"data": shards[:2], "model": shards[2:]}} if shards else {}
    events: list[dict] = [{"event": "eval", "step": 0, "heldout_loss": 4.0, "heldout_accuracy": 0.25}]
    for step, rate in ((10, 900.0), (20, 1100.0)):
        share = {"masked_share": [0.3, 0.1]} if method == "asa" else {}
        events.append({"event": "train", "step": step, "task": 3.5, "loss": 3.5, "tokens_per_s": rate, **share})
    events.append({"event": "eval", "step": 20, "heldout_loss": 3.25, "heldout_accuracy": 0.375})
    put(runs / "pretrain" / (f"{method}-{seed}" if seed else method), start, events, {"seconds": 61.5, "tokens": 4096})


def write_runs(folder: Path) -> Path:
    """Three seeds of vanilla, two of asa and a third cut off, one model with a single run, two pre-training runs."""
    for seed, test in enumerate((0.80, 0.82, 0.87)):
        tuned(folder, "vanilla", seed, test)
    for seed, test in enumerate((0.83, 0.84, None)):
        tuned(folder, "asa", seed, test)
    tuned(folder, "asa", 0, 0.9, model="other")
    pretrained(folder, "asa")
    pretrained(folder, "vanilla")
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "runs")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write(ReportConfig(runs=write_runs(folder / "runs"), out=folder / "report"))
    return folder / "report"


def figures(report: Path) -> dict[tuple[str, ...], dict[str, str]]:
    with (report / "report.csv").open() as file:
        keys = ("stage", "model", "method", "metric")
        return {tuple(row[key] for key in keys): row for row in csv.DictReader(file)}


def test_mean_deviation_and_count_are_those_worked_out_by_hand(report: Path) -> None:
    table = figures(report)
    vanilla = table["finetune", "base", "vanilla", "test_accuracy"]
    mean = (0.80 + 0.82 + 0.87) / 3
    sd = math.sqrt(((0.80 - mean) ** 2 + (0.82 - mean) ** 2 + (0.87 - mean) ** 2) / 2)
    assert vanilla["n"] == "3"
    assert float(vanilla["mean"]) == pytest.approx(mean)
    assert float(vanilla["sd"]) == pytest.approx(sd)
    assert float(table["finetune", "base", "vanilla", "seconds"]["mean"]) == pytest.approx(11)
    assert (
        "| base | vanilla | 3 | 83.00 ± 3.61 | 41.50 ± 1.80 | 60.00 ± 0.00 | - | 11.0 ± 1.0 | 550.0 ± 50.0 |"
        in text(report, "md")
    )


def test_the_gain_is_the_mean_difference_of_equal_seeds(report: Path) -> None:
    gain = figures(report)["finetune", "base", "asa", "gain"]
    assert (gain["n"], float(gain["mean"])) == ("2", pytest.approx((0.03 + 0.02) / 2))
    assert float(gain["sd"]) == pytest.approx(0.01 / math.sqrt(2))
    assert ("finetune", "other", "asa", "gain") not in figures(report)


def test_the_deviation_of_one_run_is_not_available(report: Path) -> None:
    assert figures(report)["finetune", "other", "asa", "test_accuracy"]["sd"] == "n/a"
    assert "| other | asa | 1 | 90.00 ± n/a |" in text(report, "md")
    assert not re.search(
        r"\bnan\b", text(report, "md") + re.sub(r"<svg.*?</svg>", "", text(report, "html"), flags=re.S)
    )


def test_an_unfinished_run_is_listed_and_not_averaged(report: Path) -> None:
    asa = figures(report)["finetune", "base", "asa", "test_accuracy"]
    assert (asa["n"], float(asa["mean"])) == ("2", pytest.approx(0.835))
    assert "| base-asa-2 | unfinished | finetune | base | asa | 2 | 20 |" in text(report, "md")


def test_a_failed_run_is_told_from_one_that_is_not_done(tmp_path: Path) -> None:
    """A method that fails with some seeds is averaged over the others."""
    runs = write_runs(tmp_path / "runs")
    with (runs / "base-asa-2" / "metrics.jsonl").open("a") as record:
        record.write(json.dumps({"event": "failed", "step": 21, "error": "the loss of step 21 is nan"}) + "\n")
    write(ReportConfig(runs=runs, out=tmp_path / "report"))
    page = text(tmp_path / "report", "md")
    assert "| base-asa-2 | failed at step 21: the loss of step 21 is nan | finetune | base | asa | 2 | 20 |" in page
    assert "Left out of every average and figure: 1 (1 failed), listed below." in page


@pytest.mark.parametrize("patience", [2, None])
def test_runs_of_different_numbers_of_batches_are_told(patience: int | None, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for method, seed in (("vanilla", 0), ("vanilla", 1), ("asa", 0), ("asa", 1)):
        tuned(runs, method, seed, 0.8, config={**CONFIG, "patience": patience})
    path = runs / "base-asa-1" / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"step": 20' not in line]
    path.write_text("\n".join(lines).replace('"steps": 20', '"steps": 10') + "\n")
    write(ReportConfig(runs=runs, out=tmp_path / "report"))
    page = text(tmp_path / "report", "md")
    why = ", as patience ended them" if patience else ""
    assert page.count(f"topics: its runs took 10 to 20 batches{why}.") == 3  # scores, gains, its own
    assert (
        "last step that all their runs have: base with vanilla 60.00% after 20; base with asa 50.00% after 10" in page
    )


def test_a_method_with_several_updates_to_a_batch_is_told(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for method, task, updates in (("vanilla", "topics", 20), ("freeat", "topics", 60), ("freeat", "moods", 40)):
        tuned(runs / task, method, 0, 0.8, task=task)
        path = runs / task / f"base-{method}-0" / "metrics.jsonl"
        path.write_text(path.read_text().replace('"steps": 20', f'"steps": 20, "updates": {updates}'))
    write(ReportConfig(runs=runs, out=tmp_path / "report"))
    page = text(tmp_path / "report", "md")
    found = re.findall(r"freeat: ([\w ]+) updates with each batch\.", page)
    assert Counter(found) == {"2 or 3": 2, "2": 1, "3": 1}  # scores and gains; their own


def test_runs_of_as_many_batches_are_not(report: Path) -> None:
    assert "its runs took" not in text(report, "md")


def test_pretraining_runs_show_before_and_after(report: Path) -> None:
    row = "| pretrain/asa | tiny | asa | 0 | 20 | 4.000 → 3.250 | 25.00 → 37.50 | 1,000 | 61.5 |"
    assert row in text(report, "md")
    assert figures(report)["pretrain", "tiny", "vanilla", "heldout_loss_after"]["mean"] == "3.25"


def test_the_same_files_give_the_same_bytes_wherever_they_lie(report: Path, runs: Path, tmp_path: Path) -> None:
    write(ReportConfig(runs=runs, out=tmp_path / "again"))
    for name in ("report.html", "report.md", "report.csv"):
        assert (report / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert sorted(path.name for path in report.iterdir()) == ["figures", "report.csv", "report.html", "report.md"]
    linked = re.findall(r"\]\((.*?)\)", text(report, "md"))
    assert sorted(linked) == sorted(f"figures/{path.name}" for path in (report / "figures").iterdir())
    for name in linked:
        assert (report / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
        assert (report / name).read_bytes().startswith(b"\x89PNG")


class Page(HTMLParser):
    """Collects what the page refers to, its ids and its figures."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.alternatives: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "srcset"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if ("role", "img") in attrs:
            self.alternatives.append(dict(attrs).get("aria-label") or "")


def test_the_page_stands_alone_and_every_figure_has_its_text(report: Path) -> None:
    page = Page()
    content = text(report, "html")
    page.feed(content)
    assert all(reference.startswith("#") for reference in page.references)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "http" not in content
    assert "@import" not in content
    assert len(page.ids) == len(set(page.ids))
    assert set(page.references) <= {f"#{name}" for name in page.ids}
    assert page.tags.count("svg") == len(page.alternatives) == page.tags.count("figcaption") == 6
    assert "Means: base with vanilla 83.00%; base with asa 83.50%; other with asa 90.00%." in page.alternatives[0]
    assert "base-asa-0 4.0% to 2.0% / 1.0% to 0.5%" in page.alternatives[2]
    assert "topics, base 2.0% / 0.5%; topics, other 2.0% / 0.5%" in page.alternatives[3]
    assert "asa 4.000 to 3.250" in page.alternatives[4]


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    tuned(tmp_path / "runs", "vanilla", 0, 0.5, task="<script>x</script>")
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    for ending in ("html", "md"):
        assert "<script>" not in text(tmp_path / "report", ending)


def test_tokens_that_look_like_tags_are_text_in_markdown(tmp_path: Path) -> None:
    tuned(tmp_path / "runs", "vanilla", 0, 0.5, task="<s> & &lt; a|b")
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    assert r"| &lt;s> & &amp;lt; a\|b |" in text(tmp_path / "report", "md")


def test_runs_are_found_through_links_once(runs: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    (chosen / "first").symlink_to(runs / "base-vanilla-0")
    shutil.copytree(runs / "base-vanilla-1", chosen / "second")
    (chosen / "second" / "again").symlink_to(chosen)  # a circle
    (chosen / "latest").symlink_to(chosen / "second")  # which keeps its own name
    assert [run.name for run in collect(chosen)] == ["first", "second"]


def test_replaced_token_pretraining_is_not_shown_as_masked_tokens(tmp_path: Path) -> None:
    """Its loss is of another unit, and most of its tokens are right whatever it says."""
    for objective, loss in (("mlm", 4.0), ("rtd", 0.3)):
        figures_of = {"heldout_loss": loss, "heldout_accuracy": 0.87}
        more = {"heldout_separation": 0.25} if objective == "rtd" else {}
        events = [{"event": "eval", "step": step, **figures_of, **more} for step in (0, 20)]
        start = {"stage": "pretrain", "objective": objective, "method": "vanilla", "model": "tiny", "seed": 0}
        put(tmp_path / "runs" / objective, {**start, "config": {"objective": objective}}, events, {"seconds": 1.0})
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    page = text(tmp_path / "report", "md")
    first, second = page.index("## Pre-training\n"), page.index("## Pre-training by replaced-token detection\n")
    assert "Held-out separation" not in page[first:second]
    assert "| 0.300 → 0.300 | 87.00 → 87.00 | 0.250 → 0.250 |" in page[second:]
    assert "Replaced-token loss over steps" in page[second:]
    with (tmp_path / "report" / "report.csv").open() as file:
        assert {row["task"] for row in csv.DictReader(file)} == {"mlm", "rtd"}


def test_runs_with_other_settings_are_never_averaged_together(runs: Path, tmp_path: Path) -> None:
    tuned(runs / "wide", "vanilla", 3, 0.1, config={**CONFIG, "length": 64})
    write(ReportConfig(runs=runs, out=tmp_path / "report"))
    page = text(tmp_path / "report", "md")
    assert "topics, settings A" in page
    assert "| base | vanilla | 3 | 83.00 ± 3.61 |" in page
    assert "| base | vanilla | 1 | 10.00 ± n/a |" in page


def test_pretraining_runs_that_differ_in_nothing_their_method_reads_are_one_group(tmp_path: Path) -> None:
    # What a run costs is among its figures; shards are told apart by their hash (below); the model is a column.
    apart = {"eval_every", "zero", "offload", "micro_batch", "activation_checkpointing", "data", "model"}
    apart |= {"rtd.generator", "random_mask.schedule"}  # counted as settings are, by path and by content
    assert set(FREE) - set(NEUTRAL) == apart
    changed: list[dict[str, Any]] = [{}, {"hang_timeout": 900.0}, {"wandb": "project"}, {"pgd": {"radius": 0.3}}]
    for seed, changes in enumerate(changed):
        pretrained(tmp_path / "runs", "asa", seed, **{"hang_timeout": 1800.0, "wandb": None, **changes})
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    assert figures(tmp_path / "report")["pretrain", "tiny", "asa", "heldout_loss_after"]["n"] == "4"


@pytest.mark.parametrize(("hashes", "groups"), [(("a1c3", "a1c3"), 1), (("a1c3", "b2c3"), 2), (("a1c3", "a1d4"), 2)])
def test_shards_and_shapes_are_told_apart_by_contents_not_by_path(
    tmp_path: Path, hashes: tuple[str, str], groups: int
) -> None:
    for seed, (path, sha256) in enumerate(zip(("here", "there"), hashes, strict=True)):
        pretrained(tmp_path / "runs", "asa", seed, sha256, data=path)
    runs = collect(tmp_path / "runs")
    assert len({run.settings for run in runs}) == groups


def test_one_name_for_two_sets_of_weights_is_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    tuned(folder / "a", "vanilla", 0, 0.5, inputs={"model_sha256": "aaaaaaaaaa"})
    tuned(folder / "b", "vanilla", 0, 0.7, inputs={"model_sha256": "bbbbbbbbbb"})
    write(ReportConfig(runs=folder, out=tmp_path / "report"))
    assert "| base (aaaaaaaa) | vanilla | 1 | 50.00" in text(tmp_path / "report", "md")


def test_weights_trained_anew_for_every_seed_are_one_model(tmp_path: Path) -> None:
    """Seed 2 with seed 1's weights would be no repetition of what made them."""
    folder = tmp_path / "runs"
    for seed, name, score in ((0, "a", 0.5), (1, "b", 0.7)):
        tuned(folder / name, "vanilla", seed, score, inputs={"model_sha256": name * 64})
        tuned(folder / name, "asa", seed, score + 0.1 * seed, inputs={"model_sha256": name * 64})
    write(ReportConfig(runs=folder, out=tmp_path / "apart"))
    assert "| base (bbbbbbbb) | asa | 80.00 ± n/a (1) |" in text(tmp_path / "apart", "md")
    write(ReportConfig(runs=folder, out=tmp_path / "report", repeated=True))
    page = text(tmp_path / "report", "md")
    assert "| base (one per seed) | asa | 65.00 ± 21.21 (2) |" in page
    assert "| base (one per seed) | asa | +5.00 ± 7.07 (2) |" in page
    tuned(folder / "more", "vanilla", 2, 0.7, inputs={"model_sha256": "b" * 64})
    write(ReportConfig(runs=folder, out=tmp_path / "again", repeated=True))
    assert "| base (bbbbbbbb) | vanilla | 2 |" in text(tmp_path / "again", "md")


def test_weights_of_several_files_are_one_set_and_pair_with_no_other(tmp_path: Path) -> None:
    """The first file, the adversary's, is the same; so a name by its hash would merge two models."""
    folder = tmp_path / "runs"
    for name, vanilla, asa in (("x", 0.5, 0.6), ("y", 0.7, 0.9)):
        weights = {"model_sha256": "a" * 64 + "+" + name * 64}
        tuned(folder / name, "vanilla", 0, vanilla, inputs=weights)
        tuned(folder / name, "asa", 0, asa, inputs=weights)
    write(ReportConfig(runs=folder, out=tmp_path / "report"))
    with (tmp_path / "report" / "report.csv").open() as file:
        gains = {row["model"]: float(row["mean"]) for row in csv.DictReader(file) if row["metric"] == "gain"}
    assert sorted(gains.values()) == pytest.approx([0.1, 0.2])
    assert all(re.fullmatch(r"base \([0-9a-f]{8}\)", model) for model in gains)


def test_a_copy_of_a_run_is_left_out_since_it_would_pass_for_a_seed(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "base-vanilla-0", runs / "copy")
    write(ReportConfig(runs=runs, out=tmp_path / "report"))
    assert figures(tmp_path / "report")["finetune", "base", "vanilla", "test_accuracy"]["n"] == "3"
    assert "| copy | the same run as base-vanilla-0 | finetune | base" in text(tmp_path / "report", "md")


def test_a_record_from_before_a_setting_is_of_the_runs_without_it(runs: Path, tmp_path: Path) -> None:
    """A copy of one is a copy, another seed of it one more."""
    unset = {"config": {"epochs": 2, "patience": None, "asa": {"tau": 0.1, "share": None}}}
    for seed in range(2):
        tuned(tmp_path / "new", "asa", seed, 0.8, **unset)
    tuned(tmp_path / "new", "asa", 0, 0.8, suffix="-old", config={"epochs": 2, "asa": {"tau": 0.1}})
    tuned(tmp_path / "new", "asa", 2, 0.7, suffix="-old", config={"epochs": 2, "asa": {"tau": 0.1}})
    write(ReportConfig(runs=tmp_path / "new", out=tmp_path / "report"))
    assert figures(tmp_path / "report")["finetune", "base", "asa", "test_accuracy"]["n"] == "3"
    assert "| base-asa-0 | the same run as base-asa-0-old |" in text(tmp_path / "report", "md")


def test_a_run_made_twice_with_other_scores_is_refused(runs: Path) -> None:
    tuned(runs / "again", "vanilla", 0, 0.81)
    with pytest.raises(RequestError, match=r"again/base-vanilla-0 and base-vanilla-0 are the same run .* other scores"):
        collect(runs)


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (1, {"seed": "0"}, r"seed: input should be a valid integer"),
        (1, {"seed": [0]}, "seed: "),
        (1, {"metrics": 3}, "metrics: "),
        (1, {"metrics": [1]}, r"metrics\.0: "),
        (1, {"config": None}, "config: "),
        (1, {"config": ["x"]}, "config: "),
        (1, {"config": {"asa": {"tau": "0.3"}}}, r"config\.asa\.tau: "),
        (1, {"inputs": "x"}, "inputs: "),
        (2, {"step": "10"}, "step: "),
        (2, {"step": None}, "step: "),
        (2, {"masked_share": "x"}, r"masked_share: "),
        (2, {"masked_share": ["a"]}, r"masked_share\.0: "),
        (3, {"accuracy": "x"}, r"accuracy: "),
        (3, {"accuracy": [1, 2]}, r"accuracy: "),
        (3, {"accuracy": 10**400}, r"accuracy: "),
        (1, {"models": 3}, "models: "),
        (1, {"request": 3}, "request: "),
        (3, {"event": 7}, "event: "),
        (3, {"event": "start"}, "another record begins there"),
    ],
)
def test_a_line_that_no_run_writes_is_named(runs: Path, line: int, change: dict[str, Any], said: str) -> None:
    path = runs / "base-asa-0" / "metrics.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines[line - 1] |= change
    path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    with pytest.raises(WorkError, match=rf"line {line} of .*base-asa-0/metrics\.jsonl is damaged \({said}.*remove the"):
        collect(runs)


def test_a_record_that_goes_on_after_its_end_is_unfinished(runs: Path) -> None:
    with (runs / "base-asa-0" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "step": 30, "loss": 1.0}\n')
    (run,) = [run for run in collect(runs) if run.name == "base-asa-0"]
    assert run.end is None


ATTACK = {"stage": "robustness", "task": "rte", "model": "m", "method": "asa", "seed": 0, "reference": "r"}


@pytest.mark.parametrize("rows", ["same rows", "others"])
def test_attacks_made_twice_count_once_unless_of_other_rows(tmp_path: Path, rows: str) -> None:
    for place, attacked, seconds in (("a", "same rows", 10.5), ("b", rows, 11.5)):
        facts = {**ATTACK, "attacked_sha256": attacked, "command": [place], "environment": {"system": place}}
        put(tmp_path / "runs" / place, facts, [], {"median": 1.0, "n": 9, "seconds": seconds})
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    page = text(tmp_path / "report", "md")
    if rows == "others":
        assert all(f"| rte {letter} | m | asa | 0 | r | 9 |" in page for letter in "AB")
        assert "A: attacked_sha256=others." in page
    else:
        assert "| b | the same run as a | robustness |" in page
    with (tmp_path / "report" / "report.csv").open() as file:
        assert {row["n"] for row in csv.DictReader(file)} == {"1"}


@pytest.mark.parametrize(
    ("path", "weights", "twin"),
    [
        ("a/tiny", "", "a/pretrain/asa"),  # older records have the path alone
        ("b/tiny", "", ""),
        ("b/tiny", "w", "a/pretrain/asa"),  # a copy
        ("a/tiny", "x", ""),
    ],
)
def test_pretraining_made_twice_counts_once_unless_from_other_weights(
    tmp_path: Path, path: str, weights: str, twin: str
) -> None:
    for place, start, hashed in (("a", "a/tiny", "w"), ("b", path, weights)):
        inputs = {"inputs": {"data": "d", "model": hashed, "shape": "s"}} if weights else {}
        pretrained(tmp_path / "runs" / place, "asa", model=start, out=place)
        record = tmp_path / "runs" / place / "pretrain" / "asa" / "metrics.jsonl"
        first, *rest = record.read_text().splitlines()
        record.write_text("\n".join([json.dumps(json.loads(first) | inputs), *rest]) + "\n")
        record.write_text(record.read_text().replace("61.5", {"a": "60", "b": "62"}[place]))
    runs = collect(tmp_path / "runs")
    assert [run.twin for run in runs] == ["", twin]
    assert len({run.settings for run in runs}) == 1  # one shape


@pytest.mark.parametrize(
    ("method", "config", "hashes", "labels"),
    [
        ("mine:build", {}, "method_sha256", {"mine:build", "mine:build method_sha256=y"}),
        ("asa", {}, "adversary_sha256", {"asa", "asa adversary=exported y"}),
        (
            "random_mask",
            {"random_mask": {"schedule": "a file"}},
            "schedule_sha256",
            {"random_mask", "random_mask schedule=y"},
        ),
    ],
)
def test_runs_with_a_file_of_other_contents_are_no_further_seeds(
    tmp_path: Path, method: str, config: dict[str, Any], hashes: str, labels: set[str]
) -> None:
    adversary = {"adversary": "exported"} if method == "asa" else {}
    for seed, sha256 in enumerate("xxy"):
        inputs = {"model_sha256": "a", hashes: sha256}
        tuned(tmp_path / "runs", method, seed, 0.5, inputs=inputs, config={**CONFIG, **config}, **adversary)
    assert {row.method for row in tuned_rows(collect(tmp_path / "runs"))} == labels


def test_adversaries_that_came_with_other_weights_are_a_part_of_these(tmp_path: Path) -> None:
    for seed, sha256 in enumerate("xyz"):
        inputs = {"model_sha256": sha256, "adversary_sha256": sha256}
        tuned(tmp_path / "runs", "asa", seed, 0.5, inputs=inputs, adversary="exported")
    rows = tuned_rows(collect(tmp_path / "runs"), repeated=True)
    assert {(row.model, row.method) for row in rows} == {("base (one per seed)", "asa")}


def test_a_folder_that_cannot_be_made_is_named(runs: Path) -> None:
    with pytest.raises(RequestError, match="out = /proc/no/report cannot be made"):
        write(ReportConfig(runs=runs, out=Path("/proc/no/report")))


@pytest.mark.parametrize(
    "name", ["manifest.json", "metrics.jsonl", "config.json", "report.md", "report.html", "report.csv"]
)
def test_anothers_folder_is_left_as_it_is(runs: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / name).write_text("mine")
    with pytest.raises(RequestError, match=f"own.{name} is no report's|own has a {name}"):
        write(ReportConfig(runs=runs, out=tmp_path / "own"))
    assert [path.name for path in (tmp_path / "own").iterdir()] == [name]


def test_anothers_figures_are_left_as_they_are(runs: Path, tmp_path: Path) -> None:
    mine = tmp_path / "own" / "figures" / "task0-scores.png"
    mine.parent.mkdir(parents=True)
    mine.touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "figures").touch()
    for out in (tmp_path / "own", tmp_path / "other"):
        with pytest.raises(
            RequestError, match="figures is no folder of a report's, so nothing is put there; set anoth"
        ):
            write(ReportConfig(runs=runs, out=out))
        assert [path.name for path in out.iterdir()] == ["figures"]
    mine.unlink()
    write(ReportConfig(runs=runs, out=tmp_path / "own"))


def test_a_report_of_which_something_is_gone_is_made_again(runs: Path, tmp_path: Path) -> None:
    own = ReportConfig(runs=runs, out=tmp_path / "report")
    write(own)
    for gone in ("report.md", "report.html", "report.csv"):
        (own.out / gone).unlink()
        (own.out / "manifest.json").write_text("{}")  # a page's, say
        write(own)
        assert (own.out / gone).exists()


def test_a_report_of_unfinished_runs_alone_says_so(tmp_path: Path) -> None:
    tuned(tmp_path / "runs", "asa", 0, None)
    put(tmp_path / "runs" / "empty", None, [], None)
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "runs" / "foreign" / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')  # another program's
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    page = text(tmp_path / "report", "md")
    assert "| base-asa-0 | unfinished |" in page
    assert "| empty | no start line |" in page
    assert "| foreign | no start line |" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "runs"),
        (["report", "a", "b", "--out", "c"], "unexpected argument 'b'"),
        (["report", "gone", "--out", "c"], "no folder gone"),
        (["report", ".", "--out", "c"], "no run below ."),
        (["report", ".", "--out", "file"], "file is no folder; set another --out"),
        (["reprot"], "did you mean 'report'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["finetune", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "c").exists()


def text(report: Path, ending: str) -> str:
    return (report / f"report.{ending}").read_text()
