"""Our kernels alone beside torch's operations, on a GPU, in CUDA graphs: what a step's host does is not in it.

Step times say what kernels bring, and hide it where the GPU waits for its host.
"""

from collections.abc import Callable
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from asa import fused
from asa.adversary import ASAConfig
from asa.config import config
from asa.engine import Precision
from asa.errors import RequestError, WorkError
from benchmarks.missed import Missed, check_all, kept, notes
from benchmarks.steps import MASK_SHARE
from benchmarks.tables import Recorded, asked, check_gpu, save
from benchmarks.updates import HALVES

# B rows, C classes, D width, H heads, K width of one head, L length, N labelled tokens

CLASSES = 30522  # of a BERT's vocabulary
ROUNDS = 3
WIDENING = 4  # of what is between a BERT block's two last dense layers


@config
class KernelTimeConfig(Recorded):
    """Milliseconds of our kernels and of torch's operations that do the same, or nearly, forwards and backwards: each a
    CUDA graph of itself many times over, so that small operands stay in the GPU's cache."""

    rows: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = (64, 128)
    """Rows of a batch; a table for each."""
    length: Annotated[int, Field(ge=8, le=fused.LONGEST)] = 256
    """Tokens per row."""
    width: Annotated[int, Field(ge=16, le=fused.WIDEST_ROW)] = 768
    """Numbers of a token; a multiple of the heads."""
    heads: Annotated[int, Field(ge=1, le=64)] = 12
    """Heads of attention."""
    precision: Precision = "bf16"
    """Type of all operands."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Of hidden states and of attention's weights."""
    milliseconds: Annotated[int, Field(ge=1, le=10_000)] = 20
    """How long one graph is to take; it is run ten times in each of three rounds, and the rounds' median counts."""


class Pair(NamedTuple):
    """The same by our kernels and by torch, as functions of operands that learn, each of which gives one tensor."""

    what: str
    ours: Callable[..., Tensor]
    torchs: Callable[..., Tensor]
    operands: list[Tensor]


def kernel_time(argv: list[str]) -> None:
    """Time our kernels alone beside torch's operations, without the host."""
    request = asked(KernelTimeConfig, argv, "kernel-time")
    if request.width % request.heads:
        raise RequestError(f"width {request.width} is no multiple of {request.heads} heads; set --width or --heads")
    check_gpu()
    lines: list[str] = []
    missing: list[str] = []
    missed: Missed = {}

    def told(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        save(request, "kernel-time", argv, "\n".join(lines))

    for rows in request.rows:
        told(heading(request, rows))
        taken = takes(request, rows, torch.device("cuda"))
        missing += [f"{part} at {rows} rows" for part in taken if not taken[part]]
        for part, make in PAIRS.items():
            with kept(missed, f"{part} at {rows} rows"):
                told(line(request, rows, torch.device("cuda"), make, taken[part]))
    for note in notes(missed):
        told(note)
    if missing:
        raise WorkError(
            f"not timed: the kernels of {', '.join(missing)}; set --rows, --length, --width, --heads or --precision"
        )
    check_all(missed)


def line(
    request: KernelTimeConfig,
    rows: int,
    device: torch.device,
    make: Callable[[KernelTimeConfig, int, torch.device], Pair],
    taken: bool,
) -> str:
    """A pair's. Its operands end with this: the next one's need the memory."""
    pair = make(request, rows, device)
    return report(pair.what, measure(request, pair) if taken else None)


def takes(request: KernelTimeConfig, rows: int, device: torch.device) -> dict[str, bool]:
    """Of each part, whether training would come to its kernels here: those that are wrong are not worth a time."""
    shape = (rows, request.heads, request.length, request.width // request.heads)
    empty = torch.empty(0, request.width, dtype=_dtype(request), device=device)
    return {
        "norms": fused.norms_supported(empty),
        "activations": fused.gelu_supported(WIDENING * request.width, empty),
        "attention": fused.supported(ASAConfig(), device, _dtype(request), shape),
        "losses": fused.losses_supported(empty),
    }


def _norm(request: KernelTimeConfig, rows: int, device: torch.device) -> Pair:
    width, p, eps = request.width, request.dropout, 1e-12
    states = (rows, request.length, width)
    operands = _drawn(request, device, states, states, (width, width), (width,), (width,), (width,))

    def ours(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        return fused.add_norm(F.linear(x, weight), bias, residual, gain, shift, eps, p)

    def torchs(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(F.dropout(F.linear(x, weight, bias), p) + residual, (width,), gain, shift, eps)

    return Pair("dense layer, dropout, residual, norm", ours, torchs, operands)


def _gelu(request: KernelTimeConfig, rows: int, device: torch.device) -> Pair:
    width, wide = request.width, WIDENING * request.width
    operands = _drawn(request, device, (rows, request.length, width), (wide, width), (wide,))

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return fused.biased_gelu(F.linear(x, weight, bias.detach()), bias)

    def torchs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(F.linear(x, weight, bias))

    return Pair("dense layer, GELU", ours, torchs, operands)


def _attention(request: KernelTimeConfig, rows: int, device: torch.device) -> Pair:
    heads, length, width, p = request.heads, request.length, request.width, request.dropout
    states, scale = (rows, length, width), (width // heads) ** -0.5
    operands = _drawn(request, device, *[states] * 5, (rows, length))
    floor_BL = fused.floors(torch.ones(rows, length, dtype=torch.bool, device=device))

    def split(*states: Tensor) -> list[Tensor]:
        return [one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in states]

    def ours(*given: Tensor) -> Tensor:
        (q, k, v), (mask_q, mask_k, bias) = split(*given[:3]), given[3:]
        settings: dict[str, Any] = {"scale": scale, "dropout": p, "config": ASAConfig()}
        return fused.fused_attention(q, k, v, mask_q, mask_k, bias, floor_BL, **settings)[0]

    def torchs(*given: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*split(*given[:3]), dropout_p=p, scale=scale)

    return Pair("attention under a map; torch's without", ours, torchs, operands)


def _losses(request: KernelTimeConfig, rows: int, device: torch.device) -> Pair:
    count = max(1, round(rows * request.length * MASK_SHARE))
    labels_N = torch.randint(CLASSES, (count,), device=device)

    def ours(logits_NC: Tensor) -> Tensor:
        return fused.cross_entropies(logits_NC, labels_N)

    def torchs(logits_NC: Tensor) -> Tensor:
        return F.cross_entropy(logits_NC.float(), labels_N, reduction="none")

    return Pair("cross entropies", ours, torchs, _drawn(request, device, (count, CLASSES)))


# By the part whose kernels ours are: a block's dense layer with its norm, and that with its activation; attention under
# a map and torch's without one; cross entropies.
PAIRS: dict[str, Callable[[KernelTimeConfig, int, torch.device], Pair]] = {
    "norms": _norm,
    "activations": _gelu,
    "attention": _attention,
    "losses": _losses,
}


def _drawn(request: KernelTimeConfig, device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
    draw, dtype = torch.Generator(device).manual_seed(0), _dtype(request)
    return [torch.randn(shape, generator=draw, device=device).to(dtype).requires_grad_() for shape in shapes]


def _dtype(request: KernelTimeConfig) -> torch.dtype:
    return HALVES.get(request.precision, torch.float32)


def measure(request: KernelTimeConfig, pair: Pair) -> list[float]:
    """Milliseconds of ours and of torch's: forwards alone, then with the way back. All take turns, as a chip's clock
    goes by its heat."""
    from triton.testing import do_bench_cudagraph

    arriving = torch.ones_like(pair.ours(*pair.operands))
    runs = [step(pair, function, arriving, back) for back in (False, True) for function in (pair.ours, pair.torchs)]
    torch.cuda.synchronize()  # the graphs' stream does not wait for the one that made the operands
    rounds = [
        [do_bench_cudagraph(run, rep=request.milliseconds, return_mode="median") for run in runs] for _ in range(ROUNDS)
    ]
    return [median(taken) for taken in zip(*rounds, strict=True)]


def step(pair: Pair, function: Callable[..., Tensor], arriving: Tensor, back: bool) -> Callable[[], None]:
    """Forwards, and back to all operands that the function has used."""

    def run() -> None:
        with torch.set_grad_enabled(back):
            out = function(*pair.operands)
            if back:
                torch.autograd.grad(out, pair.operands, arriving.to(out.dtype), allow_unused=True)

    return run


def heading(request: KernelTimeConfig, rows: int) -> str:
    """What a table is of."""
    shape = f"{rows} rows of {request.length}, {request.heads} heads, width {request.width}, {request.precision}"
    first = f"{shape}, dropout {request.dropout}: ms, forwards; forwards and backwards"
    return f"{first}\n{'':42s}{'ours':>9}{'torch':>9}{'ratio':>8}{'ours':>10}{'torch':>9}{'ratio':>8}"


def report(what: str, found: list[float] | None) -> str:
    """A pair's line: forwards, and forwards with the way back; None: no kernel takes it."""
    if found is None:
        return f"{what:42s}  not taken here"
    ours, torchs, ours_back, torchs_back = found
    line = f"{what:42s}{ours:9.3f}{torchs:9.3f}{ours / torchs:8.3f}"
    return line + f"{ours_back:10.3f}{torchs_back:9.3f}{ours_back / torchs_back:8.3f}"
