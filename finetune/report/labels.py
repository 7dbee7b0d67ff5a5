"""What runs are called in the report: the model, the method with what tells its settings apart, a settings letter."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from finetune.report.collect import Run, weights

T = TypeVar("T")
K = TypeVar("K")


def model_labels(runs: list[Run]) -> dict[str, str]:
    """Run name -> the model's name, with the start of its hash where the name stands for several sets of weights."""
    labels = {}
    for members in grouped(runs, lambda run: (run.stage, run.model)).values():
        several = len({weights(run) for run in members}) > 1
        labels |= {run.name: f"{run.model} ({weights(run)[:8]})" if several else run.model for run in members}
    return labels


def method_labels(runs: list[Run]) -> dict[str, str]:
    """Run name -> the method; where its runs on a task have several settings of the method, with those of this run.

    The settings that most of these runs have need no words, so that a row goes on over tasks: `asa` and `asa tau=0.1`.
    """
    labels = {}
    for members in grouped(runs, lambda run: (run.stage, run.task, run.method)).values():
        kinds = grouped(members, lambda run: repr(sorted(run.own.items())))
        keys = dict.fromkeys(key for run in members for key in run.own)
        differing = [key for key in keys if len({repr(run.own.get(key)) for run in members}) > 1]
        sizes = [len(same) for same in kinds.values()]
        for same in kinds.values():
            usual = len(same) == max(sizes) and sizes.count(max(sizes)) == 1
            own, method = same[0].own, same[0].method
            parts = [] if usual else [f"{key.removeprefix(f'{method}.')}={own[key]}" for key in differing if key in own]
            labels |= {run.name: " ".join([method, *parts]) for run in same}
    return labels


def letters(runs: list[Run]) -> dict[str, str]:
    """Run name -> a letter for its set of shared settings among those of its task: A where all runs share one."""
    found = {}
    for members in grouped(runs, lambda run: (run.stage, run.task)).values():
        distinct = sorted({run.settings for run in members})
        found |= {run.name: _letter(distinct.index(run.settings)) for run in members}
    return found


def words(name: str) -> str:
    """A metric or score as text: `macro_f1` -> macro F1."""
    proper = {"f1": "F1", "pearson": "Pearson", "spearman": "Spearman", "matthews": "Matthews"}
    return " ".join(proper.get(word, word) for word in name.split("_"))


def ordered(methods: Iterable[str]) -> list[str]:
    return sorted(set(methods), key=method_key)


def method_key(method: str) -> str:
    """Sorts vanilla before all others."""
    return "" if method == "vanilla" else method


def apart(runs: list[Run]) -> str:
    """The shared settings of the first run that the others have otherwise, as text."""
    first = runs[0].shared
    keys = [key for key in first if any(run.shared.get(key) != first[key] for run in runs)]
    return " ".join(f"{key}={first[key]}" for key in keys)


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, keys and items in the order they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _letter(index: int) -> str:
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else _letter(index // 26 - 1) + letter
