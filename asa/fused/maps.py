# Triton's language has no types: a kernel's arguments are what its launch gives them.
# pyright: standard
"""The kernels of the keep map: scores to bits, and the gradient that reaches the scores from all heads.

Neither writes L x L floats; the gradient, L x L of one layer, is the one product that the two matrix products after it
need, and lives in the backward pass alone.
"""

import triton
import triton.language as tl

from asa.fused.attend import CHANGING
from asa.fused.tiles import HEADROOM, MASKED, SEEN, UNSEEN, load_rows, steepness, tile_gradient, tile_scores

# B rows, D width, H heads, K width of one head (padded), L length, W words of 32 keys; M queries, N keys of one tile


@triton.jit
def product(q_BLD, k_BLD, bias_M, rows_M, cols_N, length, width, D: tl.constexpr, PRECISION: tl.constexpr):
    """One tile MN of q k^T + bias in fp32, D columns at a time."""
    x_MN = tl.zeros((rows_M.shape[0], cols_N.shape[0]), tl.float32)
    for start in range(0, width, D):
        q_MD = load_rows(q_BLD + start, rows_M, length, width, width - start, D)
        k_ND = load_rows(k_BLD + start, cols_N, length, width, width - start, D)
        x_MN = tl.dot(q_MD, tl.trans(k_ND), x_MN, input_precision=PRECISION)
    return x_MN + bias_M[:, None]


@triton.jit(do_not_specialize=CHANGING)
def pack_kernel(
    q_BLD, k_BLD, bias_BL, floor_BL, bits_BLW, kept_BL, length, width, words,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Bit k % 32 of word k // 32 is set where a query keeps key k; kept_BL counts them.

    The count is added to in no fixed order, which whole numbers do not mind: fp32 holds them.
    """
    row = tl.program_id(2).to(tl.int64)
    rows_M = tl.program_id(0) * M + tl.arange(0, M)
    key0 = tl.program_id(1) * N
    cols_N = key0 + tl.arange(0, N)
    of_row = row * length * width
    # The scale of the scores is positive, so their signs do without it.
    bias_M = tl.load(bias_BL + row * length + rows_M, mask=rows_M < length, other=0.0).to(tl.float32)
    x_MN = product(q_BLD + of_row, k_BLD + of_row, bias_M, rows_M, cols_N, length, width, D, PRECISION)
    floor_N = tl.load(floor_BL + row * length + cols_N, mask=cols_N < length, other=UNSEEN)
    keep_MN = ((x_MN > 0) & (floor_N == SEEN)[None, :]).to(tl.int32)
    lanes = tl.reshape(keep_MN, (M, N // 32, 32)) << tl.arange(0, 32)[None, None, :]
    word = key0 // 32 + tl.arange(0, N // 32)
    inside = (rows_M < length)[:, None] & (word < words)[None, :]
    of_word = (row * length + rows_M[:, None]) * words + word[None, :]
    tl.store(bits_BLW + of_word, tl.sum(lanes, 2), mask=inside)
    kept_M = tl.sum(keep_MN, 1).to(tl.float32)
    tl.atomic_add(kept_BL + row * length + rows_M, kept_M, mask=rows_M < length, sem="relaxed")


@triton.jit(do_not_specialize=CHANGING)
def slope_kernel(
    q, k, v, do, floor_BL, bits_BLW, kept_BL, lse_BHL, delta_BHL, seed_ptr,
    mask_q_BLD, mask_k_BLD, mask_bias_BL, d_kept_BL, dx_BLL,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, do_b, do_h, do_l,
    heads, length, width, mask_width, words, scale, mask_scale, threshold, rescale,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """-(d keep) / 1e4 * sigmoid'(x / temperature) * HEADROOM of one tile; heads are added up in order, without atomics.

    Left out, because fp16 has no room for them: 1e4, and the reversal's factors, which usually cancel it.
    mask_scale: 1 / (sqrt(D) temperature).
    """
    row = tl.program_id(2).to(tl.int64)
    rows_M = tl.program_id(0) * M + tl.arange(0, M)
    key0 = tl.program_id(1) * N
    cols_N = key0 + tl.arange(0, N)
    inside_M = rows_M < length
    seed = tl.load(seed_ptr)
    steep = steepness(floor_BL + row * length, scale)
    floor_N = tl.load(floor_BL + row * length + cols_N, mask=cols_N < length, other=UNSEEN)
    kept_M = tl.load(kept_BL + row * length + rows_M, mask=inside_M, other=0)
    bits_M = bits_BLW + (row * length + rows_M) * words
    ds_MN = tl.zeros((M, N), tl.float32)
    for head in range(heads):
        q_MK = load_rows(q + row * q_b + head * q_h, rows_M, length, q_l, width, K)
        k_NK = load_rows(k + row * k_b + head * k_h, cols_N, length, k_l, width, K)
        v_NK = load_rows(v + row * v_b + head * v_h, cols_N, length, v_l, width, K)
        do_MK = load_rows(do + row * do_b + head * do_h, rows_M, length, do_l, width, K)
        plane = row * heads + head
        lse_M = tl.load(lse_BHL + plane * length + rows_M, mask=inside_M, other=0.0)
        delta_M = tl.load(delta_BHL + plane * length + rows_M, mask=inside_M, other=0.0)
        s_MN = tile_scores(q_MK, k_NK, bits_M, kept_M, floor_N, inside_M, key0, words, steep, N, False, PRECISION)
        _, head_MN = tile_gradient(
            s_MN, lse_M, delta_M, do_MK, v_NK, seed, plane.to(tl.int32), rows_M, key0, threshold, rescale,
            M, N, DROPOUT, False, PRECISION,
        )  # fmt: skip
        ds_MN += head_MN
    # A query that keeps nothing attends unmasked: then the price alone reaches the map.
    ds_MN = tl.where((kept_M > 0)[:, None], ds_MN, 0.0)
    price_M = tl.load(d_kept_BL + row * length + rows_M, mask=inside_M, other=0.0)
    of_row = row * length * mask_width
    bias_M = tl.load(mask_bias_BL + row * length + rows_M, mask=inside_M, other=0.0).to(tl.float32)
    x_MN = product(mask_q_BLD + of_row, mask_k_BLD + of_row, bias_M, rows_M, cols_N, length, mask_width, D, PRECISION)
    soft_MN = tl.sigmoid(x_MN * mask_scale)
    dx_MN = (price_M[:, None] / MASKED - ds_MN) * soft_MN * (1 - soft_MN) * HEADROOM
    dx_MN = tl.where((floor_N == SEEN)[None, :], dx_MN, 0.0).to(dx_BLL.dtype.element_ty)
    at_MN = (row * length + rows_M[:, None]) * length + cols_N[None, :]
    tl.store(dx_BLL + at_MN, dx_MN, mask=inside_M[:, None] & (cols_N < length)[None, :])
