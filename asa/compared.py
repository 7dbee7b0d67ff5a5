"""Cross entropy and symmetric KL divergence of two passes' logits at once.

Over a vocabulary it is the memory traffic that costs, so a few rows at a time go through all of it while they are in
the cache, and nothing as large as the logits is kept but the logits themselves.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asa.batch import IGNORE
from asa.typed import Function

# N distributions, C classes or words of the vocabulary

CACHED = 2**17  # logits of a pass that are treated together on a CPU, 0.5 MB; a GPU takes all


def compare(logits_2NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropies of the first N rows (0 where the label is -100), and (KL(p||q) + KL(q||p)) / 2 of each row p and
    its fellow q among the last N. Both of shape N, in fp32 or wider."""
    return _Compare.apply(logits_2NC, labels_N)


class _Compare(Function):
    @staticmethod
    def forward(ctx: Any, logits_2NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(logits_2NC.dtype, torch.float32)
        # Of each row: log of the sum of exponentials, and sum of p (or q) * (log p - log q)
        sums_2N, means_2N = (torch.empty(2, len(labels_N), dtype=wide, device=logits_2NC.device) for _ in range(2))
        entropies_N = torch.empty_like(sums_2N[0])
        halves = torch.unflatten(logits_2NC, 0, (2, len(labels_N)))
        for rows in _portions(halves):
            log_2NC = halves[:, rows].to(wide).log_softmax(-1)
            labels = labels_N[rows].masked_fill(labels_N[rows] == IGNORE, 0).unsqueeze(-1)
            entropies_N[rows] = -log_2NC[0].gather(-1, labels).squeeze(-1)
            # By the largest: by another, the -1e4 of an absent answer say, little would be left of the digits.
            sums_2N[:, rows] = halves[:, rows].amax(-1) - log_2NC.amax(-1)
            gap_NC = log_2NC[0] - log_2NC[1]
            means_2N[:, rows] = log_2NC.exp_().mul_(gap_NC).sum(-1)
        ctx.save_for_backward(logits_2NC, labels_N, sums_2N, means_2N)
        return entropies_N.masked_fill_(labels_N == IGNORE, 0), (means_2N[0] - means_2N[1]) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]  # the decorator's type
        logits_2NC, labels_N, sums_2N, means_2N = ctx.saved_tensors
        real_N = labels_N != IGNORE
        task_N1, half_N1 = (grads[0] * real_N).unsqueeze(-1), grads[1].unsqueeze(-1) / 2
        found_2NC = torch.empty_like(logits_2NC, dtype=sums_2N.dtype)
        halves, found = (torch.unflatten(both, 0, (2, len(labels_N))) for both in (logits_2NC, found_2NC))
        for rows in _portions(halves):
            log_2NC = torch.sub(halves[:, rows], sums_2N[:, rows, None], out=found[:, rows])
            gap_NC = log_2NC[0] - log_2NC[1]
            p_NC, q_NC = log_2NC.exp_()
            # Of the clean logits: task * (p - 1[label]) + half * (p * (gap - mean) + p - q); of the others likewise.
            task, half = task_N1[rows], half_N1[rows]
            excess_NC = (p_NC - q_NC).mul_(half)
            q_NC.mul_((means_2N[1, rows, None] - gap_NC).mul_(half)).sub_(excess_NC)
            p_NC.mul_((gap_NC - means_2N[0, rows, None]).mul_(half).add_(task)).add_(excess_NC)
            p_NC.scatter_add_(-1, labels_N[rows].masked_fill(~real_N[rows], 0).unsqueeze(-1), -task)
        return found_2NC.to(logits_2NC.dtype), None


def _portions(halves_2NC: Tensor) -> Iterator[slice]:
    """Rows that are treated together."""
    _, rows, classes = halves_2NC.shape
    step = max(1, CACHED // classes) if halves_2NC.device.type == "cpu" else max(1, rows)
    return (slice(start, start + step) for start in range(0, rows, step))
