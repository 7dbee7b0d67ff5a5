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
# What is added to the scores with a key (asa.fused.floors), base 2. Finite: a tile of padding alone must not give
# -inf - -inf.
SEEN = tl.constexpr(0.0)
UNSEEN = tl.constexpr(-1e30)
BLIND = tl.constexpr(1.0)  # padding in a row of padding alone
ROUNDS = tl.constexpr(7)  # of Philox: the fewest that passed BigCrush (Salmon et al. 2011)


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
def is_set(bits_MW, M: tl.constexpr, N: tl.constexpr, TURNED: tl.constexpr):
    """Bit n % 32 of word n // 32, of each query."""
    lane = 1 << tl.arange(0, 32)
    if TURNED:
        lanes_MN = tl.reshape(tl.trans(bits_MW)[:, None, :] & lane[None, :, None], (N, M))
    else:
        lanes_MN = tl.reshape(bits_MW[:, :, None] & lane[None, None, :], (M, N))
    return lanes_MN != 0


@triton.jit
def steepness(floor_L, scale):
    """The scores' scale to base 2; 0 in a row that is padding alone, whose keys are all alike."""
    return tl.where(tl.load(floor_L) == BLIND, 0.0, scale * LOG2_E)


@triton.jit
def tile_scores(
    q_MK, k_NK, bits_M, kept_M, floor_N, inside_M, key0, words, steep,
    N: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of a tile to base 2: lowered where the map masks, UNSEEN at padding, alike in a row that is padding alone.

    bits_M: where each query's first word lies. kept_M: units of its map; with none of them it attends unmasked.
    A score takes three operations here: its bit, what that adds, and the sum. Their number is what a tile costs.
    """
    s_MN = tile_product(q_MK, k_NK, TURNED, PRECISION)
    word_W = key0 // 32 + tl.arange(0, N // 32)
    inside_MW = inside_M[:, None] & (word_W < words)[None, :]
    bits_MW = tl.load(bits_M[:, None] + word_W[None, :], mask=inside_MW, other=0)
    bits_MW = tl.where((kept_M == 0)[:, None], -1, bits_MW)
    attended_MN = is_set(bits_MW, kept_M.shape[0], N, TURNED)
    added_MN = tl.where(attended_MN, by_key(floor_N, TURNED), by_key(floor_N + MASKED * LOG2_E, TURNED))
    return s_MN * steep + added_MN


@triton.jit
def spared(
    seed, plane, rows_M, key0, threshold,
    M: tl.constexpr, N: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """True at the MN weights that dropout spares: a function of seed, plane (row and head), query and key alone.

    One draw of Philox4x32 serves eight keys with 16 bits each, because the draws are what dropout costs: those that one
    thread holds of a product's tile.
    """
    draw_T = tl.reshape(key0 // 8 + tl.arange(0, N // 8), (1, N // 32, 4))
    draw_MWT = draw_T + tl.zeros((M, 1, 1), tl.int32)
    rows_MWT = rows_M[:, None, None] + tl.zeros((1, N // 32, 4), tl.int32)
    a_MWT, b_MWT, c_MWT, d_MWT = tl.philox(seed, draw_MWT, rows_MWT, plane, 0, ROUNDS)
    least = threshold.to(tl.uint32) << 16
    if TURNED:  # few words change threads then
        of_MWT = two_bits(a_MWT, least) | two_bits(c_MWT, least) << 8 | two_bits(b_MWT, least) << 16
        of_MWT |= two_bits(d_MWT, least) << 24
        bits_MW = tl.sum(of_MWT << (2 * tl.arange(0, 4))[None, None, :], 2)
        spared_MN = is_set(bits_MW, M, N, True)
    else:
        words = tl.join(tl.join(a_MWT, b_MWT), tl.join(c_MWT, d_MWT))
        halves = tl.join(words << 16, words) >= least
        spared_MN = tl.reshape(tl.permute(tl.reshape(halves, (M, N // 32, 4, 4, 2)), (0, 1, 3, 2, 4)), (M, N))
    return spared_MN


@triton.jit
def two_bits(word, least):
    """1 where the lower half of a word is not below `least`, and 2 where the upper half is not."""
    return (word << 16 >= least).to(tl.int32) | (word >= least).to(tl.int32) << 1


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
        spared_MN = spared(seed, plane, rows_M, key0, threshold, M, N, TURNED)
        used_MN = tl.where(spared_MN, p_MN, 0.0)
        dp_MN = tl.where(spared_MN, dp_MN * rescale, 0.0)
    return used_MN, p_MN * (dp_MN - by_query(delta_M, TURNED))
