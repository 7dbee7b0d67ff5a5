"""Perturbations of word embeddings: starts, directions of ascent, norms, projections. Pure functions.

A perturbation d_RLD belongs to R sequences and is zero at padding. Norms are those of an example: of all tokens of its
sequences together, which are several where an example is a question with its choices (Zhu et al. 2020, A.1).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from asa.typed import vector_norm

# D width of the word embeddings, E examples, L length, N entries of an example's perturbation, R sequences

Ball = Literal["l2", "linf"]


class Room(NamedTuple):
    """Where a batch's perturbations live. real_RL: True at tokens, False at padding. width: of the word embeddings.

    examples: how many share the R sequences evenly.
    """

    real_RL: Tensor
    examples: int
    width: int


def uniform(room: Room, size: float) -> Tensor:
    """Draws from U(-size, size) at tokens, RLD in fp32."""
    return _at_tokens(torch.rand(*room.real_RL.shape, room.width, device=room.real_RL.device) * 2 - 1, room) * size


def gaussian(room: Room, std: float) -> Tensor:
    """Draws from N(0, std^2) at tokens, RLD in fp32."""
    return _at_tokens(torch.randn(*room.real_RL.shape, room.width, device=room.real_RL.device), room) * std


def zeros(room: Room) -> Tensor:
    """The clean batch: RLD in fp32."""
    return torch.zeros(*room.real_RL.shape, room.width, device=room.real_RL.device)


def start(room: Room, size: float, ball: Ball) -> Tensor:
    """FreeLB's first perturbation (Algorithm 1, line 4), RLD: in l2 U(-1, 1) * size / sqrt(entries at tokens), so that
    its norm stays below `size`; in linf U(-size, size). No draw where size is 0."""
    if size == 0:
        return zeros(room)
    drawn_RLD = uniform(room, size)
    if ball == "linf":
        return drawn_RLD
    entries_E1 = room.real_RL.reshape(room.examples, -1).sum(1, keepdim=True) * room.width
    return _per_example(drawn_RLD, 1 / entries_E1.clamp_min(1).sqrt())


def norms(d_RLD: Tensor, room: Room, ball: Ball) -> Tensor:
    """Norm of each example's perturbation, shape E."""
    flat_EN = d_RLD.reshape(room.examples, -1)
    return vector_norm(flat_EN, dim=1) if ball == "l2" else flat_EN.abs().amax(1)


def direction(g_RLD: Tensor, room: Room, ball: Ball) -> Tensor:
    """A gradient where there is room, divided by its norm per example; zero where it is zero or not finite (an FP16
    overflow).

    No constant is added to the norm, so the gradient's scale (loss scale, batch size) changes nothing.
    """
    flat_EN = _at_tokens(g_RLD.float(), room).reshape(room.examples, -1)
    # First by the largest entry: squares of entries below 1e-23 would vanish in fp32, those above 1e19 overflow.
    flat_EN = flat_EN / flat_EN.abs().amax(1, keepdim=True)
    if ball == "l2":
        flat_EN = flat_EN / vector_norm(flat_EN, dim=1, keepdim=True)
    usable_E1 = flat_EN.isfinite().all(1, keepdim=True)
    return torch.where(usable_E1, flat_EN, 0).reshape(g_RLD.shape)


def project(d_RLD: Tensor, room: Room, ball: Ball, radius: float | None) -> Tensor:
    """The nearest perturbation inside the ball, per example; None is no bound."""
    if radius is None:
        return d_RLD
    if ball == "linf":
        return d_RLD.clamp(-radius, radius)
    norm_E1 = norms(d_RLD, room, ball).unsqueeze(1)
    scale_E1 = radius / norm_E1.clamp_min(torch.finfo(d_RLD.dtype).tiny)
    return _per_example(d_RLD, scale_E1.clamp_max(1))


def ascended(d_RLD: Tensor, g_RLD: Tensor, room: Room, ball: Ball, step_size: float, radius: float | None) -> Tensor:
    """The perturbation one step of norm `step_size` up the gradient, back in the ball; a constant."""
    return project(d_RLD.detach() + direction(g_RLD, room, ball) * step_size, room, ball, radius)


def _at_tokens(d_RLD: Tensor, room: Room) -> Tensor:
    return d_RLD * room.real_RL.unsqueeze(-1)


def _per_example(d_RLD: Tensor, factor_E1: Tensor) -> Tensor:
    return (d_RLD.reshape(len(factor_E1), -1) * factor_E1).reshape(d_RLD.shape)
