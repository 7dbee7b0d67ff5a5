"""Files of rows -> columns by name, one row after the other, each with its line."""

import bz2
import csv
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO, get_args

from asa.errors import RequestError, WorkError
from finetune.tasks import published

SEMICOLONS = " (parted by semicolons? allowed: commas or tabs)"

Format = Literal["auto", "csv", "tsv", "jsonl", "json", "parquet", "conll", "dream", "race", "six-lines"]
Found = tuple[int, dict[str, Any]] | tuple[int, dict[str, Any], int]  # number, values and, where not one, the lines
csv.field_size_limit(2**31 - 1)  # an article may be a cell
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class Row(NamedTuple):
    """path and number, from 1, say where it stands: a line of a text file, else the row's own number. lines: that were
    joined to it; 0: it lacks columns and is to be left out."""

    path: Path
    number: int
    values: dict[str, Any]
    lines: int = 1


def rows(
    path: Path,
    form: Format,
    flag: str,
    header: tuple[str, ...] = (),
    entry: str = "",
    mend: bool = False,
    wanted: Collection[str] | None = None,
) -> Iterator[Row]:
    """Every row of a file (format race: of a folder). Args: flag, what a message names; wanted, the columns of a
    parquet file whose values are read, null for the others (None: all); the rest as in TaskConfig.

    Raises: RequestError for a missing file and for lines that are not of the format; WorkError for damaged archives.
    """
    # Path makes an error of a name that is longer than a file's may be.
    kind = _by_ending(path) if form == "auto" and os.path.exists(path) else form
    if not (os.path.isdir(path) if kind == "race" else os.path.isfile(path)):
        raise RequestError(f"no {'folder' if kind == 'race' else 'file'} {path}; set {flag}")
    for file in sorted(path.rglob("*.txt")) if kind == "race" else [path]:
        found = _parquet(file, wanted) if kind == "parquet" else _text(file, kind, header, entry, mend)
        yield from _told(file, found, flag)


def _told(path: Path, found: Iterator[Found], flag: str) -> Iterator[Row]:
    """The rows of a file, its mistakes as errors that name it."""
    try:
        for number, values, *lines in found:
            yield Row(path, number, values, *lines)
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is no UTF-8 text ({error.reason}); save it as such or set {flag}") from None
    except published.WrongLine as error:
        raise RequestError(f"{path}:{error}; mend it or set {flag}") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise WorkError(f"{path} is damaged or cannot be read: {error}") from None


def ending(path: Path) -> str:
    """The last that names no packing, without its dot; empty where there is none."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in OPENERS]
    return suffixes[-1].removeprefix(".") if suffixes else ""


def _by_ending(path: Path) -> str:
    form = ending(path)
    if form not in ("csv", "tsv", "jsonl", "json", "parquet", "conll"):
        allowed = ", ".join(get_args(Format)[1:])
        raise RequestError(f"{path}: its ending names no format; set --task.format to one of {allowed}")
    return form


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """A text file, unpacked; its lines end at \\n alone, as other separators occur inside texts."""
    opener = OPENERS.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8-sig", newline="\n") as file:
        yield file


def _text(path: Path, kind: str, header: tuple[str, ...], entry: str, mend: bool) -> Iterator[Found]:
    readers: dict[str, Callable[[TextIO], Iterator[Found]]] = {
        "csv": lambda file: _csv(file, header),
        "tsv": lambda file: _tsv(file, header, mend),
        "jsonl": _jsonl,
        "json": lambda file: _json(file, entry),
        "conll": published.conll,
        "dream": published.dream,
        "race": published.race,
        "six-lines": published.six_lines,
    }
    with opened(path) as file:
        yield from readers[kind](file)


def _csv(file: TextIO, header: tuple[str, ...]) -> Iterator[Found]:
    """Separated by commas, or by tabs where the first line has tabs alone; quoted where needed."""
    first = next((line for line in file if line.strip()), "")
    hint = SEMICOLONS if ";" in first and not {",", "\t"} & set(first) else ""
    file.seek(0)
    reader = csv.reader(file, delimiter="\t" if "\t" in first and "," not in first else ",", strict=True)
    before, begun, blank = 0, False, 0
    try:
        names = header
        for fields in reader:
            number, before = before + 1, reader.line_num
            if not begun and not "".join(fields).strip():
                continue
            first, begun = not begun, True
            if first and (not header or tuple(fields) == header):
                names = _names(fields, number)
            elif len(fields) == len(names):
                _check_blank(blank)
                yield number, dict(zip(names, fields, strict=True))
            elif not fields:
                blank = blank or (number if len(names) == 1 else 0)
            else:
                told = f"{len(fields)} fields, {len(names)} columns ({', '.join(names)}){hint}"
                raise published.WrongLine(number, told)
    except csv.Error as error:
        lone = "a carriage return outside quotes; end lines by \\n, or quote the text"
        raise published.WrongLine(before + 1, lone if "new-line" in str(error) else f"{error}{hint}") from None


def _tsv(file: TextIO, header: tuple[str, ...], mend: bool) -> Iterator[Found]:
    """Separated by tabs, quotes are ordinary characters. mend: a line with too few fields goes on in the next ones, as
    some published rows have a line break inside a text; without any that complete it, it is a row to be left out."""
    names, begun, blank = header, False, 0
    fields, lines, start = list[str](), 0, 0  # of a row that is not complete yet
    for number, line in enumerate(file, 1):
        parts = line.rstrip("\r\n").split("\t")
        if not (lines or line.strip()) and (not begun or parts == [""]):
            blank = blank or (number if begun and len(names) == 1 else 0)
            continue
        _check_blank(blank)
        first, begun = not begun, True
        if first and (not header or tuple(parts) == header):
            names = _names(parts, number)
            continue
        if lines and (len(parts) == len(names) or len(fields) + len(parts) - 1 > len(names)):
            yield start, {}, 0
            fields, lines = [], 0
        fields = [*fields[:-1], f"{fields[-1]} {parts[0]}", *parts[1:]] if lines else parts
        start, lines = start if lines else number, lines + 1
        if len(fields) > len(names) or (len(fields) < len(names) and not mend):
            raise published.WrongLine(start, f"{len(fields)} fields, {len(names)} columns ({', '.join(names)})")
        if len(fields) == len(names):
            yield start, dict(zip(names, fields, strict=True)), lines
            fields, lines = [], 0
    if lines:
        yield start, {}, 0


def _check_blank(number: int) -> None:
    """Raises WrongLine for a blank line (0: none) between rows of one column: it may be a text, or nothing."""
    if number:
        raise published.WrongLine(number, "a blank line among rows of one column; leave it out, or write it as jsonl")


def _names(fields: list[str], number: int) -> tuple[str, ...]:
    twice = {name for name in fields if name.strip() and fields.count(name) > 1}  # a sheet's empty ends have no name
    if twice:
        raise published.WrongLine(number, f"column {sorted(twice)[0]!r} is there twice")
    return tuple(fields)


def _jsonl(file: TextIO) -> Iterator[Found]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, published.once(published.parsed(line.strip(), number), number)


def _json(file: TextIO, entry: str) -> Iterator[Found]:
    """A list of objects, or an object of such lists, of which `entry` names one."""
    hint = "" if entry else " (of an object that holds one, name the entry by --task.entry)"
    content = published.parsed(file.read(), 1, dict if entry else list, hint)
    if entry:
        published.once(content, 1, below=False)
    if entry and entry not in content:
        raise published.WrongLine(1, f"no entry {entry!r}, only {', '.join(map(repr, content))}")
    rows = content[entry] if entry else content
    if not isinstance(rows, list):
        raise published.WrongLine(1, f"entry {entry!r} holds {rows!r:.80}, wanted: a list of rows")
    for number, values in enumerate(rows, 1):
        if not isinstance(values, dict):
            raise published.WrongLine(number, f"row {values!r:.80} is no JSON object")
        yield number, published.once(values, number)


def _parquet(path: Path, wanted: Collection[str] | None) -> Iterator[Found]:
    import pyarrow
    from pyarrow import parquet

    number = 1
    try:
        packed = OPENERS[path.suffix](path, "rb") if path.suffix in OPENERS else None
        with packed or nullcontext(path) as file:
            table = parquet.ParquetFile(file)
            names = _names(table.schema_arrow.names, 1)
            read = [name for name in names if (wanted is None or name in wanted) and names.count(name) == 1]
            for batch in table.iter_batches(columns=read):
                columns = {name: _values(batch.column(name), name, number) for name in read}
                for at in range(len(batch)):
                    yield number + at, {name: columns[name][at] if name in columns else None for name in names}
                number += len(batch)
    except pyarrow.ArrowException as error:
        raise WorkError(f"{path} is damaged or no parquet file: {error}") from None


def _values(column: Any, name: str, number: int) -> list[Any]:
    """A column from row `number` on. Raises WrongLine for a value that Python has no form of: a date beyond the year
    9999, a time zone that it does not know."""
    found = []
    try:
        for value in column:
            found.append(value.as_py())
    except (ValueError, OverflowError, LookupError) as error:
        what = f"column {name!r} holds a {column.type} that cannot be read ({error!s:.60})"
        raise published.WrongLine(number + len(found), what) from None
    return found
