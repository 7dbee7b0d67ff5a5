"""What several `--config` say together of names, and what in one of them the parser would drop."""

import os
from collections.abc import Sequence
from dataclasses import is_dataclass
from itertools import pairwise
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


def mixed(cls: Any) -> list[str]:
    """The fields of a config class that hold texts and numbers by name."""
    return [
        name
        for name, hint in get_type_hints(cls).items()
        if get_origin(hint) is dict and str in get_args(get_args(hint)[1])
    ]


def keep_texts(cls: Any, found: dict[str, Any], argv: Sequence[str]) -> None:
    """Put texts that files have in quotes, as "010", back where the parser has made numbers of them; flags have the
    last word."""
    contents = [value for flag, value in pairwise(argv) if flag == "--config"]
    written = _read(names_of(cls, contents) or "")
    flags = {part.partition("=")[0] for part in argv}
    for name in mixed(cls):
        for key, value in written.get(name, {}).items() if f"--{name}" not in flags else ():
            if isinstance(value, str) and f"--{name}.{key}" not in flags:
                found[name][key] = value


def _refuse_both(cls: Any, keys: dict[str, Any], where: object) -> None:
    """Raises RequestError for a group's block, file or text beside a dotted key of the group, of which the parser would
    drop one, though there is no such file. Names are kept wherever they stand."""
    hints = get_type_hints(cls)
    for key in keys:
        group, dot, _ = key.partition(".")
        given, hint = keys.get(group), hints.get(group)
        if not is_dataclass(hint):
            continue
        if not dot and given is None:
            raise RequestError(f"{where} has {group}: null, allowed: keys with their values; leave {group} out")
        if isinstance(given, dict) and not dot:
            _refuse_both(hint, given, where)
        ends = [end for end, sign in enumerate(f"{key}.") if sign == "."]
        named = isinstance(given, dict) and any(get_origin(type_of(cls, key[:end])) is dict for end in ends)
        if dot and isinstance(given, str | dict) and not named:
            other = f"{group}: {given}" if isinstance(given, str) else f"the block {group}"
            raise RequestError(f"{where} has {other} and {key}, which would take its place; put {key} into the former")


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
