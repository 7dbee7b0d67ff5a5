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

from asa import checkpoint, dist, hf, manifest
from asa.engine import Engine
from asa.errors import WorkError
from asa.methods import Method

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

    def due(self) -> bool:
        """Whether to save now; the same on every rank."""
        elapsed = time.perf_counter() - self._last
        return dist.any_(dist.is_main() and elapsed >= self._every * max(1.0, self._took))

    def save(self, engine: Engine, method: Method, progress: Progress) -> None:
        """All ranks must call it. Raises: WorkError where the disk refuses."""
        began = time.perf_counter()
        best = progress.best
        file = None if best is None else self._root / f"best-{best.step}.safetensors"
        if best is not None:
            dist.on_main(lambda: _put(best.weights, file))
        facts = {
            "best": None if best is None else {"step": best.step, "epoch": best.epoch, "dev": best.dev},
            "stale": progress.stale,
            "seconds": progress.seconds,
            "training": progress.training,
        }
        tokenizer = hf.load_tokenizer(self._model, "--models")
        checkpoint.save(self._root, progress.step, engine, method, tokenizer, facts, keep=1)
        dist.on_main(lambda: _drop_others(self._root, file))
        self._last = time.perf_counter()
        self._took = self._last - began


def _put(weights: dict[str, Tensor], file: Path | None) -> None:
    assert file is not None
    if file.exists():
        return
    partial = file.with_suffix(".partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in weights.items()}, partial)
        manifest.fsync(partial)
        partial.rename(file)
    except Exception as error:  # safetensors hides the disk's refusal in an error of its own
        partial.unlink(missing_ok=True)
        raise WorkError(f"{file} cannot be written: {error}; free some space and give the same command again") from None


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
    best = None if facts["best"] is None else Best(**facts["best"], weights=_best(root, facts["best"]))
    return Progress(facts["step"], best, facts["stale"], facts["seconds"], facts["training"])


def _newest(root: Path) -> Path | None:
    """A checkpoint whose best weights are there too. A run whose state is damaged starts anew: it is not long."""
    try:
        found, _ = checkpoint.newest_good(root)
    except WorkError as error:
        print(f"warning: {error}; the run starts anew", flush=True)
        return None
    if found is None:
        return None
    best: dict[str, Any] | None = manifest.read(found, checkpoint.KIND, "--out")["best"]
    return found if best is None or _file(root, best).is_file() else None


def _best(root: Path, best: dict[str, Any]) -> dict[str, Tensor]:
    return load_file(_file(root, best))


def _file(root: Path, best: dict[str, Any]) -> Path:
    return root / f"best-{best['step']}.safetensors"


def clear(run: Path) -> None:
    """Remove the state of a run that has ended, or is to start anew."""
    if dist.is_main():
        shutil.rmtree(run / FOLDER, ignore_errors=True)
