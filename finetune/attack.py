"""The worst case in an L2 ball around the word embeddings, example by example, by projected gradient ascent (FreeLB,
Zhu et al. 2020, Eq. 2 and the maximum increase of the loss in section 4)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from asa import perturb
from asa.dist import seed_all
from asa.perturb import Room

# D width of the word embeddings, E examples, L length, R sequences, S starts

Look = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Perturbation RLD -> each example's loss and whether it is classified right, both E."""


class Worst(NamedTuple):
    """clean_E: losses at no perturbation. reached_SE: largest loss on the way from each start; the first is the clean
    example. resisted_E: right at every point that was looked at."""

    clean_E: Tensor
    reached_SE: Tensor
    resisted_E: Tensor

    @property
    def increase_E(self) -> Tensor:
        """Largest increase found; never negative, since the clean example is one of the points."""
        return self.reached_SE.amax(0) - self.clean_E


def attack(
    look: Look, room: Room, radius_E: Tensor, steps: int, step_size: float, starts: int, seed: tuple[int, ...]
) -> Worst:
    """Climb each example's loss `steps` times from each start, inside its own ball.

    Args: radius_E of the balls, in units of the embeddings; step_size as a share of the radius; seed of the random
    starts. Points are those of the ball with radius 1, scaled by the radius when they are looked at: an ascent then is
    as long a part of every ball.
    """
    sequences = len(room.real_RL) // room.examples
    radius_R11 = radius_E.repeat_interleave(sequences).view(-1, 1, 1)
    with torch.no_grad():
        clean_E, resisted_E = look(perturb.zeros(room))
    reached = []
    for start in range(starts):
        seed_all(*seed, start)
        point_RLD = perturb.start(room, 1.0 if start else 0.0, "l2")
        best_E = clean_E if start == 0 else torch.full_like(clean_E, -torch.inf)
        for step in range(steps + 1):
            point_RLD.requires_grad_()
            loss_E, right_E = look(point_RLD * radius_R11)
            best_E, resisted_E = torch.maximum(best_E, loss_E.detach()), resisted_E & right_E
            if step < steps:
                (gradient_RLD,) = torch.autograd.grad(loss_E.sum(), (point_RLD,))
                point_RLD = perturb.ascended(point_RLD, gradient_RLD, room, "l2", step_size, 1.0)
        reached.append(best_E)
    return Worst(clean_E, torch.stack(reached), resisted_E)
