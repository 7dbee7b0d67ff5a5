"""Walking a page of docs/paths: its ```sh blocks, as written, in a folder that looks like a fresh checkout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = (
    "asa",
    "data_prep",
    "pretrain",
    "finetune",
    "launch",
    "cli.py",
    "config_files.py",
    "keys.py",
    "streams.py",
    "interrupts.py",
    "assets",
)


def needs(*assets: str) -> pytest.MarkDecorator:
    """Skip where the sample (`python -m data_prep sample`) has not been fetched."""
    missing = [name for name in assets if not any((ROOT / "assets" / name).glob("*"))]
    return pytest.mark.skipif(bool(missing), reason=f"a checkout without assets/{', assets/'.join(missing)}")


def blocks(page: str) -> list[str]:
    """The commands of docs/paths/PAGE.md, block by block."""
    text = (ROOT / "docs" / "paths" / f"{page}.md").read_text()
    return re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def checkout(folder: Path) -> Path:
    """Code and assets by links; configs as files of its own, for a page may add to them."""
    folder.mkdir()
    for name in CODE:
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "configs", folder / "configs")
    return folder


def walk(page: str, folder: Path, timeout: float, **knobs: object) -> list[str]:
    """Type a page's commands into one shell in `folder`; what each block printed.

    Args: knobs, the variables that the page itself reads. Raises: AssertionError where a command fails.
    """
    commands = blocks(page)
    unread = [name for name in knobs if not any(f"${{{name}:-" in block for block in commands)]
    assert not unread, f"the page reads no {unread}"
    mark = "=== end of a block ==="
    script = "".join(f"{block}echo; echo '{mark}'\n" for block in commands)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "CUDA_VISIBLE_DEVICES": "", **{name: str(value) for name, value in knobs.items()}}
    settings["OMP_WAIT_POLICY"] = "PASSIVE"  # beside other tests, threads that spin while they wait stop everybody
    log = folder.parent / f"{page}.log"
    with log.open("w") as output:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=folder,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    said = log.read_text().split(mark)
    assert done.returncode == 0, (
        f"block {len(said)} of {len(commands)} ended with {done.returncode}: {said[-1][-3000:]}"
    )
    return said[:-1]
