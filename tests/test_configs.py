"""Every YAML file in configs/ is a valid request of its stage."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from asa.config import from_dict, to_dict
from asa.methods import OURS
from data_prep.config import BuildConfig
from finetune.config import FinetuneConfig, TuneConfig
from finetune.metrics import check_metrics
from finetune.tasks.spec import TaskConfig, named
from finetune.tune import trials_of
from pretrain.config import PretrainConfig

STAGES: dict[str, Any] = {
    "data": BuildConfig,
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "task": TaskConfig,
}
ROOT = Path("configs")
# Presets are parts of requests (tests/asa/test_presets.py).
FILES = sorted(path for path in ROOT.rglob("*.yaml") if path.relative_to(ROOT).parts[0] != "method")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_config_is_valid(path: Path) -> None:
    values = yaml.safe_load(path.read_text())
    if "search" in values:  # goes with a comparison's file
        from_dict(TuneConfig, values | {"models": {"m": "m"}, "out": "o"})
    else:
        from_dict(STAGES[path.relative_to(ROOT).parts[0]], values)


@pytest.mark.parametrize("method", sorted(OURS - {"vanilla"}))
def test_there_are_ranges_for_every_method(method: str) -> None:
    values = yaml.safe_load((ROOT / "finetune/search.yaml").read_text())
    config = from_dict(TuneConfig, values | {"models": {"m": "m"}, "out": "o", "methods": ["vanilla", method]})
    assert [own.get("methods") for (own,) in trials_of(config)] == [None, *[[method]] * 7]


TASKS = sorted(path.stem for path in (ROOT / "task").glob("*.yaml"))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_whole_at_each_of_its_places(name: str) -> None:
    """Also of places whose files no test has: keys are known, metrics fit, the recipe is one, other tasks are there."""
    task = named(name)
    hub = [task.hub.keys] if task.hub else []
    places = [to_dict(task) | keys for keys in [*(source.keys for source in task.sources), *hub]]
    for place in [from_dict(TaskConfig, keys | extra) for keys in places for extra in ({}, keys["paper_compat"])]:
        assert place.labels or place.kind in ("regression", "choice")
        check_metrics(place.metrics, place.kind, place.labels)  # type: ignore[arg-type]  # "tokens" is gone by now
        assert set(place.also) <= set(TASKS)
        assert place.train or place.test or place.submit
    if task.hub:
        assert set(task.hub.splits) <= {"train", "dev", "test", "submit"} | set(task.extra)
    from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "o", **task.recipe})
    assert bool(task.recipe) == bool(task.train)


@pytest.mark.parametrize(("method", "others"), [("asa", {"pre-training"}), ("freelb", {"bert-base", "rte-own-masks"})])
def test_published_settings_by_task_are_for_tasks_that_there_are(method: str, others: set[str]) -> None:
    """others: what the file names after a model or a stage."""
    assert set(yaml.safe_load((ROOT / "method" / f"{method}.yaml").read_text())) - others <= set(TASKS)


def test_every_stage_has_a_config() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(STAGES)
