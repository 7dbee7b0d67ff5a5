"""The slow twin: biased self-attention in float64, one query at a time, written from Eq. 4 without any mask."""

import torch
from torch import Tensor, nn

# B rows, H heads, L length, D width, K width of one head


def slow_attention(module: nn.Module, h_BLD: Tensor, pad_BL: Tensor, keep_BLL: Tensor, constant: float) -> Tensor:
    """What a BERT self-attention module gives where unit (i, j) has its score lowered by (1 - keep) * constant.

    Padding keys do not exist for it; a query that keeps no real key has nothing lowered.
    """
    heads = int(module.num_attention_heads)  # type: ignore[arg-type]
    q_BHLK, k_BHLK, v_BHLK = (_heads(module.get_submodule(name)(h_BLD), heads) for name in ("query", "key", "value"))
    rows = []
    for b in range(len(h_BLD)):
        real = (~pad_BL[b]).nonzero().flatten()
        queries = [_query(q_BHLK[b, :, i], k_BHLK[b], v_BHLK[b], keep_BLL[b, i], real, constant) for i in real.tolist()]
        queries += [torch.zeros_like(h_BLD[b, 0])] * int(pad_BL[b].sum())
        rows.append(torch.stack(queries))
    return torch.stack(rows)


def _heads(x_BLD: Tensor, heads: int) -> Tensor:
    return x_BLD.unflatten(-1, (heads, -1)).transpose(1, 2)


def _query(q_HK: Tensor, k_HLK: Tensor, v_HLK: Tensor, keep_L: Tensor, real: Tensor, constant: float) -> Tensor:
    lowered_L = (1 - keep_L[real]) * constant if keep_L[real].any() else torch.zeros(len(real), dtype=q_HK.dtype)
    parts = []
    for q_K, k_LK, v_LK in zip(q_HK, k_HLK[:, real], v_HLK[:, real], strict=True):
        scores_L = k_LK @ q_K / len(q_K) ** 0.5 - lowered_L
        weights_L = (scores_L - scores_L.max()).exp()
        parts.append((weights_L / weights_L.sum()) @ v_LK)
    return torch.cat(parts)
