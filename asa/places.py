"""Where a command is to write: refused before the work where nothing can be written there."""

import os
from pathlib import Path

from asa.errors import RequestError


def check_folder(folder: Path, flag: str) -> None:
    """Raises RequestError where there can be no folder: a file stands at `folder`, or where one above it must be."""
    standing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not standing.is_dir():
        raise RequestError(f"{standing} is no folder; set another {flag}")


def check_file(file: Path, flag: str) -> None:
    """Raises RequestError where there can be no file: a folder stands at `file`, or a file where its folder must be."""
    if file.is_dir():
        raise RequestError(f"{file} is a folder; set {flag} to a file")
    check_folder(file.parent, flag)
