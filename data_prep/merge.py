"""The command `merge`: what `--shard i/n` made on n machines -> the folder that one machine would have made."""

from pathlib import Path
from typing import Any

from asa import manifest
from asa.errors import RequestError, WorkError
from data_prep import stored
from data_prep.config import MergeConfig
from data_prep.extract import count_up, print_documents
from data_prep.finished import is_up_to_date
from data_prep.merge_shards import merge_shards
from data_prep.workspace import discard, workspace

KIND = "documents"


def merge(config: MergeConfig) -> None:
    """Join the parts, folders of documents or of `build`, into OUT, every byte verified.

    Raises: RequestError where a part is missing, there twice, or made from other inputs or settings; WorkError for a
        damaged part, or where none has a document.
    """
    if (config.parts[0] / "shards").is_dir():
        merge_shards(config.parts, config.out, config.overwrite)
        return
    facts = [manifest.read(part, KIND, "PART") for part in config.parts]
    whole = _whole(config.parts, facts)
    if not whole["documents"]["kept"]:
        raise WorkError(f"no part has a document (dropped: {whole['documents']['dropped']}); give more text")
    if is_up_to_date(config.out, {KIND: config.out}, whole, config.overwrite):
        discard(config.out, whole)
        return
    with workspace(config.out, whole, config.overwrite) as space:
        stored.copy(config.parts, KIND, space.out, "PART")
        manifest.write(space.out, KIND, whole)
    print_documents(whole["documents"]["kept"], whole["documents"]["dropped"])
    print(f"{len(config.parts)} parts joined; written to {config.out}")


def _whole(parts: list[Path], facts: list[dict[str, Any]]) -> dict[str, Any]:
    """The facts of the whole."""
    shards = [str(fact.get("shard", "")) for fact in facts]
    if "" in shards:
        raise RequestError(f"{parts[shards.index('')]} was not made with --shard; give PARTs that were")
    count = int(shards[0].partition("/")[2])
    for part, fact, shard in zip(parts, facts, shards, strict=True):
        if differing := [key for key in _settings(facts[0]) if fact.get(key) != facts[0][key]]:
            raise RequestError(
                f"{part} differs from {parts[0]} in {differing[0]}: parts need the same inputs and settings"
            )
        if int(shard.partition("/")[2]) != count:
            raise RequestError(f"{part} is shard {shard}, {parts[0]} is {shards[0]}: all must be of {count}")
        if shards.count(shard) > 1:
            raise RequestError(f"shard {shard} is given twice, once as {part}; name each PART once")
    if missing := [f"{index}/{count}" for index in range(count) if f"{index}/{count}" not in shards]:
        raise RequestError(f"shard {missing[0]} is missing; make it with --shard {missing[0]} and add it as PART")
    return {**facts[0], "documents": count_up([fact["documents"] for fact in facts]), "shard": "0/1"}


def _settings(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key not in ("documents", "shard")}
