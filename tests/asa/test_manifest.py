"""A folder is complete when its manifest is there and every listed file is what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from asa import manifest
from asa.errors import RequestError, WorkError
from tests.refusing import refuse_place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    (made / "deep").mkdir(parents=True)
    (made / "a.bin").write_bytes(b"apple")
    (made / "deep" / "b.bin").write_bytes(b"berry")
    manifest.write(made, "fruit", {"count": 2})
    return made


def test_read_and_verify_give_the_facts_of_a_whole_folder(folder: Path) -> None:
    assert manifest.read(folder, "fruit", "--data") == {"count": 2}
    assert manifest.verify(folder, "fruit", "--data") == {"count": 2}


def test_weights_are_as_open_as_this_users_files(folder: Path) -> None:
    """safetensors makes them for one user alone, and a colleague could not load the model."""
    save_file({"w": torch.ones(1)}, folder / "model.safetensors")
    before = os.umask(0o027)
    try:
        manifest.write(folder, "fruit", {"count": 2})
    finally:
        os.umask(before)
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_same_content_gives_the_same_manifest(folder: Path) -> None:
    first = (folder / manifest.NAME).read_bytes()
    manifest.write(folder, "fruit", {"count": 2})
    assert (folder / manifest.NAME).read_bytes() == first


def test_what_a_killed_attempt_has_left_is_not_listed(folder: Path) -> None:
    (folder / f"{manifest.NAME}.partial").write_text("{")
    manifest.write(folder, "fruit", {"count": 2})
    assert manifest.verify(folder, "fruit", "--data") == {"count": 2}


def test_files_and_the_folders_that_name_them_are_forced_to_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[Path] = []
    monkeypatch.setattr(manifest, "fsync", forced.append)
    manifest.write(folder, "fruit", {})
    assert {folder / "a.bin", folder / "deep", folder / "deep" / "b.bin"} <= set(forced[:-2])
    assert forced[-2:] == [folder / f"{manifest.NAME}.partial", folder]  # what it holds, before it has its name


def test_a_folder_is_on_disk_by_its_name_before_what_it_replaces_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, old = tmp_path / "made", tmp_path / "made.partial" / "old"
    place.mkdir()
    forced: list[tuple[str, bool, bool]] = []

    def note(path: Path) -> None:
        forced.append((path.name, (place / "new").exists(), old.exists()))

    monkeypatch.setattr(manifest, "fsync", note)
    with manifest.staging(place) as fresh:
        (fresh / "new").touch()
    assert forced == [("out", False, False), ("new", False, False), (tmp_path.name, True, True)]


def test_no_folder_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--data"):
        manifest.read(tmp_path / "none", "fruit", "--data")


def test_no_manifest_is_a_wrong_request(folder: Path) -> None:
    (folder / manifest.NAME).unlink()
    with pytest.raises(RequestError, match=r"no manifest\.json.*; remake it or set --data"):
        manifest.read(folder, "fruit", "--data")


def test_the_folder_around_is_told_the_one_inside(folder: Path) -> None:
    inside = folder.rename(folder.with_name("fruit"))
    with pytest.raises(RequestError, match=rf"no manifest\.json.*; give {inside} by --data"):
        manifest.read(inside.parent, "fruit", "--data")


def test_another_kind_is_a_wrong_request(folder: Path) -> None:
    with pytest.raises(RequestError, match="holds fruit, not shards; set --data"):
        manifest.read(folder, "shards", "--data")


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "deep" / "b.bin").unlink()
    with pytest.raises(WorkError, match=r"lacks deep/b\.bin"):
        manifest.read(folder, "fruit", "--data")


def test_another_size_is_named(folder: Path) -> None:
    (folder / "a.bin").write_bytes(b"appl")
    with pytest.raises(WorkError, match=r"a\.bin has not the 5 bytes"):
        manifest.read(folder, "fruit", "--data")


def test_a_flipped_byte_is_found_by_verify(folder: Path) -> None:
    (folder / "deep" / "b.bin").write_bytes(b"burry")
    assert manifest.read(folder, "fruit", "--data") == {"count": 2}
    with pytest.raises(WorkError, match=r"b\.bin is damaged"):
        manifest.verify(folder, "fruit", "--data")


def test_a_damaged_manifest_is_failed_work_not_a_traceback(folder: Path) -> None:
    text = (folder / manifest.NAME).read_text()
    (folder / manifest.NAME).write_text(text[: len(text) // 2])
    with pytest.raises(WorkError, match=r"manifest\.json"):
        manifest.read(folder, "fruit", "--data")


def test_every_byte_of_a_manifest_counts(folder: Path) -> None:
    path = folder / manifest.NAME
    good = path.read_bytes()
    for place in range(len(good)):
        for mask in (1, 0x20):
            path.write_bytes(good[:place] + bytes([good[place] ^ mask]) + good[place + 1 :])
            with pytest.raises(WorkError, match=r"manifest\.json"):
                manifest.read(folder, "fruit", "--data")
    path.write_bytes(good + b" ")
    with pytest.raises(WorkError, match=r"manifest\.json is damaged"):
        manifest.read(folder, "fruit", "--data")


def test_facts_are_read_as_json_has_them(folder: Path) -> None:
    facts = {
        "by number": {2: "b", 10: "a"},
        "pair": (1, 2.5),
        "text": "\u00e9\u4eac",
        "large": 1e300,
        "not": float("inf"),
    }
    manifest.write(folder, "fruit", facts)
    assert manifest.read(folder, "fruit", "--data") == {
        **facts,
        "by number": {"2": "b", "10": "a"},
        "pair": [1, 2.5],
    }


def test_a_manifest_without_its_own_hash_is_refused(folder: Path) -> None:
    path = folder / manifest.NAME
    path.write_text(path.read_text().replace(' "sha256": "', ' "md5": "'))
    with pytest.raises(WorkError, match="made by an older version"):
        manifest.read(folder, "fruit", "--data")


def test_a_manifest_that_lists_no_files_is_refused(folder: Path) -> None:
    path = folder / manifest.NAME
    content = json.loads(path.read_text())
    path.write_text(manifest._signed({name: content[name] for name in ("kind", "facts")}))
    with pytest.raises(WorkError, match=r"manifest\.json is damaged: it lacks files"):
        manifest.read(folder, "fruit", "--data")


def test_the_kind_of_a_folder(folder: Path, tmp_path: Path) -> None:
    assert manifest.kind_of(folder, "DIR") == "fruit"
    with pytest.raises(RequestError, match="DIR"):
        manifest.kind_of(tmp_path / "none", "DIR")


def test_staging_publishes_on_success_and_replaces_what_was_there(tmp_path: Path) -> None:
    final = tmp_path / "out"
    final.mkdir()
    (final / "old").touch()
    with manifest.staging(final) as partial:
        (partial / "new").touch()
        assert (final / "old").exists()
    assert [path.name for path in final.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_staging_leaves_nothing_on_an_exception(tmp_path: Path, error: type[BaseException]) -> None:
    def work() -> None:
        with manifest.staging(tmp_path / "out") as partial:
            (partial / "half").touch()
            raise error

    with pytest.raises(error):
        work()
    assert list(tmp_path.iterdir()) == []


def test_staging_starts_empty_after_a_killed_attempt_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    killed = "import os, pathlib, sys; from asa import manifest; out = manifest.staging(pathlib.Path(sys.argv[1]));"
    killed += "(out.__enter__() / 'rubbish').touch(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", killed, str(tmp_path / "out")]).returncode == 9
    assert list(tmp_path.rglob("rubbish"))
    with manifest.staging(tmp_path / "out") as partial:
        assert list(partial.iterdir()) == []
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_while_a_folder_is_replaced_loses_none(renames: int, tmp_path: Path) -> None:
    """Killed before, between and after the two renames: what was there is there again, or what took its place."""
    final = tmp_path / "out"
    final.mkdir()
    (final / "first").touch()
    killed = f"""
import os, pathlib, sys
from asa import manifest

rename, left = pathlib.Path.rename, [{renames}]
def rename_or_die(*paths):
    left[0] -= 1
    return rename(*paths) if left[0] >= 0 else os._exit(9)
pathlib.Path.rename = rename_or_die
manifest.shutil.rmtree = lambda path, **rest: os._exit(9) if path.name == "old" and left == [0] else None
with manifest.staging(pathlib.Path(sys.argv[1])) as fresh:
    (fresh / "second").touch()
"""
    assert subprocess.run([sys.executable, "-c", killed, str(final)]).returncode == 9
    with manifest.staging(final):
        assert [path.name for path in final.iterdir()] == ["second" if renames == 2 else "first"]
    assert list(tmp_path.rglob("*")) == [final]


def test_a_kill_while_what_was_replaced_is_removed_blocks_no_later_attempt(tmp_path: Path) -> None:
    final = tmp_path / "out"
    enter(final)
    (final / "first").touch()
    killed = """
import os, pathlib, shutil, sys
from asa import manifest

def remove_a_part(path, **rest):
    if path.name == "old":
        os._exit(9)
manifest.shutil.rmtree = remove_a_part
with manifest.staging(pathlib.Path(sys.argv[1])):
    pass
"""
    assert subprocess.run([sys.executable, "-c", killed, str(final)]).returncode == 9
    enter(final)
    assert list(tmp_path.rglob("*")) == [final]


class Killed(BaseException):
    """What no handler takes."""


@pytest.mark.parametrize("left", range(4))
def test_what_is_left_of_an_attempt_that_failed_and_was_killed_blocks_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    done, unlink = [left], os.unlink

    def dying(*args: Any, **kwargs: Any) -> None:
        if not done[0]:
            raise Killed
        done[0] -= 1
        unlink(*args, **kwargs)

    def fail() -> None:
        with manifest.staging(tmp_path / "out") as fresh:
            for name in ("a", "b", "c"):
                (fresh / name).write_text(name)
            monkeypatch.setattr(os, "unlink", dying)
            raise ValueError

    with pytest.raises((Killed, ValueError)):
        fail()
    monkeypatch.undo()
    with manifest.staging(tmp_path / "out") as fresh:
        assert list(fresh.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_what_was_replaced_comes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    refuse_place(monkeypatch, OSError(5, "input/output error"))
    with pytest.raises(OSError, match="input/output error"), manifest.staging(out):
        pass
    assert (out / "old").is_file()


def test_a_folder_that_is_removed_while_it_is_verified_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: Path) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(manifest, "file_sha256", gone)
    with pytest.raises(WorkError, match=r"cannot be read: .*No such file.*; give the same command again"):
        manifest.verify(folder, "fruit", "--data")


def test_staging_replaces_what_a_link_leads_to(tmp_path: Path) -> None:
    large = tmp_path / "large_disk"
    large.mkdir()
    (large / "first").touch()
    (tmp_path / "out").symlink_to(large)
    with manifest.staging(tmp_path / "out") as fresh:
        (fresh / "second").touch()
    assert (tmp_path / "out").is_symlink()
    assert [path.name for path in large.iterdir()] == ["second"]


def test_staging_removes_no_folder_of_anothers(tmp_path: Path) -> None:
    mine = tmp_path / "out.partial" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(RequestError, match=r"out\.partial is there and is no unfinished work; move it"):
        enter(tmp_path / "out")
    assert mine.read_text() == "years of work"


def test_two_never_stage_one_folder(tmp_path: Path) -> None:
    with manifest.staging(tmp_path / "out") as partial:
        (partial / "first").touch()
        with pytest.raises(RequestError, match=r"another process is writing .*out\.partial"):
            enter(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["first"]


def test_staging_below_a_file_is_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"cannot be made \(Not a directory\); set another --out"):
        enter(tmp_path / "file" / "out")


def enter(folder: Path) -> None:
    with manifest.staging(folder):
        pass


def test_what_lies_beside_the_listed_files_is_none_of_a_folders(folder: Path) -> None:
    (folder / "stray.bin").touch()
    assert manifest.files(folder, "fruit", "--data") == ["a.bin", "deep/b.bin"]


def test_what_was_written_is_told_of_ours_alone_and_whatever_its_files_are_by_now(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    manifest.write(tmp_path, "fruit", {"peel": 1})
    (tmp_path / "a").write_text("22")
    assert manifest.written(tmp_path, "fruit") == {"peel": 1}
    assert manifest.written(tmp_path, "nut") is manifest.written(tmp_path / "none", "fruit") is None
    path = tmp_path / manifest.NAME
    path.write_text('{"kind": "fruit", "name": "of another program"}')
    assert manifest.written(tmp_path, "fruit") is None


def test_every_byte_counts_for_what_was_written_and_for_what_is_unchanged(tmp_path: Path) -> None:
    """A kind, too, or a key by which a manifest is known for ours."""
    (tmp_path / "a.safetensors").write_text("1")
    manifest.write(tmp_path, "fruit", {"peel": 1})
    (tmp_path / "a.safetensors").write_text("2")
    path = tmp_path / manifest.NAME
    good = path.read_bytes()
    wrong = [good[:-20], b"", b"[" * 100_000, good.replace(b"fruit", b"fruiu"), good.replace(b"fruit", b"f\xffuit")]
    wrong += [good.replace(key, key.upper(), 1) for key in (b'"kind"', b'"facts"', b'"files"')]
    at = good.rindex(b'"sha256"')
    for damaged in (*wrong, good[: at + 1] + b"S" + good[at + 2 :]):
        path.write_bytes(damaged)
        with pytest.raises(WorkError, match=r"manifest\.json (is damaged|lacks its sha256)"):
            manifest.written(tmp_path, "fruit")
        with pytest.raises(WorkError, match=r"manifest\.json (is damaged|lacks its sha256)"):
            manifest.unchanged(tmp_path / "a.safetensors", ("fruit",))
    assert manifest.unchanged(tmp_path / "a.safetensors", ()) == manifest.file_sha256(tmp_path / "a.safetensors")


@pytest.mark.parametrize("by", ["its name", "a link to its folder", "a link in another folder", "a folder of links"])
def test_a_part_that_has_changed_is_found_by_whatever_path(by: str, tmp_path: Path) -> None:
    part = tmp_path / "whole" / "part"
    part.mkdir(parents=True)
    (part / "a.bin").write_text("1")
    manifest.write(tmp_path / "whole", "fruit", {})
    (part / "a.bin").write_text("2")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "b.bin").symlink_to(part / "a.bin")
    (tmp_path / "linked").symlink_to(part)
    (tmp_path / "store").write_text("2")
    path = {
        "its name": part / "a.bin",
        "a link to its folder": tmp_path / "linked" / "a.bin",
        "a link in another folder": tmp_path / "beside" / "b.bin",
        "a folder of links": part / "a.bin",
    }[by]
    if by == "a folder of links":
        path.unlink()
        path.symlink_to(tmp_path / "store")
    with pytest.raises(WorkError, match=r"is damaged: .* remove .*whole/manifest\.json$"):
        manifest.unchanged(path, ("fruit",))
    assert manifest.unchanged(path, ("nut",))


@pytest.mark.parametrize(
    "around", ["", "of another program", '{"kind": 1, "files": 2, "sha256": 3}', '{"kind": "fruit"}']
)
def test_what_only_lies_around_need_not_be_a_manifest(around: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin").write_text("1")
    (tmp_path / manifest.NAME).write_text(around)
    assert manifest.unchanged(tmp_path / "in" / "a.bin", ("fruit",))


def test_another_programs_manifest_beside_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_text("1")
    (tmp_path / manifest.NAME).write_text('{"kind": "app", "files": []}')
    assert manifest.unchanged(tmp_path / "a.bin", ("fruit",))


def test_a_damaged_manifest_around_counts_for_parts_and_not_for_what_is_whole_by_itself(tmp_path: Path) -> None:
    part = tmp_path / "part" / "a.bin"
    part.parent.mkdir()
    part.write_text("1")
    manifest.write(tmp_path, "fruit", {})
    path = tmp_path / manifest.NAME
    good = path.read_bytes()
    for damaged in (good[:-20], good.replace(b"fruit", b"fruiu")):
        path.write_bytes(damaged)
        with pytest.raises(WorkError, match=r"manifest\.json is damaged"):
            manifest.unchanged(part, ("fruit",))
    manifest.write(part.parent, "fruit", {})
    assert manifest.unchanged(part, ("fruit",))
