"""What runs are called in the report: the model, the method with what tells its settings apart, a settings letter."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from asa.config import flat
from finetune.facts import SCHEDULE
from finetune.report.collect import NO_SEED, Run, weights

OWN_WEIGHTS = "one per seed"
T = TypeVar("T")
K = TypeVar("K")


def model_labels(runs: list[Run], repeated: bool = False) -> dict[str, str]:
    """Run name -> the model's name, with the start of its hash where the name stands for several sets of weights.

    Args: repeated tells that a name whose weights and seeds stand for each other, one to one, is one model.
    """
    labels = {}
    for members in grouped(runs, lambda run: (run.stage, run.model)).values():
        hashes = {weights(run) for run in members}
        shown = next((n for n in range(8, 64) if len({one[:n] for one in hashes}) == len(hashes)), 64)
        pooled = repeated and _one_per_seed(members)
        for run in members:
            told = OWN_WEIGHTS if pooled else weights(run)[:shown]
            labels[run.name] = f"{run.model} ({told})" if len(hashes) > 1 and weights(run) else run.model
    return labels


def _one_per_seed(runs: list[Run]) -> bool:
    """Whether seeds and sets of weights stand for each other, one to one."""
    pairs = {(run.seed, weights(run)) for run in runs}
    seeds, hashes = {seed for seed, _ in pairs}, {sha256 for _, sha256 in pairs}
    return len(pairs) == len(seeds) == len(hashes) and NO_SEED not in seeds


def method_labels(runs: list[Run]) -> dict[str, str]:
    """Run name -> the method; where a task has it under several settings of its own, with those of this run.

    The settings that most runs of the method have, over all tasks, need no words: `asa` and `asa tau=0.1`. Where each
    task has one set (a preset by task), nothing is named: see by_task.
    """
    labels = {}
    for members in grouped(runs, lambda run: (run.stage, run.method)).values():
        hidden = () if _told_by_schedule(members) else (SCHEDULE,)
        kinds = grouped(members, lambda run, hidden=hidden: _own(run, hidden))
        sizes = [len(same) for same in kinds.values()]
        several = len({(run.task, _own(run, hidden)) for run in members}) > len({run.task for run in members})
        keys = dict.fromkeys(key for run in members for key in run.own if key not in hidden)
        differing = [key for key in keys if len({repr(run.own.get(key)) for run in members}) > 1]
        for same in kinds.values():
            usual = len(same) == max(sizes) and sizes.count(max(sizes)) == 1
            own, method = same[0].own, same[0].method
            told = differing if several and not usual else []
            parts = [f"{key.removeprefix(f'{method}.')}={own.get(key, 'n/a')}" for key in told]
            labels |= {run.name: " ".join([method, *parts]) for run in same}
    return labels


def by_task(runs: list[Run], labels: dict[str, str]) -> list[str]:
    """The labels that stand for other settings on other tasks. Args: labels, by the name of the run."""
    groups = grouped(runs, lambda run: (run.stage, labels[run.name]))
    return list(dict.fromkeys(label for (_, label), same in groups.items() if len({_own(run) for run in same}) > 1))


def _told_by_schedule(runs: list[Run]) -> bool:
    """Whether runs of one task, model and seed have nothing else that tells them apart, or a file has changed."""
    cells = [(run.task, weights(run), run.seed, run.settings, _own(run, (SCHEDULE,))) for run in runs]
    files = {(flat(run.facts.get("config", {})).get(SCHEDULE), run.own.get(SCHEDULE)) for run in runs}
    return len(set(cells)) < len(cells) or len({path for path, _ in files}) < len(files)


def _own(run: Run, hidden: tuple[str, ...] = ()) -> str:
    return repr(sorted(item for item in run.own.items() if item[0] not in hidden))


def differences(runs: list[Run]) -> dict[str, str]:
    """Run name -> the shared settings that other runs of its task have otherwise, as text; empty where none has."""
    found = {}
    for members in grouped(runs, lambda run: (run.stage, run.task)).values():
        sets = {run.settings: run.shared for run in members}
        keys = dict.fromkeys(key for shared in sets.values() for key in shared)
        apart = [key for key in keys if len({repr(shared.get(key)) for shared in sets.values()}) > 1]
        texts = {name: " ".join(f"{key}={shared.get(key, 'n/a')}" for key in apart) for name, shared in sets.items()}
        found |= {run.name: texts[run.settings] for run in members}
    return found


def letters(differences: dict[str, str]) -> dict[str, str]:
    """Run name -> a letter for its difference, the same one on every task; empty for none."""
    distinct = sorted(set(differences.values()) - {""})
    return {name: _letter(distinct.index(text)) if text else "" for name, text in differences.items()}


def words(name: str) -> str:
    """A metric or score as text: `macro_f1` -> macro F1."""
    proper = {"f1": "F1", "pearson": "Pearson", "spearman": "Spearman", "matthews": "Matthews"}
    return " ".join(proper.get(word, word) for word in name.split("_"))


def ordered(methods: Iterable[str]) -> list[str]:
    return sorted(set(methods), key=method_key)


def method_key(method: str) -> str:
    """Sorts vanilla before all others."""
    return "" if method == "vanilla" else method


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, keys and items in the order they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _letter(index: int) -> str:
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else _letter(index // 26 - 1) + letter
