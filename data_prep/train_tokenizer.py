"""The command `tokenizer`: documents -> a vocabulary of their own and, with `arch`, a fresh model to train with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as hf_logging

from asa import manifest
from asa.config import to_dict
from asa.errors import RequestError, WorkError
from asa.families import FAMILIES
from asa.portable import save_model, save_tokenizer
from asa.tokenizer import vocab_sha256
from data_prep import stored, vocabularies
from data_prep.config import TokenizerConfig
from data_prep.finished import is_up_to_date
from data_prep.leads import share_of
from data_prep.workspace import workspace

KIND = "tokenizer"


def train_tokenizer(config: TokenizerConfig) -> None:
    """Write the tokenizer, the fresh model if one is asked for, and their manifest to OUT.

    Raises: RequestError for a wrong request; WorkError where documents are damaged or give too few tokens.
    """
    shape = _shape(config.arch) if config.arch else None
    for folder in config.documents:
        stored.facts(folder, "--documents")
    made_from = _made_from(config)
    if is_up_to_date(config.out, {KIND: config.out}, made_from, config.overwrite):
        return
    with workspace(config.out, made_from, config.overwrite) as space:
        tokenizer = _train(config, shape)
        save_tokenizer(tokenizer, space.out)
        if shape:
            save_model(_fresh_model(shape, tokenizer, config.seed), space.out)
        facts = {"tokens": len(tokenizer), "tokenizer_sha256": vocab_sha256(tokenizer)}
        manifest.write(space.out, KIND, {**facts, **made_from})
    model = f", a fresh {shape.model_type} model" if shape else ""
    print(f"{config.kind} of {len(tokenizer):,} tokens{model}; written to {config.out}")


def _made_from(config: TokenizerConfig) -> dict[str, Any]:
    told_by_content = ("documents", "out", "overwrite", "arch", *(() if config.arch else ("seed",)))
    settings = {key: value for key, value in to_dict(config).items() if key not in told_by_content}
    files = [folder / manifest.NAME for folder in config.documents]
    files += [config.arch / "config.json"] if config.arch else []
    sources = [{"name": path.name, "sha256": manifest.file_sha256(path)} for path in files]
    return {"settings": settings, "sources": sources}


def _train(config: TokenizerConfig, shape: PreTrainedConfig | None) -> PreTrainedTokenizerFast:
    paths = stored.files(config.documents, "--documents")

    def texts() -> Iterator[str]:
        found = (document for path in paths for document in stored.read(path))
        chosen = (document.text for document in found if share_of(KIND, document.title) < config.share)
        return iter(tqdm(chosen, unit=" documents", delay=5, disable=None))

    segments = min(2, getattr(shape, "type_vocab_size", None) or 1) if shape else 2
    backend = vocabularies.train(config.kind, texts, config.vocab_size, config.lowercase, segments)
    have = backend.get_vocab_size()
    if have < config.vocab_size:
        wanted = config.vocab_size
        more = "give more --documents" if config.share == 1 else "raise --share"
        raise WorkError(f"the text gives {have:,} tokens, not {wanted:,}; {more} or set --vocab_size")
    names = {f"{role}_token": token for role, token in vocabularies.SPECIAL[config.kind].items()}
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if segments > 1 else [])]
    pad = backend.token_to_id(names["pad_token"]) or 0
    limit = {"model_max_length": _longest(shape, pad)} if shape else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names, **limit)


def _shape(arch: Path) -> PreTrainedConfig:
    if not (arch / "config.json").is_file():
        raise RequestError(f"{arch} has no config.json; give a folder with one by --arch")
    try:
        shape = AutoConfig.from_pretrained(arch)
        with torch.device("meta"):  # takes no memory; what cannot be made is known before the text is read
            AutoModelForMaskedLM.from_config(shape)
    except Exception as error:  # whatever a strange config.json makes the library raise
        detail = " ".join(str(error).split())[:200]
        advice = "give a folder with one by --arch"
        raise RequestError(f"{arch / 'config.json'} is no masked language model's ({detail}); {advice}") from None
    return shape


def _longest(shape: PreTrainedConfig, pad: int) -> int:
    """Ids of a row that the model reads. RoBERTa's kin leave the positions up to the id of padding unused."""
    shape.pad_token_id = pad
    if (known := FAMILIES.get(shape.model_type)) is not None:
        return known.longest(shape)
    return shape.max_position_embeddings - (pad + 1 if "roberta" in shape.model_type else 0)


def _fresh_model(shape: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    shape.vocab_size, shape.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    shape.bos_token_id, shape.eos_token_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    hf_logging.disable_progress_bar()  # of the file it will write, which takes no time
    torch.manual_seed(seed)
    return AutoModelForMaskedLM.from_config(shape, dtype=torch.float32)
