"""The command `build`: dumps, documents and leads -> one finished folder of rows and a task, or nothing."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from asa import manifest
from asa.config import sha256_of
from asa.errors import RequestError
from data_prep import leads as leads_file
from data_prep import shards
from data_prep.config import BuildConfig
from data_prep.dump import Page, check_paths, pages
from data_prep.extract import print_documents
from data_prep.finished import identity, is_up_to_date
from data_prep.text import NAME, Document, documents, read_documents
from data_prep.tokenizer import Encoder


def build(config: BuildConfig) -> None:
    """Write OUT/shards and, with leads, OUT/task. Raises RequestError or WorkError; then nothing is at OUT."""
    files = [*config.dumps, *(folder / NAME for folder in config.documents), *filter(None, [config.leads])]
    if not files:
        raise RequestError("nothing to build from; give --dumps, --documents or --leads")
    check_paths(config.dumps, "--dumps")
    for folder in config.documents:
        manifest.read(folder, "documents", "--documents")
    leads = leads_file.load(config.leads) if config.leads else []
    encoder = Encoder(config.model, config.length)
    # What the inputs and the tokenizer are is told by their hashes, so paths stay out of the settings' hash.
    settings = replace(config, out=Path(), model=Path(), dumps=[], documents=[], leads=None, workers=1, overwrite=False)
    made_from = {**identity(sha256_of(settings), files), "tokenizer_sha256": encoder.sha256}
    kinds = ("shards", "task") if leads else ("shards",)
    if is_up_to_date(config.out, {kind: config.out / kind for kind in kinds}, made_from, config.overwrite):
        return
    with manifest.staging(config.out) as partial:
        facts = _write_shards(config, encoder, leads, made_from, partial / "shards")
        counts = leads_file.write_task(leads, made_from["sources"][-1], partial / "task") if leads else {}
    _print_summary(config.out, facts, counts)


def _write_shards(
    config: BuildConfig, encoder: Encoder, leads: list[leads_file.Lead], made_from: dict[str, Any], folder: Path
) -> dict[str, Any]:
    folder.mkdir()
    dropped: Counter[str] = Counter()
    found = _all_documents(config, leads, dropped)
    facts = shards.write(found, encoder, folder, length=config.length, heldout=config.heldout, dropped=dropped)
    manifest.write(folder, "shards", {**facts, **made_from})
    return facts


def _all_documents(config: BuildConfig, leads: list[leads_file.Lead], dropped: Counter[str]) -> Iterator[Document]:
    banned = leads_file.kept_out(leads)
    every: Iterator[Page] = chain.from_iterable(map(pages, config.dumps))
    if config.dumps:
        yield from documents(every, dropped, min_chars=config.min_chars, workers=config.workers, kept_out=banned)
    for folder in config.documents:
        yield from leads_file.without(banned, read_documents(folder, "--documents"), dropped)
    yield from leads_file.documents(leads, dropped)


def _print_summary(out: Path, facts: dict[str, Any], counts: dict[str, int]) -> None:
    print_documents(facts["documents"]["kept"], facts["documents"]["dropped"])
    for split in shards.SPLITS:
        print(f"{split}: {facts['rows'][split]:,} rows of {facts['length']} ids, {facts['tokens'][split]:,} tokens")
    print(f"written to {out / 'shards'}")
    if counts:
        rows = ", ".join(f"{split} {count:,}" for split, count in counts.items())
        print(f"task {leads_file.TASK}: {rows}; written to {out / 'task'}")
