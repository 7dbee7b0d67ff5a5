"""The published settings in configs/method: every entry is a request, of the method that its file names."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from asa.config import from_dict, to_dict
from asa.methods import METHODS, MethodsConfig

FILES = sorted(Path("configs/method").glob("*.yaml"))
ENTRIES = [(path, entry) for path in FILES for entry in yaml.safe_load(path.read_text())]
GLUE = ("mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb")


def read(path: Path, entry: str) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())[entry]


@pytest.mark.parametrize(("path", "entry"), ENTRIES, ids=lambda part: getattr(part, "stem", part))
def test_an_entry_sets_the_method_of_its_file_and_can_be_trained(path: Path, entry: str) -> None:
    written = read(path, entry)
    options = from_dict(MethodsConfig, written)
    assert list(written) == [path.stem]
    assert to_dict(options)[path.stem].items() >= written[path.stem].items()
    METHODS[path.stem](options)


def test_the_settings_are_those_of_freelbs_table_6() -> None:
    table = {
        "mnli": (0.2, 0.1, 2),
        "qnli": (0.15, 0.1, 2),
        "qqp": (0.45, 0.15, 2),
        "rte": (0.15, 0.03, 3),
        "sst2": (0.6, 0.1, 2),
        "mrpc": (0.4, 0.04, 3),
        "cola": (0.2, 0.025, 3),
        "stsb": (0.3, 0.1, 3),
    }
    for task, (radius, step, count) in table.items():
        for method, counted in (("freelb", "passes"), ("pgd", "ascents"), ("freeat", "replays"), ("yopo", "passes")):
            found = read(Path(f"configs/method/{method}.yaml"), task)[method]
            assert (found["radius"], found["start"], found[counted]) == (radius, radius, count)
            assert found["step_size"] * found.get("inner", 1) == pytest.approx(step)
