"""Model folders that transformers 4 reads as transformers 5 does, which saves some things under names of its own."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from asa.families import FAMILIES

if TYPE_CHECKING:
    import transformers

UNSET = 10**20  # from here on a tokenizer's length means that nobody has set one


def save_model(model: "transformers.PreTrainedModel", folder: Path) -> None:
    """The model as save_pretrained writes it. Of ModernBERT transformers 4 knows the bases of its rotary positions by
    other names, and took its own for those of mmBERT without a word."""
    saved: Any = model
    saved.save_pretrained(folder)
    if model.config.model_type == "modernbert":
        bases: dict[str, Any] = getattr(model.config, "rope_parameters", None) or {}
        old = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
        _change(folder / "config.json", {old[kind]: bases[kind]["rope_theta"] for kind in old if kind in bases})


def save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, folder: Path, model: "transformers.PreTrainedModel | None" = None
) -> None:
    """The tokenizer as save_pretrained writes it, but for the class and the added tokens that transformers 4 fails on.

    Args: model, whose rows it makes: texts are cut to what that takes where nobody has said how long they may be.
    """
    saved: Any = tokenizer
    saved.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    changes: dict[str, Any] = {}
    if found.get("tokenizer_class") == "TokenizersBackend":
        changes["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(added := found.get("extra_special_tokens"), list):
        changes |= {"additional_special_tokens": added, "extra_special_tokens": None}
    if model is not None and saved.model_max_length >= UNSET:
        changes["model_max_length"] = _longest(model)
    _change(path, changes)


def _longest(model: "transformers.PreTrainedModel") -> int | None:
    """Token ids a row may have; None for what has no table of absolute positions, as DeBERTa, or is not known."""
    config = model.config
    known = FAMILIES.get(config.model_type)
    relative = not getattr(config, "position_biased_input", True)
    return None if known is None or relative else known.longest(config)


def _change(path: Path, changes: dict[str, Any]) -> None:
    """Set keys of a JSON file, and remove those that are None."""
    if changes:
        content = json.loads(path.read_text(encoding="utf-8")) | changes
        kept = {key: value for key, value in content.items() if value is not None or key not in changes}
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
