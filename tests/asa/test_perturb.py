"""Laws of the perturbations: inside the ball, zero at padding, per example, of the gradient's direction alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asa.perturb import Ball, Room, direction, gaussian, norms, project, start, uniform

# E examples, R sequences, L length, D width

balls: st.SearchStrategy[Ball] = st.sampled_from(("l2", "linf"))


@st.composite
def rooms(draw: st.DrawFn) -> Room:
    """One to three examples of one or two sequences; sequences of 1 to 6 tokens, padded."""
    examples, choices = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    tokens = draw(st.lists(st.integers(1, 6), min_size=examples * choices, max_size=examples * choices))
    real_RL = torch.arange(6) < torch.tensor(tokens)[:, None]
    return Room(real_RL, examples, draw(st.integers(1, 5)))


def some(room: Room, seed: int, scale: float = 1.0) -> Tensor:
    """Values everywhere, padding too."""
    return torch.randn(*room.real_RL.shape, room.width, generator=torch.Generator().manual_seed(seed)) * scale


def at_padding(d_RLD: Tensor, room: Room) -> Tensor:
    return d_RLD[~room.real_RL]


@given(rooms(), balls, st.floats(1e-3, 10))
def test_a_start_is_smaller_than_its_size_and_zero_at_padding(room: Room, ball: Ball, size: float) -> None:
    begun_RLD = start(room, size, ball)
    assert norms(begun_RLD, room, ball).max() <= size * (1 + 1e-5)
    assert at_padding(begun_RLD, room).count_nonzero() == 0
    assert begun_RLD.count_nonzero() > 0


def test_a_start_spreads_as_the_paper_says() -> None:
    """In l2 each entry is uniform with variance size^2 / (3 N): N entries have norm size / sqrt(3)."""
    room = Room(torch.ones(2, 50, dtype=torch.bool), 2, 200)
    assert norms(start(room, 0.6, "l2"), room, "l2") == pytest.approx([0.6 / math.sqrt(3)] * 2, rel=0.02)
    assert norms(start(room, 0.6, "linf"), room, "linf") == pytest.approx([0.6, 0.6], rel=0.01)


def test_a_start_of_size_zero_draws_nothing() -> None:
    room, before = Room(torch.ones(1, 3, dtype=torch.bool), 1, 2), torch.get_rng_state()
    assert start(room, 0.0, "l2").count_nonzero() == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_has_its_size() -> None:
    room = Room(torch.ones(4, 50, dtype=torch.bool), 4, 100)
    assert gaussian(room, 1e-5).std().item() == pytest.approx(1e-5, rel=0.05)
    assert uniform(room, 1e-5).abs().max().item() == pytest.approx(1e-5, rel=0.01)
    assert uniform(room, 1e-5).mean().abs() < 1e-6


@given(rooms(), balls, st.integers(0, 9), st.floats(-30, 30))
@settings(max_examples=200)
def test_a_direction_has_norm_one_whatever_the_gradients_scale(room: Room, ball: Ball, seed: int, power: float) -> None:
    """From 1e-30 to 1e30: a loss scale, a batch size or a loss near zero changes nothing."""
    plain, scaled = some(room, seed), some(room, seed, 10**power)
    found = direction(scaled, room, ball)
    assert norms(found, room, ball) == pytest.approx([1.0] * room.examples, rel=1e-5)
    torch.testing.assert_close(found, direction(plain, room, ball), rtol=1e-4, atol=1e-6)
    assert at_padding(found, room).count_nonzero() == 0


@pytest.mark.parametrize("bad", [0.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("ball", ["l2", "linf"])
def test_an_example_without_a_usable_gradient_stands_still_and_leaves_the_others_alone(bad: float, ball: Ball) -> None:
    room = Room(torch.ones(2, 3, dtype=torch.bool), 2, 4)
    gradient = some(room, 0)
    expected = direction(gradient, room, ball)[1]
    gradient[0] = gradient[0] * 0 if bad == 0 else gradient[0]
    gradient[0, 1, 2] = bad
    found = direction(gradient, room, ball)
    assert found[0].count_nonzero() == 0
    assert torch.equal(found[1], expected)


@given(rooms(), balls, st.integers(0, 9), st.floats(0, 5))
def test_a_projection_is_inside_and_the_nearest_point(room: Room, ball: Ball, seed: int, radius: float) -> None:
    moved = some(room, seed)
    found = project(moved, room, ball, radius)
    assert (norms(found, room, ball) <= radius * (1 + 1e-5)).all()
    torch.testing.assert_close(project(found, room, ball, radius), found, rtol=1e-5, atol=1e-7)
    other = project(some(room, seed + 1), room, ball, radius)
    near, far = ((moved - point).reshape(room.examples, -1).norm(dim=1) for point in (found, other))
    assert (near <= far + 1e-5).all()


@given(rooms(), balls, st.integers(0, 9))
def test_no_bound_and_what_is_inside_leave_a_perturbation_as_it_is(room: Room, ball: Ball, seed: int) -> None:
    moved = some(room, seed)
    assert torch.equal(project(moved, room, ball, None), moved)
    assert torch.equal(project(moved, room, ball, float(norms(moved, room, ball).max()) * 1.001), moved)


def test_the_choices_of_a_question_share_one_norm() -> None:
    gradient = torch.tensor([[[3.0]], [[4.0]], [[1.0]], [[0.0]]])
    room = Room(torch.ones(4, 1, dtype=torch.bool), 2, 1)
    assert direction(gradient, room, "l2").flatten().tolist() == pytest.approx([0.6, 0.8, 1.0, 0.0])
    alone = room._replace(examples=4)
    assert direction(gradient, alone, "l2").flatten().tolist() == [1, 1, 1, 0]
