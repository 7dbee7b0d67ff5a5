"""Documents on disk, as `text` writes them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asa import manifest
from asa.errors import RequestError, WorkError
from data_prep.parts import bytes_bar
from data_prep.text import Document


def facts(folder: Path, flag: str) -> dict[str, Any]:
    """What the manifest of a finished folder of documents says; the files are not read.

    Raises: RequestError for a folder that holds no finished documents or one part of them, which would pass for all;
        WorkError for a damaged one.
    """
    found = manifest.read(folder, "documents", flag)
    if (shard := found.get("shard", "0/1")) != "0/1":
        raise RequestError(f"{folder} is part {shard} of the documents; join all parts by merge, give that by {flag}")
    return found


def files(folders: list[Path], flag: str) -> list[Path]:
    """The files of finished folders of documents, in order, every byte of them verified.

    Raises: RequestError for a folder that holds no finished documents or is given twice; WorkError for a damaged one.
    """
    whole = [folder.resolve() for folder in folders]
    for place, folder in enumerate(folders):
        if whole[place] in whole[:place]:
            raise RequestError(f"{folder} is given twice; name each folder once with {flag}")
        manifest.verify(folder, "documents", flag)
    return [
        folder / name
        for folder in folders
        for name in manifest.files(folder, "documents", flag)
        if name.endswith(".jsonl")
    ]


def copy(folders: list[Path], kind: str, target: Path, flag: str) -> None:
    """Copy the files that the manifests of finished folders of a kind list into `target`, every byte verified.

    Raises: RequestError for a folder that is not of that kind; WorkError for a damaged one.
    """
    every = [(folder / name, target / name) for folder in folders for name in manifest.files(folder, kind, flag)]
    with bytes_bar(f"copying {kind}", sum(source.stat().st_size for source, _ in every)) as progress:
        for folder in folders:
            manifest.verify(folder, kind, flag)
        for source, copied in every:
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copied)  # its contents alone: another part's file may follow at that place
            progress.update(source.stat().st_size)


def read(path: Path) -> Iterator[Document]:
    """The documents of a file. Raises WorkError for a line that holds something else."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Document(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise WorkError(f"{path}, line {number}, holds no document ({error}); make the folder anew") from None
