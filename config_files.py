"""What several `--config` say together of names, and what in one of them the parser would drop."""

import os
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from asa.errors import RequestError
from keys import Loader, as_yaml, keys_of, type_of


def names_of(cls: Any, contents: Sequence[str]) -> str | None:
    """What all `--config`, files or YAML, say of the fields that hold names, as `models` or `search`, in YAML: each
    adds its names, where the parser would keep the last one's alone and not read them as they are written. None where
    they say nothing of such."""
    found: dict[str, Any] = {}
    for content in contents:
        file = Path(content) if os.path.isfile(content) else None
        keys, folder = keys_of(file) if file else _read(content), file.parent if file else Path()
        _refuse_both(cls, keys, file or "--config")
        found = _added(cls, found, keys, folder)
    return as_yaml(found) if found else None


def _refuse_both(cls: Any, keys: dict[str, Any], where: object) -> None:
    """Raises RequestError for a group's block, file or text beside a dotted key of the group, of which the parser would
    drop one, though there is no such file; and for a group that is null. Names are kept wherever they stand."""
    for key, given in keys.items():
        hint = _group(cls, key)
        if hint is not None and given is None and is_dataclass(type_of(cls, key)):
            raise RequestError(f"{where} has {key}: null, allowed: keys with their values; leave {key} out")
        if hint is not None and isinstance(given, dict):
            _refuse_both(hint, given, where)
        for end in (at for at, sign in enumerate(key) if sign == "."):
            _refuse_beside(cls, keys, key[:end], key, where)


def _refuse_beside(cls: Any, keys: dict[str, Any], group: str, key: str, where: object) -> None:
    given = keys.get(group)
    ends = [end for end, sign in enumerate(f"{key}.") if sign == "."]
    named = isinstance(given, dict) and any(get_origin(type_of(cls, key[:end])) is dict for end in ends)
    if _group(cls, group) is not None and isinstance(given, str | dict) and not named:
        other = f"{group}: {given}" if isinstance(given, str) else f"the block {group}"
        raise RequestError(f"{where} has {other} and {key}, which would take its place; put {key} into the former")


def _group(cls: Any, key: str) -> Any:
    """The config class that a dotted key stands for, one that may be null too; None for another key."""
    hint = type_of(cls, key)
    return next((part for part in (hint, *get_args(hint)) if is_dataclass(part)), None)


def _added(cls: Any, before: dict[str, Any], keys: dict[str, Any], folder: Path) -> dict[str, Any]:
    """`before` with the names that `keys` have for the fields of a config class and of those inside it. `folder`: from
    which a group's file is named."""
    found, nested = dict(before), _nested(cls, keys)
    for name, hint in get_type_hints(cls).items():
        value, place = nested.get(name), folder
        if isinstance(value, str) and is_dataclass(hint) and os.path.isfile(folder / value):
            value, place = keys_of(folder / value), (folder / value).parent
        if not isinstance(value, dict):
            continue
        if get_origin(hint) is dict:
            found[name] = before.get(name, {}) | value
        elif is_dataclass(hint) and (inner := _added(hint, before.get(name, {}), value, place)):
            found[name] = inner
    return found


def _nested(cls: Any, keys: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys of groups, and of names beside a block of them, as what they stand for: `models.b: x` as `models:
    {b: x}`. Such a name alone the parser refuses."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        name, _, rest = key.partition(".")
        hint, before = get_type_hints(cls).get(name), found.get(name)
        own = {rest: value} if rest and (is_dataclass(hint) or get_origin(hint) is dict) else value
        if own is value and rest:
            found[key] = value
        else:
            found[name] = _joined(before, own)
    return found


def _joined(before: Any, own: Any) -> Any:
    """Keys in blocks and those beside them, at every depth; of two values for one key the later."""
    if not (isinstance(before, dict) and isinstance(own, dict)):
        return own
    return {**before, **{key: _joined(before.get(key), value) for key, value in own.items()}}


def _read(text: str) -> dict[str, Any]:
    """Keys; none where the text has none, which the parser tells of."""
    try:
        read = yaml.load(text, Loader=Loader)
    except (ValueError, yaml.YAMLError):
        return {}
    return read if isinstance(read, dict) else {}
