"""The keys of a request: read from YAML that looks like what it means, and their types, also in words."""

import difflib
import math
import re
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from asa.config import EXPONENT, did_you_mean
from asa.errors import RequestError

MERGE = "tag:yaml.org,2002:merge"


class Misread(ValueError):
    """What YAML would read otherwise than it looks."""


class Loader(yaml.SafeLoader):
    """YAML without what would be read otherwise than it looks: a key given twice, 010 for 8, 1:30 for 90 (or
    1:30.5), the name no for a truth."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        before = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in before:
                raise Misread(f"line {key.start_mark.line + 1}: key {key.value!r} a second time")
            before.add(key.value)
            if key.tag != MERGE:
                key.tag = "tag:yaml.org,2002:str"  # names as they are written: no, 1, 2026-01-01
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number = super().construct_yaml_int(node)
        _refuse_other(node, number, ":" in node.value or re.match(r"[-+]?0[\d_]", node.value) is not None)
        return number

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        number = super().construct_yaml_float(node)
        _refuse_other(node, number, ":" in node.value)
        return number


def _refuse_other(node: yaml.ScalarNode, number: float, other: bool) -> None:
    """Raises Misread where a number is other than it looks."""
    if other:
        line = node.start_mark.line + 1
        raise Misread(f"line {line}: {node.value} would be {number}; write {number}, or {node.value!r} for text")


# Times stay text, as the parser has them.
Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))


class _Quoted(yaml.SafeDumper):
    """Writes every text in quotes: which of them could be read as numbers depends on who reads."""


_Quoted.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def as_yaml(value: Any) -> str:
    """One line of YAML, every text of it in quotes: emoji too, which JSON may write in halves that YAML does not put
    together."""
    line = yaml.dump(value, Dumper=_Quoted, default_flow_style=True, sort_keys=False, width=math.inf)
    return line.removesuffix("\n")


def entry(file: Path, name: str) -> dict[str, Any]:
    """The keys in an entry of a YAML file. Raises RequestError, which names the entries (or files) there are."""
    if not file.is_file():
        beside = ", ".join(str(path) for path in sorted(file.parent.glob("*.yaml"))) or "none"
        raise RequestError(f"no file {file}; set --config to FILE:ENTRY; files there: {beside}")
    entries = {key: value for key, value in keys_of(file).items() if isinstance(value, dict)}
    if not entries:
        raise RequestError(f"{file} has no entries, only keys of one request; set --config {file}")
    if name not in entries:
        hint = did_you_mean(difflib.get_close_matches(name, entries, n=1))
        raise RequestError(f"{file} has no entry {name!r}; {hint}set --config {file}: and one of {', '.join(entries)}")
    return entries[name]


def refuse_entries(cls: Any, file: Path) -> None:
    """Raises RequestError for a file of several entries that is given as a whole, else as keys_of."""
    keys, known = keys_of(file), get_type_hints(cls).keys()
    parts = [{} if part is None else part for part in keys.values()]  # an entry in which all is left out
    inner = [part.keys() if isinstance(part, dict) else None for part in parts]
    names = [str(name) for name in keys]
    if file.suffix != ".yaml" or len(names) < 2 or None in inner or any(_first(name) in known for name in names):
        return  # a single group may be another command's
    if any(_first(key) in known for part in inner for key in part or ()):
        one = ", ".join(name for name in names if ":" not in name)
        hint = f"set --config {file}: and one of {one}" if one else "call one otherwise, without a colon"
        raise RequestError(f"{file} holds entries and no keys; {hint}")


def _first(key: object) -> str:
    """Of a dotted key."""
    return str(key).partition(".")[0]


def keys_of(file: Path) -> dict[str, Any]:
    """What a YAML file holds. Raises RequestError where that is not keys with their values."""
    try:
        read = yaml.load(file.read_bytes().decode(), Loader=Loader)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise RequestError(f"{file} is no UTF-8 YAML of keys and values ({why}); mend it or set --config") from None
    if not isinstance(read, dict):
        why = "it is empty" if read is None else f"it holds a {type(read).__name__}"
        raise RequestError(f"{file} is no UTF-8 YAML of keys and values ({why}); mend it or set --config")
    refuse_nested(file, read)
    return read


def refuse_nested(name: object, read: Any) -> None:
    """Raises RequestError for keys that send the parser on to another file, which nobody has checked."""
    if isinstance(read, dict) and "config" in read:
        raise RequestError(f"{name} has the key 'config', which is the command line's; give --config once more instead")


@contextmanager
def refuse_deep(arguments: Sequence[str]) -> Generator[None]:
    """Inside, what is nested deeper than the parser can follow is a RequestError."""
    try:
        yield
    except RecursionError:
        longest = max(arguments, key=len)
        raise RequestError(f"{longest[:30]}... is nested too deep; mend that flag's value") from None


def refuse_repeated(argv: list[str], flags: Collection[str]) -> None:
    """Raises RequestError for a list given twice, of which the parser would keep the last; `--dumps+` adds to it."""
    before = set[str]()
    for part in argv:
        flag = part.partition("=")[0]
        if flag in flags and flag in before:
            raise RequestError(f"{flag} is given twice; give all at once, {flag} '[A,B]'")
        before.add(flag.removesuffix("+"))


def refuse_whole(cls: Any, argv: list[str]) -> None:
    """Raises RequestError for names given as a whole after one of them or all, which the parser would drop, and for a
    name in a list, which has none."""
    given = [part.partition("=")[0] for part in argv if part.startswith("--")]
    for name in sequences(cls):
        if one := next((flag for flag in given if flag.startswith(f"--{name}.")), None):
            raise RequestError(f"{one}: {name} is a list and has no names; set --{name} A,B")
    for at, whole in enumerate(given):
        before = (flag for flag in given[:at] if flag == whole or flag.startswith(f"{whole}."))
        if get_origin(type_of(cls, whole[2:])) is dict and (one := next(before, None)):
            raise RequestError(f"{whole} would take the place of {one}; give all in one way")


def quoted(text: str) -> str:
    """A list of YAML with every element as text, `no` and `1` too; another thing as it is."""
    try:
        read = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        return text
    flat = isinstance(read, list) and all(isinstance(part, str) for part in read)
    return as_yaml(read) if flat else text


def as_list(value: str, element: Any) -> str:
    """Text is quoted, lest YAML makes a comment of `#1` and a truth of `no`."""
    if element is Path:
        return as_yaml([value])
    return as_yaml([part.strip() for part in value.split(",")]) if element is str else f"[{value}]"


def sequences(cls: Any) -> dict[str, Any]:
    """The fields of a config class and of those inside it that hold a list or tuple, with the type of an element."""
    found = {}
    for name, hint in get_type_hints(cls).items():
        if get_origin(hint) in (Union, UnionType):
            hint = next((part for part in get_args(hint) if get_origin(part) in (list, tuple)), hint)
        if get_origin(hint) in (list, tuple):
            found[name] = get_args(hint)[0]
        elif is_dataclass(hint):
            found |= {f"{name}.{inner}": element for inner, element in sequences(hint).items()}
    return found


def switched(cls: Any, argv: Sequence[str]) -> list[str]:
    """A flag of a truth that stands alone, as --offload, with its true."""
    found = []
    for part, after in zip(argv, [*argv[1:], "--"], strict=False):
        alone = part.startswith("--") and type_of(cls, part[2:]) is bool and after.startswith("--")
        found += [part, "true"] if alone else [part]
    return found


def apart(argv: Sequence[str], wanted: Callable[[str], bool]) -> list[str]:
    """Every argument FLAG=VALUE that is wanted as two."""
    return [piece for part in argv for piece in (part.split("=", 1) if wanted(part) else [part])]


def pairs(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags with what follows them."""
    split = apart(argv, lambda part: part.startswith("--"))
    return ((flag, value) for flag, value in pairwise(split) if flag.startswith("--"))


def type_of(cls: Any, key: str, bounds: bool = False) -> Any:
    """The type of a dotted key, with its bounds if they are asked for; None where the class has no such key."""
    for name in key.split("."):
        cls = get_type_hints(cls, include_extras=bounds).get(name) if is_dataclass(cls) else None
    return cls


def flag_of(name: str, hint: Any) -> str:
    """The flag that sets a key of this type, or a part of it."""
    return f"--{name}" + (".KEY" if is_dataclass(hint) else ".NAME" if get_origin(hint) is dict else "")


def told(hint: Any) -> str:
    """A type as one says it to those who write no Python."""
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return ", ".join(map(str, inner))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(told(part) for part in inner)
    if get_origin(hint) is Annotated:
        bounds = [bound for extra in inner[1:] for bound in getattr(extra, "metadata", ())]
        return told(inner[0]) + _within(bounds)
    if get_origin(hint) is tuple and Ellipsis not in inner:
        return f"[{', '.join(map(told, inner))}]"
    if get_origin(hint) in (list, tuple):
        several = "as [A,B]" if inner[0] is Path else "with commas"  # a comma may be part of a name
        return f"{told(inner[0])}, or several {several}, in a file always in brackets: [A]"
    if get_origin(hint) is dict:
        return f"names, each with {told(inner[1])}"
    names = {bool: "true, false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    return {**names, NoneType: "null"}.get(hint, "keys with their values")


def _within(bounds: list[Any]) -> str:
    """What a field's pydantic bounds leave of its type, in words; the least length of a list is left out."""
    found: dict[str, Any] = {}
    for bound in bounds:
        found |= asdict(bound) if is_dataclass(bound) and not isinstance(bound, type) else {}
    least = f"{found['ge']}" if "ge" in found else f"above {found['gt']}" if "gt" in found else ""
    most = f"{found['le']}" if "le" in found else f"below {found['lt']}" if "lt" in found else ""
    if least and most:
        words = f"{least} to {most}"
    elif least:
        words = f"{least} at least" if "ge" in found else least
    else:
        words = f"{most} at most" if "le" in found else most
    steps = f"a multiple of {found['multiple_of']}" if "multiple_of" in found else ""
    return "".join(f", {part}" for part in (words, steps) if part)


def unknown_key(line: str) -> str:
    """The dotted key that one of jsonargparse's three messages for an unknown key names; empty for other messages."""
    if match := re.search(r"unrecognized arguments: --([\w.]+)", line):
        return match[1]
    if match := re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", line):
        return f"{match[1]}.{match[2]}"
    match = re.search(r"Option '([\w.]+)' is not accepted", line)
    return match[1] if match else ""
