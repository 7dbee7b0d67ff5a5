"""Text -> token ids, by the `tokenizers` library alone: worker processes load nothing else for it."""

import json
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

# Pieces of text kept with their ids, and the longest of them: at most about 100 MB for each of two tables.
_KEPT, _LETTERS = 2**19, 32
# What BERT's pre-tokenizer always sets apart, and what is between.
_WORD = re.compile(r"[\n!-/:-@\[-`{-~]|[^\n!-/:-@\[-`{-~]+")
# Where GPT-2's pre-tokenizer always cuts: a word or sign takes the one space before it.
_BEFORE_SPACE = re.compile(r"(?= \S)")


def storage_type(vocab_size: int) -> np.dtype:
    """The narrowest unsigned type that holds every id."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


class Encoder:
    """The tokenizer in a tokenizer.json; texts are encoded whole, without special tokens."""

    def __init__(self, path: Path) -> None:
        content = path.read_text(encoding="utf-8")
        known = json.loads(content)
        self._backend = _whole_texts(content)
        self._dtype = storage_type(max(self._backend.get_vocab().values()) + 1)
        self._path, self._special = path, _special_pieces(known)
        words = _Known(lambda word: self._whole(word).tobytes())
        chunks = _Known(lambda chunk: b"".join(map(words.__getitem__, _WORD.findall(chunk))))
        self._cut: Callable[[str], list[str | Any]] = lambda text: text.split(" ")
        self._chunks = chunks if _cuts_around_signs(known) else None
        if _cuts_before_spaces(known):
            self._cut, self._chunks = _BEFORE_SPACE.split, words

    def encode(self, text: str) -> NDArray[np.unsignedinteger]:
        """The token ids of a text, in the type they are stored in."""
        if self._chunks is None:
            return self._whole(text)
        # Most of a text has been met before, and looking it up is ten times faster than the tokenizer.
        return np.frombuffer(b"".join(map(self._chunks.__getitem__, self._cut(text))), self._dtype)

    def _whole(self, text: str) -> NDArray[np.unsignedinteger]:
        ids = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return np.array(ids if self._special.isdisjoint(ids) else self._literally(text), self._dtype)

    def _literally(self, text: str) -> list[int]:
        literal, unknown = self._literal
        ids = literal.encode_batch_fast([text], add_special_tokens=False)[0].ids
        rest = [] if unknown is None else [unknown]  # where a special token's signs have no pieces of their own
        return [one for token in ids for one in (rest if token in self._special else [token])]

    @cached_property
    def _literal(self) -> tuple[Tokenizer, int | None]:
        """The tokenizer with special tokens the least likely of its pieces, and the id of what it has none for. Not for
        every text: a piece's least score is also what unknown signs are weighed by."""
        known = json.loads(self._path.read_text(encoding="utf-8"))
        for token in self._special:
            known["model"]["vocab"][token][1] = -1e9
        return _whole_texts(json.dumps(known)), known["model"]["unk_id"]


def _whole_texts(content: str) -> Tokenizer:
    """The tokenizer in this JSON, by which texts stay whole and hold no special tokens."""
    backend = Tokenizer.from_str(content)
    # A saved tokenizer may carry truncation and padding, which would lose text.
    backend.no_truncation()
    backend.no_padding()
    # A "[MASK]" written in an article is text, not the mask token.
    backend.encode_special_tokens = True
    return backend


def _special_pieces(backend: dict[str, Any]) -> set[int]:
    """Ids of special tokens that a text's pieces may be: Unigram has them in its vocabulary, with the best score there
    is. The one for unknown signs is left to them."""
    if backend["model"]["type"] != "Unigram":
        return set()
    pieces = range(len(backend["model"]["vocab"]))
    special = {token["id"] for token in backend["added_tokens"] if token["special"] and token["id"] in pieces}
    return special - {backend["model"]["unk_id"]}


class _Known(dict[str, bytes]):
    """Pieces of text with their ids as bytes, worked out by `make` when first asked for."""

    def __init__(self, make: Callable[[str], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, piece: str) -> bytes:
        content = self._make(piece)
        if len(piece) <= _LETTERS and len(self) < _KEPT:
            self[piece] = content
        return content


def _cuts_around_signs(backend: dict[str, Any]) -> bool:
    """Whether the ids of a text are those of its words and signs in order: true of BERT's WordPiece.

    Its normalizer looks at single characters, its pre-tokenizer cuts at every space and around every sign, and no token
    reaches beyond such a cut.
    """
    return (
        backend["model"]["type"] == "WordPiece"
        and (backend["normalizer"] or {}).get("type", "none") in ("none", "BertNormalizer", "Lowercase")
        and (backend["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and all(token["special"] for token in backend["added_tokens"])
    )


def _cuts_before_spaces(backend: dict[str, Any]) -> bool:
    """Whether the ids of a text are those of its pieces, each with the space before it: true of byte-level BPE.

    Its normalizer does nothing to a space, and GPT-2's pattern looks ahead of a word no further than to the next space.
    """
    splitting = backend["pre_tokenizer"] or {}
    return (
        backend["model"]["type"] == "BPE"
        and not backend["model"]["dropout"]
        and (backend["normalizer"] or {}).get("type", "none") in ("none", "NFC", "Lowercase")
        and splitting.get("type") == "ByteLevel"
        and splitting.get("use_regex", True)
        and not splitting["add_prefix_space"]
        and all(token["special"] for token in backend["added_tokens"])
    )
