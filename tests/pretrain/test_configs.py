"""Every recipe in configs/pretrain is read and takes steps, with a tiny model of its family in the place of its own."""

import shutil
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import cli
from asa import record
from asa.config import from_dict, to_dict
from pretrain.config import PretrainConfig, check
from pretrain.loop import train
from tests.asa.encoders import tiny
from tests.pretrain.conftest import LENGTH

pytestmark = pytest.mark.usefixtures("one_process")
RECIPES = sorted(Path("configs/pretrain").glob("*.yaml"))
FAMILY = {"roberta": "roberta", "deberta": "deberta-v2"}
EXTRA = 4  # places that RoBERTa's table has on top


def read(recipe: Path) -> PretrainConfig:
    return cli.parse(PretrainConfig, ["--config", str(recipe)], "test")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_takes_steps(recipe: Path, model: Path, shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    family = next((name for word, name in FAMILY.items() if word in recipe.stem), "bert")
    words = max(AutoTokenizer.from_pretrained(model).get_vocab().values()) + 1
    shutil.copytree(model, folder)
    (folder / "config.json").unlink()
    tiny(family, dropout=0.1, vocab_size=words, max_position_embeddings=LENGTH + EXTRA).save_pretrained(folder)
    config = replace(
        read(recipe),
        data=shards,
        model=folder,
        out=tmp_path / "run",
        precision="fp32",  # the CPU's; tests/precision has the others
        steps=2,
        global_batch=8,
        micro_batch=4,
        log_every=1,
        eval_rows=4,
    )
    check(config, 1, cuda=False)
    train(config, torch.device("cpu"))
    assert record.finished(config.out / record.NAME)


def test_a_key_of_a_group_leaves_the_others_as_they_stand() -> None:
    """Pre-training's tau is not that of the class, which a second key of asa once brought back."""
    needed = {"data": "d", "model": "m", "out": "o"}
    for group in fields(PretrainConfig):
        if is_dataclass(group.default):
            for key, value in to_dict(group.default).items():
                found = from_dict(PretrainConfig, needed | {group.name: {key: value}})
                assert getattr(found, group.name) == group.default, f"{group.name}.{key}"


def test_the_papers_runs_are_table_6() -> None:
    """The control differs from ASA's run in method and folder alone."""
    asa, mlm = (read(Path(f"configs/pretrain/bert_base_{name}.yaml")) for name in ("asa", "mlm"))
    assert (asa.steps, asa.global_batch, asa.precision, asa.asa.tau) == (20_000, 1024, "fp16", 0.1)
    assert (asa.optim.lr, asa.optim.weight_decay, asa.optim.warmup, asa.optim.clip) == (2e-5, 0.01, 0.06, 1.0)
    assert asa.micro(8) == 128
    assert mlm == replace(asa, method="vanilla", out=mlm.out)
