"""YOPO-m-n (Zhang et al., NeurIPS 2019) as compared in FreeLB, section 4.3: most ascents pass the first block alone.

After each of m full passes the gradient p at the output of the first Transformer block is kept, and n ascents climb
<p, first block(words + delta)>, which costs a forward and a backward through the embeddings and that block. As in the
FreeLB paper every full pass trains the weights; YOPO-m-1 is FreeLB-m. The ascents after the last pass would serve
nothing and are left out.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from asa.attention import depth
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine, Precision
from asa.errors import RequestError
from asa.losses import task_loss
from asa.methods.ball import BallConfig, Dropout, begin, climb, dropout, inside, room
from asa.methods.base import At, Stateless
from asa.perturb import Room, direction
from asa.signal import Below, Perturb

# L length, D width, R sequences

PARTITIONED = "method yopo runs the first block by itself, which ZeRO 3 does not let it; set --zero 2"


@config
class YOPOConfig(BallConfig):
    """YOPO."""

    passes: Annotated[int, Field(ge=2, le=100)] = 3
    """m: forward and backward passes through the whole model."""
    inner: Annotated[int, Field(ge=1, le=100)] = 2
    """n: ascents through the first block after each full pass. The paper divides step_size by it (Table 4) or not
    (Table 8); here step_size is that of one ascent."""
    dropout: Dropout = "shared"
    """All passes have the same dropout masks, or each its own."""


class _Reached(Exception):
    """Ends a pass at the output of the first block, which it carries."""

    def __init__(self, h_RLD: Tensor) -> None:
        self.h_RLD = h_RLD


class YOPO(Stateless):
    """The mean of the task losses of the full passes."""

    def __init__(self, options: YOPOConfig) -> None:
        self.options = inside(options)
        self.passes = options.passes

    def check_run(self, precision: Precision, zero: int) -> None:
        """Raises RequestError for ZeRO 3."""
        if zero == 3:
            raise RequestError(PARTITIONED)

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        if engine.partitioned:
            raise RequestError(PARTITIONED)
        if depth(engine.module.model) < 2:
            raise RequestError("method yopo needs a model of two blocks or more; set --method freelb")
        where = room(engine, batch)
        delta_RLD = begin(where, self.options)
        losses: list[Tensor] = []
        with dropout(engine, self.options.dropout, taps=False):
            for number in range(self.passes):
                outputs: list[Tensor] = []

                def keep(block: int, h_RLD: Tensor, outputs: list[Tensor] = outputs) -> None:
                    if block == 1:
                        h_RLD.retain_grad()
                        outputs.append(h_RLD)

                loss = task_loss(engine.forward(batch, Perturb(embed_BLD=delta_RLD), Below(keep)), batch)
                engine.backward(loss / self.passes)
                losses.append(loss.detach())
                if number + 1 < self.passes:
                    delta_RLD = self._climb(engine, batch, delta_RLD, outputs[0].grad, where)
        return {"loss": torch.stack(losses).mean(), "task": losses[0], "attacked": losses[-1]}

    def _climb(self, engine: Engine, batch: Batch, delta_RLD: Tensor, p_RLD: Tensor | None, where: Room) -> Tensor:
        """n ascents along a fixed gradient at the first block's output."""
        assert p_RLD is not None
        # Of padding too, which holds what its queries read and a head may read in turn; delta alone is none there.
        p_RLD = direction(p_RLD, where._replace(real_RL=torch.ones_like(where.real_RL)), "l2")
        for _ in range(self.options.inner):
            climbed = (p_RLD * first_block(engine, batch, delta_RLD).float()).sum()
            # Of norm 1 p needs no loss scale, and under a large one would overflow.
            (gradient_RLD,) = engine.ascend(climbed, (delta_RLD,), scaled=True)
            delta_RLD = climb(delta_RLD, gradient_RLD, where, self.options)
        return delta_RLD


def first_block(engine: Engine, batch: Batch, delta_RLD: Tensor) -> Tensor:
    """The hidden states that leave the first block, RLD; the blocks above are not run."""

    def stop(block: int, h_RLD: Tensor) -> None:
        if block == 1:
            raise _Reached(h_RLD)

    try:
        engine.probe(batch, Perturb(embed_BLD=delta_RLD), Below(stop))
    except _Reached as reached:
        return reached.h_RLD
    raise AssertionError("a model of two blocks passes none")
