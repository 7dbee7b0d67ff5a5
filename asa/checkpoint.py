"""Checkpoints: ROOT/step-N/, written aside, hashed, then renamed. The newest complete one is the run's position.

Contents: engine state (weights, optimizer), method.safetensors, model.safetensors (every parameter whole and in fp32,
so that exporting needs no engine), hf/ (model config and tokenizer), manifest.json with the position. Random numbers
need no state: samples, masks and dropout are functions of (seed, step).
"""

import re
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from asa import dist, manifest
from asa.engine import Engine
from asa.errors import RequestError
from asa.methods import Method

KIND = "checkpoint"


def save(
    root: Path,
    step: int,
    engine: Engine,
    method: Method,
    tokenizer: PreTrainedTokenizerBase,
    facts: dict[str, Any],
    keep: int,
) -> Path:
    """Write ROOT/step-N and remove all but the newest `keep`. All ranks call it; rank 0 completes it."""
    final = root / f"step-{step}"
    partial = root / f"step-{step}.partial"
    if dist.is_main():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    engine.save(partial)
    state = engine.full_state()
    dist.barrier()
    if dist.is_main():
        save_file(state, partial / "model.safetensors")
        save_file(method.state_dict(), partial / "method.safetensors")
        engine.module.model.config.save_pretrained(partial / "hf")
        tokenizer.save_pretrained(partial / "hf")
        manifest.write(partial, KIND, {"step": step, **facts})
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        manifest.fsync(root)
        for old in complete(root)[:-keep]:
            shutil.rmtree(old)
    dist.barrier()
    return final


def load(folder: Path, engine: Engine, method: Method) -> dict[str, Any]:
    """Restore engine and method bit for bit; the facts. Every byte is verified before anything is unpickled."""
    facts = manifest.verify(folder, KIND, "--out")
    engine.load(folder)
    method.load_state_dict(load_file(folder / "method.safetensors"))
    return facts


def complete(root: Path) -> list[Path]:
    """Finished checkpoints below `root`, oldest first."""
    folders = (path.parent for path in root.glob("step-*/" + manifest.NAME))
    # Others are copies that somebody made, or saves that were cut off just before their rename.
    return sorted((folder for folder in folders if re.fullmatch(r"step-\d+", folder.name)), key=_step)


def find(folder: Path, flag: str) -> Path:
    """`folder` itself if it is a checkpoint, else the newest one of the run folder. Raises RequestError."""
    if (folder / manifest.NAME).is_file() or folder.name.startswith("step-"):
        return folder
    found = complete(folder / "checkpoints") or complete(folder)
    if not found:
        raise RequestError(f"no finished checkpoint (step-N/{manifest.NAME}) in {folder}; give another by {flag}")
    return found[-1]


def read_model(folder: Path, flag: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Whole fp32 parameters and facts of a verified checkpoint. Raises RequestError or WorkError."""
    facts = manifest.verify(folder, KIND, flag)
    return load_file(folder / "model.safetensors"), facts


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
