"""Losses over a vocabulary by the kernels, as one differentiable function. Imports Triton, so it is itself imported on
first use."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asa.fused.launch import parts, run

# Kernels have no types.
from asa.fused.vocabulary import entropy_kernel, gradient_kernel  # pyright: ignore[reportUnknownVariableType]
from asa.typed import Function, first_only

# N rows, C classes or words of the vocabulary; T of one tile; p and q are the distributions of two passes

LONGEST_TILE = 2048  # not tuned on a GPU
# Rows of the gradient begin at multiples of so many numbers: a vocabulary of 30522 is none of 16 bytes, and the head's
# two products with it would be left to slower kernels.
ALIGNED = 16


class Losses(Function):
    """The cross entropies of N rows, or with `pair` what asa.compared.Compared holds of two passes.

    Args: labels_N; pair; logits NC, or of two passes 2NC or two NC.
    """

    @staticmethod
    def forward(ctx: Any, labels_N: Tensor, pair: bool, *given: Tensor) -> Tensor | tuple[Tensor, ...]:
        labels_N, given = labels_N.contiguous(), tuple(logits.contiguous() for logits in given)
        _check(labels_N, pair, given)
        rows, classes = len(labels_N), given[0].shape[-1]
        results = [torch.empty(1 + pair, rows, dtype=torch.float32, device=labels_N.device) for _ in range(4)]
        sizes = rows, _behind(given, rows), classes
        run(entropy_kernel, (rows,), given[0], given[-1], labels_N, *results, *sizes, **tile(classes, pair))
        entropies, *saved, means = results
        ctx.save_for_backward(labels_N, *saved, means, *given)
        ctx.pair = pair
        if not pair:
            return entropies[0].clone()
        return entropies[0].clone(), entropies[1].clone(), means[0].clone(), -means[1]

    @staticmethod
    @first_only("fused losses")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        labels_N, tops, logs, means, *given = ctx.saved_tensors
        rows, classes = len(labels_N), given[0].shape[-1]
        pitch = ALIGNED * parts(classes, ALIGNED)
        needed = zip(given, ctx.needs_input_grad[2:], strict=True)
        found = [one.new_empty(len(one), pitch)[:, :classes] if need else None for one, need in needed]
        wanted = {"OF_P": found[0] is not None, "OF_Q": ctx.pair and found[-1] is not None}
        # What a kernel does not look at is any tensor.
        slopes = [grad.contiguous() for grad in grads] * (1 if ctx.pair else 4)
        targets = [labels_N if one is None else one for one in (found[0], found[-1])]
        settings = tile(classes, ctx.pair)
        grid, sizes = (rows, parts(classes, settings["T"])), (rows, _behind(given, rows), classes, pitch)
        operands = (given[0], given[-1], labels_N, tops, logs, means, *slopes, *targets)
        run(gradient_kernel, grid, *operands, *sizes, **wanted, **settings)
        return None, None, *found


def _behind(given: Sequence[Tensor], rows: int) -> int:
    """How many rows of its tensor lie before the second pass."""
    return rows if len(given) == 1 else 0


def _check(labels_N: Tensor, pair: bool, given: Sequence[Tensor]) -> None:
    """Past the ends of what does not fit lies other memory."""
    shapes = [logits.shape for logits in given]
    fits = sum(shape[0] for shape in shapes) == len(labels_N) * (1 + pair) and len(set(shapes)) == 1
    if not fits or labels_N.dim() != 1 or any(len(shape) != 2 for shape in shapes):
        told = " and ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{told} logits do not fit {list(labels_N.shape)} labels")


def tile(classes: int, pair: bool) -> dict[str, Any]:
    """Launch settings for rows of so many classes."""
    longest = min(LONGEST_TILE, 1 << (classes - 1).bit_length())
    return {"T": longest, "PAIR": pair, "num_warps": max(1, min(8, longest // 256))}
