"""The loss scale of fp16 passes: what a loss is multiplied by, so that small gradients are not rounded to nothing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asa import dist
from asa.errors import WorkError

MIN_LOSS_SCALE = 1
START, GROWTH = 2.0**16, 2000  # torch.amp.GradScaler's; the second: updates until it is doubled


class Scaled:
    """What was computed under a loss scale since the last update."""

    def __init__(self) -> None:
        self._losses, self._ascents = list[Tensor](), list[tuple[Tensor, Tensor]]()

    def lost(self, loss: Tensor) -> None:
        """One whose gradients are a part of the update's."""
        self._losses.append(loss.detach())

    def climbed(self, loss: Tensor, gradients: Sequence[Tensor]) -> None:
        """An ascent under the scale."""
        self._ascents += [(loss.detach(), gradient.sum()) for gradient in gradients]

    def overflowed(self, applied: bool) -> bool:
        """After an update that was made or left out: whether the scale was too high for it, on any rank. It is not to
        blame where a loss is not finite, but for one that may have come from an ascent, whose own loss is finite and
        whose gradient is not. All ranks call it."""
        losses, ascents, self._losses, self._ascents = self._losses, self._ascents, [], []
        if applied:
            return False
        fault = dist.any_(any(not torch.isfinite(loss) for loss in losses))
        climbed = dist.any_(any(bool(torch.isfinite(loss)) and not torch.isfinite(total) for loss, total in ascents))
        return climbed or not fault


class LossScale(Scaled):
    """One of torch.amp.GradScaler's rule, which knows a fault from an overflow; 1 until `begin`."""

    def __init__(self) -> None:
        super().__init__()
        self.on, self.value = False, 1.0
        self._updates = 0  # since the last change

    def begin(self) -> None:
        self.on, self.value = True, START

    def lost(self, loss: Tensor) -> None:
        if self.on:
            super().lost(loss)

    def update(self, applied: bool) -> bool:
        """After an update that was made or left out: whether the scale was too high for it; it is lower now. All ranks
        call it. Raises WorkError where there is none lower."""
        if not self.on:
            return False
        overflow = self.overflowed(applied)
        if overflow:
            check_lower(self.value, "put passes under autocast in bf16 or none, or lower the learning rate")
        self._updates = self._updates + 1 if applied else 0 if overflow else self._updates
        if overflow:
            self.value /= 2
        elif self._updates == GROWTH:
            self.value, self._updates = self.value * 2, 0
        return overflow

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "updates": self._updates} if self.on else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take what `state` gave; of another engine's no note is taken."""
        if state.keys() == {"value", "updates"}:
            self.on, self.value, self._updates = True, state["value"], state["updates"]


def check_lower(scale: float, mend: str) -> None:
    """Raises WorkError where a scale that was too high is the smallest there is."""
    if scale <= MIN_LOSS_SCALE:
        raise WorkError(f"the fp16 gradient is not finite even at the smallest loss scale, {MIN_LOSS_SCALE}; {mend}")


def in_fp16(device: str) -> bool:
    """Whether autocast of fp16 is around."""
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
