"""What docs/loops.md and trainer.md show is what they say: their code is run, in a loop, in Lightning, as a trial."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification

from asa.batch import Batch
from asa.engine import PlainEngine
from asa.methods import At, MethodsConfig, build_method
from asa.model import TaskModel
from asa.optim import OptimConfig
from tests.asa.conftest import tiny_bert
from tests.integrations.trainers import rows, weights


def code(page: str) -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


SAVE, RESUME, LIGHTNING = code("loops.md")
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
        method = build_method(name, options, "fp32", zero=0)
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
        module = TaskModel(model, "classification", options.asa if method.uses_adversary else None)
        module.train()
        engine = PlainEngine(module, OptimConfig(lr=2e-5), STEPS * method.replays, torch.device("cpu"))
        self.here: dict[str, Any] = {"torch": torch, "module": module, "method": method, "engine": engine}
        self.micro = micro

    def train(self, data: list[dict[str, Tensor]]) -> list[float]:
        """The loss of each batch, of its last replay."""
        module, method, engine = (self.here[name] for name in ("module", "method", "engine"))
        assert module.training
        losses: list[float] = []
        loss = torch.zeros(())
        for columns in data:
            for replay in range(method.replays):
                loss = torch.zeros(())
                for slot, places in enumerate(torch.arange(6).chunk(self.micro)):
                    part = {name: column[places] for name, column in columns.items()}
                    labels = part.pop("labels")
                    batch = Batch("classification", part, labels, total_rows=6, total_labels=6)
                    loss = loss + method.backward(engine, batch, At(slot=slot, replay=replay))["loss"]
                if engine.step().applied:
                    method.after_step(engine)
            losses.append(float(loss))
        return losses


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model: Any = tiny_bert("classification")
    model.config.hidden_dropout_prob = 0.1  # all that is drawn is to be drawn alike
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
        import lightning as L
        from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint

        here, before = dict[str, Any](), out / "epoch=0.ckpt"
        exec(LIGHTNING, here)
        torch.manual_seed(0)
        self.module = here["Adversarial"](folder, STEPS, name, micro)
        self.losses: list[float] = []

        def note(trainer: L.Trainer, *_: Any) -> None:
            self.losses.append(float(trainer.callback_metrics["loss"]))

        def seed(trainer: L.Trainer, module: Any, batch: Any, index: int) -> None:
            if index == 0:  # of an epoch; Lightning keeps no random state
                torch.manual_seed(1)

        watch = LambdaCallback(on_train_batch_start=seed, on_train_batch_end=note)
        keep = ModelCheckpoint(out, filename="{epoch}", save_top_k=-1)
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        self.trainer = L.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[keep, watch], **quiet)
        rows: Any = batches()
        data = DataLoader(rows, batch_size=None)
        self.trainer.fit(self.module, data, data, ckpt_path=before if before.exists() else None)


MISSING = find_spec("lightning") is None
with_lightning = pytest.mark.skipif(MISSING, reason="no lightning, which the extra dev has")


@with_lightning
@pytest.mark.parametrize(("name", "micro"), [("vanilla", 2), ("asa", 2), ("smart", 1), ("freelb", 2), ("freeat", 1)])
def test_lightning_trains_as_a_loop_does(name: str, micro: int, folder: Path, tmp_path: Path) -> None:
    loop = Loop(name, folder, micro)
    found = Lightning(name, folder, tmp_path / "checkpoints", micro=micro)
    torch.manual_seed(1)
    assert found.losses == loop.train(batches())
    torch.testing.assert_close(weights(found.module.module), weights(loop.here["module"]), rtol=0, atol=0)
    assert found.trainer.global_step == found.module.engine.applied == STEPS * found.module.method.replays
    assert 0 <= found.trainer.callback_metrics["accuracy"] <= 1


@with_lightning
@pytest.mark.parametrize("name", ["asa", "smart"])
def test_lightning_goes_on_from_its_checkpoint_but_for_random_numbers(name: str, folder: Path, tmp_path: Path) -> None:
    whole = Lightning(name, folder, tmp_path / "whole", epochs=2)
    Lightning(name, folder, tmp_path / "parts")
    resumed = Lightning(name, folder, tmp_path / "parts", epochs=2)
    assert resumed.losses == whole.losses[STEPS:]
    torch.testing.assert_close(weights(resumed.module.module), weights(whole.module.module), rtol=0, atol=0)


class Trial:
    """Suggests the least of everything, as an Optuna's trial does."""

    def suggest_float(self, name: str, low: float, high: float, log: bool) -> float:
        return low


def test_a_trial_of_a_search_over_a_methods_settings_begins_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    imports, search = code("trainer.md")[0].partition("\nname = ")[0], code("trainer.md")[1]
    data = [{**row, "labels": row["labels"] % 2} for row in rows("classification", 6)]
    here: dict[str, Any] = {"name": folder, "rows": data, "dev": data, "tokenizer": None}
    exec(imports + "\n" + search, here)
    first: list[dict[str, Tensor]] = []

    class Noting(here["AdversarialTrainer"]):
        def train(self, *args: Any, **keywords: Any) -> Any:
            first.append(weights(self.model))
            return super().train(*args, **keywords)

    here["AdversarialTrainer"] = Noting
    for _ in range(2):
        torch.manual_seed(0)  # the new head's
        assert 0 <= here["run"](Trial()) <= 1
    torch.testing.assert_close(*first, rtol=0, atol=0)
