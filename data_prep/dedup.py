"""The command `dedup`: folders of documents -> one folder without exact and near duplicates, order kept.

Three stages: hash every document, a file at a time; compare the hashes; copy the documents that stay, a file at a time.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from asa import manifest
from asa.config import sha256_of
from data_prep import duplicates, minhash, stored
from data_prep.config import DedupConfig
from data_prep.duplicates import Flags
from data_prep.extract import count_up, print_documents
from data_prep.finished import identity, is_up_to_date
from data_prep.parts import Part
from data_prep.workspace import Workspace, check_apart, workspace


def dedup(config: DedupConfig) -> None:
    """Write OUT/documents-*.jsonl and the manifest. Raises RequestError or WorkError for bad inputs."""
    check_apart(config.out, config.inputs)
    before = [stored.facts(folder, "INPUT")["documents"] for folder in config.inputs]
    settings = replace(config, inputs=[Path()], out=Path(), workers=1, overwrite=False)
    made_from = identity(sha256_of(settings), [folder / manifest.NAME for folder in config.inputs])
    made_from |= {"shard": "0/1", "minhash": minhash.ALGORITHM}
    if is_up_to_date(config.out, {"documents": config.out}, made_from, config.overwrite):
        return
    files = stored.files(config.inputs, "INPUT")
    with workspace(config.out, made_from, config.overwrite) as space:
        counts = _without_duplicates(config, files, space)
        facts = {**count_up([*before, counts]), "kept": counts["kept"]}
        manifest.write(space.out, "documents", {"documents": facts, **made_from})
    print_documents(facts["kept"], facts["dropped"])
    print(f"written to {config.out}")


def _without_duplicates(config: DedupConfig, files: list[Path], space: Workspace) -> dict[str, Any]:
    found = duplicates.find(space, files, config.near, config.workers)
    parts = [
        Part(f"{number:06d}", path.stat().st_size, (number, path, flags))
        for number, (path, flags) in enumerate(zip(files, found, strict=True))
    ]
    return count_up(space.run("copy", copy_part, parts, space.out, config.workers))


def copy_part(task: tuple[int, Path, Flags], folder: Path) -> dict[str, Any]:
    """Copy the lines of one file that are no duplicates."""
    number, path, flags = task
    reasons = flags.reasons()
    counts = Counter(reasons)
    with path.open("rb") as source, (folder / f"documents-{number:06d}.jsonl").open("wb") as target:
        target.writelines(line for line, gone in zip(source, reasons, strict=True) if not gone)
    return {"kept": counts.pop("", 0), "dropped": counts}
