# Triton's language has no types: a kernel's arguments are what its launch gives them.
# pyright: standard
"""The kernels of LayerNorm(dropout(x + bias) + residual), the end of each of a BERT block's two halves.

The sum is never written: the backward pass makes it again from x, the residual and the seed of dropout. No atomics:
the same operands and seed give the same bits.
"""

import triton
import triton.language as tl

from asa.fused.tiles import ROUNDS

# N rows, W width; R rows of one tile, D columns of it (all of a row, padded to a power of two); S shares of the rows

# From batch to batch, or a probability's; what depends on them is worth no compilation.
CHANGING = ("rows", "threshold")
# Vectors that a flat buffer may hold at any place: worth no kernel of their own, which no trial would have seen.
ANYWHERE = ("bias", "gain", "shift")


@triton.jit
def spared(seed, row_R, threshold, R: tl.constexpr, D: tl.constexpr):
    """True at the RD numbers that dropout spares: a function of seed, row and column alone. One draw of Philox4x32
    serves eight columns with 16 bits each."""
    draw_RT = tl.arange(0, D // 8)[None, :] + tl.zeros((R, 1), tl.int32)
    row_RT = row_R[:, None] + tl.zeros((1, D // 8), tl.int32)
    a_RT, b_RT, c_RT, d_RT = tl.philox(seed, draw_RT, row_RT, 0, 0, ROUNDS)
    words = tl.join(tl.join(a_RT, b_RT), tl.join(c_RT, d_RT))
    halves = tl.join(words << 16, words) >= threshold.to(tl.uint32) << 16
    return tl.reshape(halves, (R, D))


@triton.jit
def summed(x, bias_D, residual, at_RD, inside_RD, spared_RD, rescale, DROPOUT: tl.constexpr):
    """dropout(x + bias) + residual of a tile, in fp32."""
    x_RD = tl.load(x + at_RD, mask=inside_RD, other=0.0).to(tl.float32) + bias_D[None, :]
    if DROPOUT:
        x_RD = tl.where(spared_RD, x_RD * rescale, 0.0)
    return x_RD + tl.load(residual + at_RD, mask=inside_RD, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=ANYWHERE)
def norm_kernel(
    x, bias, residual, gain, shift, y, means, scales, seed_ptr, rows, width, eps, threshold, rescale,
    R: tl.constexpr, D: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """The norm of R rows, and of each its sum's mean and 1 / deviation."""
    row_R = tl.program_id(0) * R + tl.arange(0, R)
    column_D = tl.arange(0, D)
    here_D = column_D < width
    inside_RD = (row_R < rows)[:, None] & here_D[None, :]
    at_RD = row_R.to(tl.int64)[:, None] * width + column_D[None, :]
    spared_RD = inside_RD
    if DROPOUT:
        spared_RD = spared(tl.load(seed_ptr), row_R, threshold, R, D)
    bias_D = tl.load(bias + column_D, mask=here_D, other=0.0).to(tl.float32)
    sum_RD = summed(x, bias_D, residual, at_RD, inside_RD, spared_RD, rescale, DROPOUT)
    mean_R = tl.sum(sum_RD, 1) / width
    apart_RD = tl.where(here_D[None, :], sum_RD - mean_R[:, None], 0.0)
    scale_R = tl.rsqrt(tl.sum(apart_RD * apart_RD, 1) / width + eps)
    gain_D = tl.load(gain + column_D, mask=here_D, other=0.0).to(tl.float32)
    shift_D = tl.load(shift + column_D, mask=here_D, other=0.0).to(tl.float32)
    y_RD = apart_RD * scale_R[:, None] * gain_D[None, :] + shift_D[None, :]
    tl.store(y + at_RD, y_RD.to(y.dtype.element_ty), mask=inside_RD)
    tl.store(means + row_R, mean_R, mask=row_R < rows)
    tl.store(scales + row_R, scale_R, mask=row_R < rows)


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=ANYWHERE[:2])
def norm_gradient_kernel(
    x, bias, residual, gain, dy, means, scales, dx, d_residual, of_shares, seed_ptr,
    rows, width, threshold, rescale,
    R: tl.constexpr, D: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients to x and the residual of a share's rows, and their sums for bias, gain and shift. Shares take turns at
    R rows. Without dropout the first two are one."""
    share, shares = tl.program_id(0), tl.num_programs(0)
    column_D = tl.arange(0, D)
    here_D = column_D < width
    bias_D = tl.load(bias + column_D, mask=here_D, other=0.0).to(tl.float32)
    gain_D = tl.load(gain + column_D, mask=here_D, other=0.0).to(tl.float32)
    if DROPOUT:
        seed = tl.load(seed_ptr)
    d_bias_D, d_gain_D, d_shift_D = tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32), tl.zeros((D,), tl.float32)
    for first in range(share * R, rows, shares * R):
        row_R = first + tl.arange(0, R)
        inside_RD = (row_R < rows)[:, None] & here_D[None, :]
        at_RD = row_R.to(tl.int64)[:, None] * width + column_D[None, :]
        spared_RD = inside_RD
        if DROPOUT:
            spared_RD = spared(seed, row_R, threshold, R, D)
        sum_RD = summed(x, bias_D, residual, at_RD, inside_RD, spared_RD, rescale, DROPOUT)
        mean_R = tl.load(means + row_R, mask=row_R < rows, other=0.0)
        scale_R = tl.load(scales + row_R, mask=row_R < rows, other=0.0)
        normal_RD = tl.where(here_D[None, :], (sum_RD - mean_R[:, None]) * scale_R[:, None], 0.0)
        dy_RD = tl.load(dy + at_RD, mask=inside_RD, other=0.0).to(tl.float32)
        slope_RD = dy_RD * gain_D[None, :]
        along_R, level_R = tl.sum(slope_RD * normal_RD, 1) / width, tl.sum(slope_RD, 1) / width
        d_sum_RD = (slope_RD - normal_RD * along_R[:, None] - level_R[:, None]) * scale_R[:, None]
        tl.store(d_residual + at_RD, d_sum_RD.to(d_residual.dtype.element_ty), mask=inside_RD)
        dx_RD = d_sum_RD
        if DROPOUT:
            dx_RD = tl.where(spared_RD, d_sum_RD * rescale, 0.0)
            tl.store(dx + at_RD, dx_RD.to(dx.dtype.element_ty), mask=inside_RD)
        d_bias_D += tl.sum(dx_RD, 0)
        d_gain_D += tl.sum(dy_RD * normal_RD, 0)
        d_shift_D += tl.sum(dy_RD, 0)
    mine = of_shares + share * 3 * width + column_D
    tl.store(mine, d_bias_D, mask=here_D)
    tl.store(mine + width, d_gain_D, mask=here_D)
    tl.store(mine + 2 * width, d_shift_D, mask=here_D)


@triton.jit(do_not_specialize=("shares",))
def shares_kernel(of_shares, d_bias, d_gain, d_shift, shares, width, S: tl.constexpr, C: tl.constexpr):
    """Sums over shares of C columns of one of the three."""
    which, column_C = tl.program_id(1), tl.program_id(0) * C + tl.arange(0, C)
    total_C = tl.zeros((C,), tl.float32)
    for first in range(0, shares, S):
        share_S = first + tl.arange(0, S)
        inside_SC = (share_S < shares)[:, None] & (column_C < width)[None, :]
        at_SC = (share_S[:, None] * 3 + which) * width + column_C[None, :]
        total_C += tl.sum(tl.load(of_shares + at_SC, mask=inside_SC, other=0.0), 0)
    found_C = total_C.to(d_bias.dtype.element_ty)
    here_C = column_C < width
    if which == 0:  # not a part of the mask: Triton 3.9's interpreter takes it for a number there
        tl.store(d_bias + column_C, found_C, mask=here_C)
    elif which == 1:
        tl.store(d_gain + column_C, found_C, mask=here_C)
    else:
        tl.store(d_shift + column_C, found_C, mask=here_C)
