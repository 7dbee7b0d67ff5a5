"""The command `text`: dumps -> OUT/documents.jsonl. Kept apart from `build`, whose libraries take seconds to load."""

from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

from asa import manifest
from asa.config import sha256_of
from asa.errors import RequestError
from data_prep.config import TextConfig
from data_prep.dump import check_paths, pages
from data_prep.finished import identity, is_up_to_date
from data_prep.text import NAME, documents, write_jsonl


def text(config: TextConfig) -> None:
    """Write OUT/documents.jsonl and its manifest. Raises RequestError or WorkError for bad inputs (see dump.pages)."""
    check_paths(config.inputs, "INPUT")
    index, count = map(int, config.shard.split("/"))
    if index >= count:
        raise RequestError(f"shard = {config.shard}: the part must be below {count}; set --shard")
    settings = replace(config, inputs=[Path()], out=Path(), workers=1, overwrite=False)
    made_from = identity(sha256_of(settings), config.inputs)
    if is_up_to_date(config.out, {"documents": config.out}, made_from, config.overwrite):
        return
    dropped: Counter[str] = Counter()
    every = chain.from_iterable(map(pages, config.inputs))
    mine = (page for number, page in enumerate(every) if number % count == index)
    found = documents(mine, dropped, min_chars=config.min_chars, workers=config.workers)
    with manifest.staging(config.out) as partial:
        kept = write_jsonl((document._asdict() for document in found), partial / NAME)
        facts = {"documents": {"kept": kept, "dropped": dict(sorted(dropped.items()))}}
        manifest.write(partial, "documents", {**facts, **made_from})
    print_documents(kept, dropped)
    print(f"written to {config.out}")


def print_documents(kept: int, dropped: dict[str, int]) -> None:
    print(f"documents kept: {kept:,}")
    for reason, count in sorted(dropped.items(), key=lambda item: -item[1]):
        print(f"  dropped, {reason}: {count:,}")
