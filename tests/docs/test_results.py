"""The page of results: what it says of seeds follows from the records beside it."""

import shutil
from pathlib import Path

import pytest

from finetune.config import ReportConfig
from finetune.report.write import write

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(("records", "models", "methods"), [("tiny", 3, 7), ("minilm", 1, 4)])
def test_every_score_and_gain_on_the_page_is_what_the_report_makes_of_the_records(
    records: str, models: int, methods: int, tmp_path: Path
) -> None:
    shutil.unpack_archive(DOCS / "results" / f"{records}.tar.xz", tmp_path / "runs")
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report", repeated=True))
    report, page = (tmp_path / "report" / "report.md").read_text(), (DOCS / "results.md").read_text()
    tables = {title: part.splitlines() for title, _, part in (part.partition("\n") for part in report.split("\n## "))}
    for title, compared in (("Scores", methods), ("Methods: gain and cost", methods - 1)):
        rows = [line for line in tables[title] if line.startswith("| ")]
        assert len(rows) == 1 + models * compared
        assert not [row for row in rows if row not in page]


def test_every_score_of_the_transfers_on_the_page_is_what_the_report_makes_of_the_records(tmp_path: Path) -> None:
    shutil.unpack_archive(DOCS / "results" / "transfer.tar.xz", tmp_path / "runs")
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report", repeated=True))
    report, page = (tmp_path / "report" / "report.md").read_text(), (DOCS / "results.md").read_text()
    for title in ("## Scores", "### Transfer", "### hans after rte: every score"):
        lines = report.partition(f"\n{title}\n")[2].partition("\n#")[0].splitlines()
        rows = [line for line in lines if line.startswith("| ")]
        assert len(rows) == 5  # the heads and four methods
        assert not [row for row in rows if row not in page]
