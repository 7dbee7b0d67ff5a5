"""The registry of training methods. One small file per method; METHODS maps its name to how it is built.

A method from outside this package is named "module:builder", as docs/adding-a-method.md shows.
"""

import dataclasses
import difflib
import importlib
import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, cast, get_args

from pydantic import AfterValidator

from asa.config import did_you_mean
from asa.engine import Precision
from asa.errors import RequestError
from asa.manifest import file_sha256
from asa.methods.alum import ALUM
from asa.methods.asa import ASA
from asa.methods.asa_freelb import ASAFreeLB
from asa.methods.asa_sparse import ASASparse
from asa.methods.base import At, Method, Outside
from asa.methods.creat import CreAT
from asa.methods.fgm import FGM
from asa.methods.freeat import FreeAT
from asa.methods.freelb import FreeLB
from asa.methods.options import MethodsConfig
from asa.methods.pgd import PGD
from asa.methods.r3f import R3F
from asa.methods.r_drop import RDrop
from asa.methods.random_mask import RandomMask
from asa.methods.smart import SMART
from asa.methods.smart_released import SMARTReleased
from asa.methods.vanilla import Vanilla
from asa.methods.vat import VAT
from asa.methods.yopo import YOPO

__all__ = [
    "METHODS",
    "OURS",
    "At",
    "Method",
    "MethodName",
    "MethodsConfig",
    "build_method",
    "flags_unread",
    "groups_read",
    "groups_unread",
    "known",
    "source_sha256",
]

METHODS: dict[str, Callable[[MethodsConfig], Method]] = {
    "vanilla": lambda config: Vanilla(),
    "asa": lambda config: ASA(config.asa),
    "asa_sparse": lambda config: ASASparse(config.asa, config.asa_sparse),
    "asa_freelb": lambda config: ASAFreeLB(config.asa, config.freelb),
    "random_mask": lambda config: RandomMask(config.random_mask),
    "pgd": lambda config: PGD(config.pgd),
    "freeat": lambda config: FreeAT(config.freeat),
    "yopo": lambda config: YOPO(config.yopo),
    "freelb": lambda config: FreeLB(config.freelb),
    "fgm": lambda config: FGM(config.fgm),
    "smart": lambda config: SMART(config.smart),
    "smart_released": lambda config: SMARTReleased(config.smart_released),
    "alum": lambda config: ALUM(config.alum),
    "vat": lambda config: VAT(config.vat),
    "r3f": lambda config: R3F(config.r3f),
    "r_drop": lambda config: RDrop(config.r_drop),
    "creat": lambda config: CreAT(config.creat),
}
OURS = frozenset(METHODS)  # and not what a user has put there, or named MODULE:BUILDER
# The groups of settings of methods that do not read just the one of their own name.
_GROUPS = {"vanilla": (), "asa_sparse": ("asa", "asa_sparse"), "asa_freelb": ("asa", "freelb")}


_loaded: dict[str, str] = {}  # modules from outside, with the sha256 that their files had when they were loaded
_builders: dict[str, object] = {}  # of methods from outside, by name


def known(name: str) -> str:
    """The name of a method. Raises ValueError for one that is none, with the names there are."""
    module, colon, builder = name.partition(":")
    if colon and (name not in METHODS or name in _builders):  # found anew: its module may have been reloaded
        METHODS[name] = _outside(module, builder)
    if name in METHODS:
        return name
    hint = did_you_mean(difflib.get_close_matches(name, METHODS, n=1))
    raise ValueError(f"no method {name!r}; {hint}allowed: {', '.join(METHODS)}, or MODULE:BUILDER for one of your own")


def build_method(name: str, settings: MethodsConfig, precision: Precision, zero: int) -> Method:
    """The method `name`, built. Args: zero, the ZeRO stage, 0 without any; settings, with all presets in them.

    Raises: RequestError for a name of none and for settings that it cannot work with, alone or in this arithmetic or at
        this stage.
    """
    if precision not in (allowed := get_args(Precision)):
        raise RequestError(f"precision {precision!r}: allowed: {', '.join(allowed)}; set --precision")
    try:
        known(name)
    except ValueError as error:
        raise RequestError(str(error)) from None
    method = METHODS[name](settings)
    check_run: Callable[[Precision, int], None] | None = getattr(method, "check_run", None)
    if callable(check_run):
        check_run(precision, zero)
    # One that somebody has put into METHODS is held to its word like one named MODULE:BUILDER.
    return method if type(method).__module__.startswith("asa.") else cast("Method", Outside(name, method))


def _outside(module: str, builder: str) -> Callable[[MethodsConfig], Method]:
    try:
        loaded = importlib.import_module(module)
        found = getattr(loaded, builder)
    except (Exception, SystemExit) as error:  # anything may go wrong in a module of somebody else's
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
    else:
        if callable(found) and _takes_settings(found):
            before = _builders.setdefault(f"{module}:{builder}", found)
            if loaded.__file__ and (module not in _loaded or before is not found):
                _loaded[module] = file_sha256(Path(loaded.__file__))
            _builders[f"{module}:{builder}"] = found
            build = cast("Callable[[MethodsConfig], Method]", found)
            return lambda config: cast("Method", Outside(f"{module}:{builder}", build(config)))
        why = f"{builder} of {module} is not callable with the settings alone"
    raise ValueError(f"{why}; allowed: MODULE:BUILDER of a module that Python finds from where the command is started")


def _takes_settings(builder: Callable[..., object]) -> bool:
    try:
        inspect.signature(builder).bind(MethodsConfig())
    except TypeError:
        return False
    except ValueError:  # some that are written in C do not tell what they take
        return True
    return True


MethodName = Annotated[str, AfterValidator(known)]  # a config field that names a method


def groups_read(name: str) -> tuple[str, ...]:
    """The groups of MethodsConfig that a known method reads; all of them for one that is not of this package, which may
    read any. Told without building it, which may need files of its run."""
    if name not in OURS:
        return tuple(field.name for field in dataclasses.fields(MethodsConfig))
    return _GROUPS.get(name, (name,))


def groups_unread(name: str) -> set[str]:
    """The groups of MethodsConfig that are other methods' alone."""
    return {field.name for field in dataclasses.fields(MethodsConfig)}.difference(groups_read(name))


def flags_unread(argv: Sequence[str], names: Collection[str] | None) -> list[str]:
    """Of a command's flags those of settings that none of these methods reads, such as --smart.ascents; none where
    there are no methods, which is refused elsewhere. Files are not asked: one is for the runs of several methods."""
    if not names:
        return []
    return flags_of(set[str].intersection(*map(groups_unread, names)), argv)


def flags_of(names: Collection[str], argv: Sequence[str]) -> list[str]:
    """Of a command's flags those of these settings, by their dotted names, and of these groups of settings."""
    flags = dict.fromkeys(part.partition("=")[0] for part in argv if part.startswith("--"))
    return [flag for flag in flags if flag[2:] in names or flag[2:].partition(".")[0] in names]


def source_sha256(name: str) -> str | None:
    """Hash of the file of a known method from outside the package, which its writer may change between two runs."""
    module, colon, _ = name.partition(":")
    return _loaded.get(module) if colon else None
