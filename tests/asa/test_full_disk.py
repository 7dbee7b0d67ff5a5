"""A disk that is really full while two processes save: each is told, and the older checkpoint is whole."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.asa.disk_worker import SHARES
from tests.ranks import run_ranks

PLACES = 2_000_000


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={PLACES}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="module")
def told(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes met with."""
    out = tmp_path_factory.mktemp("told")
    run_ranks(2, "tests.asa.disk_worker", disk, out, timeout=200)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("share", SHARES)
def test_every_rank_is_told_and_only_the_older_checkpoint_is_left(told: list[dict[str, Any]], share: float) -> None:
    for found in told:
        kind, message = found[str(share)]["error"]
        assert kind == "SaveFailed"
        assert message.endswith("No space left on device; free some space or set --out")
        assert "step-2" in message
        assert found[str(share)]["left"] == [["step-1"], True]


def test_a_weight_that_is_not_finite_is_named_on_every_rank_and_not_saved(told: list[dict[str, Any]]) -> None:
    for found in told:
        kind, message = found["nan"]
        assert kind == "WorkError"
        assert "word_embeddings.weight is not finite" in message


def test_with_room_again_the_same_process_saves_and_rotates(told: list[dict[str, Any]]) -> None:
    assert [found["after"] for found in told] == [["step-2"], ["step-2"]]
