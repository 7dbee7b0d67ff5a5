"""The run folder: the newest checkpoint in it, refused unless it belongs to this very request, and the lock on it."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from asa import checkpoint, dist, hf, manifest, record
from asa.config import flat, to_dict
from asa.errors import RequestError
from asa.methods import groups_read, groups_unread, source_sha256
from asa.places import locked
from pretrain.config import PretrainConfig, unread_by

# What may differ between the parts of one run: it changes neither an update nor what a figure means. Shards and models
# are told by their contents, not by their paths.
FREE = ("out", "log_every", "eval_every", "save_every", "keep", "data", "model", "on_nonfinite", "on_save_error")
FREE += ("hang_timeout", "wandb")
# Nor do these, but by rounding and, where micro_batch changes, by which places dropout zeroes.
FREE += ("zero", "offload", "micro_batch", "activation_checkpointing", "rtd.generator", "random_mask.schedule")
# Inputs that have no flag of their own.
CONTENTS = {"method_sha256": "file of the method", "schedule_sha256": "content of random_mask.schedule"}
# Beside the record, which is written first.
MADE = ("environment.json", "tensorboard", "config.yaml")
HELDOUT = "heldout"  # which rows are scored; records of before do not tell
ANEW = "the rows are the same, what is drawn (as dropout) is drawn anew"


def newest(config: PretrainConfig, world: int, tell: Callable[[str], None] = lambda line: None) -> Path | None:
    """The checkpoint to continue from, every byte of it verified; None for a new run. `tell` gets a line for each newer
    one that is damaged or unfinished. The number of processes, `world`, may be another than before.

    Raises: RequestError naming the settings in which the run in `config.out` differs, or for the record of another
        stage's run or of a finished one, which a new run would take away; WorkError when there are
        checkpoints and all of them are damaged (a run never starts from nothing again by itself), the newest was made
        by another version, or the record is damaged.
    """
    found, wrong = checkpoint.newest_good(config.out / "checkpoints")
    if found is None:
        _refuse_record(config.out)
        for line in wrong:
            tell(f"warning: {line}; starting from the beginning")
        return None
    facts = manifest.read(found, checkpoint.KIND, "--out")
    different = list(_different(to_dict(config), facts["config"]))
    own, known = inputs(config), facts["inputs"]
    if HELDOUT not in known:
        tell("held-out rows beyond --eval_rows are left out at even distances, no more from the end: other scores")
        own.pop(HELDOUT)
    different += [name for name in own | known if own.get(name) != known.get(name) and name not in different]
    if different:
        named = (CONTENTS.get(key) or f"{setting_of(key)} {_shown(facts, key)}".strip() for key in different)
        had = ", ".join(dict.fromkeys(named))
        longer = "; to train longer, export it and give --model that folder" if different == ["steps"] else ""
        raise RequestError(f"{config.out} holds a run with another {had}; give the same, or another --out{longer}")
    record.read(config.out / record.NAME)  # its damage is told here, before ranks are started that would tell it too
    for line in wrong:
        tell(f"warning: {line}; continuing from {found.name} instead")
    if complete(config, found):
        return found  # nothing is drawn or summed any more
    before, now = facts.get("threads"), threads()
    if before and now and before != now:
        tell(f"from {before} to {now} threads a process: sums round otherwise, OMP_NUM_THREADS sets it")
    if facts["world"] != world:
        tell(f"from {facts['world']} to {world} processes: {ANEW}")
    elif config.micro(world) != (micro := replace(config, micro_batch=facts["config"]["micro_batch"]).micro(world)):
        tell(f"micro-batches of {config.micro(world)} rows, not {micro}: {ANEW}")
    return found


def threads() -> int | None:
    """Of this process, on which the last bits of its sums depend; None where a GPU takes them."""
    return None if torch.cuda.is_available() else torch.get_num_threads()


def _refuse_record(out: Path) -> None:
    """Raises RequestError where a run without checkpoints is to begin over the record of another one."""
    events = record.read(out / record.NAME)
    for path in (out / name for name in MADE if not events):
        if path.exists():
            raise RequestError(f"{path} is there without a record and would be replaced; move it or set another --out")
    stage = events[0].get("stage", "pretrain") if events else "pretrain"
    if stage != "pretrain":
        raise RequestError(f"{out} holds a run of stage {stage}; set another --out")
    if record.finished(out / record.NAME):
        raise RequestError(f"{out} holds a finished run without its checkpoints; bring them back, or set another --out")


def complete(config: PretrainConfig, found: Path | None) -> bool:
    """Whether nothing is left to do after the checkpoint `found`. Then nothing is written: the record and config.yaml
    tell of the settings and the time that the steps were made with."""
    last = found is not None and found.name == f"step-{config.steps}"
    return last and record.finished(config.out / record.NAME)


def _different(mine: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """Dotted keys of the settings that are not free to differ, as those of other methods are."""
    free = {*FREE, *groups_unread(mine["method"]), *unread_by(mine["objective"], mine["method"])}
    for key in mine | theirs:  # a newer version may have settings that are unknown here
        if key not in free and mine.get(key) != theirs.get(key):
            ours, their_own = flat({key: mine.get(key)}), flat({key: theirs.get(key)})
            known = {**ours, **their_own}
            yield from (name for name in known if name not in free and ours.get(name) != their_own.get(name))


def setting_of(name: str) -> str:
    """The setting that names an input."""
    others = {"generator": "rtd.generator", "method_sha256": "method", "schedule_sha256": "random_mask.schedule"}
    others["shape"] = "model"
    return others.get(name, name)


def inputs(config: PretrainConfig) -> dict[str, str]:
    """What the run reads, by contents: the shard manifest, which has the hash of every file, the model, its shape
    alone, by which runs compare, a generator of its own, a schedule of masks, and the file of a method from outside;
    also which held-out rows count."""
    found = {"data": manifest.file_sha256(config.data / manifest.NAME), "model": hf.weights_sha256(config.model)}
    found["shape"] = manifest.file_sha256(config.model / "config.json")
    found[HELDOUT] = "even distances"
    if config.objective == "rtd" and config.rtd.generator is not None:
        found["generator"] = hf.weights_sha256(config.rtd.generator)
    if config.random_mask.schedule is not None and "random_mask" in groups_read(config.method):
        found["schedule_sha256"] = manifest.file_sha256(config.random_mask.schedule)
    method = source_sha256(config.method)
    return found if method is None else found | {"method_sha256": method}


def _shown(facts: dict, key: str) -> str:
    """A setting of the run on disk, where it is short enough for one line."""
    value = flat(facts["config"]).get(key, "")
    text = f"({value})"
    return text if re.fullmatch(r"\([\w.\-+]+\)", text) and key not in ("data", "model") else ""


@contextmanager
def only_run(out: Path) -> Iterator[None]:
    """Hold OUT/.lock on rank 0. Raises RequestError on every rank where another process writes into `out`, or this one
    cannot."""
    with ExitStack() as stack:

        def lock() -> None:
            try:
                out.mkdir(parents=True, exist_ok=True)
                taken = f"another process is writing into {out}; end it or set another --out"
                stack.enter_context(locked(out / ".lock", taken))
            except OSError as error:
                raise RequestError(f"{out} is no folder to write into ({error.strerror}); set another --out") from None

        dist.on_main(lock)
        yield
