"""The configs of the data_prep commands. Every path is relative to the working directory."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from asa.config import config
from data_prep.assets import ASSETS
from data_prep.share import Shard

Count = Annotated[int, Field(ge=1)]


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
    """Turn dumps, or text of other forms, into plain-text documents: OUT/documents-*.jsonl (id, title, text)."""

    inputs: Annotated[list[Path], Field(min_length=1)]
    """Dumps (.xml, .bz2 of any kind), text of your own (.jsonl, .jsonl.zst, .txt, .parquet), globs of these in quotes,
    data sets (hub:NAME[:CONFIG[:SPLIT]]); on the command line simply the leading arguments."""
    out: Path
    """Folder for the documents and their manifest."""
    workers: Count = 1
    """Processes that strip markup. The output is the same for any number."""
    shard: Shard = "0/1"
    """Part i of n, counted from 0: the parts of the input whose number leaves i when divided by n; see merge."""
    min_chars: Count = 40
    """Characters of plain text below which a page is dropped."""
    overwrite: bool = False
    """Replace documents at `out`, or unfinished ones, that were made from other inputs or settings."""


@config
class DedupConfig:
    """Drop exact and near duplicates from documents; the first of them stays, the order too."""

    inputs: Annotated[list[Path], Field(min_length=1)]
    """Folders made by `python -m data_prep text`, in the order that says which is first; simply the leading arguments.
    """
    out: Path
    """Folder for the documents that stay and their manifest."""
    near: Annotated[float, Field(ge=0.7, le=1)] = 0.8
    """Share of word five-grams in common (Jaccard, estimated) from which documents are near duplicates; 1: exact ones
    alone are dropped."""
    workers: Count = 1
    """Processes that hash and copy. The output is the same for any number."""
    overwrite: bool = False
    """Replace documents at `out`, or unfinished ones, that were made from other inputs or settings."""


@config
class MergeConfig:
    """Join what `--shard i/n` made on n machines into the folder that one machine would have made."""

    parts: Annotated[list[Path], Field(min_length=1)]
    """All n folders, in any order; simply the leading arguments."""
    out: Path
    """Folder for the whole."""
    overwrite: bool = False
    """Replace a folder at `out` that was made from other parts."""


@config
class BuildConfig:
    """Build the pre-training rows OUT/shards and, where leads are given, the labelled task OUT/task."""

    out: Path
    """Folder for the finished data; nothing is there until all of it is done."""
    model: Path
    """Hugging Face folder whose tokenizer is used: the checkpoint that will be trained on."""
    dumps: list[Path] = Field(default_factory=list)
    """Dumps, or text in any other form that `python -m data_prep text` takes, read in this order."""
    documents: list[Path] = Field(default_factory=list)
    """Folders made by `python -m data_prep text`, `dedup` or `merge`, read after the dumps."""
    leads: Path | None = None
    """JSON of article leads with their topics, read last; its test articles are kept out of the rows."""
    dedup: Annotated[float | None, Field(ge=0.7, le=1)] = None
    """Share of word five-grams in common (Jaccard, estimated) from which documents are duplicates, of which the first
    stays; 1: equal texts alone are; unset: duplicates stay."""
    length: Annotated[int, Field(ge=8, le=2**16)] = 128
    """Token ids per row, special tokens included."""
    packing: Literal["packed", "single"] = "packed"
    """packed: documents follow each other, long ones go on in the next row; single: one a row, cut or padded."""
    heldout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the documents whose rows are held out from training."""
    min_chars: Count = 40
    """Characters of plain text below which a page, or a text, of `dumps` is dropped."""
    workers: Count = 1
    """Processes that strip markup and make rows. The output is the same for any number."""
    shard: Shard = "0/1"
    """Part i of n, counted from 0, for n machines: the parts of the work whose number leaves i when divided by n; all n
    results go to merge."""
    overwrite: bool = False
    """Replace data at `out`, or unfinished work, that was made from other inputs or settings."""


@config
class TokenizerConfig:
    """Train a vocabulary on documents, for models trained from nothing; with `arch` a fresh model comes beside it."""

    documents: Annotated[list[Path], Field(min_length=1)]
    """Folders made by `python -m data_prep text`; on the command line simply the leading arguments."""
    out: Path
    """Hugging Face folder to write: good for --model of `build` and, with `arch`, of pre-training."""
    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    """wordpiece (as BERT has it) or bpe (byte-level, as RoBERTa has it)."""
    vocab_size: Annotated[int, Field(ge=300)] = 30_000
    """Tokens, special ones included."""
    lowercase: bool = False
    """Fold case; wordpiece then strips accents too."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the documents to learn from, chosen by a hash of the title."""
    arch: Path | None = None
    """Folder with the config.json whose shape the fresh model takes; its vocabulary is replaced."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the fresh model's weights."""
    overwrite: bool = False
    """Replace a tokenizer at `out` that was made from other inputs or settings."""


@config
class VerifyConfig:
    """Check every byte of a finished folder against its manifest, and that its Arrow files open and agree with it."""

    folder: Path
    """Folder of shards, a task, documents or a tokenizer, or a build with several inside; simply the first argument."""
    model: Path | None = None
    """Hugging Face folder whose vocabulary must be the one the rows were made with."""


@config
class InspectConfig:
    """Show rows of a finished data set as text, with document lengths and what was dropped."""

    folder: Path
    """Folder of shards, or a build with shards inside; simply the first argument."""
    rows: Count = 4
    """Rows of each split to show, at even distances."""
    page: Path | None = None
    """HTML page to write as well."""
