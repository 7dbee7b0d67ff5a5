"""Where a folder is made: OUT.partial beside OUT, kept over kills, turned into OUT by one rename.

out/                     becomes OUT when everything is done
settings.json, lock      what it is made from, by a line that says whose it is; one run at a time
marks/STAGE/             which parts are finished (parts.py)
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from asa import manifest
from asa.errors import RequestError, WorkError
from asa.places import locked, refusal, refusal_told
from data_prep import parts as parts_file
from data_prep.parts import Facts, Part, Work

_SETTINGS = "settings.json"
_OURS = {"unfinished work of": "data_prep"}
_LOCK = "lock"
_OLD = "old"  # what stood at OUT, while it is being replaced


class Fruitless(WorkError):
    """The inputs give nothing. What is finished goes too: to go on from it would end here again."""


class Workspace(NamedTuple):
    """OUT.partial. What the caller puts into `out` becomes OUT; other folders in `root` vanish with it."""

    root: Path

    @property
    def out(self) -> Path:
        return self.root / "out"

    def run(self, stage: str, work: Work, parts: Sequence[Part], into: Path, workers: int) -> list[Facts]:
        """Do the parts of a stage that are not done yet (see parts.run); their files go to the folder `into`."""
        return parts_file.run(stage, work, parts, into=into, marks=self.root / "marks" / stage, workers=workers)


@contextmanager
def workspace(out: Path, made_from: dict[str, Any], overwrite: bool) -> Iterator[Workspace]:
    """The workspace of `out`, resumed where one of the same making is there; published when the block ends well.

    After an error it stays, if any part is finished and the error is not Fruitless.
    Args: made_from decides the output's bytes; overwrite discards a workspace made from anything else.
    Raises: RequestError when another run holds it, it was made from other inputs or settings, or is no workspace;
        WorkError for a full disk and the like.
    """
    out = out.resolve()  # the target of a link is replaced, not the link
    root = _root(out)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{root} cannot be made ({error.strerror}); set another --out") from None
    _refuse_foreign(root)
    with _locked(root, out), _refusals_told(out):
        _claim(root, _text(made_from), overwrite)
        space = Workspace(root)
        try:
            space.out.mkdir(exist_ok=True)
            yield space
            manifest.publish(space.out, out, root / _OLD)
            _remove(root)
        except BaseException as error:
            if root.exists() and (isinstance(error, Fruitless) or not _worth_keeping(root)):
                _remove(root)
            raise


def check_apart(out: Path, inputs: Iterable[Path]) -> None:
    """Raises RequestError where a result would take the place of what it is made from."""
    for path in inputs:
        if path.resolve().is_relative_to(out.resolve()):
            raise RequestError(f"{out} is, or holds, the input {path}, which is left as it is; set another --out")


@contextmanager
def _refusals_told(out: Path) -> Iterator[None]:
    """Inside, what the system refuses is failed work, in whichever library's error it comes."""
    try:
        yield
    except (RequestError, WorkError):
        raise
    except Exception as error:
        if refusal(error) is None:
            raise
        detail = " ".join(str(error).split())
        raise WorkError(f"{out} is not made: {detail}; mend it and run the same command again to go on") from None


def _worth_keeping(root: Path) -> bool:
    """Whether any part of a stage is finished, or the whole, or what stood at OUT is in here."""
    return any(root.glob("marks/*/*.json")) or any((root / name).exists() for name in (f"out/{manifest.NAME}", _OLD))


def discard(out: Path, made_from: dict[str, Any]) -> None:
    """Remove what a run killed just after publishing `out` has left beside it; work on anything else stays."""
    out = out.resolve()
    root = _root(out)
    if (root / _SETTINGS).is_file() and (root / _SETTINGS).read_text() == _text(made_from):
        with _locked(root, out):
            _remove(root)


def _root(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def _text(made_from: dict[str, Any]) -> str:
    return json.dumps({**_OURS, "made from": made_from}, indent=1, sort_keys=True)


@contextmanager
def _locked(root: Path, out: Path) -> Iterator[None]:
    with ExitStack() as stack:
        with refusal_told(root / _LOCK):
            taken = f"another run is writing {out}; wait for it or set another --out"
            stack.enter_context(locked(root / _LOCK, taken))
        yield


def _refuse_foreign(root: Path) -> None:
    """Raise RequestError for a folder with files in it that no run has claimed: the settings are a run's first file."""
    settings = root / _SETTINGS
    names = [path.name for path in root.iterdir()]
    begun = all(name == _LOCK or fnmatch(name, f"{_SETTINGS}.*.tmp") for name in names)
    if not (_is_ours(settings) if settings.exists() else begun):
        raise RequestError(f"{root} is there and is no unfinished work; move it or set another --out")


def _is_ours(settings: Path) -> bool:
    try:
        found = json.loads(settings.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.items() >= _OURS.items()


def _claim(root: Path, text: str, overwrite: bool) -> None:
    settings = root / _SETTINGS
    if settings.is_file() and settings.read_text() == text:
        return
    if settings.is_file() and not overwrite:
        advice = "go on with those, or discard it with --overwrite true"
        raise RequestError(f"{root} is unfinished work from other inputs or settings; {advice}")
    _clear(root)
    try:
        parts_file.write_whole(settings, text)
    except BaseException:
        _remove(root)
        raise


def _remove(root: Path) -> None:
    # The settings go last: as long as they stand, a re-run knows what the rest is and removes it.
    _clear(root)
    shutil.rmtree(root)


def _clear(root: Path) -> None:
    for path in root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (_LOCK, _SETTINGS):
            path.unlink()
