"""Whether the kernels compute on a device what they are to: a small problem, against the formulas laid out in fp64.

What compiles may still be wrong: compilers have had faults on one GPU and in one version, in just such products.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor

from asa.adversary import MASKED, ASAConfig, threshold
from asa.fused import floors, fused_attention
from asa.spare import spare

# B rows, D width, H heads, K width of one head, L length

ROWS, HEADS, LENGTH, WIDTH = 2, 2, 140, 192  # several tiles of each, the last of them not full
UNSEEN = 9  # keys of padding, in the first row
DROPOUTS = (0.0, 0.25)  # with dropout the kernels are compiled anew; not one half, which its reverse is too
# Largest relative error, in the Euclidean norm; some times what rounding gives (tests/fused/oracle.py).
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
LIMIT_OF_SHARE = 0.03  # of the weights that dropout spares: some ten standard deviations
LIMIT_OF_MAPS = 2e-3  # at least: their last product is torch's, in TF32 where the user allows it
NAMES = ("context", "kept units", *(f"gradient to {name}" for name in ("q", "k", "v", "q~", "k~", "b~")))


def fault(device: torch.device, dtype: torch.dtype, head: int) -> str | None:
    """What the kernels get wrong for heads of this width, None where nothing. Torch's generators stay as they are."""
    operands, seen_BL = _operands(device, dtype, head)
    with kept_state(device) as state:
        for dropout in DROPOUTS:
            spared_BHLL = _spared(operands, seen_BL, dropout, state) if dropout else None
            _set_state(device, state)
            found = _fused(operands, seen_BL, dropout)
            # On the CPU: the GPU is what is tried.
            plain = [x.detach().cpu().double().requires_grad_() for x in operands]
            wanted = _laid_out(plain, seen_BL.cpu(), spared_BHLL)
            # The kernels may agree on a wrong number of them.
            if spared_BHLL is not None:
                share = (spared_BHLL > 0).sum().item() / (HEADS * wanted[1].sum().item())
                if abs(share - (1 - dropout)) > LIMIT_OF_SHARE:
                    return f"dropout {dropout} spares {share:.2g} of the weights"
            # Any numbers that differ from query to query, in either part about as large for the maps.
            arriving = torch.cos(64 * wanted[0].detach()), 2e3 * torch.cos(wanted[1].detach())
            pairs = zip(
                found + _gradients(found, operands, arriving), wanted + _gradients(wanted, plain, arriving), strict=True
            )
            for name, (one, other) in zip(NAMES, pairs, strict=True):
                error = size(one.cpu().double() - other) / size(other)
                limit = max(LIMITS[dtype], LIMIT_OF_MAPS if "~" in name else 0)
                if not error <= limit:
                    return f"{name} is off by {error:.2g} of its size with dropout {dropout}"
    return None


def _operands(device: torch.device, dtype: torch.dtype, head: int) -> tuple[list[Tensor], Tensor]:
    """q, k, v (BHLK), the map's two factors (BLD) and its bias (BL), multiples of 1/4 whose products are exact;
    seen_BL."""
    draw = torch.Generator().manual_seed(0)
    qkv = [torch.randn(ROWS, LENGTH, HEADS, head, generator=draw).transpose(1, 2) for _ in range(3)]
    maps = [torch.randint(-6, 7, (ROWS, LENGTH, WIDTH), generator=draw) / 4 for _ in range(2)]
    seen_BL = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    seen_BL[0, -UNSEEN:] = False
    bias_BL = torch.randint(-6, 7, (ROWS, LENGTH), generator=draw) / 4
    operands = [x.to(device, dtype).requires_grad_() for x in (*qkv, *maps, bias_BL)]
    return operands, seen_BL.to(device)


def _fused(operands: list[Tensor], seen_BL: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    q, k, v, mask_q, mask_k, bias = operands
    scale = q.shape[-1] ** -0.5
    return fused_attention(
        q, k, v, mask_q, mask_k, bias, floors(seen_BL), scale=scale, dropout=dropout, config=ASAConfig()
    )


def _spared(operands: list[Tensor], seen_BL: Tensor, dropout: float, state: Tensor) -> Tensor:
    """Dropout's factor of each weight, BHLL on the CPU, under the generator's `state`: which weights the forward kernel
    spares is read from its context of values that are 1 for one key each. Where a weight is 0, so is this."""
    q, k, v, *map_ = (x.detach() for x in operands)
    found: list[Tensor] = []
    for first in range(0, LENGTH, v.shape[-1]):
        one_BHLK = torch.zeros_like(v)
        keys = min(v.shape[-1], LENGTH - first)
        one_BHLK[:, :, range(first, first + keys), range(keys)] = 1
        _set_state(q.device, state)
        context, _ = _fused([q, k, one_BHLK, *map_], seen_BL, dropout)
        found.append((context[..., :keys] > 0).cpu().double())
    return torch.cat(found, -1) * spare(dropout)[1]


def _laid_out(operands: list[Tensor], seen_BL: Tensor, spared_BHLL: Tensor | None) -> tuple[Tensor, Tensor]:
    """(context_BHLK, kept_BL) with every L x L array. Every query keeps some key."""
    q_BHLK, k_BHLK, v_BHLK, mask_q_BLD, mask_k_BLD, mask_bias_BL = operands
    config = ASAConfig()
    x_BLL = (mask_q_BLD @ mask_k_BLD.transpose(1, 2) + mask_bias_BL.unsqueeze(-1)) / WIDTH**0.5
    keep_BLL = threshold(x_BLL, config.reversal, config.temperature) * seen_BL[:, None]
    lowered_BLL = (1 - keep_BLL) * MASKED + torch.where(seen_BL, 0.0, -1e30)[:, None]
    scores_BHLL = q_BHLK @ k_BHLK.transpose(-1, -2) / q_BHLK.shape[-1] ** 0.5 + lowered_BLL[:, None]
    weights_BHLL = scores_BHLL.softmax(-1)
    if spared_BHLL is not None:
        weights_BHLL = weights_BHLL * spared_BHLL
    return weights_BHLL @ v_BHLK, keep_BLL.sum(-1)


def _gradients(
    outputs: tuple[Tensor, Tensor], operands: list[Tensor], arriving: tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    given = [grad.to(x.device, x.dtype) for grad, x in zip(arriving, outputs, strict=True)]
    return torch.autograd.grad(outputs, operands, given)


def size(x: Tensor) -> float:
    return x.square().sum().sqrt().item()


@contextmanager
def kept_state(device: torch.device) -> Generator[Tensor]:
    """Gives the state of the device's generator, which is the same afterwards."""
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    try:
        yield state
    finally:
        _set_state(device, state)


def _set_state(device: torch.device, state: Tensor) -> None:
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
