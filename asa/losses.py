"""Task losses, divergences and the penalty: pure functions of logits, in fp32.

Every loss is a sum over its units divided by the units of the whole optimizer step (Batch.total_*): added up over
micro-batches and ranks it is the mean over the step.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch
from asa.model import Output

# B rows, C classes, D width, L length, M masked positions, V vocabulary, N any number of distributions


def task_loss(out: Output, batch: Batch) -> Tensor:
    """Cross entropy, or squared error for regression: the sum over labelled units / Batch.total_labels."""
    logits = out.logits.float()
    if batch.kind == "regression":
        return F.mse_loss(logits.squeeze(-1), batch.labels.float(), reduction="sum") / batch.total_labels
    labels = batch.labels.flatten()
    loss = F.cross_entropy(logits.flatten(0, -2), labels, reduction="sum", ignore_index=IGNORE)
    return loss / batch.total_labels


def symmetric_kl(a_NC: Tensor, b_NC: Tensor) -> Tensor:
    """Per row (KL(a||b) + KL(b||a)) / 2 of the softmaxes, shape N. Both sides carry gradient."""
    log_a_NC, log_b_NC = a_NC.float().log_softmax(-1), b_NC.float().log_softmax(-1)
    return ((log_a_NC.exp() - log_b_NC.exp()) * (log_a_NC - log_b_NC)).sum(-1) / 2


def divergence(clean: Output, other: Output, batch: Batch, config: ASAConfig) -> dict[str, Tensor]:
    """The terms of L_asa (Eq. 9; token and sentence term of Eq. 10 for MLM), by name."""
    a, b = clean.logits, other.logits
    if batch.kind == "mlm":
        assert clean.cls_BD is not None
        assert other.cls_BD is not None
        token = symmetric_kl(a, b).sum() / batch.total_labels
        # A hidden state is no distribution; the authors' only helper takes a softmax over the last axis of anything.
        sentence = symmetric_kl(clean.cls_BD, other.cls_BD).sum() / batch.total_rows
        return {"asa_token": token, "asa_sentence": sentence}
    if batch.kind == "regression":
        if config.regression == "batch_softmax":
            return {"asa": symmetric_kl(a.squeeze(-1), b.squeeze(-1)) / batch.total_labels}
        return {"asa": F.mse_loss(a.float(), b.float(), reduction="sum") / batch.total_labels}
    if batch.kind == "token":
        per_token_BL = symmetric_kl(a, b)
        if config.token_mean == "rows":
            return {"asa": per_token_BL.sum() / batch.total_rows}
        return {"asa": per_token_BL[batch.labels != IGNORE].sum() / batch.total_labels}
    return {"asa": symmetric_kl(a, b).sum() / batch.total_labels}


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
        return (1 - (keep_BLL * real_BLL).sum((1, 2)) / real_BLL.sum((1, 2))).sum()
