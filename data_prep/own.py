"""A user's own text: .jsonl, .jsonl.zst, .txt and .parquet, read from a range of their bytes or row groups."""

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asa.errors import WorkError
from data_prep.dump import Span
from data_prep.text import Document, sound

_CHUNK = 2**20
_READ = ("id", "title", "text")  # keys of a row
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
ENDINGS = (".jsonl", ".jsonl.zst", ".txt", ".parquet")


def documents(span: Span, label: str) -> Iterator[Document]:
    """The documents that begin in a range, in order; one without an id is named by `label` and its place.

    Raises: WorkError for damage.
    """
    read = next(read for ending, read in _READERS.items() if span.path.name.endswith(ending))
    return read(span, label)


def row_groups(path: Path, size: int) -> Iterator[tuple[int, int, int]]:
    """The first and the end of each range of row groups of at least `size` bytes, with its bytes."""
    import pyarrow.parquet as pq

    with _damage(path):
        about = pq.ParquetFile(path).metadata
        weights = [about.row_group(group).total_byte_size for group in range(about.num_row_groups)]
    first = weight = 0
    for group, bytes_ in enumerate(weights):
        weight += bytes_
        if weight >= size or group == len(weights) - 1:
            yield first, group + 1, weight
            first, weight = group + 1, 0


def document(row: Any, place: str, source: str | Path, where: Callable[[], str] | None = None) -> Document:
    """A row as a document; `place` stands for an id it lacks, the id for a title it lacks, `of_text` for both.

    Args: where, what messages call the row's place; None: `place`.
    Raises: WorkError, with the source, for a row without text.
    """
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        keys = f" and not {', '.join(map(str, row))}" if isinstance(row, dict) and row and "text" not in row else ""
        raise WorkError(
            f"{source}: {where() if where else place} has no text: each row must be an object with the key text{keys},"
            " a string; mend the file"
        )
    given = row.get("id")
    text, name = sound(text).strip(), "" if given is None else sound(str(given))
    return Document(name or place, _title(row) or name or of_text(text), text)


def _title(row: Any) -> str:
    """Empty for a blank one."""
    title = sound(str(row.get("title") or ""))
    return title if title.strip() else ""


def of_text(text: str) -> str:
    """The title of a text without one. By the title documents are held out: by a text's place they would be others
    whenever a line is added or moved."""
    return f"text {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _jsonl(span: Span, label: str) -> Iterator[Document]:
    for place, line in _lines(span):
        if place >= span.stop:
            return
        if line.strip():
            yield _parsed(line, f"{label}:{place}", span.path, lambda place=place: _line_at(span.path, place))


def _line_at(path: Path, place: int) -> str:
    """The line that begins at a byte, as editors count them."""
    lines, left = 1, place
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, _CHUNK))):
            lines, left = lines + piece.count(b"\n"), left - len(piece)
    return f"line {lines}"


def _twice(names: list[str]) -> str | None:
    """The first that is read of a row and stands there more than once."""
    return next((name for name in _READ if names.count(name) > 1), None)


def _parsed(line: bytes, place: str, path: Path, where: Callable[[], str]) -> Document:
    if b"\0" in line:  # JSON spells a zero; bare ones are UTF-16 or UTF-32
        raise WorkError(f"{path}: {where()} is not UTF-8; convert it to UTF-8")
    names: list[str] = []

    def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names[:] = [name for name, _ in pairs]  # in the end the row's own, which is closed last
        return dict(pairs)

    try:
        row = json.loads(line, object_pairs_hook=noted)
        if isinstance(row, dict) and (key := _twice(names)):
            why = f"has the key {key} twice, of which one would be left out"
            raise WorkError(f"{path}: {where()} {why}; mend the file")
        return document(row, place, path, where)
    except (ValueError, RecursionError) as error:  # the latter for brackets in brackets without end
        raise WorkError(f"{path}: {where()} is no JSON ({error}); mend the file") from None


def _zst(span: Span, label: str) -> Iterator[Document]:
    import pyarrow as pa

    with _damage(span.path), pa.CompressedInputStream(pa.OSFile(str(span.path)), "zstd") as stream:
        for number, line in enumerate(io.BufferedReader(stream)):
            if line.strip():
                at = f"line {number + 1}"
                yield _parsed(line, f"{label}:{at}", span.path, lambda at=at: at)


def _txt(span: Span, label: str) -> Iterator[Document]:
    """A document belongs where the empty line before it begins, the first one to the beginning of the file."""
    begun, lines, fresh = 0, list[bytes](), span.start == 0
    for place, line in _lines(span):
        if place >= span.stop and not fresh:
            return
        # Decoded, for an empty line may hold any of Unicode's spaces; and the first a byte-order mark.
        if line.decode("utf-8", "replace").removeprefix("" if place else "\ufeff").strip():
            if fresh and not lines:
                begun = place
            lines += [line] if fresh or lines else []
            continue
        if lines:
            yield _paragraphs(lines, span.path, label, begun)
        if place >= span.stop:
            return
        lines, fresh = [], True
    if lines:
        yield _paragraphs(lines, span.path, label, begun)


def _paragraphs(lines: list[bytes], path: Path, label: str, begun: int) -> Document:
    place, joined = f"{label}:{begun}", b"".join(lines)
    try:
        text = joined.decode()
        # UTF-16 of many scripts is UTF-8 too, with a zero or another control character beside each letter.
        odd = _CONTROL.findall(joined)
        wrong = joined.find(odd[0]) if 4 * len(odd) > len(joined) else -1
    except UnicodeDecodeError as error:
        text, wrong = "", error.start
    if wrong >= 0:
        raise WorkError(f"{path} is not UTF-8 at byte {begun + wrong}; convert it to UTF-8")
    # The whole file would be one document without a word.
    if not begun and b"\n" not in joined and re.search(r"\r\s*\r", text.strip()):
        raise WorkError(f"{path} has the line ends of classic Mac OS (CR alone); convert them to LF")
    # Editors on Windows put a byte-order mark at the beginning.
    text = text if begun else text.removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").strip()
    return Document(place, of_text(text), text)


def _lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """Every line from the first that begins in a range to the end of the file, with its place; none if none does."""
    with span.path.open("rb") as file:
        if span.start:
            file.seek(span.start - 1)
            # A line without end is not read again for every range in it.
            while not (piece := file.readline(_CHUNK)).endswith(b"\n"):
                if not piece or file.tell() >= span.stop:
                    return
        place = file.tell()
        for line in file:
            yield place, line
            place += len(line)


def _parquet(span: Span, label: str) -> Iterator[Document]:
    import pyarrow.parquet as pq

    number = 0
    with _damage(span.path):
        file = pq.ParquetFile(span.path)
        names = file.schema_arrow.names
        wanted = [name for name in _READ if name in names]
        if column := _twice(names):
            raise WorkError(f"{span.path} has two columns {column!r}, of which one would be left out; drop one")
        for batch in file.iter_batches(256, list(range(span.start, span.stop)), wanted):
            for row in batch.to_pylist():
                yield document(row, f"{label}:{span.start}:{number}", span.path)
                number += 1


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """What the library raises for a damaged file, as a WorkError."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        detail = " ".join(str(error).split())[:200]
        raise WorkError(f"{path} is truncated or damaged ({detail}); fetch it again") from None


_READERS = {".jsonl": _jsonl, ".zst": _zst, ".txt": _txt, ".parquet": _parquet}
