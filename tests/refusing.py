"""What a system refuses, made to happen."""

from pathlib import Path

import pytest


def refuse_place(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """Until `monkeypatch` is undone, a finished folder `out.partial/out` cannot be renamed."""
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.parent.name == "out.partial" and path.name == "out":
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
