"""Cross entropies of two passes' logits and the divergences between them, all at once.

Over a vocabulary it is the memory traffic that costs, so a few rows at a time go through all of it while they are in
the cache, and nothing as large as the logits is kept but the logits themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asa import fused
from asa.batch import IGNORE
from asa.typed import Function, first_only

# N rows, C classes or words of the vocabulary; p and q are the two passes' distributions

FEW = 64  # classes, below which torch's softmax on a CPU is slower than its parts
CACHED = 2**20  # logits of a pass that are treated together on a CPU, 4 MB; a GPU without our kernels takes all


class Compared(NamedTuple):
    """Of each row, shape N, in fp32 or wider: the cross entropies of both passes, 0 where the label is -100, KL(p || q)
    and KL(q || p)."""

    entropy_p_N: Tensor
    entropy_q_N: Tensor
    forth_N: Tensor
    back_N: Tensor

    @property
    def symmetric_N(self) -> Tensor:
        """(KL(p || q) + KL(q || p)) / 2."""
        return (self.forth_N + self.back_N) / 2


def compare(p_NC: Tensor, q_NC: Tensor, labels_N: Tensor | None = None) -> Compared:
    """Args: the logits of two passes over the same rows, of any type each, finite (a class that is not to be takes
    -1e4: of -inf in both divergences are NaN); labels of both, none: no entropy counts."""
    return _compared((p_NC, q_NC), labels_N)


def compare_halves(logits_2NC: Tensor, labels_N: Tensor | None = None) -> Compared:
    """The same where the second pass's rows follow the first's in one tensor: its gradient is made in one piece."""
    return _compared((logits_2NC,), labels_N)


def _compared(given: tuple[Tensor, ...], labels_N: Tensor | None) -> Compared:
    rows = sum(map(len, given)) // 2
    if labels_N is None:
        labels_N = torch.full((rows,), IGNORE, device=given[0].device)
    fits = sum(map(len, given)) == 2 * rows and given[0].shape == given[-1].shape and given[0].dim() == 2
    if labels_N.shape != (rows,) or not fits:
        told = " and ".join(str(list(logits.shape)) for logits in given)
        raise ValueError(f"{told} logits do not fit {list(labels_N.shape)} labels")
    if all(map(fused.losses_supported, given)):
        return Compared(*fused.compare(given, labels_N))
    return Compared(*_Compare.apply(labels_N, *given))


class _Compare(Function):
    """Args: labels_N, then the logits as one tensor 2NC or two NC."""

    @staticmethod
    def forward(ctx: Any, labels_N: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        wide = _wide(given)
        passes = _passes(given, len(labels_N))
        # Of each row: the cross entropies; log sum exp p - log sum exp q; and the means of log p - log q under p and q.
        entropies_2N, means_2N = torch.empty(2, 2, len(labels_N), dtype=wide, device=labels_N.device)
        aparts_N = torch.empty_like(means_2N[0])
        for rows in _portions(passes[0]):
            x_NC, y_NC = (logits_NC[rows].to(wide) for logits_NC in passes)
            probs_2NC = _softmax(x_NC, y_NC)
            # Of log sum exp the largest logit and the rest apart: what all logits of a row have in common would cost
            # their sum its digits.
            tops_2N = torch.stack([x_NC.amax(-1), y_NC.amax(-1)])
            logs_2N = -probs_2NC.amax(-1).log()
            at_N1 = _index(labels_N[rows])
            labelled_2N = torch.cat([x_NC.gather(-1, at_N1), y_NC.gather(-1, at_N1)], -1).T
            entropies_2N[:, rows] = logs_2N + (tops_2N - labelled_2N)
            aparts_N[rows] = apart_N = (tops_2N[0] - tops_2N[1]) + (logs_2N[0] - logs_2N[1])
            # log p - log q: the bare logits' gap would have what one pass is shifted by in it, and few digits left.
            gap_NC = (x_NC - y_NC).sub_(apart_N.unsqueeze(-1))
            means_2N[:, rows] = probs_2NC.mul_(gap_NC).sum(-1)
        ctx.save_for_backward(labels_N, aparts_N, means_2N, *given)
        entropies_2N.masked_fill_(labels_N == IGNORE, 0)
        return entropies_2N[0].clone(), entropies_2N[1].clone(), means_2N[0].clone(), -means_2N[1]

    @staticmethod
    @first_only("compared losses")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        labels_N, aparts_N, means_2N, *given = ctx.saved_tensors
        # With gap = log p - log q: of the first logits p (forth (gap - mean) + back + task) - back q, and at the label
        # less task; of the others q (back (mean - gap) + forth + task) - forth p.
        tasks = [(grad * (labels_N != IGNORE)).unsqueeze(-1) for grad in grads[:2]]
        forth_N1, back_N1 = (grad.unsqueeze(-1) for grad in grads[2:])
        mean_p_N1, mean_q_N1 = means_2N.unsqueeze(-1)
        own_p_N1 = back_N1 + tasks[0] - forth_N1 * mean_p_N1
        own_q_N1 = forth_N1 + tasks[1] + back_N1 * mean_q_N1
        needed = zip(given, ctx.needs_input_grad[1:], strict=True)
        found = [torch.empty_like(one, dtype=means_2N.dtype) if need else None for one, need in needed]
        passes, slopes = _passes(given, len(labels_N)), _passes(found, len(labels_N))
        for rows in _portions(passes[0]):
            x_NC, y_NC = (logits_NC[rows].to(means_2N.dtype) for logits_NC in passes)
            p_NC, q_NC = _softmax(x_NC, y_NC)
            gap_NC = (x_NC - y_NC).sub_(aparts_N[rows].unsqueeze(-1))
            forth, back = forth_N1[rows], back_N1[rows]
            if slopes[0] is not None:
                d_NC = torch.addcmul(own_p_N1[rows], gap_NC, forth, out=slopes[0][rows])
                d_NC.mul_(p_NC).addcmul_(q_NC, back, value=-1)
            if slopes[1] is not None:
                d_NC = torch.addcmul(own_q_N1[rows], gap_NC, back, value=-1, out=slopes[1][rows])
                d_NC.mul_(q_NC).addcmul_(p_NC, forth, value=-1)
        for slope_NC, task_N1 in zip(slopes, tasks, strict=True):
            if slope_NC is not None:
                slope_NC.scatter_add_(-1, _index(labels_N), -task_N1)
        return None, *(None if d is None else d.to(one.dtype) for d, one in zip(found, given, strict=True))


def _wide(given: Sequence[Tensor]) -> torch.dtype:
    return torch.promote_types(torch.promote_types(given[0].dtype, given[-1].dtype), torch.float32)


def _passes(given: Sequence[Any], rows: int) -> Sequence[Any]:
    """Both passes' parts, of one tensor or two."""
    return (given[0][:rows], given[0][rows:]) if len(given) == 1 else given


def _softmax(x_NC: Tensor, y_NC: Tensor) -> Tensor:
    """Both distributions, 2NC."""
    if x_NC.shape[-1] < FEW:
        probs_2NC = torch.stack([x_NC, y_NC])
        probs_2NC.sub_(probs_2NC.amax(-1, keepdim=True)).exp_()
        return probs_2NC.div_(probs_2NC.sum(-1, keepdim=True))
    probs_2NC = x_NC.new_empty(2, *x_NC.shape)
    for one_NC, probs_NC in zip((x_NC, y_NC), probs_2NC, strict=True):
        torch.softmax(one_NC, -1, out=probs_NC)
    return probs_2NC


def _index(labels_N: Tensor) -> Tensor:
    """The label's place in each row, of shape N x 1; of a row without a label the first."""
    return labels_N.masked_fill(labels_N == IGNORE, 0).unsqueeze(-1)


def _portions(logits_NC: Tensor) -> Iterator[slice]:
    """Rows that are treated together."""
    rows, classes = logits_NC.shape
    step = max(1, CACHED // classes) if logits_NC.device.type == "cpu" else max(1, rows)
    return (slice(start, start + step) for start in range(0, rows, step))
