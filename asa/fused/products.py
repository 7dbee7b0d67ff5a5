"""What a self-attention module of BERT's kind needs to make its keep map while it attends: on a GPU, or on a CPU."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asa.adversary import ASAConfig
from asa.cpu_attention import makes_map
from asa.fused import floors, supported

NAME = "asa"  # of asa.dispatch's attention, in a module's config

# B rows, D width, H heads, K width of one head, L length


class Keys:
    """Which keys the attacked rows of a layer see, True in seen_BLL, whose sizes of 1 stand for all. What is made of it
    is made once for all layers of a pass that have the same mask."""

    def __init__(self, seen_BLL: Tensor, rows: int) -> None:
        self.seen_BLL, self.rows = seen_BLL, rows

    @cached_property
    def seen_BL(self) -> Tensor:
        """Where every query sees the same."""
        return self.seen_BLL[:, 0].expand(self.rows, -1)

    @cached_property
    def floor_BL(self) -> Tensor:
        """The same for asa.fused."""
        return floors(self.seen_BL)

    @cached_property
    def seen_B1(self) -> Tensor:
        """How many."""
        return self.seen_BL.sum(1, keepdim=True)


class Products(NamedTuple):
    """A keep map that is not laid out: 1[q k^T + bias > 0] at the keys seen, the same for every query.

    counted: receives kept_BL, at least in fp32. config: of the adversary whose products these are.
    """

    q_BLD: Tensor
    k_BLD: Tensor
    bias_BL: Tensor | None
    keys: Keys
    counted: Callable[[Tensor], None]
    config: ASAConfig


def fits(module: Any, config: ASAConfig, h_BLD: Tensor, dtype: torch.dtype) -> bool:
    """Whether the attention of h in a module of BERT's kind, with scores of this type, can make its own map."""
    rows, length = h_BLD.shape[:2]
    shape = (rows, module.num_attention_heads, length, module.attention_head_size)
    return module.config._attn_implementation == NAME and (
        supported(config, h_BLD.device, dtype, shape) or makes_map(config, h_BLD.device, dtype, shape)
    )
