"""Which attention a module of an attached model runs in place of sdpa: fused, ours on a CPU, or torch's."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import (
    sdpa_attention_forward,  # pyright: ignore[reportUnknownVariableType]  # has types in part
)

from asa import cpu_attention
from asa.cpu_map import KeepMap
from asa.fused import fused_attention, supported
from asa.fused.beside import Beside
from asa.fused.products import NAME, Products
from asa.signal import Pass

# B rows, H heads, K width of one head, L length (queries, then keys)


def forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers asks of an attention: context BLHK of BHLK.

    With Products in its seat the module's last rows are attacked; those before them are a clean pass's.
    """
    seat = module._asa_seat
    if seat.products is not None:
        found, seat.products = seat.products, None
        return _attacked(module, found, query, key, value, attention_mask, dropout, scaling, **kwargs), None
    blind_BL, seat.blind_BL = seat.blind_BL, None
    causal = attention_mask is None and (kwargs.get("is_causal") or getattr(module, "is_causal", False))
    # No pass of ours: the model as it was, to the bit.
    if seat.signal.now is None or causal or not cpu_attention.suits(query, key, attention_mask, dropout):
        with one_kernel(seat.signal.now, dropout, query.device):
            context, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    else:
        context = cpu_attention.context(query, key, value, attention_mask, dropout, _scale(query, scaling))
    return context if blind_BL is None else context.masked_fill(blind_BL[..., None, None], 0), None


def _attacked(
    module: Any,
    found: Products,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    **kwargs: Any,
) -> Tensor:
    config = found.config
    scale, attacked = _scale(query, scaling), len(found.q_BLD)
    if query.device.type == "cpu" and not supported(config, query.device, found.q_BLD.dtype, query[-attacked:].shape):
        keep = KeepMap(*found[:3], found.keys.seen_BL, config.reversal, config.temperature)
        context_BLHK, kept_BL = cpu_attention.attacked(query, key, value, attention_mask, dropout, scale, keep)
        found.counted(kept_BL)
        return context_BLHK
    beside, clean_BHLK = Beside(len(query) - attacked), None
    q_BHLK, k_BHLK, v_BHLK = query, key, value
    if beside.free:
        free_q, free_k, free_v, q_BHLK, k_BHLK, v_BHLK = beside.part(query, key, value)
        mask = None if attention_mask is None else attention_mask[: beside.free]
        clean_BLHK, _ = forward(module, free_q, free_k, free_v, mask, dropout, scaling, **kwargs)
        clean_BHLK = clean_BLHK.transpose(1, 2)
    context_BHLK, kept_BL = fused_attention(
        q_BHLK,
        k_BHLK,
        v_BHLK,
        *found[:3],
        found.keys.floor_BL,
        scale=scale,
        dropout=dropout,
        config=config,
        beside=beside,
        clean_BHLK=clean_BHLK,
    )
    found.counted(kept_BL)
    return context_BHLK.transpose(1, 2)


def _scale(q_BHLK: Tensor, scaling: float | None) -> float:
    return q_BHLK.shape[-1] ** -0.5 if scaling is None else scaling


def one_kernel(now: Pass | None, dropout: float, device: torch.device) -> AbstractContextManager[None]:
    """Inside, torch's attention on a GPU is the same with an attack and without, where both are to draw the same
    dropout: cuDNN's and flash attention take no mask with a gradient, and draw otherwise than those that do."""
    alike = now is not None and now.same_dropout and dropout > 0 and device.type == "cuda"
    if not alike:
        return nullcontext()
    return cast(AbstractContextManager[None], sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))


_interface: Any = AttentionInterface
_interface.register(NAME, forward)
