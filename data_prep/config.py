"""The configs of the data_prep commands. Every path is relative to the working directory."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from asa.config import config
from data_prep.assets import ASSETS

Count = Annotated[int, Field(ge=1)]
MinChars = Annotated[int, Field(ge=1)]


def _known_assets(value: str) -> str:
    unknown = [name for name in value.split(",") if name not in ASSETS]
    if unknown:
        raise ValueError(f"no asset {unknown[0]!r}, allowed: {', '.join(ASSETS)}, separated by commas")
    return value


@config
class SampleConfig:
    """Fetch the small real assets that the quickstart runs on. The second run finds them and needs no network."""

    out: Path
    """Folder for the assets, one folder each."""
    assets: Annotated[str, AfterValidator(_known_assets)] = "enwiki,leads,bert-tiny"
    """Names separated by commas: enwiki (dump excerpt), leads (labelled articles), bert-tiny, minilm (models)."""


@config
class TextConfig:
    """Turn MediaWiki dumps into plain-text documents: OUT/documents.jsonl with the fields id, title, text."""

    inputs: Annotated[list[Path], Field(min_length=1)]
    """Dumps (pages-articles, .xml or .xml.bz2); on the command line simply the leading arguments."""
    out: Path
    """Folder for documents.jsonl and its manifest."""
    workers: Count = 1
    """Processes that strip markup. The output is the same for any number."""
    shard: Annotated[str, Field(pattern=r"^\d+/[1-9]\d*$")] = "0/1"
    """Part i of n, counted from 0: the pages whose running number leaves i when divided by n."""
    min_chars: MinChars = 40
    """Characters of plain text below which a page is dropped."""
    overwrite: bool = False
    """Replace documents at `out` that were made from other inputs or settings."""


@config
class BuildConfig:
    """Build the pre-training rows OUT/shards and, where leads are given, the labelled task OUT/task."""

    out: Path
    """Folder for the finished data; nothing is there until all of it is done."""
    model: Path
    """Hugging Face folder whose tokenizer is used: the checkpoint that will be trained on."""
    dumps: list[Path] = Field(default_factory=list)
    """Dumps (pages-articles, .xml or .xml.bz2), read in this order."""
    documents: list[Path] = Field(default_factory=list)
    """Folders made by `python -m data_prep text`, read after the dumps."""
    leads: Path | None = None
    """JSON of article leads with their topics, read last; its test articles are kept out of the rows."""
    length: Annotated[int, Field(ge=8)] = 128
    """Token ids per row, special tokens included."""
    heldout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the documents whose rows are held out from training."""
    min_chars: MinChars = 40
    """Characters of plain text below which a page is dropped."""
    workers: Count = 1
    """Processes that strip markup. The output is the same for any number."""
    overwrite: bool = False
    """Replace data at `out` that was built from other inputs or settings."""


@config
class VerifyConfig:
    """Check every byte of a finished folder against its manifest, and that its Arrow files open and agree with it."""

    folder: Path
    """Folder of shards, a task or documents, or a build with shards and task inside; simply the first argument."""
