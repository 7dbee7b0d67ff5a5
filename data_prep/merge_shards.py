"""The parts that `build --shard i/n` made on n machines -> the data set that one machine would have made."""

import shutil
from pathlib import Path

from asa import manifest
from asa.errors import WorkError
from data_prep import stored
from data_prep.finished import is_up_to_date
from data_prep.shards import COUNTED, PART, total
from data_prep.share import check_whole
from data_prep.workspace import workspace

FLAG = "PART (the first arguments)"


def merge_shards(parts: list[Path], out: Path, overwrite: bool) -> None:
    """Join all n parts (the folders that build wrote, in any order) into OUT, every byte of them verified.

    Raises: RequestError for parts that are no whole, or an `out` that must be left alone; WorkError for damage.
    """
    facts = [manifest.read(part / "shards", PART, FLAG) for part in parts]
    check_whole(parts, facts, COUNTED)
    whole = {**facts[0], **total([{key: found[key] for key in COUNTED} for found in facts]), "shard": "0/1"}
    if not whole["rows"]["train"]:
        raise WorkError(f"no part has a row to train on (dropped: {whole['documents']['dropped']}); give more text")
    # The leads' task, where there is one, is in every part.
    kinds = {"shards": PART} | ({"task": "task"} if "task_sha256" in whole else {})
    if "task" in kinds:
        for part in parts:
            manifest.read(part / "task", "task", FLAG)
    if is_up_to_date(out, {kind: out / kind for kind in kinds}, whole, overwrite):
        return
    with workspace(out, whole, overwrite) as space:
        for name, kind in kinds.items():
            stored.copy([part / name for part in parts], kind, space.out / name, FLAG)
        if "task" in kinds:
            shutil.copy2(parts[0] / "task" / manifest.NAME, space.out / "task")
        manifest.write(space.out / "shards", "shards", whole)
    rows = ", ".join(f"{split} {count:,}" for split, count in whole["rows"].items())
    print(f"{len(parts)} parts joined, rows: {rows}; written to {out}")
