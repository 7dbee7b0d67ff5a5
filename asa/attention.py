"""Biased self-attention (Eq. 4 and 5) on an ordinary Hugging Face encoder, by hooks: no modelling code is copied.

A forward hook before each self-attention module asks `Perturb.attend` for a keep map and turns it into the additive
mask the module already takes, so eager and sdpa attention both work. The map travels as a keyword argument of the
model's own forward, hence no state outlives a call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asa.adversary import MASKED, Adversaries, ASAConfig
from asa.errors import RequestError

# B rows, H heads, L length (queries, then keys), D width, K width of one head

Attend = Callable[[int, Tensor, Tensor], Tensor]
Tap = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Perturb:
    """What an adversary does to one forward pass.

    embed_BLD: added to the word embeddings (before position, type and LayerNorm).
    attend: (layer, h_BLD, pad_BL) -> keep_BLL in [0, 1], 1 attended.
    """

    embed_BLD: Tensor | None = None
    attend: Attend | None = None


class Signal(NamedTuple):
    """What the hooks need in one forward pass; handed down as the keyword argument `asa`."""

    pad_BL: Tensor
    attend: Attend | None
    tap: Tap | None


class Family(NamedTuple):
    """Where an encoder family keeps its parts, as attribute paths."""

    layers: str  # of the base model: the list of blocks
    attention: str  # of a block: the module that scores queries against keys
    mlm_head: str  # of the masked-LM model: hidden states -> logits


FAMILIES = {"bert": Family("encoder.layer", "attention.self", "cls")}


def family(model_type: str, flag: str = "--model") -> Family:
    """The parts of a `config.model_type`. Raises RequestError listing the supported ones and naming `flag`."""
    if model_type not in FAMILIES:
        supported = ", ".join(sorted(FAMILIES))
        raise RequestError(f"encoder family {model_type!r} is not supported; give one of {supported} by {flag}")
    return FAMILIES[model_type]


def attach(model: PreTrainedModel, config: ASAConfig | None = None) -> Adversaries:
    """Make `model` accept the keyword argument `asa=Signal(...)` and return its (untrained) adversaries.

    The adversaries are not part of the model: it saves and loads as before. `detach` removes the hooks.
    Raises: RequestError for an unsupported family.
    """
    config = config or ASAConfig()
    where = family(model.config.model_type)
    detach(model)
    blocks = model.base_model.get_submodule(where.layers)
    layers = list(blocks.children())
    handles = []
    for layer, block in enumerate(layers):
        attention = block.get_submodule(where.attention)
        handles.append(attention.register_forward_pre_hook(_before(layer, config), with_kwargs=True))
        if config.masked_score == "replaced":
            handles.append(attention.register_forward_hook(_replace_output, with_kwargs=True))
    model._asa_handles = handles  # type: ignore[assignment]  # plain list: neither a module nor saved
    return Adversaries(len(layers), model.config.hidden_size, config)


def detach(model: PreTrainedModel) -> None:
    """Remove what `attach` added; a model that was never attached stays as it is."""
    for handle in getattr(model, "_asa_handles", ()):
        handle.remove()
    if hasattr(model, "_asa_handles"):
        del model._asa_handles


def _before(layer: int, config: ASAConfig) -> Callable[..., Any]:
    """The hook that puts the keep map into the mask of one layer."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        signal: Signal | None = kwargs.pop("asa", None)
        if signal is None:
            return args, kwargs
        h_BLD: Tensor = args[0] if args else kwargs["hidden_states"]
        if signal.tap is not None:
            signal.tap(layer, h_BLD)
        if signal.attend is None:
            return args, kwargs
        keep_BLL = signal.attend(layer, h_BLD, signal.pad_BL)
        if config.empty_row == "unmasked":
            keep_BLL = fill_empty_rows(keep_BLL, signal.pad_BL)
        if config.masked_score == "replaced":
            return args, kwargs | {"asa_keep": keep_BLL}
        return args, kwargs | {"attention_mask": bias(keep_BLL, signal.pad_BL, h_BLD.dtype)}

    return hook


def fill_empty_rows(keep_BLL: Tensor, pad_BL: Tensor) -> Tensor:
    """A keep map in which a query that keeps no real key keeps all of them; such a row passes no gradient."""
    valid_B1L = ~pad_BL[:, None, :]
    kept_BL1 = (keep_BLL.detach() * valid_B1L).amax(dim=-1, keepdim=True)
    return torch.where(kept_BL1 > 0, keep_BLL, valid_B1L.to(keep_BLL.dtype))


def bias(keep_BLL: Tensor, pad_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask, B1LL, of a keep map: 0 where attended, -1e4 where masked, the minimum at padding keys."""
    bias_BLL = ((1 - keep_BLL) * MASKED).to(dtype)
    return bias_BLL.masked_fill(pad_BL[:, None, :], torch.finfo(dtype).min).unsqueeze(1)


def _replace_output(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """With `masked_score` "replaced": the output of the released program's attention in place of the module's own."""
    keep_BLL = kwargs.get("asa_keep")
    if keep_BLL is None:
        return None
    h_BLD: Tensor = args[0] if args else kwargs["hidden_states"]
    keep_B1LL = keep_BLL.unsqueeze(1)

    def heads(linear: nn.Module) -> Tensor:
        return linear(h_BLD).unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2)

    q_BHLK, k_BHLK, v_BHLK = heads(module.query), heads(module.key), heads(module.value)
    scores_BHLL = q_BHLK @ k_BHLK.transpose(-1, -2) * module.scaling
    # The released program zeroes scores by a masked_fill, through which no gradient reaches the map.
    scores_BHLL = scores_BHLL * keep_B1LL.detach() + (1 - keep_B1LL) * MASKED
    weights_BHLL = scores_BHLL.softmax(dim=-1)
    context_BLD = (module.dropout(weights_BHLL) @ v_BHLK).transpose(1, 2).flatten(-2)
    return context_BLD, weights_BHLL
