"""What a report's rows stand for: records and the predictions beside them, weights by name, a user's own names."""

import math
import os
from pathlib import Path

import pytest

from asa.errors import WorkError
from finetune.config import ReportConfig
from finetune.predictions import save_predictions
from finetune.report import overview, tables
from finetune.report.collect import collect
from finetune.report.compare import comparisons, holm
from finetune.report.rows import pretrain_rows, tuned_rows
from finetune.report.write import write
from tests.finetune.test_report_tasks import METRICS, predicted, put, tuned


def page(runs: Path, out: Path) -> str:
    write(ReportConfig(runs=runs, out=out))
    return (out / "report.md").read_text()


@pytest.mark.parametrize(
    ("file", "score", "told"),
    [
        ("test", "test_accuracy", r"test\.npz gives accuracy 0\.666667, the record beside it has 0\.950000"),
        ("test", "test_macro_f1", r"test\.npz gives macro_f1 0\.666667, the record beside it has 0\.950000"),
        ("mm", "mm_accuracy", r"mm\.npz gives accuracy 0\.666667, the record beside it has 0\.950000"),
        ("test", "test_pearson", r"test\.npz is of kind classification, which has no pearson"),
    ],
)
def test_scores_that_the_predictions_of_any_run_do_not_give_are_refused(
    tmp_path: Path, file: str, score: str, told: str
) -> None:
    """A run without a partner too, each of its splits, and each score."""
    tuned(tmp_path / "runs", "sst2", "vanilla", 0, 40)
    folder = tmp_path / "runs/sst2/base-vanilla-0"
    save_predictions(folder / f"predictions/{file}.npz", predicted("accuracy", 40))
    record, right = folder / "metrics.jsonl", '"test_accuracy": 0.6666666666666666'
    assert right in record.read_text()
    record.write_text(record.read_text().replace(right, f'{right}, "{score}": 0.95'))  # the last of two counts
    with pytest.raises(WorkError, match=f"base-vanilla-0/predictions/{told}"):
        write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_predictions_for_a_server_need_no_score(tmp_path: Path) -> None:
    tuned(tmp_path / "runs", "sst2", "vanilla", 0, 40)
    (tmp_path / "runs/sst2/base-vanilla-0/predictions/submit.npz").write_bytes(b"not read")
    assert "66.67" in page(tmp_path / "runs", tmp_path / "out")


def test_pretrainings_from_other_weights_are_no_seeds_of_one(tmp_path: Path) -> None:
    for place, sha256, loss in (("a", "1" * 64, 4.0), ("b", "2" * 64, 5.0)):
        start = {"stage": "pretrain", "method": "vanilla", "model": "tiny", "seed": 0, "config": {"steps": 2}}
        inputs = {"data": "d", "model": sha256, "shape": "s"}
        put(tmp_path / place, {**start, "inputs": inputs}, [{"event": "eval", "step": 0, "heldout_loss": loss}], {})
    assert [row.model for row in pretrain_rows(collect(tmp_path))] == ["tiny (11111111)", "tiny (22222222)"]


def test_what_a_pretraining_began_with_is_not_told_by_a_later_evaluation(tmp_path: Path) -> None:
    for place, step in (("whole", 0), ("late", 3)):
        start = {"stage": "pretrain", "method": "vanilla", "model": place, "seed": 0, "config": {"steps": 6}}
        evals = [{"event": "eval", "step": at, "heldout_loss": 9.0 - at} for at in (step, 6)]
        put(tmp_path / place, start, evals, {})
    late, whole = (row.values for row in pretrain_rows(collect(tmp_path)))
    assert (whole["heldout_loss_before"], whole["heldout_loss_after"], late["heldout_loss_after"]) == (9.0, 3.0, 3.0)
    assert math.isnan(late["heldout_loss_before"])


def test_weights_by_two_names_are_tested_once(tmp_path: Path) -> None:
    for model, sha256 in (("base", "1"), ("again", "1"), ("unlike", "2"), ("old", ""), ("older", "")):
        for seed in range(2):
            changes = {"model": model, "models": ["base", "again"], "inputs": {"model_sha256": sha256}}
            for place, method in enumerate(("vanilla", "pgd", "freelb")):
                tuned(tmp_path / model, "sst2", method, seed, 40 + seed + place, **changes)
    found = comparisons(tuned_rows(collect(tmp_path))).methods
    models = ["again", "base", "old", "older", "unlike"]
    assert sorted({one.row.model for one in found}) in ([m for m in models if m != twin] for twin in ("again", "base"))
    assert len(found) == 8
    assert holm([one.p_seeds for one in found]) == [1.0] * 8
    tuned(tmp_path / "again" / "more", "sst2", "pgd", 2, 50, model="again", inputs={"model_sha256": "1"})
    tuned(tmp_path / "again" / "more", "sst2", "vanilla", 2, 40, model="again", inputs={"model_sha256": "1"})
    assert len(comparisons(tuned_rows(collect(tmp_path))).methods) == 9  # of another seed as well


def test_a_folder_whose_name_is_no_utf8_is_shown(tmp_path: Path) -> None:
    tuned(tmp_path / "runs", "sst2", "vanilla", 0, 40)
    os.rename(os.fsencode(tmp_path / "runs" / "sst2"), os.fsencode(tmp_path / "runs") + b"/caf\xe9")
    assert r"caf\udce9/base-vanilla-0" in page(tmp_path / "runs", tmp_path / "out")
    assert r"caf\udce9" in (tmp_path / "out" / "report.html").read_text()


def test_ones_own_tasks_and_methods_pass_for_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robust = ("hans", "hans after mnli", "anli", "advglue-mnli-mm", "paws-wiki", "hellaswag")
    assert all(map(overview.is_robust, robust))
    assert not any(map(overview.is_robust, ("hansard", "pawsome-2", "anli2", "sst2 after hans", "hellaswags")))
    monkeypatch.setitem(METRICS, "hansard", "accuracy")
    for method in ("vanilla", "random_mask", "asap:Sign"):
        tuned(tmp_path / "runs", "hansard", method, 0, 40)
    told = page(tmp_path / "runs", tmp_path / "out")
    assert "robustness sets" not in told
    assert "ASA beside chance" not in told
    for method in ("asa_sparse", "vanilla_mine:Build"):
        tuned(tmp_path / "runs", "hansard", method, 0, 45)
    beside = page(tmp_path / "runs", tmp_path / "more").partition("ASA beside chance")[2].partition("\n## ")[0]
    assert "| asa_sparse |" in beside
    assert "| asap:Sign |" not in beside
    assert "| vanilla_mine:Build |" not in beside


def test_gains_that_cancel_are_no_loss(tmp_path: Path) -> None:
    """By rounding their mean is some -5e-17."""
    for seed, (theirs, mine) in enumerate(((23, 28), (25, 20))):
        tuned(tmp_path, "sst2", "vanilla", seed, theirs)
        tuned(tmp_path, "sst2", "pgd", seed, mine)
    shown = overview.gains(tuned_rows(collect(tmp_path)), "Gains")
    assert shown.rows[0][2] == "+0.00 ± 11.79 (2)"
    assert tables.number(-0.0001, 2, "+") == "-0.00"  # a loss, however small
