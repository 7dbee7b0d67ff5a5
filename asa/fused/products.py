"""What a self-attention module of BERT's kind needs to make its keep map while it attends: on a GPU, or on a CPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.cpu_attention import makes_map
from asa.fused import supported

NAME = "asa"  # of asa.dispatch's attention, in a module's config

# B rows, D width, H heads, K width of one head, L length


class Products(NamedTuple):
    """A keep map that is not laid out: 1[q k^T + bias > 0] at the keys seen.

    counted: receives kept_BL, at least in fp32.
    """

    q_BLD: Tensor
    k_BLD: Tensor
    bias_BL: Tensor | None
    seen_BL: Tensor
    counted: Callable[[Tensor], None]


def fits(module: Any, config: ASAConfig, h_BLD: Tensor, dtype: torch.dtype) -> bool:
    """Whether the attention of h in a module of BERT's kind, with scores of this type, can make its own map."""
    rows, length = h_BLD.shape[:2]
    shape = (rows, module.num_attention_heads, length, module.attention_head_size)
    return module.config._attn_implementation == NAME and (
        supported(config, h_BLD.device, dtype, shape) or makes_map(config, h_BLD.device, dtype, shape)
    )
