"""Typed configs: frozen pydantic dataclasses <-> YAML.

A config is a `@config` class whose fields carry their unit and meaning as the string below them. The same class
checks a Python call, a YAML file and the flags of a command (cli.py): unknown keys and values out of range raise.
"""

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, dataclass_transform

import pydantic
import yaml
from pydantic.dataclasses import dataclass as pydantic_dataclass

from asa.errors import RequestError

T = TypeVar("T")
# 1e-5 and 1.5e5 are numbers for our commands, where YAML 1.1 asks for a point and a sign.
EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
# What Trainer's arguments and run_glue, run_mlm call what our commands call otherwise.
HUGGING_FACE = {
    "learning_rate": ("optim.lr",),
    "warmup_ratio": ("optim.warmup",),
    "adam_epsilon": ("optim.eps",),
    "max_grad_norm": ("optim.clip",),
    "num_train_epochs": ("epochs",),
    "per_device_train_batch_size": ("micro_batch",),
    "per_device_eval_batch_size": ("eval_batch",),
    "gradient_accumulation_steps": ("micro_batch",),
    "max_seq_length": ("length",),
    "max_train_samples": ("train_rows",),
    "model_name_or_path": ("model", "models"),
    "output_dir": ("out",),
    "task_name": ("tasks",),
    "train_file": ("task.train", "data"),
    "validation_file": ("task.dev",),
    "test_file": ("task.test",),
    "mlm_probability": ("mask_share",),
    "logging_steps": ("log_every",),
    "eval_steps": ("eval_every", "evals_per_epoch"),
    "save_steps": ("save_every",),
    "save_total_limit": ("keep",),
    "fp16": ("precision",),
    "bf16": ("precision",),
    "gradient_checkpointing": ("activation_checkpointing",),
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Class decorator: a frozen keyword-only dataclass, type- and range-checked, no unknown keys and no infinities."""
    options = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    checked: Any = pydantic_dataclass(frozen=True, kw_only=True, config=options)(cls)
    return checked


def to_dict(value: Any) -> dict[str, Any]:
    """A config as plain data, ready for YAML or JSON."""
    return pydantic.TypeAdapter(value.__class__).dump_python(value, mode="json")


def from_dict(cls: type[T], values: dict[str, Any], *, prefix: str = "") -> T:
    """Build `cls`, raising RequestError with one line per wrong field (key, value, allowed range, flag). A group of
    which some keys are given keeps the others of the field's default, which may be other than the group's own.

    Args: prefix goes before the keys in messages, as "outside." where `values` are a request's key `outside`.
    """
    try:
        return pydantic.TypeAdapter(cls).validate_python(_filled(cls, values))
    except pydantic.ValidationError as error:
        raise RequestError("; ".join(_explain(cls, item, prefix) for item in error.errors())) from None


def _filled(default: Any, values: Any) -> Any:
    """Values with what their groups leave out. Args: default, a config class or an instance of one."""
    if not isinstance(values, dict):
        return values  # which is refused for what it is
    filled = dict(cast("dict[str, Any]", values))
    for field in dataclasses.fields(default):
        group, given = getattr(default, field.name, None), filled.get(field.name)
        if dataclasses.is_dataclass(group) and isinstance(given, dict):
            filled[field.name] = to_dict(group) | _filled(group, given)
    return filled


def save_yaml(value: Any, path: Path) -> None:
    """Write a config such that `--config path` gives it back."""
    path.write_text(yaml.dump(to_dict(value), Dumper=_Dumper, sort_keys=False))


class _Dumper(yaml.SafeDumper):
    """Puts a text in quotes where our commands would read it as a number, too: 1e5."""


_untyped: Any = _Dumper  # types of PyYAML's are not known
_untyped.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


def sha256_of(value: Any) -> str:
    """Hash of a config's content, independent of key order."""
    return hashlib.sha256(json.dumps(to_dict(value), sort_keys=True).encode()).hexdigest()


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict)
        found |= flat(cast("dict[str, Any]", value), f"{prefix}{key}.") if nested else {prefix + key: value}
    return found


def field_names(cls: Any, prefix: str = "") -> list[str]:
    """Every dotted key of a config class."""
    names: list[str] = []
    for field in dataclasses.fields(cls):
        names.append(prefix + field.name)
        if dataclasses.is_dataclass(field.type):
            names += field_names(field.type, f"{prefix}{field.name}.")
    return names


def did_you_mean(hint: Sequence[str]) -> str:
    return f"did you mean {hint[0]!r}? " if hint else ""


def nearest(key: str, keys: Sequence[str]) -> list[str]:
    """The key that Hugging Face calls `key`, or the one most like it, or the only one that ends in it, after a dot;
    empty for none."""
    if meant := [known for known in HUGGING_FACE.get(key, ()) if known in keys]:
        return meant[:1]
    alike = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    ending = [known for known in keys if known.endswith(f".{key}")]
    close = difflib.get_close_matches(key, alike, cutoff=0.65)
    return ending if len(ending) == 1 and not close else alike


def _explain(cls: Any, item: Any, prefix: str) -> str:
    """One line for one wrong field: its key, its value, what is allowed, the flag."""
    # Numbers are places in a list, which has one flag.
    name = ".".join(part for part in item["loc"] if isinstance(part, str))
    key = f"{prefix}{name}".removesuffix(".") or cls.__name__
    if item["type"] == "unexpected_keyword_argument":
        hint = [prefix + near for near in nearest(name, field_names(cls))]
        return f"unknown key {key!r}; {did_you_mean(hint)}valid keys: {', '.join(field_names(cls, prefix))}"
    if item["type"] == "missing":
        return f"{key} is not set; give --{key}"
    if item["type"] == "dataclass_type":
        return f"{key} = {_shown(item['input'])}: allowed: keys with their values; set --{key}.KEY"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "too_short":
        message = f"give at least {item['ctx']['min_length']}"
    allowed = _allowed(cls, item["loc"])
    flag = f"set --{key}" if item["loc"] and "; set --" not in message else ""  # a rule on several keys names its flags
    value = f"{key} = {_shown(item['input'])}" if item["loc"] else key
    return ", ".join(part for part in (f"{value}: {message}", allowed, flag) if part)


def _shown(value: Any) -> str:
    """A value as one gives it on the command line; text in quotes."""
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in cast("Sequence[Any]", value)) or "nothing"
    return repr(value)


def _allowed(cls: Any, loc: Sequence[Any]) -> str:
    """The interval a field's annotation allows, as text; empty where it has none."""
    for name in loc[:-1]:
        cls = next((f.type for f in dataclasses.fields(cls) if f.name == name), None)
        if not dataclasses.is_dataclass(cls):
            return ""
    field = getattr(cls, "__pydantic_fields__", {}).get(loc[-1]) if loc else None
    low = high = ""
    for bound in field.metadata if field else ():
        if hasattr(bound, "gt") or hasattr(bound, "ge"):
            low = f"{bound.gt} <" if hasattr(bound, "gt") else f"{bound.ge} <="
        if hasattr(bound, "lt") or hasattr(bound, "le"):
            high = f"< {bound.lt}" if hasattr(bound, "lt") else f"<= {bound.le}"
    return f"allowed: {low} {loc[-1]} {high}".replace("  ", " ").rstrip() if low or high else ""
