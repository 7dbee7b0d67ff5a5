"""Checkpoints: complete or absent, verified before anything of them is used."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from asa import checkpoint, hf, manifest
from asa.adversary import ASAConfig
from asa.batch import Batch
from asa.engine import Engine, PlainEngine
from asa.errors import RequestError, WorkError
from asa.methods import METHODS, At, Method, MethodsConfig
from asa.tokenizer import load_tokenizer, vocab_sha256
from tests.asa.conftest import tiny_batch, tiny_engine, tiny_module, tiny_tokenizer


class Counting:
    """A method with a state, so that restoring it shows."""

    replays = passes = 1
    uses_adversary = False

    def __init__(self, count: float = 0) -> None:
        self.count = torch.tensor(float(count))
        self.inner = METHODS["asa"](MethodsConfig())

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        return self.inner.backward(engine, batch, at)

    def after_step(self, engine: Engine) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Tensor]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.count = state["count"]


def trained(steps: int, seed: int = 0) -> tuple[PlainEngine, Counting]:
    engine, method = tiny_engine(tiny_module(asa=ASAConfig(), seed=seed)), Counting()
    for step in range(steps):
        method.backward(engine, tiny_batch(seed=step), At(0, 0))
        engine.step()
        method.after_step(engine)
    return engine, method


def save(root: Path, step: int, engine: Engine, method: Method, keep: int = 2) -> Path:
    return checkpoint.save(root, step, engine, method, tiny_tokenizer(), {"note": "kept"}, keep)


class Killed(BaseException):
    """What no handler takes."""


def test_a_kill_while_old_ones_are_removed_leaves_none_that_seems_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, method = trained(1)
    for step in (1, 2):
        save(tmp_path, step, engine, method)

    def rmtree(folder: Path, **options: object) -> None:
        if folder.exists():
            (folder / "hf" / "config.json").unlink()
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", rmtree)
        with pytest.raises(Killed):
            save(tmp_path, 3, engine, method)
    assert [folder.name for folder in checkpoint.complete(tmp_path)] == ["step-2", "step-3"]
    for folder in checkpoint.complete(tmp_path):
        manifest.verify(folder, checkpoint.KIND, "--out")
    save(tmp_path, 3, engine, method)  # which is there already
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3"]
    save(tmp_path, 4, engine, method)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path / "checkpoints", 2, *trained(2))


def test_engine_method_and_facts_come_back_bit_for_bit(saved: Path) -> None:
    (engine, method), (expected, _) = trained(1, seed=8), trained(2)
    facts = checkpoint.load(saved, engine, method)
    assert facts == {"step": 2, "note": "kept"}
    assert method.count == 2
    state = expected.full_state()
    assert [name for name, p in engine.full_state().items() if not torch.equal(p, state[name])] == []
    assert engine.applied == 2


def test_the_whole_parameters_can_be_read_without_an_engine(saved: Path) -> None:
    state, facts = checkpoint.read_model(saved, "--checkpoint")
    expected = trained(2)[0].full_state()
    assert facts["step"] == 2
    assert state.keys() == expected.keys()
    assert all(torch.equal(p, expected[name]) for name, p in state.items())


def test_it_holds_the_shape_and_the_tokenizer(saved: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    assert vocab_sha256(load_tokenizer(saved / "hf", "--checkpoint")) == vocab_sha256(tokenizer)
    assert hf.new_mlm(saved / "hf").config.num_hidden_layers == 2


def test_a_save_cut_off_before_the_manifest_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is written last: everything else is already there when it comes."""
    present: list[set[str]] = []

    def killed(folder: Path, kind: str, facts: dict[str, object]) -> None:
        present.append({path.name for path in folder.iterdir()})
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest, "write", killed)
    engine, method = trained(1)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1, engine, method)
    assert {
        "exp_avg.safetensors",
        "exp_avg_sq.safetensors",
        "model.safetensors",
        "method.safetensors",
        "hf",
    } <= present[0]
    assert checkpoint.complete(tmp_path) == []
    monkeypatch.undo()
    assert save(tmp_path, 1, engine, method) == tmp_path / "step-1"
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_save_cut_off_after_the_manifest_but_before_the_rename_is_no_checkpoint(saved: Path) -> None:
    saved.rename(saved.with_name("step-3.partial"))
    assert checkpoint.complete(saved.parent) == []


def test_only_the_newest_are_kept_by_number_not_by_name(tmp_path: Path) -> None:
    engine, method = trained(0)
    for step in (8, 9, 10, 11):
        save(tmp_path, step, engine, method, keep=3)
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["step-9", "step-10", "step-11"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-11", "step-9"]


def test_a_new_one_is_on_disk_before_an_older_one_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut may leave none."""
    there = list[list[str]]()
    monkeypatch.setattr(checkpoint, "fsync", lambda root: there.append(sorted(path.name for path in root.iterdir())))
    engine, method = trained(1)
    for step in (1, 2):
        save(tmp_path / "checkpoints", step, engine, method, keep=1)
    assert there == [["step-1"], ["step-1", "step-2"]]


def test_a_damaged_checkpoint_does_not_count_among_those_kept(tmp_path: Path) -> None:
    engine, method = trained(0)
    for step in (1, 2, 3):
        save(tmp_path, step, engine, method, keep=3)
    (tmp_path / "step-3" / "exp_avg.safetensors").write_bytes(b"")
    save(tmp_path, 4, engine, method, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3", "step-4"]
    assert checkpoint.newest_good(tmp_path) == (tmp_path / "step-4", [])


def test_checkpoints_that_cannot_be_seen_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would begin anew beside them, and its record with it."""
    root = tmp_path / "checkpoints"
    assert checkpoint.newest_good(root) == (None, [])
    root.symlink_to(tmp_path / "disk that is not there")
    with pytest.raises(RequestError, match="checkpoints is a link to no folder; bring that back"):
        checkpoint.newest_good(root)

    def closed(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.listdir", closed)
    with pytest.raises(RequestError, match="checkpoints cannot be read \\(Permission denied\\); mend that"):
        checkpoint.complete(root)


def test_a_first_save_that_was_cut_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "step-5.partial").mkdir()
    assert checkpoint.newest_good(tmp_path) == (None, [f"{tmp_path / 'step-5.partial'} was not finished"])


def test_a_good_checkpoint_is_not_written_again_and_a_damaged_one_is(saved: Path) -> None:
    before = (saved / manifest.NAME).stat().st_ino
    save(saved.parent, 2, *trained(2))
    assert (saved / manifest.NAME).stat().st_ino == before
    (saved / "model.safetensors").write_bytes(b"")
    save(saved.parent, 2, *trained(2))
    assert checkpoint.is_good(saved)


def test_what_a_killed_save_left_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "step-7.partial").mkdir()
    save(tmp_path, 9, *trained(0))
    assert [path.name for path in tmp_path.iterdir()] == ["step-9"]


def files() -> list[str]:
    return ["exp_avg_sq.safetensors", "model.safetensors", "method.safetensors", "hf/config.json", "hf/tokenizer.json"]


@pytest.mark.parametrize("name", files())
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(WorkError, match=name):
        checkpoint.load(saved, *trained(0))
    with pytest.raises(WorkError, match=name):
        checkpoint.read_model(saved, "--checkpoint")


@pytest.mark.parametrize("name", files())
def test_a_flipped_byte_is_found_before_anything_is_loaded(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    engine, method = trained(0, seed=8)
    before = engine.full_state()
    with pytest.raises(WorkError, match=f"{name} is damaged"):
        checkpoint.load(saved, engine, method)
    assert all(torch.equal(p, before[key]) for key, p in engine.full_state().items())
    assert method.count == 0


def test_find_takes_a_checkpoint_a_run_or_its_checkpoint_folder(saved: Path) -> None:
    newest = save(saved.parent, 10, *trained(0))
    assert checkpoint.find(saved, "--checkpoint") == saved
    assert checkpoint.find(saved.parent.parent, "--checkpoint") == newest
    assert checkpoint.find(saved.parent, "--checkpoint") == newest
    run = saved.parent.parent.rename(saved.parent.parent.with_name("step-by-step"))
    assert checkpoint.find(run, "--checkpoint") == run / "checkpoints" / newest.name


def test_find_refuses_a_folder_without_a_finished_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-5").mkdir(parents=True)
    with pytest.raises(RequestError, match=r"no finished checkpoint.*--checkpoint"):
        checkpoint.find(tmp_path, "--checkpoint")
