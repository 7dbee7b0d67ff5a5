"""Checkpoints: ROOT/step-N/, written aside, hashed, then renamed. The newest good one is the run's position.

One format for every engine, ZeRO stage, precision and number of processes: rank 0 collects the state parameter by
parameter and writes it whole; loading, it reads and hands out one tensor at a time. No other rank needs the folder.

Contents: model.safetensors (every parameter whole and in fp32, so that exporting needs no engine),
exp_avg.safetensors and exp_avg_sq.safetensors (Adam's averages), method.safetensors, hf/ (model config and tokenizer),
manifest.json with the position. Random numbers need no state: rows, masks and dropout are functions of (seed, step).
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from asa import dist, manifest
from asa.engine import Engine, State
from asa.errors import RequestError, WorkError
from asa.methods import Method
from asa.places import FULL, fsync, refusal, remove

KIND = "checkpoint"
FORMAT = 2  # of the files and of the facts, the stages' too; raised where either change. Format 1 bore no number.
WEIGHTS, METHOD = "model.safetensors", "method.safetensors"
FILES: dict[State, str] = {
    "weights": WEIGHTS,
    "exp_avg": "exp_avg.safetensors",
    "exp_avg_sq": "exp_avg_sq.safetensors",
}


class SaveFailed(WorkError):
    """The disk refused a checkpoint. The older ones are untouched, and nothing of the new one is left."""


def save(
    root: Path,
    step: int,
    engine: Engine,
    method: Method,
    tokenizer: PreTrainedTokenizerBase,
    facts: dict[str, Any],
    keep: int,
) -> Path:
    """Write ROOT/step-N and remove all older than the newest `keep` good ones. All ranks must call it.

    A good checkpoint of this step is left as it is.
    Raises: on every rank SaveFailed where the disk refuses, WorkError for a weight that is not finite.
    """
    final, aside = root / f"step-{step}", root / f"step-{step}.partial"
    if dist.on_main(lambda: is_good(final)):
        dist.on_main(lambda: _rotate(final, keep))  # a save that was killed just before that
        return final
    write = partial(_on_main, aside)
    write(lambda: _begin(aside))
    _write_state(engine, aside, write)
    everything = {"format": FORMAT, "step": step, "engine": engine.counters(), **facts}

    def complete_it() -> None:
        save_file(_plain(method.state_dict()), aside / METHOD)
        parts: tuple[Any, ...] = (engine.module.model.config, tokenizer)
        for part in parts:
            part.save_pretrained(aside / "hf")
        manifest.write(aside, KIND, everything)

    write(complete_it)
    dist.barrier()  # every rank has come this far
    write(lambda: _publish(aside, final))
    dist.on_main(lambda: _rotate(final, keep))
    return final


def _on_main(aside: Path, work: Callable[[], None]) -> None:
    """A part of saving, on rank 0. Where it fails, `aside` is removed and the error raised on every rank."""

    def attempt() -> None:
        try:
            work()
        except Exception as error:
            shutil.rmtree(aside, ignore_errors=True)
            found = refusal(error)
            if found is None:
                raise
            first = "free some space" if found[0] in FULL else "mend that"
            raise SaveFailed(f"{aside.with_suffix('')} cannot be written: {found[1]}; {first} or set --out") from error

    dist.on_main(attempt)


def _begin(aside: Path) -> None:
    for left in aside.parent.glob("step-*.partial"):  # by saves that were killed
        shutil.rmtree(left, ignore_errors=True)
    aside.mkdir(parents=True)


def _write_state(engine: Engine, folder: Path, write: Callable[[Callable[[], None]], None]) -> None:
    """The weights, then each of Adam's averages: rank 0 holds one of the three at a time, other ranks one tensor."""
    for state, name in FILES.items():
        whole: dict[str, Tensor] = {}
        for key, part in engine.parts(state):
            if dist.is_main():
                whole[key] = part.to("cpu", torch.float32, copy=True)
        write(partial(_write_finite, whole, folder / name))


def _write_finite(tensors: dict[str, Tensor], file: Path) -> None:
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise WorkError(
                f"{file.stem} of {name} is not finite, so it is not saved; lower --optim.lr and continue from the"
                " newest checkpoint"
            )
    save_file(_plain(tensors), file)


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _publish(aside: Path, final: Path) -> None:
    remove(final, manifest.NAME)  # damaged, or it would have been left as it is
    aside.rename(final)
    fsync(final.parent)


def _rotate(newest: Path, keep: int) -> None:
    """Remove what is older than the newest `keep` good checkpoints; a damaged one does not count.

    `newest` has just been written and is not read again.
    """
    good = 0
    for folder in reversed(_folders(newest.parent)):
        if good == keep:
            remove(folder, manifest.NAME)
        else:
            good += folder == newest or is_good(folder)


def load(folder: Path | None, engine: Engine, method: Method) -> dict[str, Any]:
    """Restore engine and method bit for bit; the facts. All ranks must call it; rank 0 alone reads `folder`.

    Raises: WorkError, on every rank, where anything is damaged or of another format; every byte is verified before
        anything is used.
    """
    facts: dict[str, Any] = dist.on_main(lambda: _on_rank_0(folder))
    for state, name in FILES.items():
        engine.restore(state, _handed_out(folder, name))
    engine.set_counters(facts.pop("engine"))
    method.load_state_dict(dict(_handed_out(folder, METHOD)))
    return facts


def _on_rank_0(folder: Path | None) -> dict[str, Any]:
    assert folder is not None, "rank 0 must be given a folder"
    return _verified(folder, "--out")


def _verified(folder: Path, flag: str) -> dict[str, Any]:
    """The facts of a checkpoint of which every byte is as it was written, in the format of this version."""
    facts = manifest.verify(folder, KIND, flag)
    _check_format(folder, facts, flag)
    del facts["format"]
    return facts


def _check_format(folder: Path, facts: dict[str, Any], flag: str) -> None:
    found = facts.get("format", 1)
    if found != FORMAT:
        raise WorkError(
            f"{folder} was made by another version of asa-pretrain (format {found}, this one reads {FORMAT}); use that"
            f" version, or set another {flag}"
        )


def _handed_out(folder: Path | None, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, on the CPU, one at a time, from rank 0 to all."""
    with ExitStack() as stack:
        file = stack.enter_context(safe_open(folder / name, "pt")) if folder is not None and dist.is_main() else None
        for key in dist.on_main(lambda: list(file.keys()) if file is not None else []):
            tensor = torch.empty(0) if file is None else file.get_tensor(key)
            shape, dtype = dist.on_main(lambda tensor=tensor: (tensor.shape, tensor.dtype))
            yield key, dist.broadcast_(torch.empty(shape, dtype=dtype) if file is None else tensor)


def is_good(folder: Path) -> bool:
    """Whether it is a complete checkpoint of this format, of which every byte is as it was written."""
    try:
        _verified(folder, "--out")
    except (RequestError, WorkError, OSError):
        return False
    return True


def newest_good(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint below `root` that is whole, and a line on each newer one that is not.

    Every byte is verified. Raises: WorkError where there are checkpoints and none is whole, or that one is of another
    format.
    """
    folders = _folders(root)
    wrong = [f"{left} was not finished" for left in root.glob("step-*.partial")]
    for folder in reversed(folders):
        try:
            facts = manifest.verify(folder, KIND, "--out")
        except (RequestError, WorkError, OSError) as error:
            wrong.append(str(error))
        else:
            _check_format(folder, facts, "--out")  # no damage: to go on from an older one would lose steps
            return folder, wrong
    if folders:
        raise WorkError(f"no checkpoint in {root} is whole: {'; '.join(wrong)}; restore one, or set another --out")
    return None, wrong


def complete(root: Path) -> list[Path]:
    """Finished checkpoints below `root`, oldest first; whether they are damaged is not looked at."""
    return [folder for folder in _folders(root) if (folder / manifest.NAME).is_file()]


def _folders(root: Path) -> list[Path]:
    """Raises RequestError where what lies there cannot be seen: a run would begin anew beside its checkpoints."""
    try:
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        if root.is_symlink():
            raise RequestError(f"{root} is a link to no folder; bring that back, or remove the link") from None
        return []
    except OSError as error:
        raise RequestError(f"{root} cannot be read ({error.strerror}); mend that, or name another folder") from None
    # Others are copies that somebody made, or saves that were cut off just before their rename.
    return sorted((root / name for name in names if re.fullmatch(r"step-\d+", name)), key=_step)


def find(folder: Path, flag: str) -> Path:
    """`folder` itself if it is a checkpoint, else the newest one of the run folder. Raises RequestError."""
    if (folder / manifest.NAME).is_file() or re.fullmatch(r"step-\d+", folder.name):
        return folder
    found = complete(folder / "checkpoints") or complete(folder)
    if not found:
        raise RequestError(f"no finished checkpoint (step-N/{manifest.NAME}) in {folder}; give another by {flag}")
    return found[-1]


def read_model(folder: Path, flag: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Whole fp32 parameters and facts of a verified checkpoint. Raises RequestError or WorkError."""
    facts = _verified(folder, flag)
    return load_file(folder / WEIGHTS), facts


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
