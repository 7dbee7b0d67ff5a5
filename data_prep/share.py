"""A share of the work, "i/n": the parts whose number leaves i when divided by n; and n shares as one whole."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from asa.errors import RequestError

Shard = Annotated[str, Field(pattern=r"^(0|[1-9]\d*)/[1-9]\d*$")]


def numbers(shard: str) -> tuple[int, int]:
    """i and n of "i/n". Raises RequestError where i is not below n."""
    index, count = map(int, shard.split("/"))
    if index >= count:
        raise RequestError(f"shard = {shard}: the part must be below {count}; set --shard")
    return index, count


def check_whole(parts: list[Path], facts: list[dict[str, Any]], own: Collection[str]) -> None:
    """Are these parts, by the facts of their manifests, all n of one whole, each once? `own`: facts of a part alone.

    Raises: RequestError that names a part of other inputs or settings, of another n, missing or given twice.
    """
    shards = [str(found.get("shard", "")) for found in facts]
    if "" in shards:
        raise RequestError(f"{parts[shards.index('')]} was not made with --shard; give PARTs that were")
    common = [{key: value for key, value in found.items() if key not in {*own, "shard"}} for found in facts]
    _, count = numbers(shards[0])
    for part, found, shard in zip(parts, common, shards, strict=True):
        if different := sorted(key for key in {*found, *common[0]} if found.get(key) != common[0].get(key)):
            raise RequestError(
                f"{part} differs from {parts[0]} in {different[0]}: parts need the same inputs and settings"
            )
        if numbers(shard)[1] != count:
            raise RequestError(f"{part} is shard {shard}, {parts[0]} is {shards[0]}: all must be of {count}")
        if shards.count(shard) > 1:
            raise RequestError(f"shard {shard} is given twice, once as {part}; name each PART once")
    if missing := [f"{index}/{count}" for index in range(count) if f"{index}/{count}" not in shards]:
        raise RequestError(f"shard {missing[0]} is missing; make it with --shard {missing[0]} and add it as PART")
