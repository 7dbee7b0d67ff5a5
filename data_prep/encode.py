"""Text -> token ids, by the `tokenizers` library alone: worker processes load nothing else for it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

# Pieces of text kept with their ids, and the longest of them: at most about 100 MB for each of two tables.
_KEPT, _LETTERS = 2**19, 32
_NO_TEXT = 4 * "\U0010ffff"  # a code point that stands for no character, and so for nobody's
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
        known = json.loads(path.read_text(encoding="utf-8"))
        self._backend = Tokenizer.from_str(json.dumps(_without_special_pieces(known)))
        # A saved tokenizer may carry truncation and padding, which would lose text.
        self._backend.no_truncation()
        self._backend.no_padding()
        # A "[MASK]" written in an article is text, not the mask token.
        self._backend.encode_special_tokens = True
        self._dtype = storage_type(max(self._backend.get_vocab().values()) + 1)
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
        return np.array(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids, self._dtype)


def _without_special_pieces(known: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer with special tokens by other names, the one for unknown signs apart: in many a vocabulary they are
    pieces too, in a Unigram's with the best score there is, and would be found in what is written in a text."""
    model, added = known["model"], known["added_tokens"]
    listed = isinstance(vocabulary := model["vocab"], list)  # a Unigram's, with scores
    pieces = {piece for piece, _ in vocabulary} if listed else vocabulary.keys()
    unknown = vocabulary[model["unk_id"]][0] if listed and model["unk_id"] is not None else model.get("unk_token")
    special = {token["content"] for token in added if token["special"]} & pieces - {unknown}
    named = {piece: _NO_TEXT + piece if piece in special else piece for piece in pieces}
    renamed = (
        [[named[piece], score] for piece, score in vocabulary]
        if listed
        else {named[piece]: token for piece, token in vocabulary.items()}
    )
    # Those outside the vocabulary stay: their number gives later ones their ids.
    kept = [token for token in added if token["content"] not in special]
    return {**known, "model": {**model, "vocab": renamed}, "added_tokens": kept}


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
