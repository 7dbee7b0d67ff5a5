"""The page of results: what it says of seeds follows from the records beside it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from asa import record
from finetune.config import ReportConfig
from finetune.report import compare
from finetune.report.collect import collect
from finetune.report.tested import p_value
from finetune.report.write import write

DOCS = Path(__file__).resolve().parents[2] / "docs"
P = "p over seeds"  # with Holm's correction to its right
PARTS = {  # of the page, by archive of records
    "tiny": "## BERT-tiny: what was run",
    "tuned": "## BERT-tiny with settings chosen on dev",
    "seeds": "## STS-B over sixteen seeds",
    "minilm": "## MiniLM-L6 on MRPC and STS-B",
    "cola": "## MiniLM-L6 on CoLA over eight seeds",
    "transfer": "## Transfer to AdvGLUE and HANS",
}


def printed(records: str) -> str:
    """What the page says of an archive."""
    page = (DOCS / "results.md").read_text()
    begins = sorted(page.index(f"\n{heading}\n") for heading in PARTS.values())
    begin = page.index(f"\n{PARTS[records]}\n")
    return page[begin : next((later for later in begins if later > begin), len(page))]


def reported(records: str, folder: Path) -> str:
    """report.md of an archive of records."""
    shutil.unpack_archive(DOCS / "results" / f"{records}.tar.xz", folder / "runs")
    write(ReportConfig(runs=folder / "runs", out=folder / "report", repeated=True))
    return (folder / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("records", "models", "methods", "tests"),
    [("tiny", 3, 7, 54 + 18), ("tuned", 1, 7, 18), ("seeds", 1, 7, 7), ("minilm", 1, 4, 6), ("cola", 1, 4, 3)],
)
def test_every_score_gain_and_test_on_the_page_is_what_the_report_makes_of_the_records(
    records: str, models: int, methods: int, tests: int, tmp_path: Path
) -> None:
    report, page = reported(records, tmp_path), printed(records)
    tables = {title: part.splitlines() for title, _, part in (part.partition("\n") for part in report.split("\n## "))}
    for title, compared in (("Scores", methods), ("Methods: gain and cost", methods - 1)):
        rows = [line for line in tables[title] if line.startswith("| ")]
        assert len(rows) == 1 + models * compared
        assert not [row for row in rows if row not in page]
    found, shown = by_seeds(report), by_seeds(page)
    mine = shown.keys() & found.keys()
    assert len(mine) == tests
    assert {key: shown[key] for key in mine} == {key: found[key] for key in mine}


def by_seeds(text: str) -> dict[tuple[str, ...], list[str]]:
    """(task, model, against, method) -> n, gain, p over seeds and Holm's, from the tables of tests. against: empty of
    vanilla."""
    found: dict[tuple[str, ...], list[str]] = {}
    heads: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if P in cells or not line.startswith("|"):
            heads = cells
        elif P in heads and not line.startswith("|--"):
            place, names = heads.index(P), dict(zip(heads, cells, strict=True))
            key = tuple(names.get(name, "") for name in ("Task", "Model", "Against", "Method"))
            found[key] = cells[place - 2 : place + 2]
    return found


@pytest.mark.parametrize(
    ("records", "metric", "left_out", "methods"), [("seeds", "pearson", 7, 7), ("cola", "matthews", None, 4)]
)
def test_what_the_page_says_of_twice_the_epochs_follows_from_the_records(
    records: str, metric: str, left_out: int | None, methods: int, tmp_path: Path
) -> None:
    shutil.unpack_archive(DOCS / "results" / f"{records}.tar.xz", tmp_path)
    scores: dict[str, dict[int, float]] = {}
    for run in collect(tmp_path):
        name = run.method if run.facts["config"]["epochs"] == 3 else f"{run.method}, six"
        scores.setdefault(name, {})[run.seed] = 100 * run.scores[f"test_{metric}"]
    control = scores["vanilla, six"]
    rows = {}
    for name in scores.keys() - {"vanilla, six", "r_drop, six"}:
        gains = np.array([scores[name][seed] - control[seed] for seed in sorted(control)])
        rows[name] = f"| {name} | {told(gains, f' | {(gains > 0).sum()} of {len(gains)}')} |"
        if left_out is not None:
            rows[name] += f" {told(np.delete(gains, sorted(control).index(left_out)))} |"
    assert len(rows) == methods
    assert not [row for row in rows.values() if row not in printed(records)]


def told(gains: np.ndarray, between: str = "") -> str:
    return f"{gains.mean():+.2f} ± {gains.std(ddof=1):.2f}{between} | {p_value(compare.by_seeds(gains))}"


def test_every_score_of_the_transfers_on_the_page_is_what_the_report_makes_of_the_records(tmp_path: Path) -> None:
    report, page = reported("transfer", tmp_path), printed("transfer")
    for title in ("## Scores", "### Transfer", "### hans after rte: every score"):
        lines = report.partition(f"\n{title}\n")[2].partition("\n#")[0].splitlines()
        rows = [line for line in lines if line.startswith("| ")]
        assert len(rows) == 5  # the heads and four methods
        assert not [row for row in rows if row not in page]


def test_what_the_page_says_of_runs_that_learn_nothing_follows_from_the_records(tmp_path: Path) -> None:
    shutil.unpack_archive(DOCS / "results" / "cola.tar.xz", tmp_path)
    alike = dict.fromkeys(("vanilla", "asa", "r_drop", "freelb"), 0)  # runs with one class after the first epoch
    for path in tmp_path.glob(f"cola/three/*/{record.NAME}"):
        events = record.read(path)
        method = events[0]["method"]
        dev = [event["matthews"] for event in events if event["event"] == "eval"]
        assert len(dev) == 3
        assert set(dev) == {0} if method == "freelb" else all(dev[1:])
        alike[method] += dev[0] == 0
        late = [event for event in events if event["event"] == "train" and event["step"] > 400]
        assert bool(late) == (method == "freelb")
        assert all(abs(event["attacked"] - event["task"]) <= 0.0004 for event in late)
    assert alike == {"vanilla": 4, "asa": 7, "r_drop": 7, "freelb": 8}
