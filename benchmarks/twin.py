"""A straightforward two-pass ASA for BERT, as the papers' programs do it: peer and oracle of the one in asa/.

Eager attention, every map a float tensor of L x L, two whole passes, a masked LM's head on every position. It follows
Eq. 4 to 10 of Wu et al. 2023 with the settings of the released program (ASAConfig.released) and shares no code with
asa/, so that equal losses and gradients say something.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertForSequenceClassification

from asa.batch import IGNORE, Batch

# B rows, C classes, D width, H heads, K width of one head, L length, N distributions, V vocabulary

MASKED = -1e4


class _Reverse(torch.autograd.Function):
    """The identity, whose gradient has the other sign."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -grads[0]


class Twin(nn.Module):
    """`model` with an adversary beside each layer: two D x D maps. The module's value is the loss of a batch."""

    def __init__(self, model: BertForMaskedLM | BertForSequenceClassification, tau: float) -> None:
        super().__init__()
        self.model, self.tau = model, tau
        layers, width = model.config.num_hidden_layers, model.config.hidden_size
        self.query = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.key = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, batch: Batch) -> Tensor:
        """task + divergence + tau^2 * kept units / rows, of a batch that is the whole step."""
        kept: list[Tensor] = []
        clean_BLD, attacked_BLD = self.encode(batch.inputs), self.encode(batch.inputs, kept)
        price = self.tau**2 * torch.stack(kept).sum() / len(clean_BLD)
        if isinstance(self.model, BertForMaskedLM):
            return _masked_lm(self.model, batch, clean_BLD, attacked_BLD) + price
        clean_BC, attacked_BC = (_classes(self.model, h_BLD) for h_BLD in (clean_BLD, attacked_BLD))
        return F.cross_entropy(clean_BC, batch.labels) + divergence(clean_BC, attacked_BC) + price

    def encode(self, inputs: dict[str, Tensor], kept: list[Tensor] | None = None) -> Tensor:
        """Final hidden states BLD. Args: kept gets each layer's kept units; None: nothing is attacked."""
        bert = self.model.bert
        h_BLD = bert.embeddings(input_ids=inputs["input_ids"], token_type_ids=inputs.get("token_type_ids"))
        seen_B1L = inputs["attention_mask"][:, None, :]
        for layer, query, key in zip(bert.encoder.layer, self.query, self.key, strict=True):
            keep_BLL = None
            if kept is not None:
                keep_BLL = keep(query(h_BLD.detach()), key(h_BLD.detach()), seen_B1L)
                kept.append(keep_BLL.sum(dtype=torch.float32))
            h_BLD = _block(layer, h_BLD, seen_B1L, keep_BLL)
        return h_BLD


def keep(q_BLD: Tensor, k_BLD: Tensor, seen_B1L: Tensor) -> Tensor:
    """1 where a pair attends: the score's sign, with the sigmoid's gradient, reversed."""
    x_BLL = q_BLD @ k_BLD.transpose(1, 2) / q_BLD.shape[-1] ** 0.5
    x_BLL = x_BLL.masked_fill(seen_B1L == 0, MASKED)
    soft_BLL, hard_BLL = x_BLL.sigmoid(), (x_BLL > 0).to(x_BLL.dtype)
    reversed_ = _Reverse.apply(hard_BLL + soft_BLL - soft_BLL.detach())
    assert isinstance(reversed_, Tensor)
    return reversed_


def _block(layer: Any, h_BLD: Tensor, seen_B1L: Tensor, keep_BLL: Tensor | None) -> Tensor:
    """One layer, in which a unit that is not kept has the score -1e4. Without a map, padding's scores sink by 1e4."""
    own = layer.attention.self

    def heads(linear: nn.Module) -> Tensor:
        return linear(h_BLD).unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2)

    q_BHLK, k_BHLK, v_BHLK = heads(own.query), heads(own.key), heads(own.value)
    scores_BHLL = q_BHLK @ k_BHLK.transpose(2, 3) / q_BHLK.shape[-1] ** 0.5
    # Under autocast all else may be fp32, and a product with that makes fp32 of the scores.
    kind = scores_BHLL.dtype
    if keep_BLL is None:
        scores_BHLL = scores_BHLL + ((seen_B1L == 0).to(kind) * MASKED).unsqueeze(1)
    else:
        keep_B1LL = keep_BLL.to(kind).unsqueeze(1)
        scores_BHLL = scores_BHLL * keep_B1LL.detach() + (1 - keep_B1LL) * MASKED
    weights_BHLL = own.dropout(scores_BHLL.softmax(-1))
    attended_BLD = layer.attention.output((weights_BHLL @ v_BHLK).transpose(1, 2).flatten(2), h_BLD)
    return layer.output(layer.intermediate(attended_BLD), attended_BLD)


def _masked_lm(model: BertForMaskedLM, batch: Batch, clean_BLD: Tensor, attacked_BLD: Tensor) -> Tensor:
    """Eq. 10 without the price: the task, divergence at the masked tokens, divergence at [CLS]."""
    assert batch.positions is not None
    clean_NV, attacked_NV = (model.cls(h_BLD).flatten(0, 1) for h_BLD in (clean_BLD, attacked_BLD))
    labels_N = torch.full(clean_NV.shape[:1], IGNORE, device=clean_NV.device)
    labels_N[batch.positions] = batch.labels
    tokens = divergence(clean_NV[batch.positions], attacked_NV[batch.positions])
    return F.cross_entropy(clean_NV, labels_N) + tokens + divergence(clean_BLD[:, 0], attacked_BLD[:, 0])


def _classes(model: BertForSequenceClassification, h_BLD: Tensor) -> Tensor:
    pooler: Any = model.bert.pooler
    return model.classifier(model.dropout(pooler(h_BLD)))


def divergence(a_NC: Tensor, b_NC: Tensor) -> Tensor:
    """Mean over N of half the sum of both KL divergences of softmax(a), softmax(b)."""
    one = F.kl_div(b_NC.log_softmax(-1), a_NC.softmax(-1), reduction="batchmean")
    other = F.kl_div(a_NC.log_softmax(-1), b_NC.softmax(-1), reduction="batchmean")
    return (one + other) / 2
