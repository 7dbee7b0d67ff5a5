"""Tensors to kernel launches: tile sizes, strides and grids. Imports Triton, so it is itself imported on first use."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asa.adversary import MASKED
from asa.errors import Apart
from asa.fused import GROUPED, OFF, full, told

# Kernels have no types.
from asa.fused.attend import forward_kernel, key_kernel, query_kernel  # pyright: ignore[reportUnknownVariableType]
from asa.fused.maps import pack_kernel, slope_kernel  # pyright: ignore[reportUnknownVariableType]
from asa.fused.tiles import HEADROOM
from asa.spare import spare

# B rows, D width, H heads, K width of one head, L length, W words of 32 keys; M queries, N keys, D columns of one tile


REDUCED = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


# Queries, keys, warps and stages of tiles in half precision, heads to 64: the fastest of a hundred on an H200
# (LAB.md, 2026-11-27). Blocks of four warps leave a multiprocessor room for several, which hide each other's waits.
TIMED = {
    "pack": (128, 128, 4, 3),
    "forward": (64, 128, 4, 2),
    "query": (64, 32, 4, 3),
    "key": (64, 64, 4, 3),
    "slope": (64, 64, 4, 3),
}
FUSED = {"enable_fp_fusion": True}  # a x b + c in one instruction: Triton's default, from 3.10 on no longer

Room = Callable[[Tensor], Tensor]  # gives a result's memory, by a tensor of its shape and type


class Options(NamedTuple):
    """scale: of the attention's scores. dropout: probability. reversal, temperature: ASAConfig's."""

    scale: float
    dropout: float
    reversal: float
    temperature: float


class Saved(NamedTuple):
    """What the backward pass needs; nothing in it is L x L but bits."""

    q_BHLK: Tensor
    k_BHLK: Tensor
    v_BHLK: Tensor
    mask_q_BLD: Tensor
    mask_k_BLD: Tensor
    mask_bias_BL: Tensor
    floor_BL: Tensor
    seed: Tensor
    bits_BLW: Tensor
    kept_BL: Tensor
    out_BHLK: Tensor
    lse_BHL: Tensor


def tiles(kernel: str, dtype: torch.dtype, head: int, capability: int) -> dict[str, Any]:
    """Tile sizes and launch settings of a kernel (pack, forward, query, key, slope) for a head of this width on a GPU
    of this compute capability, its first number."""
    wide = dtype == torch.float32
    K = max(16, 1 << (head - 1).bit_length())  # what the matrix units take
    # Elsewhere a warp's own products leave these two fewer registers: by those, they issue less and spill next to none.
    crowded = kernel in ("forward", "key") and capability not in GROUPED
    timed = not wide and (kernel == "pack" or K <= 64) and not crowded
    M, N, warps, stages = TIMED[kernel] if timed else _by_registers(kernel, wide, K)
    shape = {"M": M, "N": N}
    if kernel != "pack":
        shape["K"] = K
    if kernel in ("pack", "slope"):
        shape["D"] = 32 if wide else 64
    # fp32 by three tf32 products: close to fp32's own accuracy, and on the matrix units.
    return shape | {"PRECISION": "tf32x3" if wide else "ieee", "num_warps": warps, "num_stages": stages}


def _tiles(kernel: str, x: Tensor, head: int) -> dict[str, Any]:
    capability = torch.cuda.get_device_capability(x.device)[0] if x.is_cuda else GROUPED[0]  # interpreted
    return tiles(kernel, x.dtype, head, capability)


def _by_registers(kernel: str, wide: bool, K: int) -> tuple[int, int, int, int]:
    """As TIMED, of what was not timed: by what the compiler says of registers and instructions on sm_90, of forward and
    key in half precision on sm_8x and sm_12x too."""
    large = not wide and kernel in ("forward", "query")
    # Hopper's faster products take 64 rows, which key's are keys; in fp32 narrow heads alone leave registers for them.
    few_keys = wide and (kernel != "key" or K > 32)
    # key's scores are an operand of dv and dk: a second group of four warps would make 64 keys' once more.
    few_warps = (kernel == "pack" or K <= 64) if wide else kernel == "key"
    return 128 if large else 32 if kernel == "key" else 64, 32 if few_keys else 64, 4 if few_warps else 8, 2


def pack(mask_q_BLD: Tensor, mask_k_BLD: Tensor, mask_bias_BL: Tensor, floor_BL: Tensor) -> tuple[Tensor, Tensor]:
    """(bits_BLW in int32, kept_BL in fp32) of the keep map 1[q k^T + bias > 0] where floor is 0."""
    rows, length, width = mask_q_BLD.shape
    words = parts(length, 32)
    bits_BLW = torch.empty(rows, length, words, dtype=torch.int32, device=mask_q_BLD.device)
    kept_BL = torch.zeros(rows, length, dtype=torch.float32, device=mask_q_BLD.device)
    options = _tiles("pack", mask_q_BLD, 0)
    grid = (parts(length, options["M"]), parts(length, options["N"]), rows)
    made = (mask_q_BLD, mask_k_BLD, mask_bias_BL)
    run(pack_kernel, grid, *made, floor_BL, bits_BLW, kept_BL, length, width, words, **options)
    return bits_BLW, kept_BL


def forward(
    q_BHLK: Tensor,
    k_BHLK: Tensor,
    v_BHLK: Tensor,
    map_: tuple[Tensor, Tensor, Tensor, Tensor],
    options: Options,
    room: Room,
) -> tuple[Tensor, Tensor]:
    """(context_BHLK, in its room; lse_BHL). Args: map_ is floor_BL, bits_BLW, kept_BL and seed."""
    rows, heads, length, width = q_BHLK.shape
    floor_BL, bits_BLW, kept_BL, seed = map_
    out_BHLK = room(v_BHLK)
    lse_BHL = torch.empty(rows, heads, length, dtype=torch.float32, device=q_BHLK.device)
    settings = _tiles("forward", q_BHLK, width)
    run(
        forward_kernel, (parts(length, settings["M"]), rows * heads),
        q_BHLK, k_BHLK, v_BHLK, out_BHLK, floor_BL, bits_BLW, kept_BL, lse_BHL, seed,
        *_strides(q_BHLK, k_BHLK, v_BHLK, out_BHLK),
        heads, length, width, bits_BLW.shape[-1], options.scale, *spare(options.dropout),
        DROPOUT=options.dropout > 0, **settings,
    )  # fmt: skip
    return out_BHLK, lse_BHL


def backward(saved: Saved, do_BHLK: Tensor, options: Options, room: Room) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, delta_BHL); the first three are BHLK, in their rooms."""
    q, k, v, out, do = saved.q_BHLK, saved.k_BHLK, saved.v_BHLK, saved.out_BHLK, do_BHLK
    rows, heads, length, width = q.shape
    dq, dk, dv, delta_BHL = room(q), room(k), room(v), torch.empty_like(saved.lse_BHL)
    common = (saved.floor_BL, saved.bits_BLW, saved.kept_BL, saved.lse_BHL, delta_BHL, saved.seed)
    sizes = (heads, length, width, saved.bits_BLW.shape[-1], options.scale, *spare(options.dropout))
    settings = _tiles("query", q, width)
    run(
        query_kernel, (parts(length, settings["M"]), rows * heads),
        q, k, v, out, do, dq, *common, *_strides(q, k, v, out, do, dq), *sizes,
        DROPOUT=options.dropout > 0, **settings,
    )  # fmt: skip
    settings = _tiles("key", q, width)
    run(
        key_kernel, (parts(length, settings["N"]), rows * heads),
        q, k, v, do, dk, dv, *common, *_strides(q, k, v, do, dk, dv), *sizes,
        DROPOUT=options.dropout > 0, **settings,
    )  # fmt: skip
    return dq, dk, dv, delta_BHL


def map_backward(
    saved: Saved,
    do_BHLK: Tensor,
    delta_BHL: Tensor,
    d_kept_BL: Tensor,
    needed: tuple[bool, ...],
    options: Options,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of mask_q_BLD, mask_k_BLD and mask_bias_BL, where needed: reversed, of attention and of the price on
    kept units."""
    q, k, v, do = saved.q_BHLK, saved.k_BHLK, saved.v_BHLK, do_BHLK
    rows, heads, length, width = q.shape
    mask_width = saved.mask_q_BLD.shape[-1]
    dx_BLL = torch.empty(rows, length, length, dtype=saved.mask_q_BLD.dtype, device=q.device)
    settings = _tiles("slope", q, width)
    scale = mask_width**-0.5
    run(
        slope_kernel, (parts(length, settings["M"]), parts(length, settings["N"]), rows),
        q, k, v, do, saved.floor_BL, saved.bits_BLW, saved.kept_BL, saved.lse_BHL, delta_BHL, saved.seed,
        saved.mask_q_BLD, saved.mask_k_BLD, saved.mask_bias_BL, d_kept_BL, dx_BLL, *_strides(q, k, v, do),
        heads, length, width, mask_width, saved.bits_BLW.shape[-1], options.scale, scale / options.temperature,
        *spare(options.dropout), DROPOUT=options.dropout > 0, **settings,
    )  # fmt: skip
    # Multiplied here, inside the products, whose sums are fp32.
    strength = -MASKED * options.reversal / options.temperature * scale / HEADROOM.value
    return (
        _times(dx_BLL, saved.mask_k_BLD, strength) if needed[0] else None,
        _times(dx_BLL.transpose(1, 2), saved.mask_q_BLD, strength) if needed[1] else None,
        _sums(dx_BLL, strength, saved.mask_bias_BL) if needed[2] else None,
    )


def run(kernel: Any, grid: tuple[int, ...], *args: Any, **settings: Any) -> None:
    """Launch on the device of the first tensor, which need not be the current one. Raises: Apart where that fails, as
    it may after a trial, whose shapes are others; what comes of full memory."""
    try:
        with torch.cuda.device_of(args[0]):
            kernel[grid](*args, **settings, **FUSED)
    except Exception as error:  # of Triton's compilers and the driver, of many types
        if full(error):
            raise
        raise Apart(f"Triton's kernel {kernel.__name__} fails here ({told(error)}); {OFF}") from error


def seed_of(device: torch.device, dropout: float) -> Tensor:
    """Of one call's dropout, from torch's generator: what repeats a pass's random numbers repeats its dropout."""
    if not dropout:
        return torch.empty(1, dtype=torch.int64, device=device)  # whose number counts for nothing
    return torch.randint(2**62, (1,), device=device)


def parts(length: int, size: int) -> int:
    """Tiles of `size` that cover `length`."""
    return -(-length // size)


def _times(x_BLL: Tensor, y_BLD: Tensor, factor: float) -> Tensor:
    with _whole_sums():
        return torch.baddbmm(torch.empty_like(y_BLD), x_BLL, y_BLD, beta=0, alpha=factor)


def _sums(x_BLL: Tensor, factor: float, like_BL: Tensor) -> Tensor:
    """Over keys, in fp32 and with their factor before they have the type that is wanted."""
    return torch.mul(x_BLL.sum(-1, dtype=torch.float32), factor, out=torch.empty_like(like_BL))


@contextmanager
def _whole_sums() -> Generator[None]:
    """Inside, a half-precision product is added up in fp32. By default cuBLAS may add its parts in the product's own
    type, before the factor, where fp16 can overflow; a user may have allowed it for all of the sum."""
    settings = torch.backends.cuda.matmul
    # What is off already is left alone: to set it would set what stands beside it as well.
    allowed = [name for name in REDUCED if getattr(settings, name)]
    for name in allowed:
        setattr(settings, name, False)
    try:
        yield
    finally:
        for name in allowed:
            setattr(settings, name, True)


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x_BHLK in tensors for stride in x_BHLK.stride()[:3]]
