"""The registry of training methods. One small file per method; METHODS maps its name to how it is built."""

from collections.abc import Callable

from asa.adversary import ASAConfig
from asa.methods.asa import ASA
from asa.methods.base import At, Method
from asa.methods.vanilla import Vanilla

__all__ = ["METHODS", "At", "Method"]

METHODS: dict[str, Callable[[ASAConfig], Method]] = {
    "vanilla": lambda config: Vanilla(),
    "asa": ASA,
}
