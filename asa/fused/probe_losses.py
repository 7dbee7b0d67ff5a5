"""Whether the losses' kernels compute on a device what they are to: a few rows, against torch's losses in fp64."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asa.batch import IGNORE
from asa.fused.losses import Losses
from asa.fused.probe import size

# N rows, C classes

ROWS, CLASSES = 3, 9001  # several tiles, the last of them not full
# Largest relative error, in the Euclidean norm: the losses are fp32, gradients have the logits' type.
LIMIT = 1e-4
LIMITS = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
NAMES = (
    *("cross entropy", "the other pass's", "divergence", "its converse", "gradient"),
    *("cross entropy alone", "its gradient"),
)


def fault(device: torch.device, dtype: torch.dtype) -> str | None:
    """What the kernels get wrong, None where nothing. No random number is drawn."""
    logits, labels = _problem(dtype)
    given = logits.to(device).requires_grad_()
    wanted, found = _torch(logits.double().requires_grad_(), labels), _ours(given, labels.to(device))
    for name, one, other in zip(NAMES, found, wanted, strict=True):
        error = size(one.detach().cpu().double() - other.detach()) / size(other.detach())
        if not error <= (LIMITS[dtype] if "gradient" in name else LIMIT):
            return f"{name} is off by {error:.2g} of its size"
    return None


def _problem(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits 2NC that differ by a little between passes, one row far below 0, and labels N, of which one is none."""
    draw = torch.Generator().manual_seed(0)
    clean_NC = 3 * torch.randn(ROWS, CLASSES, generator=draw)
    clean_NC[0] -= 256
    other_NC = clean_NC + torch.randn(ROWS, CLASSES, generator=draw)
    return torch.cat([clean_NC, other_NC]).to(dtype), torch.tensor([CLASSES - 1, IGNORE, 0])


def _ours(logits_2NC: Tensor, labels_N: Tensor) -> tuple[Tensor, ...]:
    both = Losses.apply(labels_N, True, logits_2NC)
    return _told(both, Losses.apply(labels_N, False, logits_2NC[:ROWS]), logits_2NC)


def _torch(logits_2NC: Tensor, labels_N: Tensor) -> tuple[Tensor, ...]:
    """On the CPU: the device is what is tried."""
    logs = logits_2NC.log_softmax(-1).chunk(2)
    entropies = [F.nll_loss(log_NC, labels_N, reduction="none", ignore_index=IGNORE) for log_NC in logs]
    divergences = [(p_NC.exp() * (p_NC - q_NC)).sum(-1) for p_NC, q_NC in (logs, logs[::-1])]
    return _told((*entropies, *divergences), entropies[0], logits_2NC)


def _told(both: tuple[Tensor, ...], alone_N: Tensor, logits_2NC: Tensor) -> tuple[Tensor, ...]:
    """The losses with gradients to the logits, each row of each loss by a weight of its own."""
    weights_N = torch.arange(1.0, 1 + ROWS, device=logits_2NC.device)
    whole = torch.stack([(loss_N * (n + weights_N)).sum() for n, loss_N in enumerate(both)]).sum()
    (of_both,) = torch.autograd.grad(whole, logits_2NC, retain_graph=True)  # which torch's two share
    (of_one,) = torch.autograd.grad((alone_N * weights_N).sum(), logits_2NC)
    return *both, of_both, alone_N, of_one
