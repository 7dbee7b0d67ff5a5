"""Hugging Face folders: checks, loading of models."""

import functools
import hashlib
import json
import math
import pickle
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from asa import manifest
from asa.errors import RequestError, WorkError, of_system
from asa.families import FAMILIES, family
from asa.tokenizer import ids_of, load_tokenizer
from asa.typed import fork_rng, manual_seed

MASKED_LM: Any = AutoModelForMaskedLM  # whose methods have types in part
KINDS = ("export", "tokenizer")  # of manifests beside weights that nothing of ours changes
# What no model of ours is loaded without: attention under sdpa tells no weights, and such a config cannot be saved.
LOADED: dict[str, Any] = {"output_loading_info": True, "dtype": torch.float32, "output_attentions": False}
READER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # beside tokenizer.json
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def check_model(folder: Path, flag: str, length: int = 1, vocab: int = 1) -> None:
    """Raises RequestError unless `folder` holds a complete Hugging Face model of a supported family.

    Args: length and vocab are the tokens per row and the ids it must be able to read.
    """
    if not folder.is_dir():
        raise RequestError(f"there is no folder {folder}; give a Hugging Face model folder by {flag}{_fetched(folder)}")
    if not (folder / "config.json").is_file():
        raise RequestError(f"{folder} has no config.json; give a Hugging Face model folder by {flag}")
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise RequestError(f"{folder} has no weights ({' or '.join(WEIGHTS)}); give a complete folder by {flag}")
    settings = _read_json(folder / "config.json", flag)
    kind = settings.get("model_type")
    found = family(kind if isinstance(kind, str) else "unknown", flag)
    config = _checked_config(folder, flag)
    found.check(config)
    most = found.longest(config)
    if length > most:
        raise RequestError(f"{folder} reads at most {most} tokens, rows have {length}; make shorter rows or set {flag}")
    _check_ids(config, folder, flag, vocab)
    parts = _parts(folder, flag)
    if lost := sorted(name for name in parts if not (folder / name).is_file()):
        raise RequestError(f"{folder} lacks {lost[0]}, which {WEIGHTS[1]} lists; give a complete folder by {flag}")
    # transformers reads the pickle only where there is nothing else
    pickled = not parts and not (folder / WEIGHTS[0]).is_file()
    for name in [WEIGHTS[2]] if pickled else sorted({WEIGHTS[0], *parts}):
        check_weights(folder / name, flag)


def _fetched(folder: Path) -> str:
    """How the hub's model of that name becomes a folder; empty for what cannot be one's name."""
    named = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(folder))
    if not named or (named[1] and folder.parent.exists()):
        return ""
    return f"; the hub's is fetched by: hf download {folder} --local-dir models/{folder.name}"


def _parts(folder: Path, flag: str) -> set[str]:
    """The files that an index of weights names; none without one."""
    index = folder / WEIGHTS[1]
    if not index.is_file():
        return set()
    places = _read_json(index, flag).get("weight_map")
    names = list(cast("dict[str, Any]", places).values()) if isinstance(places, dict) else list[Any]([None])
    if not all(isinstance(name, str) for name in names):
        raise RequestError(f"{index} is damaged: it has no weight_map; give a complete folder by {flag}")
    return set(names)


def longest_row(folder: Path, flag: str, vocab: int) -> float:
    """Token ids a row may have by the config.json in `folder`; infinite without one and for families not supported.

    Raises: RequestError for a damaged one, and where it has embeddings for fewer ids than `vocab`.
    """
    if not (folder / "config.json").is_file():
        return math.inf
    found = FAMILIES.get(str(_read_json(folder / "config.json", flag).get("model_type")))
    if not found:
        return math.inf
    config = _checked_config(folder, flag)
    _check_ids(config, folder, flag, vocab)
    return found.longest(config)


def _check_ids(config: PreTrainedConfig, folder: Path, flag: str, vocab: int) -> None:
    if vocab > config.vocab_size:
        raise RequestError(f"{folder} has embeddings for {config.vocab_size} ids, the tokenizer {vocab}; set {flag}")


def _checked_config(folder: Path, flag: str) -> PreTrainedConfig:
    # Not from the file alone: it may leave out what has the default value.
    try:
        return read_config(folder)
    except Exception as error:  # whatever a damaged config.json makes transformers raise
        why = " ".join(str(error).split())
        raise RequestError(f"{folder / 'config.json'} is damaged ({why}); give a complete folder by {flag}") from None


def check_reader(folder: Path, flag: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder whose rows it makes itself. Raises: as check_model and load_tokenizer; also
    where the tokenizer has ids, though of added tokens that no text may use, for which the model has no embedding, or
    no token for padding."""
    check_model(folder, flag)  # first: where there is no model, its tokenizer is not what is missing
    tokenizer = load_tokenizer(folder, flag)
    check_model(folder, flag, vocab=ids_of(tokenizer))
    if tokenizer.pad_token_id is None:
        raise RequestError(
            f"{folder} has a tokenizer without a padding token; name one as pad_token in its tokenizer_config.json, or"
            f" set {flag}"
        )
    return tokenizer


def check_weights(file: Path, flag: str) -> None:
    """Raises RequestError for a file of weights that is cut off or none; one that is not there passes."""
    if not file.is_file():
        return
    try:
        look = _open_pickle if file.suffix == ".bin" else _open_safetensors
        look(file)
    except (OSError, SafetensorError, RuntimeError, pickle.UnpicklingError) as error:
        why = " ".join(str(error).split())
        raise RequestError(f"{file} is damaged ({why[:200]}); give a complete folder by {flag}") from None


def _open_safetensors(file: Path) -> None:
    with safe_open(file, "pt"):
        pass


def _open_pickle(file: Path) -> None:
    """Contents stay on the disk, but for files of torch before 1.6, of which only the first bytes are looked at."""
    with file.open("rb") as head:
        start = head.read(2)
    if start == b"PK":
        torch.load(file, map_location="meta", mmap=True, weights_only=True)
    elif start != b"\x80\x02":
        raise pickle.UnpicklingError("it was not written by torch")


def _read_json(path: Path, flag: str) -> dict[str, Any]:
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(path.read_text())
    if not isinstance(found, dict):
        raise RequestError(f"{path} is damaged: it is no JSON object; give a complete folder by {flag}")
    return cast("dict[str, Any]", found)


@functools.cache
def weights_sha256(folder: Path) -> str:
    """sha256 over all that makes a Hugging Face folder's model: weights, shape and tokenizer. Adversaries beside it are
    no part of it. Remembered for the life of the process. Raises WorkError for weights that are not those with which
    one of our commands finished the folder."""
    files = [folder / name for name in sorted({*_loaded(folder), "config.json", "tokenizer.json"})]
    return _sha256(file for file in files if file.is_file())


def _loaded(folder: Path) -> set[str]:
    """The files of weights that transformers reads, of those that are there."""
    if (folder / WEIGHTS[0]).is_file():
        return {WEIGHTS[0]}
    return _parts(folder, "--model") or {WEIGHTS[2]}


def settings_sha256(folder: Path) -> str:
    """sha256 over what else than its tokenizer.json decides how a folder's tokenizer reads a text."""
    files = [folder / name for name in READER if (folder / name).is_file()]
    return _sha256(files)


def _sha256(files: Iterable[Path]) -> str:
    """Over their names and the sha256 of each."""
    return hashlib.sha256("\n".join(f"{file.name} {weight_sha256(file)}" for file in files).encode()).hexdigest()


def weight_sha256(file: Path) -> str:
    """sha256 of a file of a model. Raises: as weights_sha256, for weights; settings may be changed."""
    return manifest.unchanged(file, KINDS if file.suffix in (".safetensors", ".bin") else ())


def read_config(folder: Path) -> PreTrainedConfig:
    """The config of a model folder, with what its file leaves out."""
    auto: Any = AutoConfig
    return auto.from_pretrained(folder)


@contextmanager
def loading(folder: Path, flag: str, what: str = "") -> Generator[None]:
    """Inside, whatever a folder makes the libraries raise whose weights are not those of its config.json, or whose
    config.json no model can have, is a RequestError, and what the machine lacks a WorkError; Hugging Face's load report
    is off. Args: what, as which it is loaded, where a good folder may not do for it."""
    try:
        with quiet():
            yield
    except Exception as error:  # of many classes
        why = " ".join(str(error).split())[:300] or type(error).__name__
        full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
        if full or of_system(error):
            raise WorkError(f"{folder} could not be read ({why}); mend that and give the same command again") from None
        advice = f"give another by {flag}" if what else f"give a complete folder by {flag}"
        raise RequestError(f"{folder} cannot be loaded{what and ' '}{what} ({why}); {advice}") from None


def load_mlm(folder: Path, seed: int, flag: str = "--model") -> tuple["transformers.PreTrainedModel", list[str]]:
    """The masked-LM model in `folder` and the names of parameters it lacked, which are new and drawn from `seed`.

    A checkpoint without an MLM head gets one tied to its word embeddings. Raises: RequestError for weights that are not
    those of its config.json, or lack some of the encoder's.
    """
    manual_seed(seed)
    with loading(folder, flag):
        model, info = MASKED_LM.from_pretrained(folder, **LOADED, ignore_mismatched_sizes=True)
    if info["mismatched_keys"]:
        name, found, asked = sorted(info["mismatched_keys"])[0]
        raise RequestError(
            f"{folder} has {name} of shape {list(found)} where its config.json asks for {list(asked)}; give a complete"
            f" folder by {flag}"
        )
    check_encoder(model, info["missing_keys"], folder, flag)
    return model, sorted(info["missing_keys"])


def new_weights(info: dict[str, Any]) -> list[str]:
    """Names of the parameters that a folder has given no values, by what from_pretrained tells: those it lacks, and
    those it has in another shape."""
    mismatched = {name if isinstance(name, str) else name[0] for name in info["mismatched_keys"]}  # with both shapes
    return sorted({*info["missing_keys"], *mismatched})


def new_mlm(folder: Path) -> "transformers.PreTrainedModel":
    """A masked-LM model of the architecture in `folder`, weights arbitrary."""
    return MASKED_LM.from_config(read_config(folder))


def check_encoder(model: "transformers.PreTrainedModel", new: Iterable[str], folder: Path, flag: str) -> None:
    """Raises RequestError where weights of the encoder are new, its pooler aside, which models for masked tokens lack.
    Args: new, names of parameters that were not loaded."""
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    inside = [name for name in new if name.startswith(prefix)]
    if lost := sorted(name for name in inside if not name.removeprefix(prefix).startswith("pooler.")):
        raise RequestError(
            f"{folder} has no weights, or of another shape, for {len(lost)} parameters of the encoder in its"
            f" config.json ({lost[0]} ...); give a complete folder by {flag}"
        )


class quiet:
    """Transformers' load report off: what matters of it the loaders return or refuse."""

    def __enter__(self) -> None:
        self.level, self.bar = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()

    def __exit__(self, *exception: object) -> None:
        hf_logging.set_verbosity(self.level)
        if self.bar:
            hf_logging.enable_progress_bar()


def _newest(name: str) -> str:
    """Of a weight, as transformers calls it since BERT's first releases."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def names_in(folder: Path) -> set[str]:
    """The names of the tensors in a folder's safetensors, of which there may be several."""
    found: set[str] = set()
    for path in folder.glob("model*.safetensors"):
        with safe_open(path, "pt") as file:
            found.update(file.keys())
    return found


def load_renamed(model: "transformers.PreTrainedModel", folder: Path, flag: str) -> None:
    """Put into `model` the weights that save_pretrained wrote to `folder`, if any has another name there, or may have:
    in files that are no safetensors. A model whose weights came under old names is saved under these (LayerNorm.gamma
    of BERT's first releases), and load_state_dict knows the new ones alone.

    Raises: RequestError where a weight of the model is there under no name, or its class reads no folder.
    """
    kind: Any = type(model)
    names, state = names_in(folder), model.state_dict()
    if names and names <= state.keys():
        return
    if names and {*map(_newest, names)} <= state.keys():
        # By itself: from_pretrained makes a model without what wraps layers of this one, as PEFT does.
        held = {state[_newest(name)].data_ptr() for name in names}
        _refuse_lost((name for name, value in state.items() if value.data_ptr() not in held), kind, folder, flag)
        with loading(folder, flag):
            for file in folder.glob("model*.safetensors"):
                model.load_state_dict({_newest(name): value for name, value in load_file(file).items()}, strict=False)
        return
    # In fp32, which holds what any of the weights may be in; each goes into its own precision again below.
    with loading(folder, flag), fork_rng(devices=[]):
        other, info = kind.from_pretrained(folder, config=model.config, dtype=torch.float32, output_loading_info=True)
    _refuse_lost(info["missing_keys"], kind, folder, flag)
    model.load_state_dict(other.state_dict())


def _refuse_lost(names: Iterable[str], kind: Any, folder: Path, flag: str) -> None:
    """Raises RequestError where there is one."""
    if (lost := min(names, default=None)) is not None:
        raise RequestError(f"{folder} lacks {lost} of {kind.__name__}; give another by {flag}")


def checkpoint_activations(model: "transformers.PreTrainedModel", settings: dict[str, Any] | None = None) -> None:
    """Make the layers' activations again in the backward pass instead of keeping them; settings: those of
    torch.utils.checkpoint."""
    anyone: Any = model  # older releases of transformers have the method by its former name
    enable = getattr(anyone, "activation_checkpointing_enable", None) or anyone.gradient_checkpointing_enable
    enable(settings)
