"""A start outside its ball is refused by every method that climbs, once, when it is built."""

from dataclasses import fields, replace
from typing import Any

import pytest

from asa.errors import RequestError
from asa.methods import METHODS, MethodsConfig, build_method
from asa.methods.ball import BallConfig, inside

OWN = [field.name for field in fields(MethodsConfig) if isinstance(field.default, BallConfig)]
CLIMBING = {name: name for name in OWN} | {"asa_freelb": "freelb"}  # the settings that a method climbs by


def outside(group: str) -> MethodsConfig:
    settings: Any = MethodsConfig()
    return replace(settings, **{group: replace(getattr(settings, group), start=0.3, radius=0.2)})


def test_the_methods_below_are_all_that_climb_in_a_ball() -> None:
    assert set(CLIMBING) == {"pgd", "freeat", "yopo", "freelb", "asa_freelb", "creat"}


@pytest.mark.parametrize("name", CLIMBING)
def test_a_start_outside_the_ball_is_refused_once_and_clearly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BallConfig] = []
    group = CLIMBING[name]
    monkeypatch.setattr(f"asa.methods.{name}.inside", lambda options: asked.append(options) or inside(options))
    told = (
        f"{group}.start = 0.3 is outside the ball, allowed: 0 <= start <= radius, which is 0.2;"
        f" lower --{group}.start or raise --{group}.radius"
    )
    for make in (METHODS[name], lambda settings: build_method(name, settings, "fp32", zero=0)):
        with pytest.raises(RequestError) as caught:
            make(outside(group))
        assert str(caught.value) == told
    assert asked == [getattr(outside(group), group)] * 2


@pytest.mark.parametrize("radius", [0.3, None])
def test_a_start_on_the_sphere_and_a_ball_without_bound_are_taken(radius: float | None) -> None:
    options = BallConfig(start=0.3, radius=radius)
    assert inside(options) is options
