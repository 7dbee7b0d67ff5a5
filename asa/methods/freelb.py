"""FreeLB (Zhu et al., ICLR 2020, arXiv 1909.11764), Algorithm 1 and Eq. 3: every pass of the ascent trains the weights.

`passes` counts K of Algorithm 1: K forwards and backwards, with an ascent between two of them, K - 1 in all (that after
the last would serve nothing). The released Hugging Face program does the same; the released fairseq program, which made
the paper's RoBERTa figures, takes one pass more. The release guards the gradient's norm by 1e-8, we by nothing that
depends on its scale.
"""

from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from asa.batch import Batch
from asa.config import config
from asa.engine import Engine
from asa.errors import RequestError
from asa.losses import task_loss
from asa.methods.ball import BallConfig, Dropout, begin, climb, dropout, inside, room
from asa.methods.base import At, Stateless
from asa.signal import Perturb


@config
class FreeLBConfig(BallConfig):
    """FreeLB. The defaults are those for BERT-base from the laboratory of ASA's authors."""

    passes: Annotated[int, Field(ge=1, le=100)] = 2
    """Forward and backward passes over a micro-batch; the perturbation ascends between them."""
    clean_first: bool = False
    """The first pass sees the clean batch and the perturbation starts with the second."""
    dropout: Dropout = "shared"
    """All passes have the same dropout masks (section 3.3), or each its own (the ablation of Table 4)."""

    @model_validator(mode="after")
    def _fits(self) -> "FreeLBConfig":
        if self.clean_first and self.passes < 2:
            raise ValueError("clean_first with passes 1 is plain training; set --freelb.passes to 2 or more")
        return self


class FreeLB(Stateless):
    """The mean of the task losses of all passes."""

    def __init__(self, options: FreeLBConfig) -> None:
        # Nor does the last pass climb.
        if options.passes - options.clean_first < 2 and options.start == 0:
            first = ", clean_first" if options.clean_first else ""
            raise RequestError(
                f"method freelb with passes = {options.passes}{first} and start = 0 is plain training: no pass sees a"
                " perturbation; raise --freelb.passes or --freelb.start"
            )
        self.options = inside(options)
        self.passes = options.passes

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        options, where = self.options, room(engine, batch)
        delta_RLD = begin(where, options)
        losses: list[Tensor] = []
        with dropout(engine, options.dropout, taps=False):
            for number in range(self.passes):
                clean = options.clean_first and number == 0
                loss = task_loss(engine.forward(batch, None if clean else Perturb(embed_BLD=delta_RLD)), batch)
                engine.backward(loss / self.passes)
                losses.append(loss.detach())
                if not clean and number + 1 < self.passes:
                    # It carries the engine's factors, of which its direction is free.
                    delta_RLD = climb(delta_RLD, delta_RLD.grad, where, options)
        return {"loss": torch.stack(losses).mean(), "task": losses[0], "attacked": losses[-1]}
