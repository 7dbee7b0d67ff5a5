"""How far a run is, and what an unfinished one goes on from after a kill: RUN/state/, gone once the run has ended.

state/step-N is a checkpoint (asa/checkpoint.py); state/best-N.safetensors are the weights of the best evaluation so
far, written before the first checkpoint that names them. Batches, dropout and heads are functions of (seed, step), so a
run that is continued ends with the very bits of one that was not interrupted.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from asa import checkpoint, dist, manifest
from asa.engine import Engine
from asa.errors import WorkError
from asa.methods import Method
from asa.places import atomic_write, remove
from asa.tokenizer import load_tokenizer

FOLDER = "state"


@dataclass(frozen=True)
class Best:
    """The evaluation with the highest dev score so far (the first of equals) and its weights, whole, on the CPU."""

    step: int
    epoch: float
    dev: dict[str, float]
    weights: dict[str, Tensor]


@dataclass
class Progress:
    """Where a run is. stale: evaluations since the best one. seconds: of all its parts, evaluation and saving included;
    training: in its steps alone."""

    step: int = 0
    best: Best | None = None
    stale: int = 0
    seconds: float = 0.0
    training: float = 0.0


class Saver:
    """Saves a run by the clock, so that short runs pay nothing and long ones lose little."""

    def __init__(self, run: Path, every: float, model: Path) -> None:
        """Args: every, seconds between two saves; model, the folder whose tokenizer goes into the checkpoint."""
        self._root = run / FOLDER
        self._every = every
        self._model = model
        self._last = time.perf_counter()
        self._took = 0.0
        self._kept: tuple[int, str] | None = None  # step and sha256 of the best weights that this process has written

    def due(self) -> bool:
        """Whether to save now; the same on every rank."""
        elapsed = time.perf_counter() - self._last
        return dist.any_(dist.is_main() and elapsed >= self._every * max(1.0, self._took))

    def save(self, engine: Engine, method: Method, progress: Progress) -> None:
        """All ranks must call it. Raises: WorkError where the disk refuses."""
        began = time.perf_counter()
        best = progress.best
        file = None if best is None else self._root / f"best-{best.step}.safetensors"
        if best is not None and (self._kept is None or self._kept[0] != best.step):
            self._kept = best.step, dist.on_main(lambda: _put(best.weights, file))
        facts = {
            "best": None if best is None else self._described(best),
            "stale": progress.stale,
            "seconds": progress.seconds,
            "training": progress.training,
        }
        tokenizer = load_tokenizer(self._model, "--models")
        checkpoint.save(self._root, progress.step, engine, method, tokenizer, facts, keep=1)
        dist.on_main(lambda: _drop_others(self._root, file))
        self._last = time.perf_counter()
        self._took = self._last - began

    def _described(self, best: Best) -> dict[str, Any]:
        assert self._kept is not None
        return {"step": best.step, "epoch": best.epoch, "dev": best.dev, "sha256": self._kept[1]}


def _put(weights: dict[str, Tensor], file: Path | None) -> str:
    """Write the weights, in place of a file that an earlier process may have left; the file's sha256."""
    assert file is not None
    with atomic_write(file) as partial:
        save_file({name: value.contiguous() for name, value in weights.items()}, partial)
        return manifest.file_sha256(partial)


def _drop_others(root: Path, file: Path | None) -> None:
    for other in root.glob("best-*"):
        if other != file:
            other.unlink()


def resume(run: Path, engine: Engine, method: Method) -> Progress | None:
    """Put the newest saved state of a run into engine and method; None where there is none. All ranks must call it."""
    root = run / FOLDER
    found = dist.on_main(lambda: _newest(root))
    if found is None:
        return None
    facts = checkpoint.load(found, engine, method)
    kept = facts["best"]
    best = None if kept is None else Best(kept["step"], kept["epoch"], kept["dev"], load_file(_file(root, kept)))
    return Progress(facts["step"], best, facts["stale"], facts["seconds"], facts["training"])


def _newest(root: Path) -> Path | None:
    """A checkpoint whose best weights are whole too. A run whose state is damaged starts anew: it is not long."""
    try:
        found, _ = checkpoint.newest_good(root)
        if found is not None:
            _check_best(root, manifest.read(found, checkpoint.KIND, "--out")["best"])
    except WorkError as error:
        print(f"warning: {error}; the run starts anew", flush=True)
        return None
    return found


def _check_best(root: Path, best: dict[str, Any] | None) -> None:
    """Raises WorkError where the best weights that a checkpoint names are not the ones that were written."""
    if best is None:
        return
    file = _file(root, best)
    if not file.is_file():
        raise WorkError(f"{file} is missing")
    if manifest.file_sha256(file) != best.get("sha256"):
        raise WorkError(f"{file} is damaged: its sha256 is not the one in its checkpoint")


def _file(root: Path, best: dict[str, Any]) -> Path:
    return root / f"best-{best['step']}.safetensors"


def saved(run: Path) -> bool:
    """Whether an unfinished run has a checkpoint to go on from; whether it is damaged is not looked at."""
    return bool(checkpoint.complete(run / FOLDER))


def clear(run: Path) -> None:
    """Remove the state of a run that has ended, or is to start anew."""
    if dist.is_main():
        for step in checkpoint.complete(run / FOLDER):
            remove(step, manifest.NAME)
        shutil.rmtree(run / FOLDER, ignore_errors=True)
