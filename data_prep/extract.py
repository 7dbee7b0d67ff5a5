"""The command `text`: dumps and other text -> OUT/documents-*.jsonl, a file for each part of the input."""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from asa import manifest
from asa.config import sha256_of
from data_prep import sources
from data_prep.config import TextConfig
from data_prep.finished import identity, is_up_to_date
from data_prep.share import numbers
from data_prep.text import write_jsonl
from data_prep.workspace import Fruitless, check_apart, workspace


def text(config: TextConfig) -> None:
    """Write OUT/documents-*.jsonl and the manifest. Raises RequestError or WorkError for bad inputs (see sources)."""
    check_apart(config.out, config.inputs)
    found = sources.find(config.inputs, "INPUT")
    index, count = numbers(config.shard)
    parts = sources.parts(found)
    settings = replace(config, inputs=[Path()], out=Path(), workers=1, shard="0/1", overwrite=False)
    made_from = {**identity(sha256_of(settings), found), "shard": config.shard}
    if is_up_to_date(config.out, {"documents": config.out}, made_from, config.overwrite):
        return
    with workspace(config.out, made_from, config.overwrite) as space:
        work = partial(write_part, config.min_chars)
        facts = count_up(space.run("text", work, parts[index::count], space.out, config.workers))
        if not facts["kept"] and count == 1:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in facts["dropped"].items())
            why = f"every one was dropped: {counts}" if counts else "no pages and no text in it"
            also = ", or lower --min_chars" if "too short" in facts["dropped"] else ""
            raise Fruitless(f"{', '.join(found)}: no documents in it ({why}); give a pages-articles dump or text{also}")
        manifest.write(space.out, "documents", {"documents": facts, **made_from})
    print_documents(facts["kept"], facts["dropped"])
    print(f"written to {config.out}")


def write_part(min_chars: int, numbered: tuple[int, sources.Task], folder: Path) -> dict[str, Any]:
    """One part's documents to its file in `folder`; what was kept and dropped."""
    number, task = numbered
    dropped: Counter[str] = Counter()
    found = sources.documents(task, dropped, min_chars)
    kept = write_jsonl((document._asdict() for document in found), folder / f"documents-{number:06d}.jsonl")
    return {"kept": kept, "dropped": dropped}


def count_up(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of all parts together."""
    dropped: Counter[str] = Counter()
    for part in parts:
        dropped.update(part["dropped"])
    return {"kept": sum(part["kept"] for part in parts), "dropped": dict(sorted(dropped.items()))}


def print_documents(kept: int, dropped: dict[str, int]) -> None:
    print(f"documents kept: {kept:,}")
    for reason, count in sorted(dropped.items(), key=lambda item: -item[1]):
        print(f"  dropped, {reason}: {count:,}")
