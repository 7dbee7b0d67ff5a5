"""Which ids of a vocabulary begin a word, and which end one, read off the marks that its tokenizer writes.

WordPiece marks what continues a word (##ing), byte-level BPE and SentencePiece what begins one (Ġthe, ▁the). ASCII
signs of punctuation and new lines are words of their own in all of them, and what follows them begins the next. In
scripts without spaces (Han, kana, Thai, Lao, Tibetan, Burmese, Khmer) a piece of the last two is a word.
"""

import json
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from asa.errors import RequestError
from asa.scripts import UNSPACED
from pretrain.masking import Words

# V ids of the vocabulary

_BYTE_LEVEL = ("\u0120", "\u010a", "\u0109")  # how byte-level BPE writes space, new line and tab
_SENTENCEPIECE = "\u2581"
# Signs of full width, too, which such scripts write.
_UNSPACED = re.compile(rf"[{UNSPACED}\u3000-\u303f\uff01-\uff65]")
# The first bytes of their UTF-8, as byte-level BPE writes bytes.
_UNSPACED_BYTES = re.compile(
    "\u00e0[\u00b8-\u00bf]|\u00e1(?:[\u0122\u0123\u0140\u0141]|\u0124[\u0122-\u0141])|[\u00e3-\u00e9]"
    "|\u00ef[\u00a4-\u00ab\u00bc\u00bd]|\u00f0[\u0142\u00a1-\u00b3]"
)
_SIGNS = (*string.punctuation, "\u010a", "\u0109", "\n")


def words_of(folder: Path, vocab: int) -> Words:
    """vocab booleans for each; an id without a token counts as one that begins a word.

    Args: folder holds the tokenizer (the `tokenizer` folder of the shards).
    Raises: RequestError for a vocabulary whose tokens do not tell where words begin.
    """
    path = folder / "tokenizer.json"
    begins = _rule(backend := json.loads(path.read_text(encoding="utf-8")))
    if begins is None:
        raise RequestError(f"the vocabulary in {folder} does not mark where words begin; set --masking token")
    starts_V, ends_V = np.ones(vocab, dtype=bool), np.zeros(vocab, dtype=bool)
    marked = backend["model"]["type"] != "WordPiece"  # whose tokens show by themselves that they continue a word
    for token, index in Tokenizer.from_file(str(path)).get_vocab().items():
        starts_V[index] = begins(token)
        ends_V[index] = marked and _is_sign(token)
    return Words(starts_V, ends_V)


def _is_sign(token: str) -> bool:
    """Of punctuation and new lines alone, a space before them or not. A lone space may be a word's own first piece."""
    return token.endswith(_SIGNS) and not token.strip("".join((*_SIGNS, *_BYTE_LEVEL, _SENTENCEPIECE)))


def _rule(backend: dict[str, Any]) -> Callable[[str], bool] | None:
    """Whether a token begins a word, for the kind of tokenizer that `backend` (tokenizer.json) describes."""
    if backend["model"]["type"] == "WordPiece":
        continues = backend["model"]["continuing_subword_prefix"]
        return lambda token: not token.startswith(continues)
    splitting = json.dumps([backend["normalizer"], backend["pre_tokenizer"]], ensure_ascii=False)
    # A sign of punctuation opens a word of its own, as it does in WordPiece.
    if '"ByteLevel"' in splitting:
        return _begins(_BYTE_LEVEL, _UNSPACED_BYTES)
    if _SENTENCEPIECE in splitting:
        return _begins((_SENTENCEPIECE,), _UNSPACED)
    return None


def _begins(spaces: tuple[str, ...], unspaced: re.Pattern[str]) -> Callable[[str], bool]:
    opening = (*spaces, *string.punctuation)
    return lambda token: token.startswith(opening) or unspaced.match(token) is not None
