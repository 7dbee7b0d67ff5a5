"""Rows that choose are not those that are scored, and rows of test servers have no labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asa.config import from_dict
from asa.errors import RequestError
from finetune.config import FinetuneConfig
from finetune.tasks import spec as specs
from finetune.tasks.facts import task_line
from finetune.tasks.load import load, trainable
from tests.finetune.test_tasks_load import ROWS, table, task, write

__all__ = ["table"]  # a fixture


def test_rows_that_stand_in_two_files_are_counted(table: Path) -> None:
    few = write(table.with_name("few.csv"), ROWS["classification"][:7])
    keys: dict[str, Any] = {"train": [table], "text": ["a", "b"], "label": "y"}
    found = task(**keys, test=[table], dev=[few], extra={"more": [few]})
    assert found.facts["repeated"] == {"dev": 7, "test": 40, "more": 7}
    assert found.facts["chosen"] == {"test": 7, "more": 7}
    assert "also among the training rows: 7 of dev, 40 of test, 7 of more; " in task_line(found)
    assert "scored and also among the rows that choose the epoch: 7 of test, 7 of more" in task_line(found)
    papers = task({"paper_compat": True}, **keys, dev=[few])
    assert papers.facts["chosen"] == {}
    assert "test chooses the epoch too, as in the papers" in task_line(papers)
    assert "as in the papers" not in task_line(found)


@pytest.mark.parametrize(
    ("scored", "told"),
    [
        (ROWS["classification"], "the same rows in dev and test"),
        (ROWS["classification"][::-1], "the same rows in dev and test"),
        (ROWS["classification"][7:3:-1], "all rows of test in dev as well"),
    ],
)
def test_scored_rows_that_choose_too_are_refused_unless_asked_for(
    table: Path, scored: list[dict[str, Any]], told: str
) -> None:
    copy = write(table.with_name("copy.csv"), scored)
    keys: dict[str, Any] = {"train": [table], "dev": [table], "test": [copy], "text": ["a", "b"], "label": "y"}
    values = {"models": {"m": "m"}, "out": "out"}
    with pytest.raises(RequestError, match=f"task 'own' has {told}, .* --paper_compat true"):
        trainable(task(**keys), from_dict(FinetuneConfig, values))
    asked = from_dict(FinetuneConfig, {**values, "paper_compat": True})
    assert trainable(task({"paper_compat": True}, **keys), asked).facts["rows"]["dev"] == len(scored)
    write(copy, [*scored, {"a": "another", "b": "two", "y": "no"}])  # published files repeat rows: told, not refused
    more = trainable(task(**keys), from_dict(FinetuneConfig, values))
    assert more.facts["chosen"] == {"test": len(scored)}


def test_rows_that_have_all_trained_are_not_scored_unless_asked_for(table: Path) -> None:
    keys: dict[str, Any] = {"train": [table], "test": [table], "text": ["a", "b"], "label": "y"}
    values = {"models": {"m": "m"}, "out": "out"}
    with pytest.raises(RequestError, match=r"scored on rows that all train or choose .* --paper_compat true"):
        trainable(task(**keys), from_dict(FinetuneConfig, values))
    asked = from_dict(FinetuneConfig, {**values, "paper_compat": True})
    assert trainable(task({"paper_compat": True}, **keys), asked).facts["rows"]["test"] == 40


def test_rows_of_the_hubs_test_servers_have_no_labels_whatever_their_column_says(tmp_path: Path) -> None:
    """GLUE on the hub writes -1."""
    spec = specs.named("mnli")
    assert spec.hub is not None
    for split in spec.hub.splits.values():
        rows = [
            {"premise": f"{split} {n}", "hypothesis": "b", "label": -1 if "test" in split else n % 3} for n in range(20)
        ]
        write(tmp_path / f"{split}.parquet", rows)
    files = [f"  - split: {split}\n    path: {split}.parquet\n" for split in spec.hub.splits.values()]
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: mnli\n  data_files:\n{''.join(files)}---\n")
    config = from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "out", "tasks": ["mnli"]})
    found = load(replace(spec, hub=replace(spec.hub, path=str(tmp_path))), config)
    assert {name: split.labels is None for name, split in found.splits.items() if len(split) == 20} == {
        "test": False,
        "submit": True,
        "mm": False,
        "submit-mm": True,
    }
