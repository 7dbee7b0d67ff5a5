"""The slow twin: biased self-attention of every family in float64, one query at a time, written from the papers.

No mask appears in it: a key that a query does not see does not exist for it. Layouts: one row of the batch, L length,
D width, H heads, K width of one head.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Parts(NamedTuple):
    """score(i, j) -> H, before softmax. value(j) -> HK. out: heads side by side -> D. sees(i, j)."""

    score: Callable[[int, int], Tensor]
    value_LHK: Tensor
    out: Callable[[Tensor], Tensor]
    sees: Callable[[int, int], bool]


def slow_attention(
    name: str,
    module: nn.Module,
    given: dict[str, Any],
    h_BLD: Tensor,
    real: list[int],
    keep_BLL: Tensor,
    constant: float,
) -> Tensor:
    """What the attention module gives where unit (i, j) has its score lowered by (1 - keep) * constant.

    Args: given is what the module is called with beside h; real, the real tokens of each row, which come first. A
    query that keeps no key it sees has nothing lowered. Positions of padding get zeros.
    """
    rows = []
    for b, length in enumerate(real):
        extra = {key: value[b] if key == "position_bias" else value for key, value in given.items()}
        parts = PARTS[name](module, extra, h_BLD[b])
        keep_BHLL = keep_BLL if keep_BLL.dim() == 4 else keep_BLL.unsqueeze(1)
        queries = [_query(parts, i, length, keep_BHLL[b, :, i], constant) for i in range(length)]
        rows.append(torch.stack(queries + [torch.zeros_like(queries[0])] * (h_BLD.shape[1] - length)))
    return torch.stack(rows)


def _query(parts: Parts, i: int, length: int, keep_HL: Tensor, constant: float) -> Tensor:
    keys = [j for j in range(length) if parts.sees(i, j)]
    scores_JH = torch.stack([parts.score(i, j) for j in keys])
    kept_JH = keep_HL[:, keys].T.expand_as(scores_JH)
    lowered_JH = (1 - kept_JH) * constant * kept_JH.detach().any(0)
    weights_JH = (scores_JH - lowered_JH).softmax(0)
    return parts.out(torch.einsum("jh,jhk->hk", weights_JH, parts.value_LHK[keys]).flatten())


def _heads(x_LD: Tensor, module: Any, heads: int) -> Tensor:
    return x_LD.unflatten(-1, (heads, -1))


def plain(query: str, key: str, value: str, out: str = "") -> Callable[[Any, dict[str, Any], Tensor], Parts]:
    """Vaswani et al. 2017, with MPNet's bias on the scores (Song et al. 2020) where there is one."""

    def parts(module: Any, given: dict[str, Any], h_LD: Tensor) -> Parts:
        heads = h_LD.shape[-1] // module.attention_head_size
        q_LHK, k_LHK, v_LHK = (_heads(module.get_submodule(n)(h_LD), module, heads) for n in (query, key, value))
        bias_HLL = given.get("position_bias")

        def score(i: int, j: int) -> Tensor:
            score_H = (q_LHK[i] * k_LHK[j]).sum(-1) / q_LHK.shape[-1] ** 0.5
            return score_H if bias_HLL is None else score_H + bias_HLL[:, i, j]

        return Parts(score, v_LHK, module.get_submodule(out) if out else lambda x: x, lambda i, j: True)

    return parts


def modernbert(module: Any, given: dict[str, Any], h_LD: Tensor) -> Parts:
    """Warner et al. 2024: rotary positions (Su et al. 2021), windows in the local layers."""
    kind = module.config.layer_types[module.layer_idx]
    theta = module.config.rope_parameters[kind]["rope_theta"]
    q_LHK, k_LHK, v_LHK = module.Wqkv(h_LD).unflatten(-1, (3, -1, module.head_dim)).unbind(1)
    half = module.head_dim // 2

    def turned(x_HK: Tensor, position: int) -> Tensor:
        angle = position * theta ** (-torch.arange(half, dtype=torch.float64) * 2 / module.head_dim)
        spin = torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(torch.complex(x_HK[:, :half], x_HK[:, half:]) * spin).flatten(1)

    def score(i: int, j: int) -> Tensor:
        return (turned(q_LHK[i], i) * turned(k_LHK[j], j)).sum(-1) / module.head_dim**0.5

    window = module.config.local_attention // 2 if kind == "sliding_attention" else len(h_LD)
    return Parts(score, v_LHK, module.Wo, lambda i, j: abs(i - j) <= window)


def deberta(module: Any, given: dict[str, Any], h_LD: Tensor) -> Parts:
    """He et al. 2021, Eq. 4: content to content, content to position, position to content."""
    heads = module.num_attention_heads
    q_LHK, k_LHK, v_LHK = _heads(module.in_proj(h_LD), module, heads).chunk(3, dim=-1)
    q_LHK = q_LHK + _heads(module.q_bias, module, heads)
    v_LHK = v_LHK + _heads(module.v_bias, module, heads)
    places = given["rel_embeddings"]
    k_PHK, q_PHK = (_heads(linear(places), module, heads) for linear in (module.pos_proj, module.pos_q_proj))
    most = module.max_relative_positions
    return Parts(_disentangled(q_LHK, k_LHK, q_PHK, k_PHK, lambda r: r, most), v_LHK, lambda x: x, lambda i, j: True)


def deberta_v2(module: Any, given: dict[str, Any], h_LD: Tensor) -> Parts:
    """As v1 with distances in logarithmic buckets and content's own projections for positions (He et al. 2023)."""
    heads = module.num_attention_heads
    q_LHK, k_LHK, v_LHK = (
        _heads(linear(h_LD), module, heads) for linear in (module.query_proj, module.key_proj, module.value_proj)
    )
    shared = module.share_att_key
    k_PHK = _heads((module.key_proj if shared else module.pos_key_proj)(given["rel_embeddings"]), module, heads)
    q_PHK = _heads((module.query_proj if shared else module.pos_query_proj)(given["rel_embeddings"]), module, heads)
    middle, most = module.position_buckets // 2, module.max_relative_positions

    def bucket(distance: int) -> int:
        if abs(distance) <= middle:
            return distance
        ratio = torch.tensor(abs(distance) / middle).log() / torch.tensor((most - 1) / middle).log()
        return int((torch.ceil(ratio * (middle - 1)) + middle).item()) * (1 if distance > 0 else -1)

    score = _disentangled(q_LHK, k_LHK, q_PHK, k_PHK, bucket, module.position_buckets)
    return Parts(score, v_LHK, lambda x: x, lambda i, j: True)


def _disentangled(
    q_LHK: Tensor, k_LHK: Tensor, q_PHK: Tensor, k_PHK: Tensor, bucket: Callable[[int], int], span: int
) -> Callable[[int, int], Tensor]:
    scale = (3 * q_LHK.shape[-1]) ** 0.5

    def score(i: int, j: int) -> Tensor:
        place = min(max(bucket(i - j) + span, 0), 2 * span - 1)
        return (q_LHK[i] * k_LHK[j] + q_LHK[i] * k_PHK[place] + k_LHK[j] * q_PHK[place]).sum(-1) / scale

    return score


_BERT = plain("query", "key", "value")
PARTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": _BERT,
    "mpnet": plain("q", "k", "v", "o"),
    "distilbert": plain("q_lin", "k_lin", "v_lin", "out_lin"),
    "modernbert": modernbert,
    "deberta": deberta,
    "deberta-v2": deberta_v2,
}
