"""The command `build`: dumps, documents and leads -> one finished folder of rows and a task, or nothing."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Features, List, Value

from asa import manifest
from asa.config import sha256_of
from asa.errors import RequestError
from data_prep import duplicates, minhash, shards, sources, stored
from data_prep import leads as leads_file
from data_prep.config import BuildConfig
from data_prep.duplicates import Flags
from data_prep.encode import storage_type
from data_prep.extract import count_up, print_documents, write_part
from data_prep.finished import identity, is_up_to_date
from data_prep.parts import Part
from data_prep.share import numbers
from data_prep.text import text_key, title_key, write_jsonl
from data_prep.tokenizer import Vocabulary, refuse_shared
from data_prep.workspace import Fruitless, Workspace, check_apart, workspace

TOKENIZER = "tokenizer"  # folder in the shards


def build(config: BuildConfig) -> None:
    """Write OUT/shards and, with leads, OUT/task. Raises RequestError or WorkError; then nothing is at OUT."""
    if not (config.dumps or config.documents or config.leads):
        raise RequestError("nothing to build from; give --dumps, --documents or --leads")
    if config.min_chars != BuildConfig.min_chars and not config.dumps:
        raise RequestError(f"min_chars = {config.min_chars}, which --dumps alone is held to; leave --min_chars out")
    check_apart(config.out, [*config.dumps, *config.documents, *filter(None, [config.leads])])
    _shard(config)
    for folder in config.documents:
        stored.facts(folder, "--documents")
    leads = leads_file.load(config.leads) if config.leads else []
    vocabulary = Vocabulary(config.model, config.length)
    refuse_shared(config.model, vocabulary.special, vocabulary.unknown, "--model")
    made_from = _made_from(config, vocabulary)
    kinds = {_kind(config): config.out / "shards", **({"task": config.out / "task"} if leads else {})}
    if is_up_to_date(config.out, kinds, made_from, config.overwrite):
        return
    with workspace(config.out, made_from, config.overwrite) as space:
        task = space.out / "task"
        counts = _write_task(leads, made_from["sources"][-1], task) if leads else {}
        made_with = {"task_sha256": manifest.file_sha256(task / manifest.NAME)} if leads else {}
        facts = _write_shards(config, vocabulary, leads, {**made_from, **made_with}, space)
    _print_summary(config.out, facts, counts, whole=config.shard == "0/1")


def _made_from(config: BuildConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    found = sources.find(config.dumps, "--dumps") if config.dumps else []
    files = [*found, *(folder / manifest.NAME for folder in config.documents), *filter(None, [config.leads])]
    # What the inputs and the tokenizer are is told by their hashes, so paths stay out of the settings' hash.
    told_by_content = replace(config, out=Path(), model=Path(), dumps=[], documents=[], leads=None)
    settings = replace(told_by_content, workers=1, overwrite=False, shard="0/1")
    signed = {} if config.dedup is None else {"minhash": minhash.ALGORITHM}
    return {**identity(sha256_of(settings), files), **vocabulary.facts(), **signed, "shard": config.shard}


def _write_shards(
    config: BuildConfig,
    vocabulary: Vocabulary,
    leads: list[leads_file.Lead],
    made_from: dict[str, Any],
    space: Workspace,
) -> dict[str, Any]:
    folder, (index, count) = space.out / "shards", _shard(config)
    dumps = sources.parts(sources.find(config.dumps, "--dumps")) if config.dumps else []
    given = stored.files(config.documents, "--documents")
    work = partial(write_part, config.min_chars)
    extracted = space.run("text", work, dumps[index::count], space.root / "documents", config.workers)
    tested = leads_file.tested(leads)
    recipe = _recipe(config, vocabulary, vocabulary.save(folder / TOKENIZER), tested)
    # Numbers, and with them the names of files, are the same whether or not the work is shared.
    paths = dict(enumerate(given, len(dumps)))
    paths |= {int(path.stem.rpartition("-")[2]): path for path in (space.root / "documents").glob("*.jsonl")}
    if leads:
        paths[len(dumps) + len(given)] = _write_leads(leads, space.root / "leads.jsonl")
    mine = {number: paths[number] for number in sorted(paths) if number % count == index}
    todo = _parts(mine, tested, config, space)
    done = space.run("rows", partial(shards.write_part, recipe), todo, folder, config.workers)
    dropped = {"documents": {"dropped": count_up(extracted)["dropped"]}}
    facts = {**shards.total([shards.NOTHING, *done, dropped]), **_row_facts(vocabulary, config)}
    if count == 1 and not facts["rows"]["train"]:
        raise _fruitless(facts["documents"])
    manifest.write(folder, _kind(config), {**facts, **made_from})
    return facts


def _fruitless(documents: dict[str, Any]) -> Fruitless:
    if documents["kept"]:
        return Fruitless(
            f"no document was left to train on: all {documents['kept']:,} are held out, those of one title together;"
            " give them titles of their own, more text, or set a smaller --heldout"
        )
    why = f" (dropped: {documents['dropped']})" if documents["dropped"] else ""
    return Fruitless(f"no document was left to train on{why}; give more text by --dumps or --documents")


def _shard(config: BuildConfig) -> tuple[int, int]:
    index, count = numbers(config.shard)
    if count > 1 and config.dedup is not None:
        advice = "make documents with text --shard, join them with merge, then build from --documents"
        raise RequestError(f"shard = {config.shard}: --dedup needs all documents at once; {advice}")
    return index, count


def _kind(config: BuildConfig) -> str:
    return "shards" if config.shard == "0/1" else shards.PART


def _write_leads(leads: list[leads_file.Lead], path: Path) -> Path:
    write_jsonl(({"id": f"lead:{lead.title}", "title": lead.title, "text": lead.text} for lead in leads), path)
    return path


def _recipe(
    config: BuildConfig, vocabulary: Vocabulary, tokenizer: Path, tested: list[leads_file.Lead]
) -> shards.Recipe:
    ids = List(Value(storage_type(vocabulary.size).name), length=config.length)
    schema = Features({shards.COLUMN: ids}).arrow_schema.serialize().to_pybytes()
    pad, cls, sep, _ = vocabulary.special
    return shards.Recipe(
        tokenizer=tokenizer,
        schema=schema,
        pad=pad,
        cls=cls,
        sep=sep,
        length=config.length,
        packing=config.packing,
        heldout=config.heldout,
        kept_out=frozenset(title_key(lead.title) for lead in tested),
        kept_out_texts=frozenset(text_key(lead.text) for lead in tested),
    )


def _parts(paths: dict[int, Path], tested: list[leads_file.Lead], config: BuildConfig, space: Workspace) -> list[Part]:
    flags: Sequence[Flags | None] = [None] * len(paths)
    if config.dedup is not None:
        # First those that become no row, so that nothing like them becomes one.
        before = [_write_leads(tested, space.root / "tested.jsonl")] if tested else []
        flags = duplicates.find(space, [*before, *paths.values()], config.dedup, config.workers)[len(before) :]
    named = [(f"{number:05d}", path, found) for (number, path), found in zip(paths.items(), flags, strict=True)]
    return [Part(name, path.stat().st_size, (name, path, found)) for name, path, found in named]


def _row_facts(vocabulary: Vocabulary, config: BuildConfig) -> dict[str, Any]:
    return {
        "length": config.length,
        "packing": config.packing,
        "dtype": storage_type(vocabulary.size).name,
    }


def _write_task(leads: list[leads_file.Lead], source: dict[str, str], folder: Path) -> dict[str, int]:
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    return leads_file.write_task(leads, source, folder)


def _print_summary(out: Path, facts: dict[str, Any], counts: dict[str, int], whole: bool) -> None:
    print_documents(facts["documents"]["kept"], facts["documents"]["dropped"])
    for split in shards.SPLITS:
        print(f"{split}: {facts['rows'][split]:,} rows of {facts['length']} ids, {facts['tokens'][split]:,} tokens")
    if not facts["rows"]["heldout"] and whole:
        print(
            "no row is held out, and pre-training evaluates on some: give more text, of more titles (documents of one"
            " are held out together), or a larger --heldout"
        )
    print(f"written to {out / 'shards'}")
    if counts:
        rows = ", ".join(f"{split} {count:,}" for split, count in counts.items())
        print(f"task {leads_file.TASK}: {rows}; written to {out / 'task'}")
