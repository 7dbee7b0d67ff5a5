# Triton's language has no types: a kernel's arguments are what its launch gives them.
# pyright: standard
"""The kernels of attention under a bit map: forward, gradient to queries, gradient to keys and values."""

import triton
import triton.language as tl

from asa.fused.tiles import UNSEEN, load_rows, spared, steepness, store_rows, tile_gradient, tile_scores

# B rows, H heads, K width of one head (padded), L length, W words of 32 keys; M queries, N keys of one tile

CHANGING = ("length", "words", "threshold")  # from batch to batch: what they divide by is worth no compilation


@triton.jit(do_not_specialize=CHANGING)
def forward_kernel(
    q, k, v, out, floor_BL, bits_BLW, kept_BL, lse_BHL, seed_ptr,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, out_b, out_h, out_l,
    heads, length, width, words, scale, threshold, rescale,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """M queries of one head over all keys, by running maximum and sum; lse is the scores' log-sum-exp to base 2."""
    plane = tl.program_id(1)
    row, head = (plane // heads).to(tl.int64), plane % heads
    rows_M = tl.program_id(0) * M + tl.arange(0, M)
    inside_M = rows_M < length
    seed = tl.load(seed_ptr)
    steep = steepness(floor_BL + row * length, scale)
    kept_M = tl.load(kept_BL + row * length + rows_M, mask=inside_M, other=0)
    bits_M = bits_BLW + (row * length + rows_M) * words
    q_MK = load_rows(q + row * q_b + head * q_h, rows_M, length, q_l, width, K)
    top_M = tl.full((M,), -float("inf"), tl.float32)
    sum_M = tl.zeros((M,), tl.float32)
    out_MK = tl.zeros((M, K), tl.float32)
    for key0 in range(0, length, N):
        cols_N = key0 + tl.arange(0, N)
        floor_N = tl.load(floor_BL + row * length + cols_N, mask=cols_N < length, other=UNSEEN)
        k_NK = load_rows(k + row * k_b + head * k_h, cols_N, length, k_l, width, K)
        v_NK = load_rows(v + row * v_b + head * v_h, cols_N, length, v_l, width, K)
        s_MN = tile_scores(q_MK, k_NK, bits_M, kept_M, floor_N, inside_M, key0, words, steep, N, False, PRECISION)
        above_M = tl.maximum(top_M, tl.max(s_MN, 1))
        p_MN = tl.exp2(s_MN - above_M[:, None])
        fade_M = tl.exp2(top_M - above_M)
        sum_M = sum_M * fade_M + tl.sum(p_MN, 1)
        if DROPOUT:
            p_MN = tl.where(spared(seed, plane, rows_M, key0, threshold, M, N, False), p_MN, 0.0)
        out_MK = tl.dot(p_MN.to(v_NK.dtype), v_NK, out_MK * fade_M[:, None], input_precision=PRECISION)
        top_M = above_M
    out_MK = out_MK * (rescale / sum_M)[:, None]
    store_rows(out + row * out_b + head * out_h, out_MK, rows_M, length, out_l, width, K)
    tl.store(lse_BHL + plane.to(tl.int64) * length + rows_M, top_M + tl.log2(sum_M), mask=inside_M)


@triton.jit(do_not_specialize=CHANGING)
def query_kernel(
    q, k, v, out, do, dq, floor_BL, bits_BLW, kept_BL, lse_BHL, delta_BHL, seed_ptr,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, out_b, out_h, out_l, do_b, do_h, do_l, dq_b, dq_h, dq_l,
    heads, length, width, words, scale, threshold, rescale,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of M queries; also delta, the mean of the weights' gradient under the weights, which the others read."""
    plane = tl.program_id(1)
    row, head = (plane // heads).to(tl.int64), plane % heads
    rows_M = tl.program_id(0) * M + tl.arange(0, M)
    inside_M = rows_M < length
    seed = tl.load(seed_ptr)
    steep = steepness(floor_BL + row * length, scale)
    kept_M = tl.load(kept_BL + row * length + rows_M, mask=inside_M, other=0)
    bits_M = bits_BLW + (row * length + rows_M) * words
    of_plane = plane.to(tl.int64) * length
    lse_M = tl.load(lse_BHL + of_plane + rows_M, mask=inside_M, other=0.0)
    q_MK = load_rows(q + row * q_b + head * q_h, rows_M, length, q_l, width, K)
    do_MK = load_rows(do + row * do_b + head * do_h, rows_M, length, do_l, width, K)
    out_MK = load_rows(out + row * out_b + head * out_h, rows_M, length, out_l, width, K)
    delta_M = tl.sum(do_MK.to(tl.float32) * out_MK.to(tl.float32), 1)
    tl.store(delta_BHL + of_plane + rows_M, delta_M, mask=inside_M)
    dq_MK = tl.zeros((M, K), tl.float32)
    for key0 in range(0, length, N):
        cols_N = key0 + tl.arange(0, N)
        floor_N = tl.load(floor_BL + row * length + cols_N, mask=cols_N < length, other=UNSEEN)
        k_NK = load_rows(k + row * k_b + head * k_h, cols_N, length, k_l, width, K)
        v_NK = load_rows(v + row * v_b + head * v_h, cols_N, length, v_l, width, K)
        s_MN = tile_scores(q_MK, k_NK, bits_M, kept_M, floor_N, inside_M, key0, words, steep, N, False, PRECISION)
        _, ds_MN = tile_gradient(
            s_MN, lse_M, delta_M, do_MK, v_NK, seed, plane, rows_M, key0, threshold, rescale,
            M, N, DROPOUT, False, PRECISION,
        )  # fmt: skip
        dq_MK = tl.dot(ds_MN.to(k_NK.dtype), k_NK, dq_MK, input_precision=PRECISION)
    store_rows(dq + row * dq_b + head * dq_h, dq_MK * scale, rows_M, length, dq_l, width, K)


@triton.jit(do_not_specialize=CHANGING)
def key_kernel(
    q, k, v, do, dk, dv, floor_BL, bits_BLW, kept_BL, lse_BHL, delta_BHL, seed_ptr,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, do_b, do_h, do_l, dk_b, dk_h, dk_l, dv_b, dv_h, dv_l,
    heads, length, width, words, scale, threshold, rescale,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of N keys, over all queries."""
    plane = tl.program_id(1)
    row, head = (plane // heads).to(tl.int64), plane % heads
    key0 = tl.program_id(0) * N
    cols_N = key0 + tl.arange(0, N)
    seed = tl.load(seed_ptr)
    steep = steepness(floor_BL + row * length, scale)
    of_plane = plane.to(tl.int64) * length
    floor_N = tl.load(floor_BL + row * length + cols_N, mask=cols_N < length, other=UNSEEN)
    k_NK = load_rows(k + row * k_b + head * k_h, cols_N, length, k_l, width, K)
    v_NK = load_rows(v + row * v_b + head * v_h, cols_N, length, v_l, width, K)
    dk_NK = tl.zeros((N, K), tl.float32)
    dv_NK = tl.zeros((N, K), tl.float32)
    for start in range(0, length, M):
        rows_M = start + tl.arange(0, M)
        inside_M = rows_M < length
        kept_M = tl.load(kept_BL + row * length + rows_M, mask=inside_M, other=0)
        lse_M = tl.load(lse_BHL + of_plane + rows_M, mask=inside_M, other=0.0)
        delta_M = tl.load(delta_BHL + of_plane + rows_M, mask=inside_M, other=0.0)
        bits_M = bits_BLW + (row * length + rows_M) * words
        q_MK = load_rows(q + row * q_b + head * q_h, rows_M, length, q_l, width, K)
        do_MK = load_rows(do + row * do_b + head * do_h, rows_M, length, do_l, width, K)
        s_NM = tile_scores(q_MK, k_NK, bits_M, kept_M, floor_N, inside_M, key0, words, steep, N, True, PRECISION)
        used_NM, ds_NM = tile_gradient(
            s_NM, lse_M, delta_M, do_MK, v_NK, seed, plane, rows_M, key0, threshold, rescale,
            M, N, DROPOUT, True, PRECISION,
        )  # fmt: skip
        dv_NK = tl.dot(used_NM.to(do_MK.dtype), do_MK, dv_NK, input_precision=PRECISION)
        dk_NK = tl.dot(ds_NM.to(q_MK.dtype), q_MK, dk_NK, input_precision=PRECISION)
    store_rows(dk + row * dk_b + head * dk_h, dk_NK * scale, cols_N, length, dk_l, width, K)
    store_rows(dv + row * dv_b + head * dv_h, dv_NK * rescale, cols_N, length, dv_l, width, K)
