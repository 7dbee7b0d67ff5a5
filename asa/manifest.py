"""Completeness is a file written last: a folder without manifest.json is unfinished and nothing reads it.

The manifest lists every file of the folder with its size and sha256, the facts the reader needs, and a sha256 of its
own content, so that a changed byte is found anywhere, in the manifest too. Shards and checkpoints use the same form.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from asa.errors import RequestError, WorkError
from asa.places import fsync, locked

NAME = "manifest.json"
_SIGNATURE = "sha256"
_BEGIN = b'{\n "facts": '  # of every manifest, as _text writes it
_MARK = ".unfinished-asa"  # in FOLDER.partial: it is ours, and locked while it is worked in


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hashes(paths: list[Path]) -> Iterator[str]:
    """Each file's sha256, with a progress bar on a terminal where it takes long."""
    total = sum(path.stat().st_size for path in paths)
    with tqdm(desc="hashing", total=total, unit="B", unit_scale=True, delay=5, disable=None, leave=False) as bar:
        for path in paths:
            yield file_sha256(path)
            bar.update(path.stat().st_size)


def write(folder: Path, kind: str, facts: dict[str, Any]) -> None:
    """Hash every file below `folder`, fsync files and folders, then put the manifest in place by one rename."""
    everything = sorted(folder.rglob("*"))
    for path in everything:
        fsync(path)
    partial = folder / (NAME + ".partial")
    # A killed attempt may have left the partial one, which the new one is about to take the place of.
    paths = [path for path in everything if path.is_file() and path.name != NAME and path != partial]
    hashes = _hashes(paths)
    listed = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(paths, hashes, strict=True)
    }
    # As it will be read: JSON makes text of keys and lists of tuples, and what is read must give the same text again.
    content = json.loads(json.dumps({"kind": kind, "facts": facts, "files": listed}))
    partial.write_text(_signed(content))
    # safetensors makes its files for one user alone, whatever this user's others are made for.
    for path in paths:
        if path.suffix == ".safetensors":
            with suppress(OSError):  # some file systems have no modes
                path.chmod(stat.S_IMODE(partial.stat().st_mode))
    fsync(partial)
    partial.rename(folder / NAME)
    fsync(folder)


def read(folder: Path, kind: str, flag: str) -> dict[str, Any]:
    """The facts of a complete folder, its files present with the right sizes (contents unread).

    Args: flag is the command-line flag that named the folder, for the message.
    Raises: RequestError when there is no such folder, no manifest, or it is of another kind; WorkError when the
        manifest is damaged or of an older version, a listed file is missing or has another size.
    """
    return _read(folder, kind, flag)["facts"]


def check_free(folder: Path, flag: str) -> None:
    """Raises RequestError where a finished folder stands, or the two of a build, with which a run would be mixed."""
    places = (folder, folder / "shards", folder / "task")
    if any(os.path.isfile(place / NAME) for place in places):  # Path's own raises for too long a name
        raise RequestError(
            f"{folder} is a finished folder of data or a model, or holds one, which a run must not be mixed with;"
            f" set another {flag}"
        )


def files(folder: Path, kind: str, flag: str) -> list[str]:
    """The files that a complete folder lists, by their paths in it; what else lies there is none of its. Raises: as
    `read`."""
    return sorted(_read(folder, kind, flag)["files"])


def verify(folder: Path, kind: str, flag: str) -> dict[str, Any]:
    """As `read`, and every byte is hashed. Raises WorkError naming the first damaged file."""
    content = _read(folder, kind, flag)
    listed = content["files"]
    try:
        for name, found in zip(listed, _hashes([folder / name for name in listed]), strict=True):
            if found != listed[name]["sha256"]:
                wrong = f"{folder / name} is damaged: its sha256 is not the one in {NAME}; make the folder anew"
                raise WorkError(wrong)
    except OSError as error:  # it may be an old checkpoint, which a run that goes on removes just now
        raise WorkError(f"{folder} cannot be read: {error}; give the same command again, or another {flag}") from error
    return content["facts"]


def kind_of(folder: Path, flag: str) -> str:
    """The kind of a finished folder. Raises: as `read`, the listed files apart."""
    return _content(folder, "data", flag)["kind"]


def written(folder: Path, kind: str) -> dict[str, Any] | None:
    """The facts of a folder as it was finished, whatever its files are by now; None without a manifest, for another
    program's and for one of another kind.

    Raises: WorkError where the manifest is damaged or of an older version.
    """
    content = _ours(folder)
    return content["facts"] if content and content["kind"] == kind else None


def unchanged(path: Path, kinds: Collection[str]) -> str:
    """The sha256 of a file. Raises WorkError where its folder, or the one around it, was finished as one of `kinds`
    with another content of that file."""
    sha256 = file_sha256(path)
    # Where it is named and where it lies: a link leads to a part of an export as well.
    for whole in dict.fromkeys((Path(os.path.abspath(path)), path.resolve())) if kinds else ():
        for folder in (whole.parent, whole.parent.parent):
            content = _ours(folder, outer=folder != whole.parent)
            files: dict[str, Any] = content["files"] if content and content["kind"] in kinds else {}
            listed = files.get(whole.relative_to(folder).as_posix())
            if listed is None:
                continue
            if listed["sha256"] == sha256:
                break  # what lies around is not asked
            raise WorkError(
                f"{path} is damaged: its sha256 is not the one in {NAME}; restore it or, if the change is yours,"
                f" remove {folder / NAME}"
            )
    return sha256


def _ours(folder: Path, outer: bool = False) -> dict[str, Any] | None:
    """The manifest of a folder that was finished here, whatever its kind; None without one and for another program's.

    Args: outer, that the folder is only around the one that counts, so that what is not clearly ours is another's.
    Raises: WorkError where it is damaged, be it by one byte, or of an older version. An outer one that is damaged in
        how it begins, or is empty, may be taken for another program's.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    content: Any = None
    text = b""
    try:
        text = path.read_bytes()
        content = json.loads(text)
    except (ValueError, RecursionError, OSError) as error:
        if not outer or text.startswith(_BEGIN):
            why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "is damaged: it is no JSON"
            mend = "make the folder anew or remove the file, which may be another program's"
            raise WorkError(f"{path} {why}; {mend}") from None
    keys = sum(key in content for key in ("kind", "facts", "files", _SIGNATURE)) if isinstance(content, dict) else 0
    # One byte that is changed leaves three of the four keys; past what it begins with, that.
    ours = text.startswith(_BEGIN) or keys == 4 if outer else keys >= 3
    return _content(folder, "data", "") if ours else None


def _read(folder: Path, kind: str, flag: str) -> dict[str, Any]:
    content = _content(folder, kind, flag)
    if content["kind"] != kind:
        raise RequestError(f"{folder} holds {content['kind']}, not {kind}; set {flag}")
    for name, entry in content["files"].items():
        path = folder / name
        if not path.is_file():
            raise WorkError(f"{folder} lacks {name}, which its {NAME} lists; restore it or make the folder anew")
        if path.stat().st_size != entry["bytes"]:
            raise WorkError(f"{path} has not the {entry['bytes']} bytes that {NAME} lists; make the folder anew")
    return content


def _content(folder: Path, kind: str, flag: str) -> dict[str, Any]:
    """The manifest, every byte of it as `write` made it. Args: flag, "" where the folder is of use without one."""
    if not folder.is_dir():
        raise RequestError(f"no folder {folder}; give an existing one with {flag}")
    path = folder / NAME
    mend = "make the folder anew" + ("" if flag else ", or remove that file if the change is yours")
    if not path.is_file():
        mend = f"give {folder / kind} by" if (folder / kind / NAME).is_file() else "remake it or set"
        raise RequestError(f"{folder} has no {NAME}, so it is no finished {kind} folder; {mend} {flag}")
    try:
        text = path.read_bytes().decode()
        content = json.loads(text)
        signature = content.pop(_SIGNATURE, None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise WorkError(f"{path} is damaged: it is no manifest; {mend}") from None
    if signature is None:
        raise WorkError(f"{path} lacks its {_SIGNATURE}: made by an older version, or damaged; {mend}")
    if text != _signed(content):
        raise WorkError(f"{path} is damaged: its {_SIGNATURE} is not that of its content; {mend}")
    if lost := sorted({"kind", "facts", "files"} - content.keys()):
        raise WorkError(f"{path} is damaged: it lacks {lost[0]}; {mend}")
    return content


def _signed(content: dict[str, Any]) -> str:
    """The text of a manifest, its own hash in it."""
    digest = hashlib.sha256(_text(content).encode()).hexdigest()
    return _text({**content, _SIGNATURE: digest})


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def replaceable(folder: Path, kind: str, flag: str) -> None:
    """Raises RequestError where something stands at `folder` that was not made as a folder of `kind`, or beside what
    was made: it would be lost. What has become of its files since is left out of account: they are to be made anew."""
    if not taken(folder):
        return
    if not (folder / NAME).is_file() or (content := _content(folder, kind, flag))["kind"] != kind:
        raise RequestError(f"{folder} exists and holds no {kind}, so it is not replaced; set another {flag}")
    ours = {NAME, *content["files"]}
    for path in sorted(folder.rglob("*")):
        if path.relative_to(folder).as_posix() not in ours and (path.is_symlink() or not path.is_dir()):
            raise RequestError(
                f"{path} is no part of that {kind}, so it is not replaced; move it or set another {flag}"
            )


def taken(folder: Path) -> bool:
    """Whether something stands there, or where a link leads; an empty folder is nothing."""
    return os.path.lexists(os.path.realpath(folder)) and not (folder.is_dir() and not any(folder.iterdir()))


@contextmanager
def staging(folder: Path) -> Generator[Path]:
    """A fresh folder that becomes `folder` on success and vanishes on any exception.

    It is made in FOLDER.partial; what a killed attempt has left there is removed. A folder that is replaced stays whole
    until the new one takes its place.
    Raises: RequestError where FOLDER.partial cannot be made, is another's or is in use.
    """
    folder = folder.resolve()  # the target of a link is replaced, not the link
    root = folder.with_name(folder.name + ".partial")
    with _claimed(root):
        fresh, old = root / "out", root / "old"
        if old.exists() and not folder.exists():
            old.rename(folder)  # an attempt was killed between the two renames of publish
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        try:
            yield fresh
        except BaseException:
            _discard(root)
            raise
        publish(fresh, folder, old)
        _discard(root)


def publish(fresh: Path, folder: Path, old: Path) -> None:
    """Turn `fresh` into `folder`. What stood there is at `old` then, or where it was if the system refuses."""
    for path in (fresh, *fresh.rglob("*")):
        fsync(path)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)  # of an attempt that was killed just before its end
        folder.rename(old)
    try:
        fresh.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    fsync(folder.parent)


def _discard(root: Path) -> None:
    """Remove what a claim holds, its mark last: while anything is left, it says whose that is."""
    for path in root.iterdir():
        if path.name != _MARK:
            shutil.rmtree(path, ignore_errors=True)
    if [path.name for path in root.iterdir()] == [_MARK]:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _claimed(root: Path) -> Generator[None]:
    """Hold the lock in `root`, made where it is not there. Raises RequestError for a folder with another's files."""
    mark = root / _MARK
    with ExitStack() as stack:
        try:
            root.mkdir(parents=True, exist_ok=True)
            if not mark.is_file() and any(root.iterdir()):
                raise RequestError(f"{root} is there and is no unfinished work; move it or set another --out")
            taken = f"another process is writing {root}; wait for it or set another --out"
            stack.enter_context(locked(mark, taken))
        except OSError as error:
            raise RequestError(f"{root} cannot be made ({error.strerror}); set another --out") from None
        yield
