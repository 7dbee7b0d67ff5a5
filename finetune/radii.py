"""Each row's radius: the largest at which the reference of a comparison stays right; kept in a file."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from asa.places import atomic_write
from finetune.evaluation_config import RobustnessConfig
from finetune.predictions import DAMAGED
from finetune.subject import Subject, attacked

# E examples

RADII = "radii.npz"


def radii_of(subject: Subject, rows: np.ndarray, config: RobustnessConfig, facts: dict[str, Any]) -> np.ndarray:
    """For each row the largest of the radii at which the reference stays right; 0 where there is none.

    Kept in a file: a repeated command goes on from there. Raises: WorkError where it cannot be written.
    """
    path = config.out / facts["task"] / config.reference / RADII
    known = json.dumps(facts, sort_keys=True)
    if (before_E := _kept(path, known)) is not None:
        return before_E
    # Balls contain smaller ones, so halving finds each row's place between what it resists and what it does not.
    holds_E, breaks_E = np.zeros(len(rows), dtype=int), np.full(len(rows), config.radii + 1)
    while len(left := np.flatnonzero(breaks_E - holds_E > 1)):
        tried = (holds_E[left] + breaks_E[left]) // 2
        worst = attacked(subject, rows[left], config.radius * tried / config.radii, config, "radii")
        resisted = worst.resisted_E.numpy()
        holds_E[left[resisted]], breaks_E[left[~resisted]] = tried[resisted], tried[~resisted]
    radius_E = config.radius * holds_E / config.radii
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, radius=radius_E, facts=known)
    return radius_E


def _kept(path: Path, facts: str) -> np.ndarray | None:
    """The radii found before with these very facts; None where there are none, or the file is damaged."""
    if not path.is_file():
        return None
    try:
        with np.load(path) as file:
            return file["radius"] if file["facts"].item() == facts else None
    except DAMAGED:
        return None
