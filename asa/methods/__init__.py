"""The registry of training methods. One small file per method; METHODS maps its name to how it is built."""

import difflib
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

from asa.methods.asa import ASA
from asa.methods.base import At, Method
from asa.methods.options import MethodsConfig
from asa.methods.random_mask import RandomMask
from asa.methods.vanilla import Vanilla

__all__ = ["METHODS", "At", "Method", "MethodName", "MethodsConfig"]

METHODS: dict[str, Callable[[MethodsConfig], Method]] = {
    "vanilla": lambda config: Vanilla(),
    "asa": lambda config: ASA(config.asa),
    "random_mask": lambda config: RandomMask(config.random_mask),
}


def _known(name: str) -> str:
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no method {name!r}; {hint}allowed: {', '.join(METHODS)}")
    return name


MethodName = Annotated[str, AfterValidator(_known)]  # a config field that names a method
