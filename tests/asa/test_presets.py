"""The published settings in configs/method: every entry is a request, of the method that its file names."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from asa.config import from_dict, to_dict
from asa.errors import RequestError
from asa.methods import METHODS, MethodsConfig
from cli import parse
from finetune.config import FinetuneConfig
from pretrain.config import PretrainConfig

FOLDER = Path("configs/method")
ENTRIES = [(path, entry) for path in sorted(FOLDER.glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]
SHARED = {"asa_freelb": {"freelb"}}  # which has no settings of its own
STAGES: list[tuple[Any, list[str]]] = [
    (PretrainConfig, ["--data", "d", "--model", "m", "--out", "o"]),
    (FinetuneConfig, ["--config", "configs/finetune/quickstart.yaml"]),
]


def read(method: str, entry: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{method}.yaml").read_text())[entry]


@pytest.mark.parametrize(("path", "entry"), ENTRIES, ids=lambda part: getattr(part, "stem", part))
def test_an_entry_sets_the_method_of_its_file_and_can_be_trained(path: Path, entry: str) -> None:
    written = read(path.stem, entry)
    options = from_dict(MethodsConfig, written)
    assert set(written) == SHARED.get(path.stem, {path.stem})
    for key, values in written.items():
        assert to_dict(options)[key].items() >= values.items()
    METHODS[path.stem](options)


def test_every_method_that_can_be_set_has_a_file() -> None:
    assert {path.stem for path, _ in ENTRIES} == set(METHODS) - {"vanilla"}


@pytest.mark.parametrize(("stage", "request_"), STAGES, ids=["pretrain", "finetune"])
def test_both_stages_take_entries_and_what_comes_later_has_the_last_word(stage: Any, request_: list[str]) -> None:
    entries = ["--config", f"{FOLDER}/freelb.yaml:rte", f"--config={FOLDER}/pgd.yaml:mnli", "--freelb.passes", "5"]
    found = parse(stage, [*request_, *entries], "prog")
    assert (found.freelb.radius, found.freelb.step_size, found.freelb.passes) == (0.15, 0.03, 5)
    assert (found.pgd.radius, found.pgd.ascents) == (0.2, 2)
    assert found.asa.tau == parse(stage, request_, "prog").asa.tau


@pytest.mark.parametrize(("stage", "request_"), STAGES, ids=["pretrain", "finetune"])
@pytest.mark.parametrize("entry", ["asa_sparse.yaml:every-2", "asa_freelb.yaml:bert-base"])
def test_variants_of_asa_keep_the_tau_of_their_stage(stage: Any, request_: list[str], entry: str) -> None:
    found = parse(stage, [*request_, "--config", f"{FOLDER}/{entry}"], "prog")
    assert found.asa == parse(stage, request_, "prog").asa


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ("freelb.yaml:mnl", ("no entry 'mnl'", "did you mean 'mnli'?", "rte-own-masks")),
        ("frelb.yaml:mnli", ("no file", "frelb.yaml", "freelb.yaml")),
        ("freelb.yaml:", ("no entry ''", "mnli")),
    ],
)
def test_an_unknown_entry_or_file_is_explained_by_the_known_ones(asked: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        parse(MethodsConfig, ["--config", f"{FOLDER}/{asked}"], "prog")
    assert all(part in str(caught.value) for part in parts)
    assert "\n" not in str(caught.value)


def test_small_numbers_arrive_as_numbers() -> None:
    """YAML 1.1 takes 1e-05 for a text."""
    assert parse(MethodsConfig, ["--config", f"{FOLDER}/alum.yaml:pre-training"], "prog").alum.radius == 1e-5


def test_a_file_of_entries_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(RequestError, match=r"broken\.yaml is no UTF-8 YAML"):
        parse(MethodsConfig, ["--config", f"{tmp_path}/broken.yaml:a"], "prog")


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
            found = read(method, task)[method]
            assert (found["radius"], found["start"], found[counted]) == (radius, radius, count)
            # YOPO's Table 4 divides the step by the inner ascents, Table 8 does not.
            divided = method == "yopo" and task in ("rte", "mrpc", "cola")
            assert found["step_size"] * (found["inner"] if divided else 1) == pytest.approx(step)
