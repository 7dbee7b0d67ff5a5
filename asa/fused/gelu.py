# Triton's language has no types: a kernel's arguments are what its launch gives them.
# pyright: standard
"""The kernel of GELU's gradient, which adds up what the bias before it gets while it has it. No atomics."""

import triton
import triton.language as tl

# N rows, W width; R rows of one tile, C columns of it

CHANGING = ("rows",)  # from batch to batch; worth no compilation


@triton.jit
def slope(x):
    """d/dx of x Phi(x) = Phi(x) + x phi(x), in fp32. Phi by Abramowitz and Stegun 7.1.26, off by 7.5e-8 at most: it
    takes the exponential that phi has, where erf would take another and a polynomial on either side of 1."""
    bell = tl.exp2(x * x * -0.7213475204444817)  # e^(-x^2 / 2)
    t = 1.0 / (1.0 + 0.2316418997 * tl.abs(x))
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * series * bell
    return tl.where(x > 0, 1.0 - tail, tail) + x * 0.3989422804014327 * bell


@triton.jit(do_not_specialize=CHANGING)
def gelu_gradient_kernel(x, dy, dx, of_shares, rows, width, R: tl.constexpr, C: tl.constexpr):
    """Gradient to x in C columns of a share's rows, and its sum over them. Shares take turns at R rows."""
    share, shares = tl.program_id(1), tl.num_programs(1)
    column_C = tl.program_id(0) * C + tl.arange(0, C)
    here_C = column_C < width
    total_RC = tl.zeros((R, C), tl.float32)  # its rows are added up once, at the end
    for first in range(share * R, rows, shares * R):
        row_R = first + tl.arange(0, R)
        inside_RC = (row_R < rows)[:, None] & here_C[None, :]
        at_RC = row_R.to(tl.int64)[:, None] * width + column_C[None, :]
        x_RC = tl.load(x + at_RC, mask=inside_RC, other=0.0).to(tl.float32)
        dy_RC = tl.load(dy + at_RC, mask=inside_RC, other=0.0).to(tl.float32)
        dx_RC = dy_RC * slope(x_RC)
        tl.store(dx + at_RC, dx_RC.to(dx.dtype.element_ty), mask=inside_RC)
        total_RC += dx_RC
    tl.store(of_shares + share * width + column_C, tl.sum(total_RC, 0), mask=here_C)
