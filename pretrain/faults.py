"""Updates that were not made: an FP16 overflow is part of the work, a loss or gradient that is not finite is a fault.

The engine never applies a gradient that is not finite. What is left to do is to say which rows it came from, and to
go on or to stop as the configuration says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asa import dist
from asa.engine import Engine, broken_weight
from asa.errors import WorkError

Policy = Literal["stop", "skip"]
IN_A_ROW = 10  # steps with a fault, none without between them, after which skipping no longer helps
SHOWN = 16  # row numbers in a message; the record has all


class Fault(NamedTuple):
    """what: "loss" or "gradient". rows: numbers of the training rows of the micro-batches at fault."""

    step: int
    what: str
    rank: int | None
    rows: list[int]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.rows[:SHOWN])) + (", ..." if len(self.rows) > SHOWN else "")
        where = "" if self.rank is None else f" of rank {self.rank}"
        return f"the {self.what} of step {self.step}{where} is not finite; its training rows: {shown}"


@dataclass
class Faults:
    """Counts what was skipped. skipped: updates not made, overflows too; in_a_row: steps with a fault since the last
    update."""

    policy: Policy
    skipped: int = 0
    in_a_row: int = 0
    _last: int = 0

    def not_applied(
        self,
        engine: Engine,
        step: int,
        overflow: bool,
        losses: list[Tensor],
        rows: list[NDArray[np.int64]],
        tell: Callable[[Fault], None],
    ) -> None:
        """An update was not made; all ranks call it. `tell` gets the faults, none for an overflow of the loss scale.

        Args: overflow tells that the loss scale was too high. losses and rows of this rank's
            micro-batches; losses may have one more, of all of them.
        Raises: WorkError on every rank where the policy is to stop, a weight is not finite or skipping does not help.
        """
        self.skipped += 1
        if overflow:
            return
        faults = diagnose(step, losses, rows)
        for fault in faults:
            tell(fault)
        self.in_a_row += int(step != self._last)  # a step may make several updates
        self._last = step
        self._raise_if_hopeless(engine, "; ".join(map(str, faults)))

    def _raise_if_hopeless(self, engine: Engine, lines: str) -> None:
        if (broken := broken_weight(engine)) is not None:
            raise WorkError(
                f"weight {broken} is not finite: {lines}; go on from an older checkpoint with a lower --optim.lr"
            )
        if self.policy == "stop":
            raise WorkError(f"{lines}; look at them, lower --optim.lr, or set --on_nonfinite skip")
        if self.in_a_row == IN_A_ROW:
            raise WorkError(f"{IN_A_ROW} faults without an update between them, the last: {lines}; lower --optim.lr")

    def applied(self) -> None:
        self.in_a_row = 0


def diagnose(step: int, losses: list[Tensor], rows: list[NDArray[np.int64]]) -> list[Fault]:
    """Which rank's micro-batches have a loss that is not finite, the same list on every rank; where all losses are
    finite, the gradient and the rows of the whole step."""
    bad = [not bool(torch.isfinite(loss)) for loss in losses]
    mine = [numbers for slot, numbers in enumerate(rows) if bad[slot]] if any(bad[: len(rows)]) else rows
    told = dist.all_gather((any(bad), np.concatenate(mine).tolist()))
    faults = [Fault(step, "loss", rank, numbers) for rank, (failed, numbers) in enumerate(told) if failed]
    everyone = [number for _, numbers in told for number in numbers]
    return faults or [Fault(step, "gradient", None, everyone)]
