"""Hugging Face folders: tokenizers and their hash, loading, exporting."""

import hashlib
import json
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from asa.errors import RequestError


def load_tokenizer(folder: Path, flag: str) -> PreTrainedTokenizerBase:
    """The fast tokenizer of a local Hugging Face folder. Raises RequestError where there is none."""
    if not (folder / "tokenizer.json").is_file():
        raise RequestError(f"{folder} has no tokenizer.json; give a folder with a fast tokenizer by {flag}")
    return AutoTokenizer.from_pretrained(folder)


def vocab_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of the token -> id table and the special tokens: equal hashes mean equal ids for equal text pieces."""
    table = {"vocab": tokenizer.get_vocab(), "special": tokenizer.special_tokens_map}
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()
