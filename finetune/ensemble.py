"""The command `ensemble`: the averaged predictions of several runs of one task (FreeLB's entries are of 7)."""

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax

from asa import manifest, record
from asa.errors import RequestError
from asa.places import check_folder, clear
from asa.record import Record
from finetune.evaluation_config import EnsembleConfig
from finetune.lineage import caveats
from finetune.metrics import check_own, score
from finetune.predictions import FOLDER, STAGES, Predictions, Stored, by_row, load_predictions, save_predictions
from finetune.saved import finished, replaceable

FLAG = "--runs (the first arguments)"


def ensemble(config: EnsembleConfig) -> None:
    """Write the ensemble's record and predictions, and print its scores beside those of its members.

    Raises: RequestError where the runs are not of one task and its same rows, something else stands at `out`, or one
        of them lies there; WorkError where the system refuses to write.
    """
    began = time.perf_counter()
    check_folder(config.out, "--out")
    records = {run: finished(run, FLAG) for run in config.runs}
    starts = {run: start for run, (start, _) in records.items()}
    if len(tasks := sorted({str(start.get("task")) for start in starts.values()})) > 1:
        raise RequestError(f"the runs are of several tasks: {', '.join(tasks)}; give those of one by {FLAG}")
    _refuse_twins(starts)
    _same_rows(starts)
    splits = [sorted(file.name for file in (run / FOLDER).glob("*.npz")) for run in config.runs]
    for run, names in zip(config.runs, splits, strict=True):
        if not names:
            stage = str(starts[run].get("stage"))
            why = "make the run anew, or" if stage in STAGES else f"its stage is {stage}, which keeps none;"
            raise RequestError(f"{run} has no predictions ({FOLDER}/*.npz); {why} give others by {FLAG}")
        if other := sorted(set(names) ^ set(splits[0])):
            raise RequestError(f"{run} and {config.runs[0]} have not both {FOLDER}/{other[0]}; give others by {FLAG}")
    facts = _facts(config.runs, starts)
    made = _made_before(config, facts["inputs"]["sha256"])
    for run, (_, end) in records.items():
        check_own(run / FOLDER, end)
    means = {Path(name).stem: mean(config.runs, name) for name in splits[0]}
    if not made:
        _write(config.out, facts, means, began)
    scored = tuple(f"{split}_" for split in means)
    wanted = {name: value for name, value in finished(config.out, "--out")[1].items() if name.startswith(scored)}
    for run, (_, end) in records.items():
        _print(str(run), end, wanted)
    _print(str(config.out), wanted, wanted)


def _write(out: Path, facts: dict[str, Any], means: dict[str, Stored], began: float) -> None:
    clear(out, record.NAME)
    with closing(Record(out, facts)) as log:
        end: dict[str, Any] = {}
        for split, one in means.items():
            save_predictions(out / FOLDER / f"{split}.npz", one)
            if one.gold is not None:
                end |= {f"{split}_{name}": value for name, value in score(one.predictions, one.gold, one).items()}
        log.end({**end, "seconds": round(time.perf_counter() - began, 3)})


def mean(runs: Sequence[Path], name: str) -> Stored:
    """One split. Raises RequestError where the rows or classes are not the same."""
    members = [load_predictions(run / FOLDER / name) for run in runs]
    first = members[0]
    for run, one in zip(runs, members, strict=True):
        if (one.ids, one.gold, one.labels) != (first.ids, first.gold, first.labels):
            raise RequestError(f"{run} and {runs[0]} have not the same rows in {name}; give runs of one task by {FLAG}")
    for (run, one), (other, two) in combinations(zip(runs, members, strict=True), 2):
        if _alike(one.predictions, two.predictions):
            raise RequestError(f"{run} and {other} predict the same, as one model; leave one of them out of {FLAG}")
    return replace(first, predictions=_averaged([one.predictions for one in members]))


def _alike(one: Predictions, two: Predictions) -> bool:
    """Whether they are one model's: two trainings differ by more than rounding."""

    def known(row: np.ndarray) -> np.ndarray:  # records of score, and ensembles, hold logs of probabilities
        return row if one.kind == "regression" else log_softmax(row.astype(np.float64), axis=-1)

    pairs = zip(one.logits, two.logits, strict=True)
    return all(a.shape == b.shape and np.allclose(known(a), known(b), rtol=1e-5, atol=1e-5) for a, b in pairs)


def _averaged(members: list[Predictions]) -> Predictions:
    """Means of numbers, or logs of mean probabilities. A word that one member has cut off counts as cut off."""
    kind = members[0].kind
    if kind == "regression":
        return Predictions(kind, list(np.mean([one.logits for one in members], axis=0)), None)
    if kind != "token":
        return Predictions(kind, list(_mean(np.stack(one.logits) for one in members)), None)
    sizes = np.min([[len(row) for row in one.logits] for one in members], axis=0)
    cut = ([row[:size] for row, size in zip(one.logits, sizes, strict=True)] for one in members)
    return Predictions(kind, by_row(_mean(map(np.concatenate, cut)), sizes), None)


def _mean(members: Iterable[np.ndarray]) -> np.ndarray:
    """Log of the mean probabilities, [N, C], of logits that come member by member: all at once are too many."""
    logs, count = np.float64(-np.inf), 0
    for logits_NC in members:
        logs, count = np.logaddexp(logs, log_softmax(logits_NC.astype(np.float64), axis=-1)), count + 1
    return logs - np.log(count)


def _refuse_twins(starts: dict[Path, dict[str, Any]]) -> None:
    """Raises RequestError where a run counts twice: in another folder, or as a member of an ensemble."""
    seen: dict[str, Path] = {}
    for run, start in starts.items():
        for sha256 in _records(run, start):
            if (other := seen.setdefault(sha256, run)) != run:
                raise RequestError(f"{other} and {run} are, or have, the same run; leave one of them out of {FLAG}")


def _records(run: Path, start: dict[str, Any]) -> list[str]:
    """Hashes of a run's record and, of an ensemble, of those of its members and theirs."""
    members = start.get("inputs", {}).get("sha256", []) if start.get("stage") == "ensemble" else []
    return [manifest.file_sha256(run / record.NAME), *members]


def _same_rows(starts: dict[Path, dict[str, Any]]) -> None:
    """Raises RequestError where the records that tell it were made from other files or rows: without labels the
    numbers of rows may be all that predictions have in common."""
    hashes = {run: start.get("inputs", {}).get("task_sha256") for run, start in starts.items()}
    known = {run: sha256 for run, sha256 in hashes.items() if sha256 is not None}
    first = next(iter(known), Path())
    if other := [run for run, sha256 in known.items() if sha256 != known[first]]:
        raise RequestError(
            f"{other[0]} and {first} were trained, chosen or scored on other rows, classes or metrics of the task"
            f" (task_sha256); give runs of the same rows by {FLAG}"
        )


def _made_before(config: EnsembleConfig, members: list[str]) -> bool:
    """Whether this very ensemble stands at `out`: it stays, so that one of which it is a member is made before too.

    Args: members, the hashes of their records. Raises RequestError where something else stands there that is to stay.
    """
    out = config.out
    if inside := [run for run in config.runs if run.resolve().is_relative_to(out.resolve())]:
        raise RequestError(f"{inside[0]} is one of the runs and would be removed with {out}; set another --out")
    replaceable(out, "ensemble")
    if config.overwrite or not record.finished(out / record.NAME):
        return False
    start, end = finished(out, "--out")
    if sorted(start.get("inputs", {}).get("sha256", [])) != sorted(members):
        raise RequestError(
            f"{out} is an ensemble of other runs, or of these before they were made again; set another --out, or"
            " --overwrite true"
        )
    check_own(out / FOLDER, end)
    return True


def _facts(runs: Sequence[Path], starts: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """The start line. The members are told by what they are and by the hash of their records."""
    first = starts[runs[0]]
    members = [{name: starts[run].get(name) for name in ("model", "method", "seed", "trained_on")} for run in runs]
    methods = sorted({str(one["method"]) for one in members})
    # A run of fine-tuning was trained on its own task; a model from elsewhere does not say.
    sources = [start.get("task" if start.get("stage") == "finetune" else "trained_on") for start in starts.values()]
    trained = {str(source) for source in sources if source is not None}
    return {
        "stage": "ensemble",
        "task": first.get("task"),
        "metrics": first.get("metrics"),
        "model": "+".join(sorted({str(one["model"]) for one in members})),
        "method": "+".join(methods),
        "trained_on": None if trained == {str(first.get("task"))} else "+".join(sorted(trained)) or None,
        "members": members,
        **{name: value for start in starts.values() for name, value in caveats(start).items()},
        "inputs": {
            "runs": [str(run) for run in runs],
            "sha256": [sha256 for run in runs for sha256 in _records(run, starts[run])],
        },
        "command": sys.argv,
        "environment": record.environment(),
    }


def _print(name: str, end: dict[str, Any], wanted: dict[str, Any]) -> None:
    print(f"{name:56s} " + "  ".join(f"{key} {end[key]:.4f}" for key in wanted if key in end))
