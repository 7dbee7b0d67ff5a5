"""Adversarial training of text encoders: a library.

The names below are the parts most users need; they are loaded on first use, since torch takes seconds to import.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asa.adversary import Adversaries, ASAConfig
    from asa.attention import attach, detach, perturbed
    from asa.batch import Batch
    from asa.engine import PlainEngine
    from asa.methods import At, MethodsConfig, build_method
    from asa.model import Output, TaskModel
    from asa.optim import OptimConfig
    from asa.signal import Perturb, Site

__all__ = [
    "ASAConfig",
    "Adversaries",
    "At",
    "Batch",
    "MethodsConfig",
    "OptimConfig",
    "Output",
    "Perturb",
    "PlainEngine",
    "Site",
    "TaskModel",
    "attach",
    "build_method",
    "detach",
    "perturbed",
]

_HOMES = {
    "ASAConfig": "asa.adversary",
    "Adversaries": "asa.adversary",
    "attach": "asa.attention",
    "detach": "asa.attention",
    "perturbed": "asa.attention",
    "Batch": "asa.batch",
    "PlainEngine": "asa.engine",
    "At": "asa.methods",
    "MethodsConfig": "asa.methods",
    "build_method": "asa.methods",
    "Output": "asa.model",
    "TaskModel": "asa.model",
    "OptimConfig": "asa.optim",
    "Perturb": "asa.signal",
    "Site": "asa.signal",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'asa' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
