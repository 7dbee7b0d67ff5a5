"""Losses over a vocabulary by the kernels, as one differentiable function. Imports Triton, so it is itself imported on
first use."""

from typing import Any

import torch
from torch import Tensor

from asa.fused.launch import parts, run

# Kernels have no types.
from asa.fused.vocabulary import entropy_kernel, gradient_kernel  # pyright: ignore[reportUnknownVariableType]
from asa.typed import Function, first_only

# N distributions (a second pass's N follow the first's), C classes or words of the vocabulary; T of one tile

LONGEST_TILE = 2048  # not tuned on a GPU
# Rows of the gradient begin at multiples of so many numbers: a vocabulary of 30522 is none of 16 bytes, and the head's
# two products with it would be left to slower kernels.
ALIGNED = 16


class Entropies(Function):
    """Cross entropies of N rows and, where the logits are two passes' 2N, asa.compared.compare's divergences."""

    @staticmethod
    def forward(ctx: Any, logits_NC: Tensor, labels_N: Tensor, pair: bool) -> tuple[Tensor, Tensor]:
        logits_NC, labels_N, rows = logits_NC.contiguous(), labels_N.contiguous(), len(labels_N)
        if logits_NC.shape[:-1] != (rows * (1 + pair),) or labels_N.dim() != 1:
            raise ValueError(f"{list(logits_NC.shape)} logits do not fit {list(labels_N.shape)} labels")
        entropies_N = logits_NC.new_empty(rows, dtype=torch.float32)
        tops, logs, means = (entropies_N.new_empty(1 + pair, rows) for _ in range(3))
        sizes = rows, logits_NC.shape[-1], logits_NC.shape[-1]
        settings = tile(logits_NC.shape[-1], pair)
        run(entropy_kernel, (rows,), logits_NC, labels_N, entropies_N, tops, logs, means, *sizes, **settings)
        ctx.save_for_backward(logits_NC, labels_N, tops, logs, means)
        return entropies_N, (means[0] - means[1]) / 2 if pair else entropies_N.new_zeros(rows)

    @staticmethod
    @first_only("fused losses")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits_NC, labels_N, *saved = ctx.saved_tensors
        rows, classes = len(labels_N), logits_NC.shape[-1]
        pitch = ALIGNED * parts(classes, ALIGNED)
        found_NC = logits_NC.new_empty(len(logits_NC), pitch)[:, :classes]
        settings = tile(classes, len(saved[0]) > 1)
        operands = (logits_NC, labels_N, *saved, *(grad.contiguous() for grad in grads), found_NC)
        grid = (rows, parts(classes, settings["T"]))
        run(gradient_kernel, grid, *operands, rows, classes, classes, pitch, **settings)
        return found_NC, None, None


def tile(classes: int, pair: bool) -> dict[str, Any]:
    """Launch settings for rows of so many classes."""
    longest = min(LONGEST_TILE, 1 << (classes - 1).bit_length())
    return {"T": longest, "PAIR": pair, "num_warps": max(1, min(8, longest // 256))}
