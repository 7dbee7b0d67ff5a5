"""Where a command writes: refused before the work where nothing can be written there; a file is whole or not there."""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from asa.errors import NotWritten, RequestError, WorkError

FULL = (errno.ENOSPC, errno.EDQUOT)


def check_folder(folder: Path, flag: str) -> None:
    """Raises RequestError where there can be no folder: a file or a link to nothing stands at `folder`, or where one
    above it must be, or it would have to be made where this user may not."""
    try:
        with suppress(FileNotFoundError, NotADirectoryError):  # it will be made, or is refused below
            os.stat(folder)
    except OSError as error:  # too long a name, a loop of links, a folder that is closed to us
        raise RequestError(f"{folder} is no place to write ({error.strerror}); set another {flag}") from None
    standing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not standing.exists():
        raise RequestError(f"{standing} is a link to what is not there; bring it back, or set another {flag}")
    if not standing.is_dir():
        raise RequestError(f"{standing} is no folder; set another {flag}")
    if standing != folder and not os.access(standing, os.W_OK | os.X_OK):
        raise RequestError(f"{standing} cannot be written to by this user; mend that, or set another {flag}")


def check_file(file: Path, flag: str) -> None:
    """Raises RequestError where there can be no file: a folder stands at `file`, or a file where its folder must be."""
    if file.is_dir():
        raise RequestError(f"{file} is a folder; set {flag} to a file")
    check_folder(file.parent, flag)


def remove(folder: Path, first: str) -> None:
    """Remove a folder and, before all else in it, the file by which it counts as whole: what a kill leaves of it does
    not. A link is left as it is, and a folder of which the system does not give that file away."""
    if folder.is_symlink():
        return
    try:
        (folder / first).unlink(missing_ok=True)
    except OSError:
        return
    shutil.rmtree(folder, ignore_errors=True)


def clear(folder: Path, first: str) -> None:
    """Remove what a folder holds, or the one that a link leads to, before all else the file by which it counts as
    whole. Raises NotWritten where the system refuses."""
    if not folder.is_dir():
        return
    with refusal_told(folder):
        (folder / first).unlink(missing_ok=True)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def refusal_told(path: Path, advice: str = "give the same command again") -> Generator[None]:
    """Inside, what the system refuses to write to `path` is failed work and no traceback.

    Args: advice, what to do once the reason is gone.
    """
    try:
        yield
    except (RequestError, WorkError):  # told already
        raise
    except Exception as error:  # tokenizers raises this very class
        found = refusal(error)
        if found is None and not isinstance(error, SafetensorError):
            raise
        number, reason = found or (None, str(error))
        first = "free some space" if number in FULL else "mend that"
        raise NotWritten(f"{path} cannot be written: {reason}; {first} and {advice}") from error


def refusal(error: Exception) -> tuple[int, str] | None:
    """Number and reason of what the system refused; None for any other error, a library's own OSError, without a
    number, too. safetensors and tokenizers hide the system's words in errors of their own."""
    if isinstance(error, OSError):
        return None if error.errno is None else (error.errno, error.strerror or str(error))
    found = re.search(r"(\w[\w ]*) \(os error (\d+)\)", str(error))
    return (int(found[2]), found[1]) if found else None


@contextmanager
def atomic_write(path: Path, advice: str = "give the same command again") -> Generator[Path]:
    """Gives a file beside `path` to write to, in a folder made for it, and puts it in place at the end: `path` is never
    there by half, and what fails leaves nothing.

    Args: advice, what to do once the reason is gone. Raises: NotWritten where the system refuses.
    """
    partial = path.with_name(f"{path.name}.partial")
    with refusal_told(path, advice):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            fsync(partial)
            partial.replace(path)
            fsync(path.parent)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


@contextmanager
def locked(path: Path, taken: str) -> Generator[None]:
    """Hold the lock on the file `path`, which is made where it is not there and stays. The system frees it when this
    process ends, however that ends.

    Raises: RequestError, saying `taken`, where another process holds it; OSError where the system refuses.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(taken) from None
        yield


def fsync(path: Path) -> None:
    """Force a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
