"""Every YAML file in configs/ is a valid request of its stage."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from asa.config import from_dict, to_dict
from data_prep.config import BuildConfig
from finetune.config import FinetuneConfig
from pretrain.config import PretrainConfig

STAGES: dict[str, Any] = {"data": BuildConfig, "pretrain": PretrainConfig, "finetune": FinetuneConfig}
ROOT = Path("configs")
# Presets are parts of requests (tests/asa/test_presets.py).
FILES = sorted(path for path in ROOT.rglob("*.yaml") if path.relative_to(ROOT).parts[0] != "method")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_config_is_valid_and_every_key_in_it_says_something(path: Path) -> None:
    written = yaml.safe_load(path.read_text())
    resolved = to_dict(from_dict(STAGES[path.relative_to(ROOT).parts[0]], written))
    for key, value in written.items():
        assert key in resolved
        if not isinstance(value, dict | list):
            assert resolved[key] == value or str(resolved[key]) == str(value), key


def test_every_stage_has_a_config() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(STAGES)
