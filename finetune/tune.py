"""A search of each method's settings: as many trials for every one, chosen by dev, so that none is compared untuned."""

import csv
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
from scipy.stats.qmc import Halton

from asa import dist, record
from asa.config import flat, from_dict, save_yaml
from asa.errors import Apart, RequestError, WorkError
from asa.methods import OURS, groups_read
from asa.places import atomic_write, refusal_told
from finetune.config import FinetuneConfig, TuneConfig
from finetune.facts import is_finished, is_same
from finetune.recipes import merged
from finetune.run import Cell
from finetune.sweep import Sweep, Trials, make_all

OWN = ("trials", "search")  # keys of TuneConfig that no run reads
BEST, TABLE = "best.yaml", "trials.csv"
COLUMNS = ("task", "method", "trial", "dev", "settings", "error")


class Tried(NamedTuple):
    """What a trial came to. score: mean of the main metric on dev over models and seeds; nan where a run has failed,
    with its error. settings: the searched ones, nested."""

    task: str
    method: str
    trial: int
    score: float
    settings: dict[str, Any]
    error: str = ""


def tune(given: dict[str, Any]) -> None:
    """Make all trials, write what they came to (OUT/trials.csv) and the best of each task and method (OUT/best.yaml,
    an entry for each task, as `--config OUT/best.yaml:TASK` takes it, with what the methods were given besides), and
    print them.

    Args: given, the keys of TuneConfig that files and flags say, nested.
    Raises: RequestError for a wrong input, before anything is trained; at the end, where runs have failed, as make_all;
        likewise where a method has no trial without a failure; WorkError where another process is not done.
    """
    config, work = prepared(given)
    if config.worker == 0:
        dist.on_main(lambda: _forget(config.out))
    failed: RequestError | WorkError | None = None
    try:
        make_all(work, config.worker)
    except Apart:
        raise
    except (RequestError, WorkError) as error:  # the choice is made among the others
        failed = error
    if config.worker == 0:
        besides = given_of(config.methods, given) | ({} if config.recipes else {"recipes": False})
        dist.on_main(lambda: _choose(config, work, besides, failed))
    if failed is not None:
        raise failed


def _forget(out: Path) -> None:
    """An earlier search's choice, which would be taken for this one's where this one does not come to its end."""
    for path in (out / BEST, out / TABLE):
        with refusal_told(path):
            path.unlink(missing_ok=True)


def _check_place(out: Path) -> None:
    """Raises RequestError where what a search writes stands already and is no search's."""
    try:
        ours = (out / TABLE).read_text(errors="replace").startswith(",".join(COLUMNS))
    except OSError:
        ours = False
    for path in (out / TABLE, out / BEST):
        if os.path.lexists(path) and not ours:
            raise RequestError(f"{path} is no search's ({TABLE}) and would be replaced; move it, or set another --out")


def prepared(given: dict[str, Any]) -> tuple[TuneConfig, Sweep]:
    """The request and its runs, checked. Raises: RequestError for a wrong input; WorkError for a damaged task."""
    config = from_dict(TuneConfig, given)
    _check(config)
    base = {key: value for key, value in given.items() if key not in OWN}
    work = Sweep({**base, "seeds": list(config.seeds)}, trials_of(config))
    for cell in work.cells:  # a task's recipe may ask for what the request does not
        _check(cell.config)
    work.notes += unsearched(config)
    _check_place(config.out)
    return config, work


def unsearched(config: TuneConfig) -> Iterator[str]:
    """A line for each method that trials do not treat as the others, and the reader would take it that they do."""
    ranges = ranges_of(config)
    for method in config.methods:
        own = method not in OURS or bool(groups_read(method))
        if own and not _groups(method) & ranges.keys():
            yield f"{method}: no range in search, so one trial, not {config.trials}; set --search.GROUP.KEY"
        if keys := {group: ranges[group] for group in _groups(method) & ranges.keys()}:
            drawn = _drawn(config, keys)
            if (different := len({str(settings) for settings in drawn})) < len(drawn):
                yield (
                    f"{method}: of its {len(drawn)} trials beside the first {different} differ; widen its ranges of"
                    " whole numbers in search, or lower --trials"
                )
        if method not in OURS and (ours := ranges.keys() - {"outside"}):
            yield f"{method}: not tried with other {', '.join(sorted(ours))}, which best.yaml changes for it as well"


def _check(config: FinetuneConfig) -> None:
    if config.paper_compat:
        raise RequestError("paper_compat = true would choose settings by the scored rows; set --paper_compat false")
    if config.save_model:
        raise RequestError("save_model = true: trials keep no models; set --save_model false and train with the best")


def ranges_of(config: TuneConfig) -> dict[str, dict[str, tuple[float, float]]]:
    """By group the ranges that a method asked for reads. Raises RequestError for one of no setting, that is empty, or
    of a setting that two of the methods share."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name, (low, high) in config.search.items():
        group, _, key = name.partition(".")
        flag, readers = f"--search.{name}", [method for method in config.methods if group in _groups(method)]
        if group == "outside" and not readers:
            continue
        kind = _kind(config, group, key)
        if kind is None and group == "outside" and key not in config.outside:
            raise RequestError(f"search: {name} has no value to start from, trial 0's; set --{name} VALUE")
        if kind is None:
            allowed = _searchable(config, group)
            raise RequestError(
                f"search: {name} is no number among the methods' settings{allowed}; mend or leave out {flag}"
            )
        if kind is int and not (low.is_integer() and high.is_integer()):
            raise RequestError(f"search.{name} = {low:g}, {high:g}: allowed: two whole numbers; set {flag}")
        least = "0 < " if kind is float else ""  # tried by its logarithm
        if not low < high or (least and low <= 0):
            raise RequestError(f"search.{name} = {low:g}, {high:g}: allowed: {least}least < greatest; set {flag}")
        if len(readers) > 1:
            raise RequestError(
                f"{' and '.join(readers)} share {name}; tune one at a time, by --methods and another --out"
            )
        if readers:
            found.setdefault(group, {})[key] = low, high
    if not found:
        raise RequestError(f"search has no range of {', '.join(config.methods)}; set --search.GROUP.KEY '[LEAST,MOST]'")
    return found


def trials_of(config: TuneConfig) -> Trials:
    """What each trial has otherwise: the first nothing, the others for each method that is searched its settings.

    A method's settings are a scrambled Halton sequence, which fills its ranges evenly however many there are: they
    depend on its own ranges alone, and more trials begin with the same ones.
    """
    ranges = ranges_of(config)
    searched = [method for method in config.methods if _groups(method) & ranges.keys()]
    drawn = [_drawn(config, {group: ranges[group] for group in _groups(method) & ranges.keys()}) for method in searched]
    # Each with its own alone: one from outside might read those of others.
    trials = (
        [{"methods": [name]} | own for name, own in zip(searched, one, strict=True)] for one in zip(*drawn, strict=True)
    )
    return [[{}], *trials]


def _drawn(config: TuneConfig, ranges: dict[str, dict[str, tuple[float, float]]]) -> list[dict[str, Any]]:
    """Of one method, over all groups that it reads."""
    keys = sorted((group, key) for group, own in ranges.items() for key in own)
    points = Halton(len(keys), rng=np.random.default_rng(0)).random(config.trials - 1)
    found = []
    for point in points.tolist():
        settings: dict[str, Any] = {}
        for (group, key), share in zip(keys, point, strict=True):
            whole_number = _kind(config, group, key) is int
            settings.setdefault(group, {})[key] = _scaled(share, *ranges[group][key], whole_number)
        found.append(settings)
    return found


def _scaled(share: float, low: float, high: float, whole: bool) -> float:
    """A number of the range, of three digits so that it can be told. Args: share, from 0 to below 1."""
    if whole:
        return math.floor(low + share * (high + 1 - low))
    return min(high, max(low, float(f"{low * (high / low) ** share:.3g}")))


def given_of(methods: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """The settings of the methods that files and flags say: a run with what was chosen has to have them too."""
    read = {group for method in methods for group in (*groups_read(method), *_groups(method))}
    return {group: own for group, own in given.items() if group in read}


def _groups(method: str) -> set[str]:
    return set(groups_read(method)) if method in OURS else {"outside"}


def _kind(config: TuneConfig, group: str, key: str) -> type[int] | type[float] | None:
    """What the setting GROUP.KEY takes, where that is a number. Of a method from outside only its value tells."""
    if group == "outside":
        hints: tuple[Any, ...] = (type(config.outside.get(key)),)
        whole = all(end.is_integer() for end in config.search[f"outside.{key}"])
        hints = (float,) if hints == (int,) and not whole else hints
    elif group in groups_read("MODULE:BUILDER"):  # which may read any of the methods', and no other key
        hint = get_type_hints(type(getattr(config, group))).get(key)
        hints = hint, *get_args(hint)
    else:
        return None
    return next((kind for kind in (int, float) if kind in hints), None)


def _searchable(config: TuneConfig, group: str) -> str:
    """What of a group could be searched, as a part of a message; empty for a group that is no method's."""
    keys = vars(getattr(config, group)) if group in {*groups_read("MODULE:BUILDER")} - {"outside"} else ()
    numbers = [f"{group}.{key}" for key in keys if _kind(config, group, key)]
    return f" (allowed: {', '.join(numbers)})" if numbers else ""


def _value(config: FinetuneConfig, group: str, key: str) -> Any:
    return config.outside[key] if group == "outside" else getattr(getattr(config, group), key)


def _choose(config: TuneConfig, work: Sweep, besides: dict[str, Any], failed: Exception | None = None) -> None:
    """Args: besides, the methods' settings that were not searched; failed, why runs have. Raises: as tune."""
    if left := [cell.run.name for cell in work.cells if not _ended(cell, work.facts[cell.run])]:
        raise failed or WorkError(f"{len(left)} trials are not made ({', '.join(left)}); give the same command again")
    metrics = {name: task.metrics[0] for name, task in work.tasks.items()}
    tried = _results(work.cells, metrics, ranges_of(config))
    _write_table(config.out / TABLE, tried)
    best = dict.fromkeys(work.tasks, besides)
    together: dict[tuple[str, str], list[Tried]] = {}
    for one in tried:
        together.setdefault((one.task, one.method), []).append(one)
    lost: list[Tried] = []
    for (task, _), trials in together.items():
        if (one := _best(trials)) is None:
            lost.append(trials[0])
            continue
        best[task] = merged(best[task], one.settings)
        print(_line(one, trials, metrics[task]))
    with atomic_write(config.out / BEST) as file:
        save_yaml({task: own for task, own in best.items() if task not in {one.task for one in lost}}, file)
    chosen = f"; the best: --config {config.out / BEST}:TASK" if best.keys() - {one.task for one in lost} else ""
    print(f"{config.out / TABLE} has all trials{chosen}")
    if lost:
        told = (f"{one.task}: all trials of {one.method} have failed; the first: {one.error}" for one in lost)
        raise (RequestError if isinstance(failed, RequestError) else WorkError)("; ".join(told))


def _best(trials: list[Tried]) -> Tried | None:
    """Of a method on a task; None where every trial has failed."""
    made = [one for one in trials if not one.error]
    return max(made, default=None, key=lambda one: -math.inf if math.isnan(one.score) else one.score)


def _ended(cell: Cell, facts: dict[str, Any]) -> bool:
    """Whether the trial came to something: one that could not begin leaves the record of an earlier search as it is."""
    events = record.read(cell.folder / record.NAME)
    failed = bool(events) and events[-1].get("event") == "failed"
    return is_finished(cell, facts) or (failed and is_same(cell, facts))


def _results(cells: Sequence[Cell], metrics: dict[str, str], ranges: dict[str, Any]) -> list[Tried]:
    """In the order of the cells, a row for each trial of a method on a task."""
    grouped: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in cells:
        grouped.setdefault((cell.run.task, cell.run.method, cell.run.trial or 0), []).append(cell)
    found = []
    for (task, method, trial), own in grouped.items():
        last = [(record.read(cell.folder / record.NAME) or [{}])[-1] for cell in own]
        errors = [event.get("error", "") for event in last if event.get("event") == "failed"]
        scores = [event.get(f"dev_{metrics[task]}", math.nan) for event in last]
        settings = {
            group: {key: _value(own[0].config, group, key) for key in keys}
            for group, keys in ranges.items()
            if group in _groups(method)
        }
        score = math.nan if errors else statistics.fmean(scores)
        found.append(Tried(task, method, trial, score, settings, "; ".join(errors)))
    return found


def _line(best: Tried, trials: list[Tried], metric: str) -> str:
    line = f"{best.task} {best.method}: dev {metric} {best.score:.4f}"
    if not best.settings:
        return f"{line}, nothing searched"
    made = [one.score for one in trials if not one.error]
    lost = f", {len(trials) - len(made)} failed" if len(made) < len(trials) else ""
    found = f"trial {best.trial} of {len(trials)} ({min(made):.4f} to {max(made):.4f}{lost})"
    return f"{line}, {found}: {_told(best.settings, ', ')}"


def _told(settings: dict[str, Any], between: str) -> str:
    numbers = {name: "null" if value is None else f"{value:g}" for name, value in flat(settings).items()}
    return between.join(f"{name}={number}" for name, number in numbers.items())


def _write_table(path: Path, tried: list[Tried]) -> None:
    with atomic_write(path) as partial, partial.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for one in tried:
            score = "" if one.error else one.score
            rows.writerow([one.task, one.method, one.trial, score, _told(one.settings, " "), one.error])
