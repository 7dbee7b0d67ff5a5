"""What docs/loops.md shows is what it says: its code is run, in a loop and in Lightning."""

import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification

from asa.batch import Batch
from asa.engine import PlainEngine
from asa.methods import At, MethodsConfig, limits
from asa.model import TaskModel
from asa.optim import OptimConfig
from tests.asa.conftest import tiny_bert
from tests.integrations.trainers import rows, weights

CODE = re.findall(r"^```python\n(.*?)^```", (Path(__file__).parents[2] / "docs/loops.md").read_text(), re.S | re.M)
SAVE, RESUME, LIGHTNING = CODE
STEPS = 4


def batches() -> list[dict[str, Tensor]]:
    """Of 6 rows, whose labels are two."""
    data = [{**row, "labels": row["labels"] % 2} for row in rows("classification", 6 * STEPS)]
    groups = [data[at : at + 6] for at in range(0, len(data), 6)]
    return [{name: torch.stack([row[name] for row in group]) for name in group[0]} for group in groups]


class Loop:
    """As README.md shows it."""

    def __init__(self, name: str, folder: Path, micro: int = 1) -> None:
        torch.manual_seed(0)
        options = MethodsConfig()
        method = limits.check(name, options, "fp32", zero=0)
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
        module = TaskModel(model, "classification", options.asa if method.uses_adversary else None)
        module.train()
        engine = PlainEngine(module, OptimConfig(lr=2e-5), STEPS * method.replays, torch.device("cpu"))
        self.here: dict[str, Any] = {"torch": torch, "module": module, "method": method, "engine": engine}
        self.micro = micro

    def train(self, data: list[dict[str, Tensor]]) -> list[float]:
        """The loss of each batch's last part."""
        module, method, engine = (self.here[name] for name in ("module", "method", "engine"))
        assert module.training
        losses: list[float] = []
        terms: dict[str, Tensor] = {}
        for columns in data:
            for replay in range(method.replays):
                for slot, places in enumerate(torch.arange(6).chunk(self.micro)):
                    part = {name: column[places] for name, column in columns.items()}
                    labels = part.pop("labels")
                    batch = Batch("classification", part, labels, total_rows=6, total_labels=6)
                    terms = method.backward(engine, batch, At(slot=slot, replay=replay))
                engine.step()
                method.after_step(engine)
            losses.append(float(terms["loss"]))
        return losses


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model: Any = tiny_bert("classification")
    model.base_model.save_pretrained(tmp_path / "model")  # its head is of three classes
    return tmp_path / "model"


@pytest.mark.parametrize("name", ["vanilla", "asa", "smart", "freeat"])
def test_a_loop_that_is_stopped_goes_on_bit_for_bit(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, first, second = (Loop(name, folder) for _ in range(3))
    torch.manual_seed(1)
    losses = whole.train(batches())
    torch.manual_seed(1)
    assert first.train(batches()[:2]) == losses[:2]
    exec(SAVE, first.here)
    torch.manual_seed(2)
    exec(RESUME, second.here)
    assert second.train(batches()[2:]) == losses[2:]
    torch.testing.assert_close(weights(second.here["module"]), weights(whole.here["module"]), rtol=0, atol=0)


class Lightning:
    """A training with the page's module, which begins as a loop does."""

    def __init__(self, name: str, folder: Path, out: Path, epochs: int = 1, micro: int = 1) -> None:
        here, before = dict[str, Any](), out / "epoch=0.ckpt"
        exec(LIGHTNING, here)
        torch.manual_seed(0)
        self.module = here["Adversarial"](folder, STEPS, name, micro)
        self.losses: list[float] = []
        keep = ModelCheckpoint(out, filename="{epoch}", save_top_k=-1)
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        self.trainer = L.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[keep, Noting(self.losses)], **quiet)
        rows: Any = batches()
        data = DataLoader(rows, batch_size=None)
        self.trainer.fit(self.module, data, data, ckpt_path=before if before.exists() else None)


class Noting(L.Callback):
    def __init__(self, losses: list[float]) -> None:
        self.losses = losses

    def on_train_epoch_start(self, *args: Any, **keywords: Any) -> None:
        torch.manual_seed(1)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **keywords: Any) -> None:
        self.losses.append(float(trainer.callback_metrics["loss"]))


@pytest.mark.parametrize(("name", "micro"), [("vanilla", 2), ("asa", 1), ("asa", 2), ("freelb", 2), ("freeat", 1)])
def test_lightning_trains_as_a_loop_does(name: str, micro: int, folder: Path, tmp_path: Path) -> None:
    loop = Loop(name, folder, micro)
    found = Lightning(name, folder, tmp_path / "checkpoints", micro=micro)
    torch.manual_seed(1)
    assert found.losses == loop.train(batches())
    torch.testing.assert_close(weights(found.module.module), weights(loop.here["module"]), rtol=0, atol=0)
    assert found.trainer.global_step == found.module.engine.applied == STEPS * found.module.method.replays
    assert 0 <= found.trainer.callback_metrics["accuracy"] <= 1


@pytest.mark.parametrize("name", ["asa", "smart"])
def test_lightning_goes_on_from_its_checkpoint_bit_for_bit(name: str, folder: Path, tmp_path: Path) -> None:
    whole = Lightning(name, folder, tmp_path / "whole", epochs=2)
    Lightning(name, folder, tmp_path / "parts")
    resumed = Lightning(name, folder, tmp_path / "parts", epochs=2)
    assert resumed.losses == whole.losses[STEPS:]
    torch.testing.assert_close(weights(resumed.module.module), weights(whole.module.module), rtol=0, atol=0)
