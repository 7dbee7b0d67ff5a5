"""Settings of the data commands, of tasks and of the attack on finished models change what comes out."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import BertConfig

from asa import record
from asa.config import from_dict
from asa.errors import RequestError
from data_prep import __main__ as data_prep
from finetune import score
from finetune.config import FinetuneConfig
from finetune.evaluation_config import RobustnessConfig, ScoreConfig
from finetune.predictions import load_predictions
from finetune.recipes import resolved
from finetune.robustness import robustness
from finetune.sweep import sweep
from finetune.tasks.load import load
from finetune.tasks.places import hub_rows, settled
from finetune.tasks.spec import HubSource, Source, TaskConfig, named
from tests.data_prep.conftest import content, dump_xml, page_xml, prose, save_tokenizer
from tests.finetune.conftest import write_model, write_task

# Setting -> its other value, what stands on both sides.
Knobs = dict[str, tuple[Any, dict[str, Any]]]
TEXT: Knobs = {"min_chars": (100, {}), "shard": ("0/2", {})}
BUILD: Knobs = {
    "length": (16, {}),
    "packing": ("single", {}),
    "heldout": (0.5, {}),
    "min_chars": (100, {}),
    "dedup": (1.0, {}),
}
TOKENIZER: Knobs = {
    "kind": ("bpe", {}),
    "vocab_size": (310, {}),
    "lowercase": (True, {}),
    "share": (0.3, {}),
    "arch": ("arch", {}),
    "seed": (1, {"arch": "arch"}),
}
ROBUSTNESS: Knobs = {
    "length": (8, {}),
    "split": ("dev", {}),
    "rows": (1, {}),
    "radius": (0.3, {}),
    "radii": (5, {}),
    "steps": (2, {}),
    "step_size": (0.3, {}),
    "starts": (2, {}),
    "seed": (1, {"starts": 2}),
    "reference": ("two", {"radius": 4.0, "radii": 20}),  # at a small one both are right on every row
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump with a page that is there twice and a short one, its documents, models and a task."""
    folder = tmp_path_factory.mktemp("knobs")
    pages = [page_xml(f"Article {n}", prose(n).title(), n + 1) for n in range(24)]
    pages += [page_xml("Again", prose(3).title(), 90), page_xml("Short", prose(4, 12), 91)]
    (folder / "wiki.xml").write_text(dump_xml(*pages))
    save_tokenizer(folder / "model")
    letters = random.Random(0)
    many = [" ".join("".join(letters.choices("abcdefgXYZ", k=6)) for _ in range(60)) for _ in range(24)]
    (folder / "many.xml").write_text(dump_xml(*(page_xml(f"Many {n}", text, n + 1) for n, text in enumerate(many))))
    data_prep.text([str(folder / "many.xml"), "--out", str(folder / "documents")])
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertConfig(**sizes).save_pretrained(folder / "arch")
    asked = {"task": {"folder": write_task(folder / "task")}, "models": {"tiny": write_model(folder / "tiny")}}
    asked |= {"methods": ["vanilla"], "seeds": [0, 1], "length": 16, "batch": 8, "epochs": 24, "optim": {"lr": 0.01}}
    sweep({**asked, "save_model": True, "out": folder / "runs"})
    return folder


def _made(command: Any, leading: list[str], place: Path, out: Path, settings: dict[str, Any]) -> dict[str, bytes]:
    flags = {name: place / value if value == "arch" else value for name, value in settings.items()}
    command(
        [*leading, "--out", str(out), *(part for name, value in flags.items() for part in (f"--{name}", str(value)))]
    )
    return {name: held for name, held in content(out).items() if not name.endswith("manifest.json")}


DATA = {"text": TEXT, "build": BUILD, "tokenizer": TOKENIZER}


@pytest.mark.parametrize(("command", "setting"), [(command, setting) for command in DATA for setting in DATA[command]])
def test_a_setting_of_the_data_commands_changes_what_is_written(
    command: str, setting: str, place: Path, tmp_path: Path
) -> None:
    value, beside = DATA[command][setting]
    leading = {
        "text": [str(place / "wiki.xml"), str(place / "many.xml")],
        "build": ["--dumps", str(place / "wiki.xml"), "--model", str(place / "model")],
        "tokenizer": [str(place / "documents")],
    }[command]
    sizes = {"build": {"length": 32, "heldout": 0.2}, "tokenizer": {"vocab_size": 300}}.get(command, {})
    before, again, after = (
        _made(getattr(data_prep, command), leading, place, tmp_path / name, {**sizes, **beside, **changed})
        for name, changed in (("before", {}), ("again", {}), ("after", {setting: value}))
    )
    assert before == again
    assert before != after


def _found(place: Path, out: Path, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """What attacks on two runs find."""
    runs = place / "runs" / "colours"
    asked = {"models": {"one": runs / "tiny-vanilla-0", "two": runs / "tiny-vanilla-1"}, "reference": "one"}
    asked |= {"task": {"folder": place / "task"}, "radius": 0.2, "radii": 3, "steps": 6, "split": "train", **changes}
    robustness(from_dict(RobustnessConfig, {**asked, "out": out}))
    ends = [record.read(path)[-1] for path in sorted(out.glob(f"*/*/*/{record.NAME}"))]
    return [{key: one for key, one in end.items() if key != "seconds"} for end in ends]


@pytest.fixture(scope="module")
def usual(place: Path) -> list[dict[str, Any]]:
    return _found(place, place / "usual", {})


@pytest.mark.parametrize("setting", ROBUSTNESS)
def test_a_setting_of_the_attack_changes_what_is_found(
    setting: str, place: Path, usual: list[dict[str, Any]], tmp_path: Path
) -> None:
    value, beside = ROBUSTNESS[setting]
    before = _found(place, tmp_path / "before", beside) if beside else usual
    after = _found(place, tmp_path / "after", {**beside, setting: value})
    assert len(before) == len(after) == 2
    assert before != after


def test_overwrite_lets_other_settings_take_a_folder(place: Path, tmp_path: Path) -> None:
    dedup = [str(place / "documents"), "--out", str(tmp_path / "dedup")]
    model = place / "runs" / "colours" / "tiny-vanilla-0"
    asked = {"models": {"one": model}, "reference": "one", "task": {"folder": place / "task"}, "out": tmp_path / "out"}

    def attack(**changes: Any) -> None:
        robustness(from_dict(RobustnessConfig, {**asked, "rows": 2, "radii": 1, **changes}))

    data_prep.dedup(dedup)
    attack(steps=1)
    with pytest.raises(RequestError, match="--overwrite"):
        data_prep.dedup([*dedup, "--near", "1"])
    with pytest.raises(RequestError, match="--overwrite"):
        attack(steps=2)
    data_prep.dedup([*dedup, "--near", "1", "--overwrite", "true"])
    attack(steps=2, overwrite=True)


def test_rows_of_a_pass_are_those_that_were_asked_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, predict = [], score.predict
    monkeypatch.setattr(score, "predict", lambda *given: (sizes.append(given[2]), predict(*given))[1])
    models = [place / "runs" / "colours" / "tiny-vanilla-0"]
    asked = {"models": models, "task": {"folder": place / "task"}, "out": tmp_path / "out", "batch": 5}
    score.score_all(from_dict(ScoreConfig, asked))
    assert set(sizes) == {5}


def test_classes_that_are_one_are_merged_as_asked_for(place: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "a b red", "label": "yes"}\n{"text": "c blue", "label": "no"}\n' * 5)
    task = {"name": "two", "test": [tmp_path / "t.jsonl"], "labels": ["yes", "no"]}
    models = [place / "runs" / "colours" / "tiny-vanilla-0"]
    ways = {"red": "yes", "green": "no", "blue": "no"}
    found = []
    for merge, way in (("sum", ways), ("max", ways), ("sum", {**ways, "green": "yes"})):
        out = tmp_path / f"out-{len(found)}"
        score.score_all(
            from_dict(ScoreConfig, {"models": models, "task": task, "map": way, "merge": merge, "out": out})
        )
        (path,) = out.rglob("test.npz")
        found.append([row.tolist() for row in load_predictions(path).predictions.logits])
    assert found[0] != found[1]
    assert found[0] != found[2]


def test_attacks_and_scores_read_standard_tasks_where_they_are_told(place: Path, tmp_path: Path) -> None:
    run = place / "runs" / "colours" / "tiny-vanilla-0"
    asked = {"tasks": ["sst2"], "data": tmp_path / "here", "out": tmp_path / "out"}
    told = r"task 'sst2' has no files: there is no .*/here/SST-2"
    with pytest.raises(RequestError, match=told):
        robustness(from_dict(RobustnessConfig, {**asked, "models": {"one": run}, "reference": "one"}))
    with pytest.raises(RequestError, match=told):
        score.score_all(from_dict(ScoreConfig, {**asked, "models": [run]}))


def test_a_place_on_the_hub_is_asked_for_as_its_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def noted(*where: Any, **how: Any) -> list[dict[str, str]]:
        asked.append((where, how))
        return [{"text": "a"}]

    monkeypatch.setattr(datasets, "load_dataset", noted)
    hub = HubSource(path="p", config="c", revision="r", splits={"train": "s"})
    assert [row.values for row in hub_rows(hub, "s")] == [{"text": "a"}]
    assert asked == [(("p", "c"), {"split": "s", "revision": "r"})]


def test_files_are_where_a_source_says_and_its_keys_hold_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "t.csv").write_text("x\n")
    sources = (Source(at=Path("no")), Source(at=Path("there"), keys={"label": "y"}))
    task = TaskConfig(name="of-mine", train=(Path("t.csv"),), sources=sources)
    request = from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "o", "data": tmp_path})
    found = settled(task, request)
    assert (found.train, found.label) == ((tmp_path / "there" / "t.csv",), "y")


def test_a_recipe_and_a_preset_are_taken_where_asked_for() -> None:
    asked = {"models": {"m": "m"}, "out": "o", "tasks": ["rte"]}
    with_, without = (resolved({**asked, "recipes": on}, named("rte"), "freelb") for on in (True, False))
    assert (with_.optim.lr, with_.freelb.passes) == (5e-5, 3)
    assert (without.optim.lr, without.freelb.passes) == (2e-5, 2)
    plain = resolved(asked, replace(named("rte"), recipe={}), "freelb")
    assert (plain.optim.lr, plain.freelb.passes) == (2e-5, 3)
    # A method that reads another's settings attacks as that one does.
    both = resolved({**asked, "tasks": ["rte"]}, named("rte"), "asa_freelb")
    assert both.freelb == with_.freelb
    assert resolved({**asked, "tasks": ["wnut17"]}, named("wnut17"), "asa_sparse").asa.tau == 0.5


def test_a_format_that_is_given_counts_more_than_an_ending(tmp_path: Path) -> None:
    rows = "".join(f'{{"text": "row {n}", "label": "{n % 2}"}}\n' for n in range(20))
    (tmp_path / "t.data").write_text(rows)
    request = from_dict(FinetuneConfig, {"models": {"m": "m"}, "out": "o"})
    assert len(load(TaskConfig(train=(tmp_path / "t.data",), format="jsonl"), request).splits["train"]) == 16
