"""The base checkpoint's own tokenizer, so that continual pre-training keeps every token id."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from asa.errors import RequestError
from asa.hf import load_tokenizer, vocab_sha256


class Special(NamedTuple):
    """The ids that packing and masking need."""

    pad: int
    cls: int
    sep: int
    mask: int


class Encoder:
    """Text -> token ids without special tokens.

    Raises: RequestError for a folder without a fast tokenizer, one that lacks a special token, or a `length` above
        what the tokenizer's model takes.
    """

    def __init__(self, folder: Path, length: int, flag: str = "--model") -> None:
        tokenizer = load_tokenizer(folder, flag)
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise RequestError(f"{folder} has no fast tokenizer; give a folder with one by {flag}")
        ids = {name: getattr(tokenizer, f"{name}_token_id") for name in Special._fields}
        if missing := [name for name, value in ids.items() if value is None]:
            raise RequestError(f"{folder} has no {missing[0]} token, which packed rows need; give an encoder by {flag}")
        if length > tokenizer.model_max_length:
            raise RequestError(f"length = {length}: {folder} takes at most {tokenizer.model_max_length}; set --length")
        self.special = Special(**ids)
        self.sha256 = vocab_sha256(tokenizer)
        self.vocab_size = max(tokenizer.get_vocab().values()) + 1
        # The backend is copied because a saved tokenizer may carry truncation and padding, which would lose text.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        # A "[MASK]" written in an article is text, not the mask token.
        self._backend.encode_special_tokens = True

    @property
    def dtype(self) -> np.dtype:
        """The narrowest unsigned type that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, whole and in order."""
        return [item.ids for item in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
