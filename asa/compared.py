"""Cross entropy and symmetric KL divergence of two passes' logits at once.

Over a vocabulary it is the memory traffic that costs, so a few rows at a time go through all of it while they are in
the cache, and nothing as large as the logits is kept but the logits themselves.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from asa import fused
from asa.batch import IGNORE
from asa.typed import Function, first_only

# N distributions, C classes or words of the vocabulary

CACHED = 2**17  # logits of a pass that are treated together on a CPU, 0.5 MB; a GPU without our kernels takes all


def compare(logits_2NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropies of the first N rows (0 where the label is -100), and (KL(p||q) + KL(q||p)) / 2 of each row p and
    its fellow q among the last N. Both of shape N, in fp32 or wider."""
    if fused.losses_supported(logits_2NC):
        return fused.compare(logits_2NC, labels_N)
    return _Compare.apply(logits_2NC, labels_N)


class _Compare(Function):
    @staticmethod
    def forward(ctx: Any, logits_2NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(logits_2NC.dtype, torch.float32)
        # Of each row: the largest logit, log of the sum of exp(logit - largest), and sum of p (or q) * (log p - log q).
        # The first two stay apart: what all logits of a row have in common would cost their sum its digits.
        tops_2N, logs_2N, means_2N = torch.empty(3, 2, len(labels_N), dtype=wide, device=logits_2NC.device)
        entropies_N = torch.empty_like(means_2N[0])
        halves = torch.unflatten(logits_2NC, 0, (2, len(labels_N)))
        for rows in _portions(halves):
            part_2NC, top_2N, log_2N = halves[:, rows].to(wide), tops_2N[:, rows], logs_2N[:, rows]
            weights_2NC = (part_2NC - torch.amax(part_2NC, -1, out=top_2N).unsqueeze(-1)).exp_()
            total_2N = weights_2NC.sum(-1)
            torch.log(total_2N, out=log_2N)
            below_N = top_2N[0] - part_2NC[0].gather(-1, _index(labels_N[rows])).squeeze(-1)
            entropies_N[rows] = log_2N[0] + below_N
            # log p - log q: the bare logits' gap would have what one pass is shifted by in it, and few digits left.
            apart_N = (top_2N[0] - top_2N[1]) + (log_2N[0] - log_2N[1])
            gap_NC = (part_2NC[0] - part_2NC[1]).sub_(apart_N.unsqueeze(-1))
            means_2N[:, rows] = weights_2NC.mul_(gap_NC).sum(-1) / total_2N
        ctx.save_for_backward(logits_2NC, labels_N, tops_2N, logs_2N, means_2N)
        return entropies_N.masked_fill_(labels_N == IGNORE, 0), (means_2N[0] - means_2N[1]) / 2

    @staticmethod
    @first_only("compared losses")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        logits_2NC, labels_N, tops_2N, logs_2N, means_2N = ctx.saved_tensors
        task_N1, half_N1 = (grads[0] * (labels_N != IGNORE)).unsqueeze(-1), grads[1].unsqueeze(-1) / 2
        # With gap = log p - log q, of the clean logits: p (half * gap + own) - half * q, and at the label less task;
        # of the others: q (own - half * gap) - half * p.
        mean_p_N1, mean_q_N1 = means_2N.unsqueeze(-1)
        own_p_N1, own_q_N1 = (1 - mean_p_N1) * half_N1 + task_N1, (1 + mean_q_N1) * half_N1
        found_2NC = torch.empty_like(logits_2NC, dtype=means_2N.dtype)
        halves, found = (torch.unflatten(both, 0, (2, len(labels_N))) for both in (logits_2NC, found_2NC))
        for rows in _portions(halves):
            half = half_N1[rows]
            log_2NC = torch.sub(halves[:, rows], tops_2N[:, rows, None], out=found[:, rows])
            log_2NC.sub_(logs_2N[:, rows, None])
            gap_NC = (log_2NC[0] - log_2NC[1]).mul_(half)
            p_NC, q_NC = log_2NC.exp_()
            share_NC = p_NC * half
            p_NC.mul_(gap_NC + own_p_N1[rows]).sub_(q_NC * half)
            q_NC.mul_(gap_NC.neg_().add_(own_q_N1[rows])).sub_(share_NC)
        found[0].scatter_add_(-1, _index(labels_N), -task_N1)
        return found_2NC.to(logits_2NC.dtype), None


def _index(labels_N: Tensor) -> Tensor:
    """The label's place in each row, of shape N x 1; of a row without a label the first."""
    return labels_N.masked_fill(labels_N == IGNORE, 0).unsqueeze(-1)


def _portions(halves_2NC: Tensor) -> Iterator[slice]:
    """Rows that are treated together."""
    _, rows, classes = halves_2NC.shape
    step = max(1, CACHED // classes) if halves_2NC.device.type == "cpu" else max(1, rows)
    return (slice(start, start + step) for start in range(0, rows, step))
