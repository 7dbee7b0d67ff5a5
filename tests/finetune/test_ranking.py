"""Rows of pairs as questions with answers."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asa.errors import RequestError
from finetune.config import FinetuneConfig
from finetune.ranking import ranked
from finetune.tasks.facts import task_line
from finetune.tasks.load import load
from finetune.tasks.spec import TaskConfig, named
from finetune.tasks.task import Split

YES, NO = 0, 1
ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([YES, NO])), min_size=1, max_size=12)


def test_two_rows_of_a_question_are_one_choice() -> None:
    split = Split(list("0123"), [("q", "x"), ("other", "y"), ("q", "z"), ("both", "v")], [NO, YES, YES, YES])
    found, left_out = ranked(split, YES)
    assert found == Split(["0+2"], [(("q", "x"), ("q", "z"))], [1])
    assert left_out == 2


def test_rows_without_labels_need_company_only() -> None:
    split = Split(list("012"), [("q", "x"), ("q", "z"), ("alone", "y")], None)
    assert ranked(split, YES) == (Split(["0+1"], [(("q", "x"), ("q", "z"))], None), 1)


@given(ROWS)
def test_every_row_is_used_once_or_counted_and_the_right_answer_is_positive(
    rows: list[tuple[str, int]],
) -> None:
    ids = [str(number) for number in range(len(rows))]
    split = Split(ids, [(first, f"answer {number}") for number, (first, _) in enumerate(rows)], [y for _, y in rows])
    found, left_out = ranked(split, YES)
    used = [int(one) for name in found.ids for one in name.split("+")]
    assert len(used) == len(set(used)) == len(rows) - left_out
    assert found.labels is not None
    for name, answers, right in zip(found.ids, found.texts, found.labels, strict=True):
        members = [int(one) for one in name.split("+")]
        assert [rows[member][1] for member in members].count(YES) == 1
        assert rows[members[int(right)]][1] == YES  # type: ignore[arg-type]  # an index
        assert answers == tuple(split.texts[member] for member in members)


def config(**changes: object) -> FinetuneConfig:
    return FinetuneConfig(models={"any": Path()}, out=Path(), **changes)  # type: ignore[arg-type]


def test_a_task_of_pairs_is_loaded_as_a_choice(tmp_path: Path) -> None:
    rows = ["q,s,y", *(f"{letter},{word},{word}" for letter in "abcdefgh" for word in ("yes", "no")), "alone,x,yes"]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    task = TaskConfig(train=(tmp_path / "rows.csv",), text=("q", "s"), label="y", ranked="yes")
    found = load(task, config(holdout=0.25))
    assert (found.kind, found.labels, found.metrics) == ("choice", [], ("accuracy",))
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 4, "dev": 2, "test": 2}
    assert {len(text) for split in found.splits.values() for text in split.texts} == {2}
    assert found.facts["unasked"] == {"train": 1}
    assert "left out, in no question with one right answer among several: 1 of train" in task_line(found)
    for asked, said in (("maybe", "task.ranked = 'maybe', allowed: no, yes"), ("x", "allowed: no, yes")):
        with pytest.raises(RequestError, match=said):
            load(TaskConfig(train=task.train, text=task.text, label="y", ranked=asked), config())
    with pytest.raises(RequestError, match="no two rows of train make a question"):
        load(TaskConfig(train=task.train, text=("s", "q"), label="y", ranked="yes"), config())


@pytest.mark.skipif("ASA_DATA" not in os.environ, reason="ASA_DATA names no folder of real data")
def test_a_third_of_the_questions_of_qnlis_dev_file_has_company() -> None:
    found = load(named("qnli-ranked"), config(data=Path(os.environ["ASA_DATA"])))
    assert sum(len(split) for split in found.splits.values()) == 1362
    assert sum(len(text) for split in found.splits.values() for text in split.texts) == 2725
