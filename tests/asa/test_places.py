"""Files that are whole or not there, and what is said where the system refuses them."""

import os
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from asa.errors import NotWritten, RequestError, WorkError
from asa.places import atomic_write, check_folder, clear, locked, remove


def fail(path: Path, error: BaseException) -> None:
    """As a writer that comes to half of its file."""
    with atomic_write(path, "set --out") as partial:
        partial.write_text("by half")
        raise error


def test_a_file_is_put_in_place_at_the_end_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file.txt"
    with atomic_write(path) as partial:
        partial.write_text("all")
        assert not path.exists()
    assert path.read_text() == "all"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves an empty one by that name."""
    path, forced = tmp_path / "file.txt", list[tuple[str, bool]]()
    monkeypatch.setattr("asa.places.fsync", lambda one: forced.append((one.name, path.exists())))
    with atomic_write(path) as partial:
        partial.write_text("all")
    assert forced == [("file.txt.partial", False), (tmp_path.name, True)]


def test_no_folder_is_made_where_a_link_leads_nowhere_or_this_user_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_folder(tmp_path / "a" / "b", "--out")
    (tmp_path / "link").symlink_to(tmp_path / "disk that is not there")
    for path in (tmp_path / "link", tmp_path / "link" / "run"):
        with pytest.raises(RequestError, match="link is a link to what is not there; bring it back, or set"):
            check_folder(path, "--out")
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    check_folder(tmp_path, "--out")  # which is there: what is to be written in it is not known here
    with pytest.raises(RequestError, match="cannot be written to by this user; mend that, or set another --out"):
        check_folder(tmp_path / "a" / "b", "--out")


# A library's own OSError has no number.
OTHERS = [KeyboardInterrupt(), RequestError("wrong (os error 19)"), ValueError("a bug"), OSError("no file named x")]


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_what_else_goes_wrong_passes_and_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        fail(path, error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SafetensorError("I/O error: No space left on device (os error 28)"), "device; free some space and set --out"),
        (SafetensorError("I/O error: Permission denied (os error 13)"), "Permission denied; mend that and set --out"),
        (Exception("No space left on device (os error 28)"), "device; free some space and set --out"),  # tokenizers'
        (SafetensorError("HeaderTooLarge"), "HeaderTooLarge; mend that and set --out"),
        (PermissionError(13, "Permission denied"), "Permission denied; mend that and set --out"),
    ],
)
def test_a_refusal_is_one_line_with_the_reason_and_what_to_do(tmp_path: Path, error: Exception, said: str) -> None:
    with pytest.raises(WorkError, match=said) as caught:
        fail(tmp_path / "file.txt", error)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def hold(path: Path) -> None:
    with locked(path, "taken"):
        pass


def test_a_lock_is_held_once_and_free_again_at_the_end(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "taken"), pytest.raises(RequestError, match="taken"):
        hold(tmp_path / "lock")
    hold(tmp_path / "lock")


class Killed(BaseException):
    """What no handler takes."""


@pytest.mark.parametrize("mark", ["a", "mark", "z"])  # one of which the system may list first
@pytest.mark.parametrize("done", range(4))
def test_what_a_kill_leaves_of_a_removed_folder_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int, mark: str
) -> None:
    folder, left = tmp_path / "folder", [done]
    (folder / "inner").mkdir(parents=True)
    for name in ("a", "inner/b", "mark", "z"):
        (folder / name).write_text(name)
    unlink = os.unlink

    def dying(*args: Any, **kwargs: Any) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        unlink(*args, **kwargs)

    monkeypatch.setattr(os, "unlink", dying)
    with pytest.raises(Killed):
        remove(folder, mark)
    assert (folder / mark).exists() == (done == 0)
    assert sum(path.is_file() for path in folder.rglob("*")) == 4 - done
    monkeypatch.undo()
    remove(folder, mark)
    assert not folder.exists()
    remove(folder, mark)  # nothing there


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    archive, link = tmp_path / "archive", tmp_path / "link"
    archive.mkdir()
    (archive / "mark").write_text("kept")
    link.symlink_to(archive)
    remove(link, "mark")
    assert (link / "mark").read_text() == "kept"


def test_a_folder_whose_mark_cannot_be_removed_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mark", "other"):
        (tmp_path / name).write_text(name)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        remove(tmp_path, "mark")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mark", "other"]


def test_what_a_link_leads_to_is_cleared_and_kept(tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link"
    (there / "inner").mkdir(parents=True)
    for name in ("mark", "inner/file", "other"):
        (there / name).write_text(name)
    link.symlink_to(there)
    clear(link, "mark")
    assert link.is_symlink()
    assert list(there.iterdir()) == []
    clear(tmp_path / "absent", "mark")


def test_what_cannot_be_cleared_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mark").touch()

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(NotWritten, match="not permitted"):
            clear(tmp_path, "mark")
