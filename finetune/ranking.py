"""Pairs of sentences as a choice among the second ones (QNLI as pairwise ranking; FreeLB, Zhu et al. 2020, A.1)."""

from collections.abc import Sequence

from asa.errors import RequestError
from finetune.tasks.task import Label, Split


def questions(splits: dict[str, Split], names: Sequence[str], positive: str) -> tuple[dict[str, Split], dict[str, int]]:
    """Every split as `ranked` gives it, and of which how many rows are left out.

    Raises: RequestError for a class that is not among names, or rows no two of which make a question.
    """
    if positive not in names:
        raise RequestError(f"task.ranked = {positive!r}, allowed: {', '.join(names)}; set --task.ranked")
    found = {name: ranked(split, names.index(positive)) for name, split in splits.items()}
    if empty := [name for name, (split, _) in found.items() if not len(split)]:
        raise RequestError(f"no two rows of {empty[0]} make a question; give others, or leave --task.ranked out")
    left_out = {name: count for name, (_, count) in found.items() if count}
    return {name: split for name, (split, _) in found.items()}, left_out


def ranked(split: Split, positive: int) -> tuple[Split, int]:
    """Rows of pairs -> questions of kind choice, and how many rows are left out.

    Rows with the same first text are one question, their second texts its answers, in the rows' order; the right answer
    is that of the one row whose label is `positive`. A question needs two answers or more; one of which no row, or
    several, are `positive` is left out. Without labels only its number of answers counts. Its id is those of its rows.
    """
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(split.texts):
        groups.setdefault(str(text[0]), []).append(row)
    ids: list[str] = []
    texts: list[tuple] = []
    labels: list[Label] = []
    for rows in groups.values():
        right = [] if split.labels is None else [n for n, row in enumerate(rows) if split.labels[row] == positive]
        if len(rows) < 2 or (split.labels is not None and len(right) != 1):
            continue
        ids.append("+".join(split.ids[row] for row in rows))
        texts.append(tuple(split.texts[row] for row in rows))
        labels += right
    used = sum(len(answers) for answers in texts)
    return Split(ids, texts, None if split.labels is None else labels), len(split) - used
