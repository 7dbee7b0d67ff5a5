"""What the fused kernels compute, plainly, in float64 and with every L x L array; and one random problem of it."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.fused import floors, fused_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Of cases that take long in the interpreter alone.
SLOW_HERE = () if DEVICE == "cuda" else pytest.mark.slow
# Largest relative error, in the Euclidean norm, of anything that is computed from operands of a type.
SEED = 2**40 + 7  # of norms
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
NAMES = ("q", "k", "v", "mask_q", "mask_k", "mask_bias")

# B rows, D width, H heads, K width of one head, L length (queries, then keys)


@dataclass
class Problem:
    """Operands (leaves), which keys are seen, and the gradients that arrive at context and kept units."""

    operands: tuple[Tensor, ...]
    seen_BL: Tensor
    d_context_BHLK: Tensor
    d_kept_BL: Tensor
    dropout: float = 0.0
    config: ASAConfig = field(default_factory=ASAConfig)

    @property
    def scale(self) -> float:
        return self.operands[0].shape[-1] ** -0.5


def problem(
    shape: tuple[int, int, int, int],
    width: int,
    dtype: torch.dtype = torch.float32,
    pads: tuple[int, ...] = (),
    left: bool = False,
    dropout: float = 0.0,
    config: ASAConfig | None = None,
    seed: int = 0,
) -> Problem:
    """Random operands. Args: shape BHLK; pads: padding of the first rows. The second query keeps nothing.

    The products that make the map are of multiples of 1/4, hence exact: no sign is a matter of rounding.
    """
    rows, heads, length, head = shape
    draw = torch.Generator().manual_seed(seed)
    qkv = [torch.randn(rows, length, heads, head, generator=draw).to(DEVICE, dtype).transpose(1, 2) for _ in range(3)]
    maps = [torch.randint(-6, 7, (rows, length, width), generator=draw).to(DEVICE, dtype) / 4 for _ in range(2)]
    maps[0][:, 1:2] = 0
    seen_BL = torch.ones(rows, length, dtype=torch.bool, device=DEVICE)
    for row, pad in enumerate(pads):
        seen_BL[row, slice(0, pad) if left else slice(length - pad, None)] = False
    d_context = torch.randn(rows, length, heads, head, generator=draw).to(DEVICE, dtype).transpose(1, 2)
    # Its part in the maps' gradient is about as large as attention's.
    d_kept_BL = torch.randn(rows, length, generator=draw).to(DEVICE) * 1e4
    config = config or ASAConfig()
    # As under autocast, where fp16 has no room for its gradient, which is a sum over keys.
    of_bias = torch.float32 if dtype == torch.float16 and config.reversal > 1e-3 else dtype
    bias_BL = torch.randint(-6, 7, (rows, length), generator=draw).to(DEVICE, of_bias) / 4
    bias_BL[:, 1:2] = 0
    operands = tuple(x.requires_grad_() for x in (*qkv, *maps, bias_BL))
    return Problem(operands, seen_BL, d_context, d_kept_BL, dropout, config)


def fused(given: Problem) -> dict[str, Tensor]:
    """context, kept and the gradients of all operands, by the kernels."""
    q, k, v, mask_q, mask_k, bias = given.operands
    context, kept = fused_attention(
        q,
        k,
        v,
        mask_q,
        mask_k,
        bias,
        floors(given.seen_BL),
        scale=given.scale,
        dropout=given.dropout,
        config=given.config,
    )
    return _with_gradients(given, context, kept, given.operands)


def plain(given: Problem, spared_BHLL: Tensor | None = None) -> dict[str, Tensor]:
    """The same in float64, from asa.biased's formulas. Args: the weights that dropout spares."""
    operands = tuple(x.detach().double().requires_grad_() for x in given.operands)
    q, k, v, mask_q, mask_k, mask_bias = operands
    seen_BLL = given.seen_BL[:, None].expand(-1, q.shape[2], -1)
    x_BLL = (mask_q @ mask_k.transpose(1, 2) + mask_bias.unsqueeze(-1)) / mask_q.shape[-1] ** 0.5
    soft_BLL = torch.sigmoid(x_BLL / given.config.temperature)
    keep_BLL = (x_BLL > 0).double() - given.config.reversal * (soft_BLL - soft_BLL.detach())
    keep_BLL = keep_BLL * seen_BLL
    empty_BL1 = ((x_BLL > 0) & seen_BLL).sum(-1, keepdim=True) == 0
    lowered_BLL = (1 - torch.where(empty_BL1, 1, keep_BLL)) * -1e4
    scores_BHLL = q @ k.transpose(-1, -2) * given.scale + lowered_BLL[:, None]
    # So low that a score beside it is lost: a row of padding alone attends to all of it alike.
    scores_BHLL = scores_BHLL + torch.where(seen_BLL, 0, -1e38)[:, None]
    weights_BHLL = scores_BHLL.softmax(-1)
    if spared_BHLL is not None:
        weights_BHLL = weights_BHLL * spared_BHLL / (1 - round(given.dropout * 65536) / 65536)
    return _with_gradients(given, weights_BHLL @ v, keep_BLL.sum(-1), operands)


def _with_gradients(given: Problem, context: Tensor, kept: Tensor, operands: tuple[Tensor, ...]) -> dict[str, Tensor]:
    both = (given.d_context_BHLK.to(context.dtype), given.d_kept_BL.to(kept.dtype))
    grads = torch.autograd.grad((context, kept), operands, both)
    return {"context": context.detach(), "kept": kept.detach(), **dict(zip(NAMES, grads, strict=True))}


def spared(seed: int, shape: tuple[int, int, int], dropout: float) -> Tensor:
    """BHLL, True where dropout spares a weight: whose draw is not below 65536 `dropout`. Args: shape BHL."""
    return torch.from_numpy(draws(seed, shape) >= round(dropout * 65536)).to(DEVICE)


def draws(seed: int, shape: tuple[int, int, int]) -> np.ndarray:
    """BHLL, 16 bits for each weight: the eight halves of Philox4x32-7 (Salmon et al. 2011), key `seed`, counter (k //
    32 * 4 + k % 8 // 2, q, b H + h, 0). Args: shape BHL."""
    rows, heads, length = shape
    blocks = -(-length // 32)
    axes = [np.arange(n, dtype=np.uint64) for n in (rows * heads, length, blocks * 4)]
    plane, query, group = np.meshgrid(*axes, indexing="ij")
    words = _philox((group, query, plane, np.zeros_like(plane)), seed)
    # Words lie eight keys apart, in this order; of two neighbours the lower half is the first one's.
    words = np.stack([words[0], words[2], words[1], words[3]], -1)
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], -1)
    halves = halves.reshape(rows, heads, length, blocks, 4, 4, 2).swapaxes(-3, -2)
    return halves.reshape(rows, heads, length, blocks * 32)[..., :length]


def spared_numbers(seed: int, shape: tuple[int, int], dropout: float) -> Tensor:
    """ND, True where dropout spares a number: counters are (d // 8, n, 0, 0), and a draw's halves lie as above. Args:
    shape ND."""
    rows, width = shape
    groups = -(-width // 8)
    draw, row = np.meshgrid(*(np.arange(n, dtype=np.uint64) for n in (groups, rows)))
    words = _philox((draw, row, np.zeros_like(row), np.zeros_like(row)), seed)
    words = np.stack([words[0], words[2], words[1], words[3]], -1)
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], -1).reshape(rows, groups * 8)[:, :width]
    return torch.from_numpy(halves >= round(dropout * 65536)).to(DEVICE)


def _philox(counter: tuple[np.ndarray, ...], seed: int) -> tuple[np.ndarray, ...]:
    """Four words of 32 bits, each in 64."""
    c0, c1, c2, c3 = counter
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(7):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> shift) ^ c1 ^ np.uint64(key0), b & low, (a >> shift) ^ c3 ^ np.uint64(key1), a & low
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def error(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|, or |found| where nothing is wanted."""
    size = wanted.norm().item()
    return (found.double() - wanted.double()).norm().item() / (size or 1)
