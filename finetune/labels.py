"""From the classes a model was trained on to those of another task (transfer)."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from scipy.special import log_softmax, logsumexp

from asa.errors import RequestError

# N any number of rows or words, M classes of the model, T classes of the task

Merge = Literal["sum", "max"]
_NUMBERED = re.compile(r"(?:label-)?(\d{1,9})")
_NOT_ENTAILED = "non-entailment"
SHOWN = 8  # pairs of classes in a line


def label_map(theirs: Sequence[str], ours: Sequence[str], given: Mapping[str, str], where: str) -> list[int]:
    """For each class of the model the class of the task.

    By `given`; else by name (case, - and _ aside; not_entailment is non-entailment); neutral and contradiction are
    non-entailment where the task has no class of that name; classes without names (0, LABEL_0) go by their number.
    Raises: RequestError for a class without a counterpart on either side. where: names the model.
    """
    if unknown := sorted(set(given) - set(theirs)):
        raise RequestError(f"map.{unknown[0]}: {where} has the classes {', '.join(theirs)}; set --map")
    if len(theirs) < len(ours):  # before a name is asked for, which would not help
        counts = f"{len(theirs)} classes ({', '.join(theirs)}), the task {len(ours)} ({', '.join(ours)})"
        raise RequestError(f"{where} has {counts}; leave the task out, or the rows of further classes")
    exact = {name: index for index, name in enumerate(ours)}  # first, as classes may differ in case alone
    places = {_plain(name): index for index, name in enumerate(ours)}
    by_number = _by_number(theirs, ours) if len(theirs) == len(ours) else {}
    mine, other = _numbers(theirs), _numbers(ours)
    # Of 0 and 1, 1 is not the 1 of 1 and 2, unless a name is asked for.
    shifted = by_number if mine and other and set(mine) != set(other) and not given else {}
    found = []
    for index, name in enumerate(theirs):
        asked = given.get(name, name)
        wanted = _plain(asked)
        if wanted not in places and wanted in ("neutral", "contradiction") and _NOT_ENTAILED in places:
            wanted = _NOT_ENTAILED
        place = exact.get(asked, places.get(wanted))
        if name not in given:
            place = shifted.get(index, by_number.get(index) if place is None else place)
        if place is None:
            what = f"map.{name} = {asked!r}" if name in given else f"class {name!r} of {where}"
            mend = f"set --map.{name}"
            if name not in given and set(ours) < set(theirs):
                names = ",".join(theirs)
                mend += f", which counts it as another, or, where its rows merely lack it, --task.labels {names}"
            raise RequestError(f"{what} is none of {', '.join(ours)}; {mend}")
        found.append(place)
    if lost := [name for index, name in enumerate(ours) if index not in found]:
        mend = "set --map for the others too, or leave the task out" if given else "leave the task out"
        raise RequestError(f"{where} never predicts {lost[0]!r}, its classes are {', '.join(theirs)}; {mend}")
    return found


def by_number_note(
    theirs: Sequence[str], ours: Sequence[str], places: Sequence[int], given: Mapping[str, str], where: str
) -> str:
    """A line on the classes that `label_map` has put together by their numbers, of which one side has no name: they may
    be in another order there. Empty for none. Args: places, what it gave, or nothing where classes are no one's; the
    others, what it got."""
    pairs = [(name, ours[place]) for name, place in zip(theirs, places, strict=False) if name not in given]
    told = [f"{name} -> {own}" for name, own in pairs if _numbers([name]) != _numbers([own])]
    if not told:
        return ""
    more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    return (
        f"note: {where}: {', '.join(told[:SHOWN])}{more}, by their numbers; where the order is another, set"
        f" --map.{told[0].split(' -> ')[0]}"
    )


def refuse_map(given: Mapping[str, str], task: str, kind: str) -> None:
    """Raises RequestError for classes' counterparts where the task's kind has no classes."""
    for name in given:
        raise RequestError(f"map.{name}: {task} is of kind {kind}, which has no classes; leave --map out")


def _plain(name: str) -> str:
    plain = re.sub(r"[_\s]+", "-", name.strip().lower())
    return _NOT_ENTAILED if plain == "not-entailment" else plain


def _by_number(theirs: Sequence[str], ours: Sequence[str]) -> dict[int, int]:
    """Where one side at least has numbers and no names: the places on the other side, the lowest number's the first."""
    mine, other = _numbers(theirs), _numbers(ours)
    if not mine and not other:
        return {}
    return dict(zip(_order(mine or range(len(theirs))), _order(other or range(len(ours))), strict=True))


def _order(numbers: Sequence[int]) -> list[int]:
    return sorted(range(len(numbers)), key=lambda place: numbers[place])


def _numbers(names: Sequence[str]) -> list[int]:
    """Of names like 1 or LABEL_1; of others none."""
    found = [_NUMBERED.fullmatch(_plain(name)) for name in names]
    return [int(match[1]) for match in found if match] if all(found) else []


def merged(logits_NM: np.ndarray, places: Sequence[int], merge: Merge) -> np.ndarray:
    """Log probabilities of the task's classes, NT: the sum, or the largest, of those of the model's classes at each."""
    log_NM = log_softmax(logits_NM.astype(np.float64), axis=-1)
    members = [[m for m, place in enumerate(places) if place == t] for t in range(max(places) + 1)]
    pooled = [log_NM[..., of].max(-1) if merge == "max" else logsumexp(log_NM[..., of], axis=-1) for of in members]
    return np.stack([np.asarray(one) for one in pooled], axis=-1)
