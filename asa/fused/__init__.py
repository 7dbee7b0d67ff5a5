"""Fused kernels for a GPU: ASA's attention, whose keep map lives as bits, losses over a vocabulary, the norms that end
a block's halves, and the way back through the activation between them.

docs/kernels.md tells what is fused and how it was checked. Triton is imported on first use alone: it is optional, and
without it, or where `supported` says no, asa.adversary and asa.biased compute the same, step by step (asa.cpu_attention
at once on a CPU), where `losses_supported` does, asa.losses and asa.compared, where `norms_supported` or
`gelu_supported` does, torch.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from asa.adversary import ASAConfig
from asa.errors import Apart
from asa.fused.beside import Beside

# B rows, C classes, D width, H heads, K width of one head, L length, N distributions

DEVICES = {"cuda"}  # empty: never fused; tests add "cpu", where Triton's interpreter runs the kernels
OFF = "leave the kernels out by ASA_FUSED=0 in the environment of our runs, by asa.fused.DEVICES.clear() in yours"
DTYPES = {torch.float16, torch.bfloat16, torch.float32}
FULL = ("out of memory", "ALLOC_FAILED")  # what torch, Triton and cuBLAS say of a GPU's memory
LOST = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "illegal instruction",
    "invalid program counter",
    "hardware stack error",
    "not supported on global/shared address space",
    "launch timed out",
)  # its context
_torch: Any = torch
GELU: Any = _torch._C._nn.gelu  # torch's own, whatever somebody has put into torch.nn.functional
_TRIAL = Lock()  # one at a time: Triton's interpreter knows no threads


class _NotNow(Exception):
    """No trial can be made here; nothing is known of the kernels yet."""


# First numbers of compute capabilities: Hopper's and the data centre's Blackwell's, whose warps multiply in groups and
# whose blocks have 227 KiB of shared memory.
GROUPED = (9, 10)
WIDEST_HEAD, LONGEST, MOST_PLANES = 128, 2048, 65535  # the last: what one axis of a launch can count
WIDEST_ROW = 2048  # numbers of which a norm is taken at once
# Of a block's states whose norms and activations are worth it: below, a GPU waits for its host, which has more to do
# for our kernels. A guess by LAB.md, 2026-11-27: an H200 waits in BERT-base's step of 64 rows of 256, which are 1.3e7,
# and works longer at 128.
FEWEST_NUMBERS = 2**24


def leave_out(environment: Mapping[str, str]) -> None:
    """Leave the kernels out, in this process, where ASA_FUSED=0 stands in a command's environment, which is the
    command's to read and not the library's."""
    if environment.get("ASA_FUSED") == "0":
        DEVICES.clear()


def supported(config: ASAConfig, device: torch.device, dtype: torch.dtype, shape: Sequence[int]) -> bool:
    """Whether fused_attention can attack attention as `config` says. Args: dtype and shape BHLK of the queries.

    The caller sees to it that the layer's own mask is one of keys alone, and that no other pass is to have the same
    dropout, since torch's own attention draws it otherwise.
    """
    rows, heads, length, width = shape
    return (
        width <= WIDEST_HEAD
        and length <= LONGEST
        and rows * heads <= MOST_PLANES
        and config.in_attention
        and _runs(device, dtype, width)
        and _known("attention", device, dtype, width)
    )


def losses_supported(logits: Tensor) -> bool:
    """Whether `cross_entropies` and `compare` can take these logits."""
    plain = type(logits) is Tensor  # and none without contents, or of several devices
    return plain and _runs(logits.device, logits.dtype) and _known("losses", logits.device, logits.dtype)


def norms_supported(residual: Tensor, *others: Tensor) -> bool:
    """Whether `add_norm` can take these, shapes apart."""
    width = residual.shape[-1]
    fits = width <= WIDEST_ROW and _plain(residual, *others)
    return fits and _known("norms", residual.device, residual.dtype, width)


def gelu_supported(width: int, *operands: Tensor) -> bool:
    """Whether `biased_gelu` can take what these make, of this width."""
    return _plain(*operands) and _known("gelu", operands[0].device, operands[0].dtype, width)


def _plain(*operands: Tensor) -> bool:
    """Whether there are kernels for these, which are of one type, in whose way nothing of torch's is."""
    dtype, device = operands[0].dtype, operands[0].device
    return (
        all(one.dtype == dtype and one.device == device for one in operands)
        and all(type(one) in (Tensor, nn.Parameter) for one in operands)
        and not _torch._C._are_functorch_transforms_active()  # by which a Function of ours cannot go
        and _runs(device, dtype)
    )


def _runs(device: torch.device, dtype: torch.dtype, width: int = 1) -> bool:
    """Whether there are kernels of such a type for such a device, and something to compile them with."""
    return (
        not torch.compiler.is_compiling()
        and device.type in DEVICES
        and dtype in DTYPES
        and (device.type != "cuda" or _fits(torch.cuda.get_device_capability(device), width))
        and find_spec("triton") is not None
        and torch.version.hip is None
    )


def _known(part: str, device: torch.device, dtype: torch.dtype, *width: int) -> bool:
    """What the trial says, False where there was none and can be none."""
    try:
        return _works(part, device, dtype, *width)
    except _NotNow:
        return False


# Of each part its trial's module, what is told where it fails, and what its programs differ by beside their type.
_TRIALS = {
    "attention": ("probe", "attention is not fused", "heads of"),
    "losses": ("probe_losses", "losses are not fused", ""),
    "norms": ("probe_norms", "norms are not fused", "rows of"),
    "gelu": ("probe_gelu", "activations are not fused", "rows of"),
}


@cache
def _works(part: str, device: torch.device, dtype: torch.dtype, *width: int) -> bool:
    """Whether a part's kernels run here and are right, tried once per process."""
    module, then, of = _TRIALS[part]

    def fault() -> str | None:
        return import_module(f"asa.fused.{module}").fault(device, dtype, *width)

    return _tried(fault, then, ", ".join([str(dtype), *(f"{of} {number}" for number in width)]))


def _tried(fault: Callable[[], str | None], then: str, what: str) -> bool:
    """Whether kernels run and are right. Triton wants a C compiler, Python's headers, the driver's library and a folder
    for its cache. Raises: what comes of full memory, which says nothing of them; Apart where they have taken the
    GPU from this process, in which nothing runs on it any more; _NotNow inside a backward pass, for whose thread the
    trial's own would wait."""
    if _torch._C._current_graph_task_id() != -1:
        raise _NotNow
    try:
        # A thread of its own knows nothing of the caller's autocast, modes and hooks.
        with _TRIAL, ThreadPoolExecutor(1) as thread:
            wrong = thread.submit(fault).result()
    except Exception as error:  # of its compilers' and the system's, of many types
        if full(error):
            raise
        cause = error.__cause__ if isinstance(error, Apart) and error.__cause__ else error
        if any(word in str(cause) for word in LOST):
            raise Apart(f"Triton's kernels fail here ({told(cause)}); {OFF}") from cause
        logging.getLogger(__name__).warning("Triton cannot run here, so %s: %s", then, told(cause))
        return False
    if wrong:
        said = "Triton's kernels are wrong here, so %s: %s (%s)"
        logging.getLogger(__name__).warning(said, then, wrong, what)
    return wrong is None


def full(error: BaseException) -> bool:
    """Whether it comes of full memory, which says nothing of the kernels."""
    return any(word in str(error) for word in FULL)


def told(error: BaseException) -> str:
    """An error in a line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _fits(capability: tuple[int, int], width: int) -> bool:
    """Whether a GPU has the matrix units and, for a wide head, the shared memory (tests/fused/test_compile.py)."""
    return capability[0] in GROUPED if width > 64 else capability >= (8, 0)


def fused_attention(
    q_BHLK: Tensor,
    k_BHLK: Tensor,
    v_BHLK: Tensor,
    mask_q_BLD: Tensor,
    mask_k_BLD: Tensor,
    mask_bias_BL: Tensor | None,
    floor_BL: Tensor,
    *,
    scale: float,
    dropout: float,
    config: ASAConfig,
    beside: Beside | None = None,
    clean_BHLK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention under the keep map 1[mask_q mask_k^T + mask_bias > 0], shared by heads (Wu et al. 2023, Eq. 4 to 8).

    Args: all of one of DTYPES but mask_bias, of a query, which may be fp32 (None: 0), and the floor of keys, which is
        what `floors` makes of those seen. scale: of the scores, 1 / sqrt(K).
        dropout: probability, of the weights; it is rounded to 1 / 65536. config: its reversal and temperature.
        beside, clean: what parted these rows from clean ones, and the context of those, which comes first in ours.
    Returns: context_BHLK; kept_BL, fp32, the keys seen and kept by each query, of padding queries too. Both pass
        gradients, the products' reversed as asa.adversary.threshold does.
    """
    from asa.fused.attention import FusedAttention
    from asa.fused.launch import Options

    options = Options(scale, dropout, config.reversal, config.temperature)
    operands = (q_BHLK, k_BHLK, v_BHLK, mask_q_BLD, mask_k_BLD, mask_bias_BL)
    return FusedAttention.apply(*operands, floor_BL, options, beside or Beside(0), clean_BHLK)


def floors(seen_BL: Tensor) -> Tensor:
    """What the kernels know of keys, as what they add to their scores in fp32: 0 seen, -1e30 padding; 1 in a row of
    padding alone, all of which is attended. Args: seen is bool."""
    floor_BL = (seen_BL.float() - 1) * 1e30
    return torch.where(seen_BL.any(1, keepdim=True), floor_BL, 1.0).contiguous()


def cross_entropies(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Per row, in fp32: 0 where the label is -100, NaN where it is no class. Differentiable once."""
    from asa.fused.losses import Losses

    return Losses.apply(labels_N, False, logits_NC)


def add_norm(
    x_BLD: Tensor, bias_D: Tensor, residual_BLD: Tensor, gain_D: Tensor, shift_D: Tensor, eps: float, dropout: float
) -> Tensor:
    """LayerNorm(dropout(x + bias) + residual), in fp32 until the end. Args: of any shape that ends in D, which x and
    residual have alike; dropout: probability, rounded to 1 / 65536. Differentiable once."""
    from asa.fused.norms import AddNorm, Options

    operands = (one.contiguous() for one in (x_BLD, residual_BLD, bias_D, gain_D, shift_D))
    return AddNorm.apply(*operands, Options(eps, dropout))


def biased_gelu(x_BLW: Tensor, bias_W: Tensor) -> Tensor:
    """GELU(x), as torch has it. Args: x of any shape that ends in W; bias: what was added to x, which is to know its
    gradient, and so not from x's. Differentiable once."""
    from asa.fused.activations import Gelu

    return Gelu.apply(x_BLW.contiguous(), bias_W)


def compare(given: Sequence[Tensor], labels_N: Tensor) -> tuple[Tensor, ...]:
    """What asa.compared.Compared holds, in fp32; entropies at a label that is no class are NaN. Args: the logits of two
    passes, 2NC or two NC."""
    from asa.fused.losses import Losses

    return Losses.apply(labels_N, True, *given)
