"""The command lines of every stage: `--config FILE`, dotted overrides, --help from the field docs, one-line errors."""

import interrupts  # first: others take a second

# isort: split
import atexit
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings
from jsonargparse.typing import register_type

from asa.config import did_you_mean, field_names, from_dict, nearest
from asa.errors import RequestError, WorkError
from config_files import names_of
from keys import (
    Loader,
    Misread,
    apart,
    as_list,
    as_yaml,
    entry,
    flag_of,
    keys_of,
    pairs,
    quoted,
    refuse_deep,
    refuse_entries,
    refuse_nested,
    refuse_repeated,
    refuse_whole,
    sequences,
    switched,
    told,
    type_of,
    unknown_key,
)
from streams import Lasting, lasting_output

T = TypeVar("T")

set_parsing_settings(docstring_parse_attribute_docstrings=True)


def _path(given: Any) -> Path:
    """Raises ValueError for an empty text, which would be the current folder, and for what YAML reads as no text."""
    if given == "" or not isinstance(given, str):
        raise ValueError(f"Got value: {given}")  # as jsonargparse has it, see _with_flag
    return Path(given)


register_type(Path, str, _path, type_check=isinstance)

NULLS = ("null", "Null", "NULL", "~")  # as YAML has it
DOT = "\N{ONE DOT LEADER}"  # stands for a dot inside a name while the parser reads


def parse(cls: type[T], argv: Sequence[str], prog: str, positional: str = "", show_defaults: bool = True) -> T:
    """Read `--config FILE` and dotted overrides into `cls`; --help and --print_config come with it. Of several files
    the later has the last word, and any flag over all files, wherever it stands.

    Args: positional names the field that the arguments before the first flag stand for;
        show_defaults, for --print_config to print all keys. Not where something comes between defaults and what is
        given, as fine-tuning's recipes do, which a file of all keys would overrule.
    Raises: SystemExit(2) after one line on stderr for unknown keys and values out of range; RequestError for a stray
        argument, a list given twice, an unknown entry or a file that holds no keys.
    """
    values = given(cls, argv, prog, positional, show_defaults)
    try:
        return from_dict(cls, values)
    except RequestError as error:
        fail(str(error))


def given(
    cls: Any, argv: Sequence[str], prog: str, positional: str = "", show_defaults: bool = False
) -> dict[str, Any]:
    """As parse, but the keys alone that files and flags give, checked and nested; what is not given is left out."""
    interrupts.due()
    if {"-h", "--help"}.intersection(argv):
        argv = ["--help"]  # whatever else is wrong
    with refuse_deep(argv):
        arguments = _named(cls, switched(cls, argv), positional)
        arguments = _files_first(cls, _with_entries(cls, arguments))
        arguments = _bracketed(cls, arguments)
        _refuse_sixties(cls, arguments)
        _refuse_misread(cls, arguments)
        parser = _Parser(prog=prog, description=cls.__doc__, cls=cls, positional=positional)
        parser.add_argument(
            "--config",
            action="config",
            help="YAML file with any of the keys below, or FILE:ENTRY, one entry of a file of several such as"
            " configs/method/freelb.yaml:mnli. May be given again: each adds its keys, the later one over the earlier,"
            " and flags over all of them.",
        )
        parser.add_class_arguments(cls)
        lists = sequences(cls)
        for action in parser._actions:  # for paths it would offer a file that lists them, which _bracketed rules out
            action.metavar = "[ITEM,...]" if action.dest in lists else action.metavar
        printing = any(part.partition("=")[0] == "--print_config" for part in arguments)  # and then the program ends
        namespace = parser.parse_args(_dotted(cls, arguments), defaults=printing and show_defaults)
        found = {key: _without_paths(value) for key, value in namespace.as_dict().items() if key != "config"}
    interrupts.begin()
    return found


def _without_paths(value: Any) -> Any:
    """Without the parser's notes of the file that a group of keys was read from, and names with their dots again."""
    if not isinstance(value, dict):
        return value
    for name in (key for key in value if not isinstance(key, str)):
        fail(f"a name is {name} as YAML reads it, and no text; put it in quotes")
    return {key.replace(DOT, "."): _without_paths(inner) for key, inner in value.items() if key != "__path__"}


def fail(message: str) -> NoReturn:
    """One line on stderr and exit code 2."""
    print(f"error: {' '.join(message.split()).replace(DOT, '.')}", file=sys.stderr)
    sys.exit(2)


def _named(cls: Any, argv: list[str], positional: str) -> list[str]:
    """The arguments before the first flag, as the flag of the field they stand for."""
    count = next((index for index, part in enumerate(argv) if part.startswith("-")), len(argv))
    given, rest = argv[:count], argv[count:]
    if not given:
        return rest
    if not positional or (len(given) > 1 and positional not in sequences(cls)):
        raise RequestError(f"unexpected argument {given[-1]!r}; see --help")
    return [f"--{positional}", as_yaml(given) if positional in sequences(cls) else given[0], *rest]


def _with_entries(cls: Any, argv: list[str]) -> list[str]:
    """Every `--config FILE:ENTRY` with the entry's content in its place, which the parser takes as well as a file."""
    split = apart(argv, lambda part: part.startswith("--config="))
    for index in range(1, len(split)):
        if split[index - 1] != "--config":
            continue
        if not split[index]:
            raise RequestError("--config needs a value, FILE or FILE:ENTRY; see --help")
        file, colon, name = split[index].rpartition(":")
        if colon and file.endswith(".yaml"):
            split[index] = as_yaml(entry(Path(file), name))
        elif os.path.isfile(split[index]):
            refuse_entries(cls, Path(split[index]))  # what is no YAML would be a traceback of the parser's
    return split


def _files_first(cls: Any, argv: list[str]) -> list[str]:
    """Flags after all `--config FILE`, for the parser, which takes what comes last."""
    files = [at for at, part in enumerate(argv[:-1]) if part == "--config"]
    taken = {place for at in files for place in (at, at + 1)}
    contents = [argv[at + 1] for at in files]
    contents += [names] if (names := names_of(cls, contents)) is not None else []
    return [part for content in contents for part in ("--config", content)] + [
        part for place, part in enumerate(argv) if place not in taken
    ]


def _bracketed(cls: Any, argv: list[str]) -> list[str]:
    """Lists as YAML: `--seeds 0,1` as [0,1], and a lone path as a list, not as a file that lists paths."""
    flags = {f"--{name}": element for name, element in sequences(cls).items()}
    refuse_repeated(argv, flags)
    refuse_whole(cls, argv)
    split = apart(argv, lambda part: part.partition("=")[0] in flags)
    for index in range(1, len(split)):
        element = flags.get(split[index - 1])
        if element is not None and not split[index].startswith("[") and split[index] not in NULLS:
            split[index] = as_list(split[index], element)
        elif element is str:
            split[index] = quoted(split[index])
    return split


def _refuse_sixties(cls: Any, argv: list[str]) -> None:
    """Ends the program for a number as YAML 1.1 has hours and minutes, 1:30 for 90, which Loader refuses in files."""
    for flag, value in pairs(argv):
        hint = type_of(cls, flag.removeprefix("--")) if re.search(r"\d:\d", value) else None
        if hint is not None and "number" in (allowed := told(hint)):
            fail(f"{flag[2:]} = {value}: allowed: {allowed}; set {flag}")


def _refuse_misread(cls: Any, argv: list[str]) -> None:
    """Ends the program for a list or keys, in a flag or in a group's file, that Loader refuses in files."""
    for flag, value in pairs(argv):
        hint = type_of(cls, flag.removeprefix("--"))
        if is_dataclass(hint) and os.path.isfile(value):  # no error for text that is too long for a name
            keys_of(Path(value))
        elif flag == "--config" or is_dataclass(hint) or get_origin(hint) is dict or flag[2:] in sequences(cls):
            try:
                with suppress(yaml.YAMLError):  # which the parser tells of
                    refuse_nested(value, yaml.load(value, Loader=Loader))
            except Misread as error:
                fail(f"{flag[2:]} = {value}: {str(error).removeprefix('line 1: ')}; set {flag}")


def _dotted(cls: Any, argv: list[str]) -> list[str]:
    """`--models.v1.5 DIR` with a dot that the parser does not take for one between keys."""
    names = "|".join(name for name, hint in get_type_hints(cls).items() if get_origin(hint) is dict)
    dots = re.compile(rf"(--(?:{names})\.)([^=]+)(.*)", re.DOTALL)
    found = ((dots.fullmatch(part) if names else None, part) for part in argv)
    return [match[1] + match[2].replace(".", DOT) + match[3] if match else part for match, part in found]


def main(
    commands: dict[str, Callable[[list[str]], None]],
    prog: str,
    argv: Sequence[str] | None = None,
    quiet: str = "",
) -> NoReturn:
    """Dispatch `prog COMMAND ...`; a deliberate error becomes one line (none of the command `quiet`) and its code.
    Output that was cut off by a full disk is code 1: it may have been all that was asked for."""
    streams = list[Lasting]()
    try:
        with lasting_output() as streams:
            _dispatch(commands, prog, list(sys.argv[1:] if argv is None else argv), quiet)
    except SystemExit as end:
        if not end.code and any(stream.full for stream in streams):
            why = "the disk was too full for the output, or its file larger than ulimit -f allows"
            with lasting_output():  # it may be a stream that is full
                print(f"error: {why}; mend that and repeat it", file=sys.stderr)
            sys.exit(1)
        raise
    finally:
        atexit.register(interrupts.end)  # last, hence before what libraries have registered


def _dispatch(
    commands: dict[str, Callable[[list[str]], None]], prog: str, arguments: list[str], quiet: str
) -> NoReturn:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: python -m {prog} {{{'|'.join(commands)}}} [--help] ...")
        width = max(12, *map(len, commands))
        for name, command in commands.items():
            print(f"  {name:{width}s} {(command.__doc__ or '').strip().splitlines()[0]}")
        sys.exit(0 if arguments else 2)
    name, rest = arguments[0], arguments[1:]
    if name not in commands:
        hint = difflib.get_close_matches(name, commands, n=1)
        print(f"error: no command {name!r}; {did_you_mean(hint)}one of {', '.join(commands)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(guard(lambda: commands[name](rest), name == quiet))


def expect_no_gpu() -> None:
    """On a machine without GPU tell DeepSpeed so: Hugging Face loads it to save a model, and it would warn of that."""
    import torch  # takes seconds, and not every command needs it

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def guard(work: Callable[[], None], quiet: bool = False) -> int:
    """Run `work`; the exit code its outcome stands for, with one line on stderr for a deliberate error or Ctrl-C."""
    try:
        work()
    except (RequestError, WorkError) as error:
        if not quiet:
            print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, RequestError) else 1
    except KeyboardInterrupt:
        if not quiet:
            print(interrupts.LINE, file=sys.stderr)
        return 130
    except PermissionError as error:
        if error.errno != errno.EACCES or error.filename is None:
            raise
        print(f"error: {error.filename} is closed to this user; mend its permissions, or name another", file=sys.stderr)
        return 2
    return 0


class _Help(DefaultHelpFormatter):
    """Help whose types are told in words, where not all values are listed anyway. cls: what holds the keys."""

    cls: Any = None

    def _get_type_str(self, action: Any) -> str | None:
        # The parser's own type has lost the bounds.
        hint = type_of(self.cls, action.dest, bounds=True) or getattr(action, "_typehint", None) or action.type
        of_itself = hint in (None, bool) or is_dataclass(hint) or get_origin(hint) is Literal
        return None if of_itself else told(hint)


class _Parser(ArgumentParser):
    """jsonargparse with one-line errors that name the nearest valid key, or what the key takes."""

    def __init__(self, *args: Any, cls: Any = None, positional: str = "", **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, formatter_class=type("_Help", (_Help,), {"cls": cls}), **kwargs)
        self.cls, self.positional = cls, positional

    def dump(self, *args: Any, **kwargs: Any) -> str:
        return super().dump(*args, **kwargs).replace(DOT, ".")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        line = " ".join(message.split())
        if (added := re.search(r"unrecognized arguments: --([\w.]+)\+", line)) and added[1] in sequences(self.cls):
            fail(f"--{added[1]}+ is no flag, a list is given whole; set --{added[1]} A,B")
        if unknown := unknown_key(line):
            hint = nearest(unknown, field_names(self.cls))
            fail(f"unknown key {unknown!r}; {did_you_mean(hint)}--help lists all keys")
        if missing := re.search(r"the following arguments are required: (.+)", line):
            hints = {name: type_of(self.cls, name) for name in missing[1].split(", ")}
            first = {self.positional: "the first arguments: "}
            flags = (f"{flag_of(*one)} ({first.get(one[0], '')}{told(one[1])})" for one in hints.items())
            fail(f"not given: {missing[1]}; set {', '.join(flags)}")
        if bare := re.search(r"argument (--[\w.]+): expected one argument", line):
            fail(f"{bare[1]} has no value; one that begins with - is given as {bare[1]}=VALUE")
        if stray := re.search(r"unrecognized arguments: (\S+)", line):
            advice = f"give {self.positional} before the first flag" if self.positional else "see --help"
            fail(f"unexpected argument {stray[1]!r}; {advice}")
        fail(_with_flag(self.cls, message))


def _with_flag(cls: Any, message: str) -> str:
    """jsonargparse's message; where it is on a value that a key does not take, in our words and with the flag."""
    last = r'.*Parser key "([\w.]+)":(.*)(?:(?:Got|Given) value:|Unable to load config) ?(.*)'  # the innermost one
    found = re.match(last, message, re.DOTALL)
    hint = type_of(cls, found[1]) if found else None
    if found is None or hint is None:
        return re.sub(r'^Parser key "([\w.]+)": (.*)', r"\1: \2; set --\1", " ".join(message.split()))
    own = re.search(r"validation errors? for [^\n]*\n(.*?) \[type=", found[2], re.DOTALL)  # a validator's of ours
    why = own[1].strip().removeprefix("Value error, ") if own else f"allowed: {told(hint)}"
    if inner := re.match(r"NestedArg\(key='([\w.]+)'", found[3]):  # its words for OUT.KEY where OUT has no keys
        return f"unknown key '{found[1]}.{inner[1]}'; --help lists all keys"
    value = found[3].strip('"') or "''"
    if get_origin(hint) is dict and value.startswith("Namespace("):  # the parser's, of a dotted key without a block
        return f"{found[1]} has a name after a dot in a file; write a block there, {found[1]}: {{NAME: VALUE}}"
    if value in ("True", "False") and "text" in why:
        why += " (yes, no, on and off are truths in YAML: put them in quotes)"
    return f"{found[1]} = {value}: {why}; set {flag_of(found[1], hint)}"
