"""Attention under a keep map that is never laid out: one differentiable function over the kernels."""

from typing import Any

import torch
from torch import Tensor

from asa.fused import launch
from asa.fused.beside import Beside
from asa.fused.launch import Options, Saved
from asa.typed import Function, first_only

# B rows, D width, H heads, K width of one head, L length, W words of 32 keys


class FusedAttention(Function):
    """(context_BHLK, kept_BL) of queries, keys, values and the adversary's products; asa.fused explains them.

    beside: of the clean rows that these stand behind. Then the context is of all, and theirs, clean_BHLK, is given.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_BHLK: Tensor,
        k_BHLK: Tensor,
        v_BHLK: Tensor,
        mask_q_BLD: Tensor,
        mask_k_BLD: Tensor,
        mask_bias_BL: Tensor | None,
        floor_BL: Tensor,
        options: Options,
        beside: Beside,
        clean_BHLK: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        assert (clean_BHLK is None) == (beside.free == 0), "who parted clean rows has their context"
        q_BHLK, k_BHLK, v_BHLK = (_rows_whole(x) for x in (q_BHLK, k_BHLK, v_BHLK))
        if mask_bias_BL is None:
            mask_bias_BL = mask_q_BLD.new_zeros(mask_q_BLD.shape[:2], dtype=torch.float32)
        made = (mask_q_BLD.contiguous(), mask_k_BLD.contiguous(), mask_bias_BL.contiguous())
        seed = launch.seed_of(q_BHLK.device, options.dropout)
        bits_BLW, kept_BL = launch.pack(*made, floor_BL)
        map_ = (floor_BL, bits_BLW, kept_BL, seed)
        out_BHLK, lse_BHL = launch.forward(q_BHLK, k_BHLK, v_BHLK, map_, options, beside.room)
        all_BHLK = out_BHLK if clean_BHLK is None else beside.whole(clean_BHLK, out_BHLK)
        beside.made.clear()
        maps = (floor_BL, seed, bits_BLW, kept_BL)
        ctx.save_for_backward(*Saved(q_BHLK, k_BHLK, v_BHLK, *made, *maps, out_BHLK, lse_BHL))
        ctx.options, ctx.beside = options, beside
        return all_BHLK, kept_BL

    @staticmethod
    @first_only("fused attention's gradients")
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, options = Saved(*ctx.saved_tensors), ctx.options
        beside: Beside = ctx.beside
        d_clean_BHLK = grads[0][: beside.free] if beside.free else None
        do_BHLK, d_kept_BL = _rows_whole(grads[0][beside.free :]), grads[1].contiguous()
        beside.made.clear()
        room = beside.room if any(ctx.needs_input_grad[:3]) else Beside(0).room
        dq_BHLK, dk_BHLK, dv_BHLK, delta_BHL = launch.backward(saved, do_BHLK, options, room)
        d_maps = launch.map_backward(saved, do_BHLK, delta_BHL, d_kept_BL, ctx.needs_input_grad[3:6], options)
        return dq_BHLK, dk_BHLK, dv_BHLK, *d_maps, None, None, None, d_clean_BHLK


def _rows_whole(x_BHLK: Tensor) -> Tensor:
    """The kernels take any strides but within a head's row, as far as 32 bits count the way through a row's heads."""
    far = any(x_BHLK.stride(axis) * (x_BHLK.shape[axis] - 1) >= 2**31 for axis in (1, 2))
    return x_BHLK.contiguous() if far or x_BHLK.stride(-1) != 1 else x_BHLK
