"""The labelled task and its separation from pre-training text."""

import json
from collections import Counter
from pathlib import Path

import pytest

from asa.errors import RequestError, WorkError
from data_prep import leads as module
from data_prep.leads import Lead, split_of
from data_prep.text import title_key


def test_the_split_never_moves() -> None:
    leads = [Lead(f"Title {n}", "x", "Arts") for n in range(10)]
    expected = ["test", *["train"] * 9]
    assert [split_of(lead) for lead in leads] == expected
    assert split_of(Lead("x", "x", "Uncategorized")) is None
    assert split_of(Lead("x", "x", "")) is split_of(Lead("x", "", "Arts")) is None


def test_shares_of_the_split() -> None:
    counts = Counter(split_of(Lead(f"Title {n}", "x", "Arts")) for n in range(5_000))
    assert abs(counts["train"] / 5_000 - 0.8) < 0.03
    assert abs(counts["dev"] / 5_000 - 0.1) < 0.02


def test_task_files(leads: Path, tmp_path: Path) -> None:
    loaded = module.load(leads)
    counts = module.write_task(loaded, {"name": "leads.json", "sha256": "0"}, tmp_path / "task")
    task = json.loads((tmp_path / "task" / "task.json").read_text())
    assert task["labels"] == ["Arts", "Rivers"]
    assert task["counts"] == counts
    assert sum(counts.values()) == 80
    rows = [json.loads(line) for line in (tmp_path / "task" / "train.jsonl").read_text().splitlines()]
    assert len(rows) == counts["train"]
    topics = {lead.title: lead.topic for lead in loaded}
    assert all(task["labels"][row["label"]] == topics[row["id"]] for row in rows)
    assert all(row["text"].startswith("lead ") for row in rows)


def test_leads_of_one_text_are_one_row_so_that_no_split_holds_what_another_does(tmp_path: Path) -> None:
    texts = [f"lead  {n % 60}" if n < 60 else f"lead {n % 60}" for n in range(120)]
    leads = [Lead(f"Title {n}", text, "Arts" if n < 60 else "Rivers") for n, text in enumerate(texts)]
    leads += [Lead(f"More {n}", f"more {n}", "Rivers") for n in range(20)]
    counts = module.write_task(leads, {}, tmp_path / "task")
    found = [path.read_text().splitlines() for path in sorted((tmp_path / "task").glob("*.jsonl"))]
    titles = [json.loads(line)["id"] for lines in found for line in lines]
    assert sum(counts.values()) == 80
    assert set(titles) == {lead.title for lead in [*leads[:60], *leads[120:]]}


def test_dev_and_test_articles_are_kept_out_by_any_spelling_of_their_title(leads: Path) -> None:
    loaded = module.load(leads)
    banned = {lead.title for lead in loaded if split_of(lead) in ("dev", "test")}
    assert banned
    assert {lead.title for lead in module.tested(loaded)} == banned
    assert title_key(" Loose_1 ") == "loose 1"
    assert title_key("Zu\u0308rich") == title_key("Z\u00fcrich")


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ({"Uncategorized"}, r"0 topics; train 0, dev 0, test 0"),
        ({"Arts"}, r"1 topics; train 6\d, dev \d+, test \d+"),
        ({"Arts", "Rivers"}, r"2 topics; train 2, dev 0, test 0"),
    ],
)
def test_leads_that_make_no_task(topics: set[str], told: str, tmp_path: Path) -> None:
    names = sorted(topics)
    leads = [Lead(f"Title {n}", f"lead {n}", names[n % len(names)]) for n in range(1, 3 if len(names) == 2 else 80)]
    with pytest.raises(WorkError, match=rf"the leads make no task \({told}\); give more"):
        module.write_task(leads, {}, tmp_path / "task")
    assert not (tmp_path / "task").exists()


def test_missing_leads(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--leads"):
        module.load(tmp_path / "none.json")


DAMAGED = ["", "[]", "{}", '{"a": {"title": "a"}}', '{"a": 3}', '{"a": {"title": "a"']


@pytest.mark.parametrize("content", [*DAMAGED, pytest.param("[" * 200_000, id="nested too deep")])
def test_damaged_leads(tmp_path: Path, content: str) -> None:
    path = tmp_path / "leads.json"
    path.write_text(content)
    with pytest.raises(WorkError, match=r"leads\.json"):
        module.load(path)


@pytest.mark.parametrize("key", ["title", "topic"])
def test_a_lead_with_null_for_a_string(key: str, tmp_path: Path) -> None:
    entry = {"title": "T", "extract": "text", "description": "", "topic": "Arts", key: None}
    (tmp_path / "leads.json").write_text(json.dumps({"T": entry}))
    with pytest.raises(WorkError, match="None for a string"):
        module.load(tmp_path / "leads.json")


def test_lone_surrogates_are_no_text(tmp_path: Path) -> None:
    entry = {"title": "T\ud800", "extract": "text\ud800", "description": "", "topic": "Arts\ud800"}
    (tmp_path / "leads.json").write_text(json.dumps({"T": entry}))
    assert module.load(tmp_path / "leads.json") == [Lead("T", "text", "Arts")]
