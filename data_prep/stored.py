"""Documents on disk, as `text` writes them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from asa import manifest
from asa.errors import WorkError
from data_prep.text import Document


def files(folders: list[Path], flag: str) -> list[Path]:
    """The files of finished folders of documents, in order, every byte of them verified.

    Raises: RequestError for a folder that holds no finished documents; WorkError for a damaged one.
    """
    for folder in folders:
        manifest.verify(folder, "documents", flag)
    return [folder / name for folder in folders for name in listed(folder) if name.endswith(".jsonl")]


def listed(folder: Path) -> list[str]:
    """The names of the files that a finished folder's manifest lists, sorted; what else lies there is not of it."""
    return sorted(json.loads((folder / manifest.NAME).read_text())["files"])


def copy(folder: Path, target: Path) -> None:
    """Copy the files that a finished folder's manifest lists into `target`."""
    for name in listed(folder):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / name, target / name)


def read(path: Path) -> Iterator[Document]:
    """The documents of a file. Raises WorkError for a line that holds something else."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Document(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise WorkError(f"{path}, line {number}, holds no document ({error}); make the folder anew") from None
