"""What several processes of a sweep know of each other, and settings that a name alone does not bring."""

from pathlib import Path
from typing import Any

import pytest

from asa.config import from_dict
from asa.errors import RequestError, WorkError
from asa.methods import MethodsConfig
from finetune import sweep as module
from finetune.loop import _refused
from finetune.run import Cell
from finetune.sweep import Sweep, _answer, check_model, plan, sweep
from tests.finetune.conftest import Given, small_task


@pytest.mark.parametrize("kind", [RequestError, WorkError])
def test_a_run_that_another_process_has_failed_at_meanwhile_is_not_made_again(
    kind: type[Exception], given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = given(seeds=[0, 1], worker=1)
    (_, second) = Sweep(wanted).cells
    made = []

    def train(cell: Cell, *_: Any) -> dict[str, Any]:
        """The first run, while another process fails at the second."""
        made.append(cell.run.seed)
        _refused(second, {}, kind("lost"))  # type: ignore[arg-type]  # one of the two
        return {"best_epoch": 1.0, "seconds": 1.0}

    monkeypatch.setattr(module, "train", train)
    with pytest.raises(kind, match=r"1 of 2 runs failed \(colours/tiny-vanilla-1\); the first: lost"):
        sweep(wanted)
    assert made == [0]


def test_ranks_know_what_another_process_still_has(given: Given) -> None:
    """They cannot wait for it, and must not answer that all is done."""
    work = Sweep(given(seeds=[0, 1], max_steps=1))
    assert work.unfinished(work.cells[1:]) == ["colours/tiny-vanilla-1"]
    sweep(given(seeds=[0, 1], max_steps=1))
    assert work.unfinished(work.cells) == []
    failed: dict[str, Any] = {"a": RequestError("wrong")}
    with pytest.raises(RequestError, match=r"^1 of 3 runs failed \(a\); the first: wrong$"):
        _answer(failed, [], 3)
    with pytest.raises(WorkError, match=r"the first: wrong; another process had 1 of 3 runs \(b\); give the same"):
        _answer(failed, ["b"], 3)
    _answer({}, [], 3)


def test_a_task_of_ones_own_takes_no_published_settings_by_its_name(given: Given, task_folder: Path) -> None:
    (cell, *_) = plan(
        given(task={"folder": task_folder, "name": "rte"}, methods=["freelb"]), [small_task("choice")], check_model
    )
    assert cell.config.freelb == from_dict(MethodsConfig, {}).freelb
