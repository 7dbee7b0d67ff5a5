"""The run folder: the newest checkpoint in it, refused unless it belongs to this very request, and the lock on it."""

import fcntl
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from asa import checkpoint, dist, manifest
from asa.config import to_dict
from asa.errors import RequestError
from pretrain.config import PretrainConfig

# What may differ between the parts of one run: it changes neither an update nor what a figure means. Shards and model
# are told by their contents, not by their paths.
FREE = ("out", "log_every", "eval_every", "save_every", "keep", "data", "model")


def newest(config: PretrainConfig, world: int) -> Path | None:
    """The checkpoint to continue from; None for a new run.

    Raises: RequestError naming the settings in which the run in `config.out` differs; WorkError when the newest
        checkpoint lacks a file.
    """
    found = checkpoint.complete(config.out / "checkpoints")
    if not found:
        return None
    facts = manifest.read(found[-1], checkpoint.KIND, "--out")
    mine, theirs = to_dict(config), facts["config"]
    different = [key for key in mine if key not in FREE and mine[key] != theirs.get(key)]
    if facts["shards"] != shards_sha256(config):
        different.append("data")
    if facts["world"] != world:
        different.append("nproc")
    if different:
        had = ", ".join(f"{key} {_shown(facts, key)}".strip() for key in different)
        raise RequestError(f"{config.out} holds a run with another {had}; give the same, or another --out")
    return found[-1]


def shards_sha256(config: PretrainConfig) -> str:
    """Hash of the shard manifest, which in turn has the hash of every file."""
    return manifest.file_sha256(config.data / manifest.NAME)


def _shown(facts: dict, key: str) -> str:
    """A setting of the run on disk, where it is short enough for one line."""
    value = facts["world"] if key == "nproc" else facts["config"].get(key, "")
    text = f"({value})"
    return text if re.fullmatch(r"\([\w.\-+]+\)", text) and key != "data" else ""


@contextmanager
def only_run(out: Path) -> Iterator[None]:
    """Hold OUT/.lock on rank 0. Raises RequestError on every rank where another process writes into `out`."""
    with ExitStack() as stack:

        def lock() -> None:
            out.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((out / ".lock").open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RequestError(f"another process is writing into {out}; end it or set another --out") from None

        dist.on_main(lock)
        yield
