"""The base checkpoint's own tokenizer, so that continual pre-training keeps every token id."""

from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from asa.errors import RequestError
from asa.hf import longest_row
from asa.portable import save_tokenizer
from asa.tokenizer import encoder_sha256, ids_of, load_tokenizer, vocab_sha256


class Special(NamedTuple):
    """The ids that packing and masking need."""

    pad: int
    cls: int
    sep: int
    mask: int


def refuse_shared(folder: Path, special: Special, unknown: int | None, flag: str) -> None:
    """Raises RequestError where what pads a row, separates texts and masks words is not told apart: attention leaves
    out padding, by its id. Not of rows that are there, which may be looked at all the same."""
    told = {name: special._asdict()[name] for name in ("pad", "sep", "mask")}
    for one, other in combinations(told, 2):
        if told[one] == told[other]:
            raise RequestError(
                f"{folder} has one id, {told[one]}, for its {one} and {other} tokens; give an encoder by {flag}"
            )
    if unknown in (special.pad, special.mask):
        raise RequestError(
            f"{folder} has one id, {unknown}, for unknown words and its pad or mask token; give an encoder by {flag}"
        )
    if special.cls in (special.pad, special.mask):
        raise RequestError(f"{folder} has the id of another special token for its cls token; give an encoder by {flag}")


class Vocabulary:
    """A tokenizer that rows can be made with, and what is known of it.

    vocab_sha256: of the table token -> id; equal ones read each other's rows. encoder_sha256: of everything that
    decides the ids of a text (normalisation, splitting, merges), so of the rows' bytes.
    Raises: RequestError for a folder without a fast tokenizer, one that lacks a special token, or a `length` or ids
        above what the tokenizer takes, or its model whose config.json lies beside it.
    """

    def __init__(self, folder: Path, length: int, flag: str = "--model") -> None:
        tokenizer = load_tokenizer(folder, flag)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise RequestError(f"{folder} has no fast tokenizer; give a folder with one by {flag}")
        ids = {name: getattr(tokenizer, f"{name}_token_id") for name in Special._fields}
        if missing := [name for name, value in ids.items() if value is None]:
            raise RequestError(f"{folder} has no {missing[0]} token, which packed rows need; give an encoder by {flag}")
        self.special = Special(**ids)
        self.unknown: Any = tokenizer.unk_token_id  # an id or None
        self.size = ids_of(tokenizer)
        if length > (most := min(tokenizer.model_max_length, longest_row(folder, flag, self.size))):
            raise RequestError(f"length = {length}: {folder} takes at most {most}; set --length")
        self.vocab_sha256 = vocab_sha256(tokenizer)
        self.encoder_sha256 = encoder_sha256(tokenizer)
        self._tokenizer = tokenizer

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {
            "vocab_size": self.size,
            "special_ids": self.special._asdict(),
            "tokenizer_sha256": self.vocab_sha256,
            "encoder_sha256": self.encoder_sha256,
        }

    def save(self, folder: Path) -> Path:
        """Write the tokenizer into `folder` as Hugging Face has it; returns its tokenizer.json."""
        save_tokenizer(self._tokenizer, folder)
        return folder / "tokenizer.json"
