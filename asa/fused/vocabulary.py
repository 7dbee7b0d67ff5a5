# Triton's language has no types: a kernel's arguments are what its launch gives them.
# pyright: standard
"""The kernels of losses over a vocabulary: cross entropy, and of two passes symmetric KL too.

A row's logits come from a GPU's memory once in each direction, and of what is as large as they are only their gradient
is written. The formulas are asa.compared's. No atomics: the same logits give the same bits.
"""

import triton
import triton.language as tl

from asa.batch import IGNORE

# N distributions (a second pass's N follow the first's), C classes or words of the vocabulary; T of one tile

UNLABELLED = tl.constexpr(IGNORE)


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


@triton.jit(do_not_specialize=("rows",))
def entropy_kernel(
    logits, labels_N, entropies_N, tops, logs, means, rows, classes, stride, T: tl.constexpr, PAIR: tl.constexpr
):
    """Of one row: its cross entropy (0 where unlabelled, NaN where the label is no class), largest logit and log of the
    sum of exp(logit - largest). PAIR: the last two of its fellow too, and the means of log p - log q under p and q.

    Largest and log stay apart: what all logits of a row have in common would cost their sum its digits.
    """
    row = tl.program_id(0)
    p_C = logits + row.to(tl.int64) * stride
    top_p, log_p = log_sum(p_C, classes, T)  # pyright: ignore[reportGeneralTypeIssues]  # of Python it only raises
    label = tl.load(labels_N + row)
    known = (label >= 0) & (label < classes)
    at_label = tl.load(p_C + label, mask=known, other=float("nan")).to(tl.float32)
    tl.store(entropies_N + row, tl.where(label == UNLABELLED, 0.0, log_p + (top_p - at_label)))
    tl.store(tops + row, top_p)
    tl.store(logs + row, log_p)
    if PAIR:
        q_C = p_C + rows.to(tl.int64) * stride
        top_q, log_q = log_sum(q_C, classes, T)
        apart = (top_p - top_q) + (log_p - log_q)
        under_p, under_q = 0.0, 0.0
        for start in range(0, classes, T):
            column_T = start + tl.arange(0, T)
            inside_T = column_T < classes
            x_T = tl.load(p_C + column_T, mask=inside_T, other=0.0).to(tl.float32)
            y_T = tl.load(q_C + column_T, mask=inside_T, other=0.0).to(tl.float32)
            gap_T = tl.where(inside_T, (x_T - y_T) - apart, 0.0)
            under_p += tl.sum(tl.exp(x_T - top_p) * gap_T, 0)
            under_q += tl.sum(tl.exp(y_T - top_q) * gap_T, 0)
        tl.store(tops + rows + row, top_q)
        tl.store(logs + rows + row, log_q)
        tl.store(means + row, under_p * tl.exp(-log_p))
        tl.store(means + rows + row, under_q * tl.exp(-log_q))


@triton.jit(do_not_specialize=("rows",))
def gradient_kernel(
    logits, labels_N, tops, logs, means, d_entropies_N, d_values_N, found, rows, classes, stride, pitch,
    T: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """Gradient to one tile of a row's logits, and with PAIR to its fellow's. stride, pitch: from a row to the next, of
    logits and of their gradient."""
    row = tl.program_id(0)
    column_T = tl.program_id(1) * T + tl.arange(0, T)
    inside_T = column_T < classes
    of_row, found_row = row.to(tl.int64) * stride + column_T, row.to(tl.int64) * pitch + column_T
    label = tl.load(labels_N + row)
    task = tl.where((label >= 0) & (label < classes), tl.load(d_entropies_N + row), float("nan"))
    task = tl.where(label == UNLABELLED, 0.0, task)
    x_T = tl.load(logits + of_row, mask=inside_T, other=0.0).to(tl.float32)
    log_p_T = (x_T - tl.load(tops + row)) - tl.load(logs + row)
    p_T = tl.exp(log_p_T)
    d_p_T = p_T * task - tl.where(column_T == label, task, 0.0)
    if PAIR:
        of_fellow = of_row + rows.to(tl.int64) * stride
        half = tl.load(d_values_N + row) / 2
        y_T = tl.load(logits + of_fellow, mask=inside_T, other=0.0).to(tl.float32)
        log_q_T = (y_T - tl.load(tops + rows + row)) - tl.load(logs + rows + row)
        q_T = tl.exp(log_q_T)
        slope_T = (log_p_T - log_q_T) * half
        own_p, own_q = (1 - tl.load(means + row)) * half, (1 + tl.load(means + rows + row)) * half
        d_p_T += p_T * (slope_T + own_p) - q_T * half
        d_q_T = q_T * (own_q - slope_T) - p_T * half
        found_fellow = found_row + rows.to(tl.int64) * pitch
        tl.store(found + found_fellow, d_q_T.to(found.dtype.element_ty), mask=inside_T)
    tl.store(found + found_row, d_p_T.to(found.dtype.element_ty), mask=inside_T)
