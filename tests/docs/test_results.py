"""The page of results: what it says of seeds follows from the records beside it."""

import shutil
from pathlib import Path

from finetune.config import ReportConfig
from finetune.report.write import write

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_score_and_gain_on_the_page_is_what_the_report_makes_of_the_records(tmp_path: Path) -> None:
    shutil.unpack_archive(DOCS / "results" / "tiny.tar.xz", tmp_path / "runs")
    write(ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report", repeated=True))
    report, page = (tmp_path / "report" / "report.md").read_text(), (DOCS / "results.md").read_text()
    tables = {title: part.splitlines() for title, _, part in (part.partition("\n") for part in report.split("\n## "))}
    for title in ("Scores", "Methods: gain and cost"):
        rows = [line for line in tables[title] if line.startswith("| ")]
        assert len(rows) > 18
        assert not [row for row in rows if row not in page]
