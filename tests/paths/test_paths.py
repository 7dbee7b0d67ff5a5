"""Three strangers use the project: the commands of docs/paths, as they stand there, at their smallest size."""

import csv
import json
import re
from pathlib import Path

import pytest

from asa import checkpoint, record
from tests.paths.walk import blocks, checkout, needs, walk

PAGES = ("engineer", "researcher", "operator")
NOISE = ("Setting accelerator", "Writing model shards", "Traceback")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_has_commands_alone_in_its_blocks(page: str) -> None:
    text = (Path("docs/paths") / f"{page}.md").read_text()
    assert len(text.splitlines()) <= 130
    assert len(blocks(page)) == text.count("```sh\n") >= 4
    assert set(re.findall(r"^```(\w+)$", text, re.MULTILINE)) <= {"sh", "text"}


@needs("leads")
@pytest.mark.slow
def test_an_engineer_brings_text_a_task_and_a_checkpoint(tmp_path: Path) -> None:
    here = checkout(tmp_path / "checkout")
    said = walk("engineer", here, 1200, DOCS=2000, VOCAB=600, STEPS=4, TUNE=4)
    assert [word for word in NOISE if word in "".join(said)] == []
    kept = json.loads((here / "data/own/rows/shards/manifest.json").read_text())["facts"]
    assert (kept["vocab_size"], kept["length"]) == (600, 64)
    assert f"documents kept: {kept['documents']['kept']:,}" in said[1]
    assert 1900 < kept["documents"]["kept"] <= 2000

    assert record.finished(here / "runs/own/pretrain" / record.NAME)
    assert {"config.json", "model.safetensors", "adversary.safetensors"} <= names(here / "runs/own/export")
    runs = here / "runs/own/finetune/topics"
    wanted = {
        f"{model}-{method}-{seed}" for model in ("base", "further") for method in ("vanilla", "asa") for seed in (0, 1)
    }
    assert names(runs) == wanted
    with (here / "data/own/topics.csv").open(newline="") as file:
        rows = len(list(csv.reader(file))) - 1
    facts = record.read(runs / "further-asa-1" / record.NAME)[0]["task_facts"]
    assert sum(facts["rows"].values()) == rows
    report = (here / "runs/own/report/report.md").read_text()
    assert "| further | asa | 2 |" in report
    assert "'label': " in said[-1]


@needs("leads", "bert-tiny")
@pytest.mark.slow
def test_a_researcher_compares_a_method_of_hers_on_a_task_of_hers(tmp_path: Path) -> None:
    here = checkout(tmp_path / "checkout")
    said = walk("researcher", here, 1200, STEPS=4)
    assert [word for word in NOISE if word in "".join(said)] == []
    # The scale is chosen on rows of train.csv alone.
    for scale in ("0.02", "0.2"):
        (start,) = (here / f"runs/people-scale-{scale}").rglob(record.NAME)
        facts = record.read(start)[0]
        assert facts["config"]["outside"] == {"scale": float(scale)}
        assert [Path(name).name for name in facts["task_facts"]["files"]] == ["train.csv"]
    methods = ("vanilla", "asa", "jitter:Jitter")
    assert names(here / "runs/people/people") == {f"base-{method}-{seed}" for method in methods for seed in (0, 1)}
    # One row of the table of tests for each method but vanilla, over two seeds.
    tests = re.findall(r"^\| people \| base \| (\S+) \| F1 \| 2 \|", said[-2], re.MULTILINE)
    assert sorted(tests) == ["asa", "jitter:Jitter"]
    assert said[-1].split()[0] == "6"
    assert said[-1].count("refused with 2") == 2
    assert "another outside.scale" in said[-1]
    assert "another method_sha256" in said[-1]


@needs("enwiki", "bert-tiny")
@pytest.mark.reliability
def test_an_operator_loses_a_node_and_goes_on_with_the_other(tmp_path: Path) -> None:
    here = checkout(tmp_path / "checkout")
    said = walk("operator", here, 1200)
    assert "processes: 2" in said[1]
    assert [line for line in said[2].splitlines() if "ended with" in line] == [
        "node 0 ended with 143",
        "node 1 ended with 143",
    ]
    (stopped,) = re.findall(r"stopped at step (\d+) of 60", (here / "data/node-0.log").read_text())
    events = record.read(here / "runs/nodes" / record.NAME)
    resumed = [(line["step"], line["processes"]) for line in events if line["event"] == "resume"]
    assert resumed == [(int(stopped), 1)]
    steps = [line["step"] for line in events if line["event"] == "train"]
    assert steps == list(range(5, 61, 5))  # each once, those before the stop and those after it
    assert record.finished(here / "runs/nodes" / record.NAME)
    assert checkpoint.complete(here / "runs/nodes/checkpoints")[-1].name == "step-60"
    assert "from 2 to 1 processes" in said[3]
    assert "model.safetensors" in names(here / "runs/nodes-export")
    assert f"resume: at step {stopped} with 1 process" in said[4]
    assert re.search(r"max_step +60\n +num_steps +13\n", said[4])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
