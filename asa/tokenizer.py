"""Tokenizers of Hugging Face folders and their hash. Apart from hf.py, whose models take seconds to import."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from asa.errors import RequestError


def load_tokenizer(folder: Path, flag: str) -> PreTrainedTokenizerBase:
    """The fast tokenizer of a local Hugging Face folder. Raises RequestError where there is none, or a damaged one."""
    if not folder.is_dir():
        raise RequestError(f"no folder {folder}; give a folder with a fast tokenizer by {flag}")
    if not (folder / "tokenizer.json").is_file():
        raise RequestError(f"{folder} has no tokenizer.json; give a folder with a fast tokenizer by {flag}")
    try:
        auto: Any = AutoTokenizer
        tokenizer = auto.from_pretrained(folder)
    # Whatever a damaged file makes the libraries raise: plain Exceptions, too.
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise RequestError(f"{folder} has a damaged tokenizer ({detail}); give a complete folder by {flag}") from None
    # Not of the tokenizer but of HF_HUB_OFFLINE; saved, it would make two folders of one data set.
    tokenizer.init_kwargs.pop("local_files_only", None)
    return tokenizer


def for_words(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer for lists of words: a byte-level one such as RoBERTa's reads each word with the space before it that
    it has inside a sentence, and is saved so; any other is returned as it is. Raises: RequestError for one written in
    Python, which does not tell which word a token is of."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        name = type(tokenizer).__name__
        raise RequestError(f"{name} cannot tell the words of its tokens; give models with a fast tokenizer by --models")
    fast: Any = tokenizer
    if "ByteLevel" not in str(fast.backend_tokenizer.pre_tokenizer):
        return tokenizer
    spaced: Any = copy.deepcopy(tokenizer)
    steps = spaced.backend_tokenizer.pre_tokenizer
    for step in steps if isinstance(steps, pre_tokenizers.Sequence) else [steps]:
        if isinstance(step, pre_tokenizers.ByteLevel):
            step.add_prefix_space = True
    # RoBERTa's own class makes its steps anew when it is loaded.
    spaced.init_kwargs["add_prefix_space"] = spaced.add_prefix_space = True
    return spaced


def ids_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """The embeddings that it needs: its largest id and one."""
    return max(tokenizer.get_vocab().values()) + 1


def encoder_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """Hash of everything that decides the ids of a text without special tokens in it: normalisation, splitting, merges.
    Not of truncation and padding, which rows do not follow."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    return hashlib.sha256(backend.to_str().encode()).hexdigest()


def reader_sha256(tokenizer: PreTrainedTokenizerFast) -> str:
    """Hash of everything that decides what is made of a text: beside `encoder_sha256` whether special tokens in it are
    words, what is cut and what is returned."""
    fast: Any = tokenizer
    others = [
        fast.__class__.__name__,
        fast.split_special_tokens,
        fast.truncation_side,
        fast.model_input_names,
        fast.pad_token_type_id,
    ]
    hashes = [encoder_sha256(tokenizer), vocab_sha256(tokenizer)]
    return hashlib.sha256(json.dumps([*hashes, *others]).encode()).hexdigest()


def vocab_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of the token -> id table and the special tokens: equal hashes mean equal ids for equal text pieces."""
    table = {"vocab": tokenizer.get_vocab(), "special": tokenizer.special_tokens_map}
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()
