"""Where documents come from: dumps, a user's own text, data sets of the Hugging Face hub; each cut into parts.

Where a part ends follows from the inputs' sizes alone. Names ending in
    .xml .bz2    MediaWiki dumps, cut by bytes (dump.py); an index (NAME-multistream-index*.bz2) is passed over
    .jsonl       an object with `text`, and `id` and `title` if there are, on each line; cut by bytes
    .jsonl.zst   the same, one part for each file
    .txt         documents parted by empty lines; cut by bytes
    .parquet     columns as the keys of .jsonl; cut by row groups
    hub:NAME[:CONFIG[:SPLIT]]   the same columns, one part for each file of the data set (hub.py)
"""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from asa import manifest
from asa.errors import RequestError
from data_prep import dump, hub, own
from data_prep.dump import Span
from data_prep.parts import Part
from data_prep.text import Document, convert, long_enough

# A part is a unit of parallelism and of restart: many in a small corpus, seconds to a minute of work in a large one.
_INDEX = re.compile(r"-multistream-index\d*\.txt(-p\d+p\d+)?\.bz2$")
_PARTS, _SMALLEST, _LARGEST = 512, 2**20, 2**25


class Task(NamedTuple):
    """A range of one source, in bytes, row groups or files.

    label: names the source in ids of documents that have none. silent: as in wikitext.plain_text, set for dumps.
    """

    source: str
    start: int
    stop: int
    label: str
    silent: frozenset[str] | None = None

    @property
    def span(self) -> Span:
        return Span(Path(self.source), self.start, self.stop)


def find(inputs: list[Path], flag: str) -> list[str]:
    """The sources that the inputs name, in the order given, globs spelt out in sorted order.

    Raises: RequestError for what is no source, is not there, or is named twice.
    """
    found: list[str] = []
    for item in map(str, inputs):
        if hub.is_hub(item):
            found.append(item)
            continue
        paths = sorted(glob.glob(item, recursive=True)) if glob.has_magic(item) and not Path(item).exists() else [item]
        if not paths:
            raise RequestError(f"no file matches {item}; give existing ones with {flag}")
        found += [path for path in paths if not _INDEX.search(path)]
    for source in found:
        _check(source, flag)
    identities = [hub.spelt(source) if hub.is_hub(source) else _file(source) for source in found]
    if twice := [source for place, source in enumerate(found) if identities[place] in identities[:place]]:
        raise RequestError(f"{twice[0]} is given twice; name each source once with {flag}")
    if not found:
        raise RequestError(f"the index alone is no dump; give the dump with {flag}")
    return found


def _check(source: str, flag: str) -> None:
    if hub.is_hub(source):
        return
    if os.path.isdir(source):
        if os.path.isfile(os.path.join(source, manifest.NAME)):
            readers = "build and tokenizer read documents by --documents, dedup as its arguments"
            raise RequestError(f"{source} is a finished folder: {readers}; set {flag}")
        some = os.path.join(source, "*.txt")
        raise RequestError(f"{source} is a folder; give its files, such as '{some}', with {flag}")
    if not os.path.isfile(source):  # Path's own raises for too long a name
        raise RequestError(f"no file {source}; give existing ones with {flag}")
    try:
        Path(source).open("rb").close()
    except OSError as error:
        raise RequestError(f"{source} cannot be read ({error.strerror}); mend that or set {flag}") from None
    try:
        source.encode()  # a document's id holds it
    except UnicodeEncodeError:
        raise RequestError(f"the name {source!a} is no UTF-8; rename the file, or set {flag}") from None
    wrong = source.endswith((".txt.bz2", ".jsonl.bz2"))
    if wrong or not source.endswith((*dump.ENDINGS, *own.ENDINGS)):
        allowed = ", ".join((*dump.ENDINGS, *own.ENDINGS))
        raise RequestError(f"{source} is no source of text: its name must end in one of {allowed}; set {flag}")


def _file(source: str) -> tuple[int, int]:
    """Equal for all paths of a file, links included."""
    found = Path(source).stat()
    return found.st_dev, found.st_ino


def parts(sources: list[str]) -> list[Part]:
    """Every source as parts, in order; a part's task is its number and its Task.

    Raises: WorkError for a dump with its beginning or end missing; as hub.files for a data set.
    """
    total = sum(Path(source).stat().st_size for source in sources if not hub.is_hub(source))
    size = max(_SMALLEST, min(_LARGEST, total // _PARTS))
    tasks = [
        task for source, label in zip(sources, _labels(sources), strict=True) for task in _cut(source, label, size)
    ]
    return [Part(f"{number:06d}", weight, (number, task)) for number, (task, weight) in enumerate(tasks)]


def _labels(sources: list[str]) -> Iterator[str]:
    """The name of each source without its folder; of equal names all but the first get a number."""
    names = [hub.label(source) if hub.is_hub(source) else Path(source).name for source in sources]
    for place, name in enumerate(names):
        before = names[:place].count(name)
        yield f"{name}({before + 1})" if before else name


def _cut(source: str, label: str, size: int) -> Iterator[tuple[Task, int]]:
    """The tasks of a source, each with its bytes (of hub data sets: with 1)."""
    if hub.is_hub(source):
        yield from ((Task(source, number, number + 1, label), 1) for number in range(hub.files(source)))
        return
    path = Path(source)
    whole = path.stat().st_size
    if source.endswith(".parquet"):
        yield from ((Task(source, start, stop, label), weight) for start, stop, weight in own.row_groups(path, size))
    elif source.endswith(".zst"):
        yield Task(source, 0, whole, label), whole
    else:
        silent = _silent(path) if source.endswith(dump.ENDINGS) else None
        for start in range(0, max(whole, 1), size):
            stop = min(start + size, whole)
            yield Task(source, start, stop, label, silent), stop - start


def _silent(path: Path) -> frozenset[str]:
    dump.check_whole(path)
    return dump.silent_names(path)


def documents(task: Task, dropped: Counter[str], min_chars: int) -> Iterator[Document]:
    """The documents of a task in order, what is dropped counted by reason. Raises WorkError for damage."""
    if task.silent is not None:
        found = (convert(page, task.silent, min_chars) for page in dump.pages(task.span))
    else:
        found = (long_enough(document, min_chars) for document in _given(task))
    for item in found:
        if isinstance(item, Document):
            yield item
        else:
            dropped[item] += 1


def _given(task: Task) -> Iterator[Document]:
    if hub.is_hub(task.source):
        rows = enumerate(hub.rows(task.source, task.start))
        return (own.document(row, f"{task.label}#{task.start}:{number}", task.source) for number, row in rows)
    return own.documents(task.span, task.label)
