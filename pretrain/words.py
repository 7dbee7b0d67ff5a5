"""Which ids of a vocabulary begin a word, read off the marks that its tokenizer writes.

WordPiece marks what continues a word (##ing), byte-level BPE and SentencePiece what begins one (Ġthe, ▁the).
"""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from asa.errors import RequestError

# V ids of the vocabulary

_BYTE_LEVEL = ("\u0120", "\u010a", "\u0109")  # how byte-level BPE writes space, new line and tab
_SENTENCEPIECE = "\u2581"


def word_starts(folder: Path, vocab: int) -> NDArray[np.bool_]:
    """vocab booleans, True for each id that begins a word; an id without a token counts as one that does.

    Args: folder holds the tokenizer (the `tokenizer` folder of the shards).
    Raises: RequestError for a vocabulary whose tokens do not tell where words begin.
    """
    path = folder / "tokenizer.json"
    begins = _rule(json.loads(path.read_text(encoding="utf-8")))
    if begins is None:
        raise RequestError(f"the vocabulary in {folder} does not mark where words begin; set --masking token")
    starts_V = np.ones(vocab, dtype=bool)
    for token, index in Tokenizer.from_file(str(path)).get_vocab().items():
        starts_V[index] = begins(token)
    return starts_V


def _rule(backend: dict[str, Any]) -> Callable[[str], bool] | None:
    """Whether a token begins a word, for the kind of tokenizer that `backend` (tokenizer.json) describes."""
    if backend["model"]["type"] == "WordPiece":
        continues = backend["model"]["continuing_subword_prefix"]
        return lambda token: not token.startswith(continues)
    splitting = json.dumps([backend["normalizer"], backend["pre_tokenizer"]], ensure_ascii=False)
    # A sign of punctuation opens a word of its own, as it does in WordPiece.
    if '"ByteLevel"' in splitting:
        return lambda token: token.startswith((*_BYTE_LEVEL, *string.punctuation))
    if _SENTENCEPIECE in splitting:
        return lambda token: token.startswith((_SENTENCEPIECE, *string.punctuation))
    return None
