# Triton's language has no types: a kernel's arguments are what its launch gives them.
# pyright: standard
"""What the attention kernels share: one tile of scores as the softmax takes it, and which weights dropout spares."""

from typing import Any

import triton
import triton.language as tl

# M queries and N keys of one tile, K width of one head (padded to a power of two). TURNED: the tile is NM and not MN,
# for the kernel whose products want it so: a tile that a product has made is not transposed afterwards, which Triton
# 3.4 to 3.7 gets wrong on Hopper (triton-lang/triton #6124, fla-org/flash-linear-attention #640).

LOG2_E = tl.constexpr(1.4426950408889634)  # the softmax is taken to base 2, which is what the hardware has
MASKED = tl.constexpr(-1e4)  # asa.adversary.MASKED, which no kernel can read
HEADROOM: Any = tl.constexpr(256.0)  # of the gradient to the map's scores, whose 1 / 1e4 leaves fp16's normal range
UNSEEN = tl.constexpr(-1e30)  # finite: a tile of padding alone must not give -inf - -inf
SEEN = tl.constexpr(1)  # a key's state: padding is 0, and 2 where its whole row is padding
BLIND = tl.constexpr(2)


@triton.jit
def load_rows(base, rows_M, length, stride, width, K: tl.constexpr):
    """M rows of `width` values from a matrix of `length` rows, as MK; 0 beyond its ends."""
    column_K = tl.arange(0, K)
    inside_MK = (rows_M < length)[:, None] & (column_K < width)[None, :]
    return tl.load(base + rows_M[:, None] * stride + column_K[None, :], mask=inside_MK, other=0.0)


@triton.jit
def store_rows(base, x_MK, rows_M, length, stride, width, K: tl.constexpr):
    """Write what load_rows reads."""
    column_K = tl.arange(0, K)
    inside_MK = (rows_M < length)[:, None] & (column_K < width)[None, :]
    tl.store(base + rows_M[:, None] * stride + column_K[None, :], x_MK.to(base.dtype.element_ty), mask=inside_MK)


@triton.jit
def by_query(x_M, TURNED: tl.constexpr):
    """One value for each query, to go with a tile."""
    return x_M[None, :] if TURNED else x_M[:, None]


@triton.jit
def by_key(x_N, TURNED: tl.constexpr):
    """One value for each key, to go with a tile."""
    return x_N[:, None] if TURNED else x_N[None, :]


@triton.jit
def tile_product(x_MK, y_NK, TURNED: tl.constexpr, PRECISION: tl.constexpr):
    """Products of the rows of queries with those of keys, in fp32."""
    if TURNED:
        x_MN = tl.dot(y_NK, tl.trans(x_MK), input_precision=PRECISION)
    else:
        x_MN = tl.dot(x_MK, tl.trans(y_NK), input_precision=PRECISION)
    return x_MN


@triton.jit
def tile_scores(
    q_MK, k_NK, bits_M, kept_M, state_N, inside_M, key0, words, scale,
    N: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of a tile to base 2: lowered where the map masks, UNSEEN at padding, 0 in a row that is padding alone.

    bits_M: where each query's first word lies. kept_M: units of its map; with none of them it attends unmasked.
    """
    s_MN = tile_product(q_MK, k_NK, TURNED, PRECISION) * (scale * LOG2_E)
    lane_N = tl.arange(0, N)
    bits_MN = tl.zeros(s_MN.shape, tl.int32)
    for part in tl.static_range(N // 32):
        word = key0 // 32 + part
        word_M = tl.load(bits_M + word, mask=inside_M & (word < words), other=0)
        bits_MN = tl.where(by_key(lane_N // 32 == part, TURNED), by_query(word_M, TURNED), bits_MN)
    attended_MN = (((bits_MN >> by_key(lane_N % 32, TURNED)) & 1) != 0) | by_query(kept_M == 0, TURNED)
    s_MN = tl.where(attended_MN, s_MN, s_MN + MASKED * LOG2_E)
    unseen_N = tl.where(state_N == BLIND, 0.0, UNSEEN)
    return tl.where(by_key(state_N == SEEN, TURNED), s_MN, by_key(unseen_N, TURNED))


@triton.jit
def spared(seed, plane, rows_M, key0, threshold, M: tl.constexpr, N: tl.constexpr):
    """True at the MN weights that dropout spares: a function of seed, plane (row and head), query and key alone.

    One draw of Philox4x32 serves eight keys with 16 bits each, because the draws are what dropout costs.
    """
    group_MG = key0 // 8 + tl.arange(0, N // 8)[None, :] + tl.zeros((M, 1), tl.int32)
    rows_MG = rows_M[:, None] + tl.zeros((1, N // 8), tl.int32)
    a_MG, b_MG, c_MG, d_MG = tl.philox(seed, group_MG, rows_MG, plane, 0)
    words = tl.join(tl.join(a_MG, b_MG), tl.join(c_MG, d_MG))
    halves = tl.join(words & 0xFFFF, words >> 16)
    return tl.reshape(halves, (M, N)).to(tl.int32) >= threshold


@triton.jit
def tile_gradient(
    s_MN, lse_M, delta_M, do_MK, v_NK, seed, plane, rows_M, key0, threshold, rescale,
    M: tl.constexpr, N: tl.constexpr, DROPOUT: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(weights after dropout but for its rescaling, gradient to the scores) of one tile, both in fp32."""
    p_MN = tl.exp2(s_MN - by_query(lse_M, TURNED))
    dp_MN = tile_product(do_MK, v_NK, TURNED, PRECISION)
    used_MN = p_MN
    if DROPOUT:
        spared_MN = spared(seed, plane, rows_M, key0, threshold, M, N)
        if TURNED:
            spared_MN = tl.trans(spared_MN)
        used_MN = tl.where(spared_MN, p_MN, 0.0)
        dp_MN = tl.where(spared_MN, dp_MN * rescale, 0.0)
    return used_MN, p_MN * (dp_MN - by_query(delta_M, TURNED))
