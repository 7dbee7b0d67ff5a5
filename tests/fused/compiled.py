"""Compile the kernels, which needs no GPU, and print one JSON line for each variant.

python -m tests.fused.compiled ARCHITECTURE TYPE HEAD_WIDTH DROPOUT ..., such as 90 fp16 64 1 80 bf16 64 0. Of the
losses: ARCHITECTURE TYPE CLASSES PASSES_LESS_ONE, such as 90 fp16 30522 1. Of norms, and of GELU, to which width and
dropout are nothing: ARCHITECTURE TYPE WIDTH DROPOUT, a width from 129 to 2048.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from asa.fused import activations, attend, gelu, launch, losses, maps, normal, norms, vocabulary

KERNELS: dict[str, Any] = {
    "pack": maps.pack_kernel,
    "forward": attend.forward_kernel,
    "query": attend.query_kernel,
    "key": attend.key_kernel,
    "slope": maps.slope_kernel,
}
# Of losses; instead of a head's width they have classes, and instead of dropout a second pass.
LOSSES: dict[str, Any] = {"entropy": vocabulary.entropy_kernel, "gradient": vocabulary.gradient_kernel}
# Of norms, whose width it is, and of the activation beside them.
NORMS: dict[str, Any] = {"norm": normal.norm_kernel, "norm_gradient": normal.norm_gradient_kernel}
NORMS |= {"shares": normal.shares_kernel, "gelu_gradient": gelu.gelu_gradient_kernel}
TILES = {"shares": norms.SUMS, "gelu_gradient": activations.TILE}  # the same for every width
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
TYPES = {"floor_BL": "*fp32", "bits_BLW": "*i32", "kept_BL": "*fp32", "seed_ptr": "*i64", "labels_N": "*i64"}
TYPES |= dict.fromkeys(("lse_BHL", "delta_BHL", "d_kept_BL"), "*fp32")
TYPES |= dict.fromkeys(("entropies", "tops", "logs", "means"), "*fp32")
TYPES |= dict.fromkeys(("d_entropy_p_N", "d_entropy_q_N", "d_forth_N", "d_back_N"), "*fp32")
TYPES |= dict.fromkeys(("means", "scales", "of_shares"), "*fp32")
TYPES |= dict.fromkeys(("scale", "mask_scale", "rescale", "eps"), "fp32")
TYPES |= dict.fromkeys(("heads", "length", "width", "mask_width", "words", "threshold"), "i32")
TYPES |= dict.fromkeys(("rows", "shares", "behind", "classes", "pitch"), "i32")

# Of the type that the kernels are compiled for.
OPERANDS = {"q", "k", "v", "out", "do", "dq", "dk", "dv", "p", "found_p", "found_q"}
OPERANDS |= {"x", "bias", "residual", "gain", "shift", "y", "dy", "dx", "d_residual", "d_bias", "d_gain", "d_shift"}
OPERANDS |= {"bias_BL", "mask_bias_BL", "q_BLD", "k_BLD", "mask_q_BLD", "mask_k_BLD", "dx_BLL"}


def signature(kernel: Any, dtype: str) -> dict[str, str]:
    """Argument types, as a call in this type gives them. Raises KeyError for an argument that is not known here."""
    found = {}
    for name in kernel.arg_names:
        stride = re.fullmatch(r"\w+_[bhl]", name)
        known = TYPES | dict.fromkeys(OPERANDS, f"*{dtype}")
        found[name] = "constexpr" if name.isupper() else "i32" if stride else known[name]
    return found


def variant(name: str, architecture: int, dtype: str, head: int, dropout: bool) -> dict[str, Any]:
    """What the compiler says of one variant: registers and bytes spilled of a thread, shared memory, instructions."""
    if name in LOSSES:
        kernel, settings = LOSSES[name], losses.tile(head, dropout)
    elif name in NORMS:
        kernel, settings = NORMS[name], dict(TILES[name] if name in TILES else norms.tile(head))
    else:
        kernel, settings = KERNELS[name], launch.tiles(name, DTYPES[dtype], head, architecture // 10)
    options = {key: settings.pop(key) for key in ("num_warps", "num_stages") if key in settings}
    if name not in ("pack", *TILES, *LOSSES):
        settings["DROPOUT"] = dropout
    if name == "gradient":
        settings |= {"OF_P": True, "OF_Q": dropout}
    types = signature(kernel, dtype)
    # What a launch finds out by itself: pointers, strides and widths are multiples of 16.
    whole = [n for n, key in enumerate(types) if types[key][0] == "*" or "width" in key or re.search("_[bhl]$", key)]
    attrs = {(n,): [["tt.divisibility", 16]] for n in whole}
    source = ASTSource(kernel, types, constexprs=settings, attrs=attrs)
    made = compile(source, target=GPUTarget("cuda", architecture, 32), options=options | launch.FUSED)
    registers, spilled = usage(made.asm["cubin"])
    units = [unit for unit in ("tcgen05", "wgmma", "mma.sync") if unit in made.asm["ptx"]]
    asked = {"kernel": name, "architecture": architecture, "dtype": dtype, "head": head, "dropout": dropout, **options}
    told = {"registers": registers, "spilled": spilled, "shared": made.metadata.shared, "matrix_units": units}
    told["transposed"] = transposed_products(made.asm["ttir"])
    if name in KERNELS:
        told["issued"] = issued(made.asm["cubin"], options["num_warps"], settings["M"] * settings["N"])
    return asked | told


def transposed_products(ttir: str) -> list[str]:
    """The values that are transposed and come of a product: what Triton 3.4 to 3.7 gets wrong on Hopper."""
    made = {found[1]: found[2] for found in re.finditer(r"(%[\w-]+)(?::\d+)? = (.*)", ttir)}

    def of_product(name: str, seen: set[str]) -> bool:
        if name in seen or name not in made:
            return False
        seen.add(name)
        text = made[name]
        return text.startswith("tt.dot ") or any(of_product(one, seen) for one in re.findall(r"%[\w-]+", text))

    turned = [re.findall(r"%[\w-]+", text)[0] for text in made.values() if text.startswith("tt.trans ")]
    return [name for name in turned if of_product(name, set())]


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, which hold what registers could not."""
    text = _told(cubin, "--dump-resource-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


def issued(cubin: bytes, warps: int, scores: int) -> int:
    """Instructions that a block's warps issue in the longest loop, which makes a tile of so many scores, for 1024 of
    them. A multiprocessor issues four in a cycle, in which its matrix units do 4096 operations in half precision."""
    lines = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", _told(cubin, "-sass"))]
    jumps = [(int(found[1], 16), at) for at, text in lines if (found := re.search(r"BRA.*?0x([0-9a-f]+)", text))]
    first, last = max(((to, at) for to, at in jumps if to < at), key=lambda loop: loop[1] - loop[0])
    return round(sum(first <= at <= last for at, _ in lines) * warps * 1024 / scores)


def _told(cubin: bytes, question: str) -> str:
    """What Triton's own cuobjdump says of a program."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, question, file.name], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    words = sys.argv[1:]
    for architecture, dtype, head, dropout in zip(*(words[n::4] for n in range(4)), strict=True):
        for name in KERNELS if int(head) <= 128 else NORMS if int(head) <= 2048 else LOSSES:
            print(json.dumps(variant(name, int(architecture), dtype, int(head), dropout == "1")), flush=True)
