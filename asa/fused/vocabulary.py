# Triton's language has no types: a kernel's arguments are what its launch gives them.
# pyright: standard
"""The kernels of losses over a vocabulary: cross entropies, and of two passes the divergences between them too.

A row's logits come from a GPU's memory once in each direction, and of what is as large as they are only their gradient
is written. The formulas are asa.compared's. No atomics: the same logits give the same bits.
"""

import triton
import triton.language as tl

from asa.batch import IGNORE

# N rows, C classes or words of the vocabulary; T of one tile; p and q are the distributions of two passes

UNLABELLED = tl.constexpr(IGNORE)
# From batch to batch: what they divide by is worth no compilation. Neither is where a second pass begins in a tensor of
# both, which is why that is a number and no pointer.
CHANGING = ("rows", "behind")


@triton.jit
def log_sum(x_C, classes, T: tl.constexpr):
    """(largest, log of the sum of exp(x - largest)) of one row of logits."""
    top, total = -3.4e38, 0.0  # about fp32's least: finite, or a tile of -inf alone would give -inf - -inf
    for start in range(0, classes, T):
        column_T = start + tl.arange(0, T)
        x_T = tl.load(x_C + column_T, mask=column_T < classes, other=-float("inf")).to(tl.float32)
        above = tl.maximum(top, tl.max(x_T, 0))
        total = total * tl.exp(top - above) + tl.sum(tl.exp(x_T - above), 0)
        top = above
    return top, tl.log(total)


@triton.jit
def entropy(x_C, label, top, log, classes):
    """Cross entropy of one row: 0 where it is unlabelled, NaN where the label is no class."""
    known = (label >= 0) & (label < classes)
    at_label = tl.load(x_C + label, mask=known, other=float("nan")).to(tl.float32)
    return tl.where(label == UNLABELLED, 0.0, log + (top - at_label))


@triton.jit(do_not_specialize=CHANGING)
def entropy_kernel(
    p, q, labels_N, entropies, tops, logs, means, rows, behind, classes, T: tl.constexpr, PAIR: tl.constexpr
):
    """Of one row of logits: cross entropy, largest logit and log of the sum of exp(logit - largest). PAIR: those of the
    other pass behind all of the first's, and the means of log p - log q under p and q. behind: q's rows before those of
    its pass.

    Largest and log stay apart: what all logits of a row have in common would cost their sum its digits.
    """
    row = tl.program_id(0)
    p_C = p + row.to(tl.int64) * classes
    top_p, log_p = log_sum(p_C, classes, T)  # pyright: ignore[reportGeneralTypeIssues]  # of Python it only raises
    label = tl.load(labels_N + row)
    tl.store(entropies + row, entropy(p_C, label, top_p, log_p, classes))
    tl.store(tops + row, top_p)
    tl.store(logs + row, log_p)
    if PAIR:
        q_C = q + (row.to(tl.int64) + behind) * classes
        top_q, log_q = log_sum(q_C, classes, T)
        apart = (top_p - top_q) + (log_p - log_q)
        under_p, under_q = 0.0, 0.0
        for start in range(0, classes, T):
            column_T = start + tl.arange(0, T)
            inside_T = column_T < classes
            # Nothing outside: exp of 0 less the largest is infinite where all logits of a row lie below -89.
            x_T = tl.load(p_C + column_T, mask=inside_T, other=-float("inf")).to(tl.float32)
            y_T = tl.load(q_C + column_T, mask=inside_T, other=-float("inf")).to(tl.float32)
            gap_T = tl.where(inside_T, (x_T - y_T) - apart, 0.0)
            under_p += tl.sum(tl.exp(x_T - top_p) * gap_T, 0)
            under_q += tl.sum(tl.exp(y_T - top_q) * gap_T, 0)
        tl.store(entropies + rows + row, entropy(q_C, label, top_q, log_q, classes))
        tl.store(tops + rows + row, top_q)
        tl.store(logs + rows + row, log_q)
        tl.store(means + row, under_p * tl.exp(-log_p))
        tl.store(means + rows + row, under_q * tl.exp(-log_q))


@triton.jit
def task_slope(d_entropy, label, classes):
    """The gradient to a row's cross entropy, as far as the row has one."""
    known = tl.where((label >= 0) & (label < classes), d_entropy, float("nan"))
    return tl.where(label == UNLABELLED, 0.0, known)


@triton.jit
def log_share(x_C, column_T, inside_T, top, log):
    """Logs of a tile's probabilities."""
    x_T = tl.load(x_C + column_T, mask=inside_T, other=0.0).to(tl.float32)
    return (x_T - top) - log


@triton.jit(do_not_specialize=CHANGING)
def gradient_kernel(
    p, q, labels_N, tops, logs, means, d_entropy_p_N, d_entropy_q_N, d_forth_N, d_back_N, found_p, found_q,
    rows, behind, classes, pitch, T: tl.constexpr, PAIR: tl.constexpr, OF_P: tl.constexpr, OF_Q: tl.constexpr,
):  # fmt: skip
    """Gradients to one tile of a row's logits, of either pass where they are asked for. pitch: from a row of found to
    the next. PAIR: whether there is a second pass. behind: as above, of q and of found_q."""
    row = tl.program_id(0)
    column_T = tl.program_id(1) * T + tl.arange(0, T)
    inside_T = column_T < classes
    at_p, at_q = row.to(tl.int64), row.to(tl.int64) + behind
    label = tl.load(labels_N + row)
    log_p_T = log_share(p + at_p * classes, column_T, inside_T, tl.load(tops + row), tl.load(logs + row))
    p_T = tl.exp(log_p_T)
    task_p = task_slope(tl.load(d_entropy_p_N + row), label, classes)
    d_p_T = p_T * task_p - tl.where(column_T == label, task_p, 0.0)
    if PAIR:
        log_q_T = log_share(
            q + at_q * classes, column_T, inside_T, tl.load(tops + rows + row), tl.load(logs + rows + row)
        )
        q_T = tl.exp(log_q_T)
        gap_T = log_p_T - log_q_T
        forth, back = tl.load(d_forth_N + row), tl.load(d_back_N + row)
        d_p_T += p_T * (forth * gap_T + (back - forth * tl.load(means + row))) - back * q_T
        if OF_Q:
            task_q = task_slope(tl.load(d_entropy_q_N + row), label, classes)
            own = forth + back * tl.load(means + rows + row) + task_q
            d_q_T = q_T * (own - back * gap_T) - forth * p_T - tl.where(column_T == label, task_q, 0.0)
            tl.store(found_q + at_q * pitch + column_T, d_q_T.to(found_q.dtype.element_ty), mask=inside_T)
    if OF_P:
        tl.store(found_p + at_p * pitch + column_T, d_p_T.to(found_p.dtype.element_ty), mask=inside_T)
