"""Adversarial training of text encoders: a library.

The names below are the parts most users need; they are loaded on first use, since torch takes seconds to import.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asa.adversary import Adversaries, ASAConfig
    from asa.attention import attach, detach, perturbed
    from asa.model import Output, TaskModel
    from asa.signal import Perturb, Site

__all__ = ["ASAConfig", "Adversaries", "Output", "Perturb", "Site", "TaskModel", "attach", "detach", "perturbed"]

_HOMES = {
    "ASAConfig": "asa.adversary",
    "Adversaries": "asa.adversary",
    "attach": "asa.attention",
    "detach": "asa.attention",
    "perturbed": "asa.attention",
    "Output": "asa.model",
    "TaskModel": "asa.model",
    "Perturb": "asa.signal",
    "Site": "asa.signal",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'asa' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
