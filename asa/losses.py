"""Task losses, divergences and the penalty: pure functions of logits, in fp32.

Every loss is a sum over its units divided by the units of the whole optimizer step (Batch.total_*): added up over
micro-batches and ranks it is the mean over the step.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch
from asa.model import Output

# B rows, C classes, D width, L length, M masked positions, V vocabulary, N any number of distributions


def task_loss(out: Output, batch: Batch) -> Tensor:
    """Cross entropy, or squared error for regression: the sum over labelled units / Batch.total_labels."""
    if batch.kind == "regression":
        return F.mse_loss(out.logits.float().squeeze(-1), batch.labels.float(), reduction="sum") / batch.total_labels
    labels = batch.labels.flatten()
    loss = F.nll_loss(out.log_probs.flatten(0, -2), labels, reduction="sum", ignore_index=IGNORE)
    return loss / batch.total_labels


class _SymmetricKL(torch.autograd.Function):
    """sum (p - q)(log p - log q) / 2 over the last axis.

    Both gradients are made in the forward pass, in place: over a vocabulary the memory traffic is what costs.
    """

    @staticmethod
    def forward(ctx: Any, log_p: Tensor, log_q: Tensor) -> Tensor:
        gap, p, q = log_p - log_q, log_p.exp(), log_q.exp()
        excess = p - q
        value = (excess * gap).sum(-1) / 2
        # d/dlog p = (p gap + excess) / 2,  d/dlog q = -(q gap + excess) / 2
        ctx.save_for_backward(p.mul_(gap).add_(excess).div_(2), q.mul_(gap).add_(excess).div_(-2))
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        grad_p, grad_q = ctx.saved_tensors
        return grad_p * grads[0].unsqueeze(-1), grad_q * grads[0].unsqueeze(-1)


def symmetric_kl(log_p_NC: Tensor, log_q_NC: Tensor) -> Tensor:
    """Per row (KL(p||q) + KL(q||p)) / 2 of two log distributions, shape N. Both sides carry gradient."""
    value = _SymmetricKL.apply(log_p_NC, log_q_NC)
    assert isinstance(value, Tensor)
    return value


def divergence(clean: Output, other: Output, batch: Batch, config: ASAConfig) -> dict[str, Tensor]:
    """The terms of L_asa (Eq. 9; token and sentence term of Eq. 10 for MLM), by name."""
    if batch.kind == "regression":
        a_B, b_B = clean.logits.float().squeeze(-1), other.logits.float().squeeze(-1)
        if config.regression == "batch_softmax":
            return {"asa": symmetric_kl(a_B.log_softmax(-1), b_B.log_softmax(-1)) / batch.total_labels}
        return {"asa": F.mse_loss(a_B, b_B, reduction="sum") / batch.total_labels}
    per_unit = symmetric_kl(clean.log_probs, other.log_probs)
    if batch.kind == "mlm":
        assert clean.cls_BD is not None
        assert other.cls_BD is not None
        # A hidden state is no distribution; the authors' only helper takes a softmax over the last axis of anything.
        a_BD, b_BD = clean.cls_BD.float().log_softmax(-1), other.cls_BD.float().log_softmax(-1)
        sentence = symmetric_kl(a_BD, b_BD).sum() / batch.total_rows
        return {"asa_token": per_unit.sum() / batch.total_labels, "asa_sentence": sentence}
    if batch.kind == "token":
        if config.token_mean == "rows":
            return {"asa": per_unit.sum() / batch.total_rows}
        return {"asa": per_unit[batch.labels != IGNORE].sum() / batch.total_labels}
    return {"asa": per_unit.sum() / batch.total_labels}


def kept_units(keep_BLL: Tensor, pad_BL: Tensor, rows: str) -> Tensor:
    """Attended units of one layer, of real queries ("valid") or of all; fp32, since fp16 overflows at 65504."""
    if rows == "valid":
        keep_BLL = keep_BLL * ~pad_BL[:, :, None]
    return keep_BLL.float().sum()


def penalty(kept: Tensor, batch: Batch, tau: float) -> Tensor:
    """tau^2 * attended units / rows: Eq. 8 as released, where the price is on what is kept and tau is squared."""
    return tau**2 * kept / batch.total_rows


def masked_share(keep_BLL: Tensor, pad_BL: Tensor) -> Tensor:
    """Share of each row's real pairs (query and key both no padding) that are masked, summed over rows; no gradient."""
    with torch.no_grad():
        real_BLL = ~(pad_BL[:, :, None] | pad_BL[:, None, :])
        return (1 - (keep_BLL * real_BLL).sum((1, 2)) / real_BLL.sum((1, 2)).clamp_min(1)).sum()
