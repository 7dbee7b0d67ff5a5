"""The wheel of the library by itself: it holds every file of asa/, and works where the checkout is not."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since building leaves folders behind; by the setuptools that is here."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "asa", copy / "asa", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip("wheel", str(copy), "--no-deps", "--no-build-isolation", "--wheel-dir", str(out))
    return next(out.glob("*.whl"))


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], check=True)


def test_the_wheel_has_every_file_of_the_library_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "asa").rglob("*") if path.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}


def test_the_library_works_without_the_checkout_and_what_it_does_not_declare(wheel: Path, tmp_path: Path) -> None:
    pip("install", str(wheel), "--no-deps", "--target", str(tmp_path / "library"))
    command = [sys.executable, "-P", str(ROOT / "tests/docs/wheel_worker.py"), str(tmp_path / "library")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(tmp_path / "library")  # before site-packages, which know the checkout
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
