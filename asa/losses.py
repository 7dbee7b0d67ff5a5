"""Task losses, divergences and the penalty: pure functions of logits, in fp32 (divergences of fp64 logits in fp64).

Every loss is a sum over its units divided by the units of the whole optimizer step (Batch.total_*): added up over
micro-batches and ranks it is the mean over the step. A divergence of two passes needs no label and counts the rows of
a classification that have none.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from asa import fused
from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch
from asa.compared import Compared, compare, compare_halves
from asa.errors import RequestError
from asa.model import Output

# B rows, C classes, D width, L length, M masked positions, V vocabulary, N any number of distributions


def task_loss(out: Output, batch: Batch) -> Tensor:
    """Cross entropy, or squared error for regression: the sum over labelled units / Batch.total_labels."""
    labels = batch.labels.flatten()
    if batch.kind == "regression":
        # Else each number would be compared with each label.
        if not out.logits.numel() == labels.numel() == len(batch.labels):
            raise RequestError(
                f"the head gives {list(out.logits.shape)} numbers for {labels.numel()} labels, a regression has one a"
                " row; give a model whose head has one (num_labels = 1)"
            )
        return F.mse_loss(out.logits.float().flatten(), labels.float(), reduction="sum") / batch.total_labels
    if fused.losses_supported(out.logits):
        return fused.cross_entropies(out.logits.flatten(0, -2), labels).sum() / batch.total_labels
    loss = F.nll_loss(out.log_probs.flatten(0, -2), labels, reduction="sum", ignore_index=IGNORE)
    return loss / batch.total_labels


def compared(both: Output, batch: Batch, config: ASAConfig) -> dict[str, Tensor]:
    """The task's loss in the first half of a pass over `batch` twice, and its divergence from the second half."""
    clean, other = both.halves()
    if batch.kind == "regression" or config.stop_gradient:
        return {"task": task_loss(clean, batch), **divergence(clean, other, batch, config)}
    found = compare_halves(both.logits.flatten(0, -2), batch.labels.flatten())
    per_unit = _chosen(found, config).view(clean.logits.shape[:-1])
    return {"task": found.entropy_p_N.sum() / batch.total_labels, **_terms(per_unit, clean, other, batch, config)}


def divergence(clean: Output, other: Output, batch: Batch, config: ASAConfig) -> dict[str, Tensor]:
    """The terms of L_asa (Eq. 9; token and sentence term of Eq. 10 for MLM), by name."""
    if batch.kind == "regression":
        return {"asa": _regression(clean.logits, other.logits, config, batch.total_compared) / batch.total_compared}
    return _terms(between(clean.logits, other.logits, config), clean, other, batch, config)


def _terms(per_unit: Tensor, clean: Output, other: Output, batch: Batch, config: ASAConfig) -> dict[str, Tensor]:
    """What the divergence of each unit's predictions makes of L_asa."""
    if batch.kind == "mlm":
        sentence = _sentence(clean, other, config).sum() / batch.total_rows
        return {"asa_token": per_unit.sum() / batch.total_labels, "asa_sentence": sentence}
    if batch.kind == "token":
        if config.token_mean == "rows":
            return {"asa": per_unit.sum() / batch.total_rows}
        # Not by an index, whose length a GPU would have to be waited for.
        return {"asa": torch.where(batch.labels != IGNORE, per_unit, 0.0).sum() / batch.total_labels}
    return {"asa": per_unit.sum() / batch.total_compared}


def between(clean: Tensor, other: Tensor, config: ASAConfig) -> Tensor:
    """Divergence of the distributions that a softmax over the last axis makes; that axis is gone from the shape."""
    if config.stop_gradient:
        clean = clean.detach()
    return _chosen(compare(clean.flatten(0, -2), other.flatten(0, -2)), config).view(clean.shape[:-1])


def _chosen(found: Compared, config: ASAConfig) -> Tensor:
    return found.forth_N if config.divergence == "one_sided" else found.symmetric_N


def _regression(clean_B1: Tensor, other_B1: Tensor, config: ASAConfig, total: int) -> Tensor:
    """Sum over the rows, or with batch_softmax the one divergence of the whole batch, which has `total` rows."""
    a_B, b_B = clean_B1.float().flatten(), other_B1.float().flatten()
    if config.regression == "batch_softmax":
        if len(a_B) < total:
            raise RequestError(
                f"asa.regression = batch_softmax compares all {total} rows of a batch, and one pass has {len(a_B)};"
                " set --asa.regression squared, or leave batches whole: one process, no micro-batches"
            )
        return between(a_B.unsqueeze(0), b_B.unsqueeze(0), config).squeeze(0)
    return F.mse_loss(b_B, a_B.detach() if config.stop_gradient else a_B, reduction="sum")


def _sentence(clean: Output, other: Output, config: ASAConfig) -> Tensor:
    """Per row, the distance of the two passes at [CLS]. The paper names none: a hidden state is no distribution.

    The default is a softmax over the last axis because the authors' only helper takes one of anything it gets.
    """
    if config.sentence == "head":
        assert clean.cls_logits is not None
        assert other.cls_logits is not None
        return between(clean.cls_logits, other.cls_logits, config)
    assert clean.cls_BD is not None
    assert other.cls_BD is not None
    if config.sentence == "hidden_softmax":
        return between(clean.cls_BD, other.cls_BD, config)
    a_BD, b_BD = clean.cls_BD.float(), other.cls_BD.float()
    if config.stop_gradient:
        a_BD = a_BD.detach()
    if config.sentence == "mse":
        return (a_BD - b_BD).square().mean(-1)
    return 1 - F.cosine_similarity(a_BD, b_BD, dim=-1)


def kept_keys(keep_BLL: Tensor) -> Tensor:
    """How many keys each query of a map (BLL, or BHLL: mean over heads, so that tau prices a pair the same) keeps, BL;
    at least in fp32, since fp16 overflows at 65504."""
    kept_BL = (keep_BLL if keep_BLL.dtype == torch.float64 else keep_BLL.float()).sum(-1)
    return kept_BL.mean(1) if kept_BL.dim() == 3 else kept_BL


def penalty(kept: Tensor, batch: Batch, tau: float) -> Tensor:
    """tau^2 * attended units / rows: Eq. 8 as released, where the price is on what is kept and tau is squared."""
    return tau**2 * kept / batch.total_rows


def counted_units(kept_BL: Tensor, pad_BL: Tensor, rows: str) -> Tensor:
    """Attended units of one layer's map, of real queries ("valid") or of all, by how many keys each query keeps; of
    several maps, NBL, of each."""
    return (kept_BL * ~pad_BL if rows == "valid" else kept_BL).sum((-2, -1))


def masked_share(keep_BLL: Tensor, seen_BLL: Tensor, pad_BL: Tensor) -> Tensor:
    """Share of each row's pairs (a real query and a key it sees) that are masked, 0 for a row of padding alone, summed
    over rows; no gradient."""
    with torch.no_grad():
        return counted_share(*pairs(keep_BLL, seen_BLL), pad_BL)


def pairs(keep_BLL: Tensor, seen_BLL: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the keys it sees each query of a map keeps, at least in fp32, and how many it sees, BL each."""
    keep_BLL = keep_BLL if keep_BLL.dtype == torch.float64 else keep_BLL.float()
    keep_BLL = keep_BLL.mean(1) if keep_BLL.dim() == 4 else keep_BLL
    kept_BL = (keep_BLL * seen_BLL).sum(-1)
    return kept_BL, seen_BLL.expand(-1, -1, keep_BLL.shape[-1]).sum(-1).expand_as(kept_BL)


def counted_share(kept_BL: Tensor, pairs_BL: Tensor, pad_BL: Tensor) -> Tensor:
    """masked_share of a map of which is known what `pairs` tells; of several, NBL, of each."""
    with torch.no_grad():
        pairs_B, kept_B = (pairs_BL * ~pad_BL).sum(-1), (kept_BL * ~pad_BL).sum(-1)
        return torch.where(pairs_B > 0, 1 - kept_B / pairs_B.clamp_min(1), 0).sum(-1)
