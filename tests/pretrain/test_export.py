"""Exports of every ZeRO stage and precision: parity, the run's facts in the card, the adversary to go on from."""

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForMaskedLM, BertForMaskedLM

from asa import manifest, record
from asa.attention import attach
from asa.config import to_dict
from asa.errors import NotWritten, RequestError, WorkError
from asa.optim import OptimConfig
from data_prep.check import verify
from data_prep.config import VerifyConfig
from pretrain import export as export_module
from pretrain.card import card
from pretrain.config import PretrainConfig
from pretrain.export import ExportConfig, Part, export, parity
from pretrain.loop import train
from tests.pretrain.conftest import flip_a_byte

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_process")


@pytest.mark.parametrize(
    ("zero", "precision", "offload"), [(0, "bf16", False), (1, "fp32", False), (2, "bf16", True), (3, "fp32", False)]
)
def test_every_stage_and_precision_exports_with_parity(
    request_: PretrainConfig, tmp_path: Path, zero: int, precision: str, offload: bool
) -> None:
    run = replace(request_, zero=zero, precision=precision, offload=offload, steps=1, eval_every=100)
    train(run, CPU)
    assert export(ExportConfig(checkpoint=run.out, out=tmp_path / "export")) <= export_module.PARITY
    # In half precision too it is the fp32 weights that are exported.
    weights = AutoModelForMaskedLM.from_pretrained(tmp_path / "export").state_dict()
    assert any(not torch.equal(value, value.bfloat16().float()) for value in weights.values())


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_logits_that_are_all_too_high_or_too_low_differ(shift: float, model: Path) -> None:
    trained = BertForMaskedLM.from_pretrained(model).eval()
    trained.cls.predictions.bias.data += shift
    assert parity(Part(".", trained, AutoModelForMaskedLM), model) == pytest.approx(0.5, abs=1e-5)


def test_logits_that_are_no_numbers_are_not_exported(
    request_: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whichever part, where there are several."""
    train(replace(request_, method="vanilla", steps=1, eval_every=100), CPU)

    def parts(trained: Any) -> list[Part]:
        return [Part(path, trained.model, AutoModelForMaskedLM) for path in (".", "encoder", "generator")]

    monkeypatch.setattr(export_module, "_parts", parts)
    found = iter([0.0, float("nan"), 0.0])
    monkeypatch.setattr(export_module, "parity", lambda *_: next(found))
    with pytest.raises(WorkError, match="the exported logits differ from the trained ones by nan"):
        export(ExportConfig(checkpoint=request_.out, out=tmp_path / "export"))
    assert not (tmp_path / "export").exists()


def test_nothing_is_exported_among_the_checkpoints_of_a_run(request_: PretrainConfig) -> None:
    train(replace(request_, steps=1, eval_every=100), CPU)
    for inner in ("step-1", "step-2", "step-2/hf/export"):
        with pytest.raises(RequestError, match="lies among a run's checkpoints, which saving removes"):
            export(ExportConfig(checkpoint=request_.out, out=request_.out / "checkpoints" / inner, overwrite=True))


def test_of_a_damaged_checkpoint_the_newest_whole_one_is_named(request_: PretrainConfig, tmp_path: Path) -> None:
    run = replace(request_, steps=3, save_every=1, keep=3, eval_every=100)
    train(run, CPU)
    one, two, three = (run.out / "checkpoints" / f"step-{step}" for step in (1, 2, 3))
    asked = ExportConfig(checkpoint=run.out, out=tmp_path / "export")
    for damaged, whole in ((three, two), (two, one)):
        flip_a_byte(damaged / "model.safetensors")
        with pytest.raises(
            WorkError, match=rf"^{three}/model\.safetensors is damaged.*; {whole} is whole, export it by"
        ):
            export(asked)
    flip_a_byte(one / "model.safetensors")
    with pytest.raises(WorkError, match=r"step-3/model\.safetensors is damaged(?!.* is whole)"):
        export(asked)
    assert not asked.out.exists()


def test_the_card_has_the_runs_facts_and_scores(request_: PretrainConfig, tmp_path: Path) -> None:
    train(replace(request_, steps=2, eval_every=1), CPU)
    for source in (request_.out, request_.out / "checkpoints" / "step-2"):
        export(ExportConfig(checkpoint=source, out=tmp_path / "export", overwrite=True))
        card = (tmp_path / "export" / "README.md").read_text()
        last = [event for event in record.read(request_.out / record.NAME) if event["event"] == "eval"][-1]
        assert "| method | asa |" in card
        assert "| asa.tau | 0.1 |" in card
        assert "| optimizer steps | 2 of 2 |" in card
        assert f"| tokens, padding of short rows among them | {2 * 8 * 24} |" in card
        assert f"| continued from | {request_.model.name} |" in card
        assert f"| heldout loss | {last['heldout_loss']:.4g} |" in card
        assert f"| torch | {metadata.version('torch')} |" in card
        assert "adversary.safetensors" in card


def test_the_card_of_a_run_without_adversary_and_record_claims_neither(
    request_: PretrainConfig, tmp_path: Path
) -> None:
    run = replace(request_, method="vanilla", steps=1)
    train(run, CPU)
    (run.out / record.NAME).unlink()
    export(ExportConfig(checkpoint=run.out, out=tmp_path / "export"))
    card = (tmp_path / "export" / "README.md").read_text()
    assert "adversar" not in card
    assert "Held-out" not in card
    assert not (tmp_path / "export" / "adversary.safetensors").exists()


def test_the_card_of_asa_freelb_has_the_settings_of_both(request_: PretrainConfig) -> None:
    shown = card_of(replace(request_, method="asa_freelb"))
    assert "| asa.tau | 0.1 |" in shown
    assert f"| freelb.passes | {request_.freelb.passes} |" in shown
    assert "pgd" not in shown


def test_the_card_leaves_out_what_the_objective_does_not_read(request_: PretrainConfig) -> None:
    mlm, rtd = (card_of(replace(request_, objective=objective)) for objective in ("mlm", "rtd"))
    assert "| asa.sentence |" in mlm
    assert "| asa.token_mean |" in rtd
    assert not any(f"| {name} |" in mlm for name in ("asa.token_mean", "asa.regression", "rtd.generator_weight"))
    assert not any(f"| {name} |" in rtd for name in ("asa.sentence", "asa.regression"))


def test_the_card_has_every_digit_of_a_setting(request_: PretrainConfig) -> None:
    shown = card_of(replace(request_, optim=OptimConfig(lr=1.23456e-4, beta2=0.99995)))
    assert "| optim.lr | 0.000123456 |" in shown
    assert "| optim.beta2 | 0.99995 |" in shown


def test_an_export_is_replaced_whatever_has_become_of_its_files(request_: PretrainConfig, tmp_path: Path) -> None:
    train(replace(request_, steps=1), CPU)
    again = ExportConfig(checkpoint=request_.out, out=tmp_path / "export", overwrite=True)
    export(again)
    (tmp_path / "export" / "README.md").write_text("mine")
    (tmp_path / "export" / "config.json").unlink()
    export(again)
    assert (tmp_path / "export" / "config.json").is_file()
    (tmp_path / "other").mkdir()
    export(replace(again, out=tmp_path / "other", overwrite=False))  # nothing stands in it
    (tmp_path / "other" / "manifest.json").unlink()
    with pytest.raises(RequestError, match="is not replaced; set another --out"):
        export(replace(again, out=tmp_path / "other"))


@pytest.mark.parametrize("name", ["notes.txt", "run/metrics.jsonl", "model.safetensors.bak"])
def test_what_lies_in_an_export_besides_is_not_lost(name: str, request_: PretrainConfig, tmp_path: Path) -> None:
    """A run below it, say the one that is exported."""
    train(replace(request_, steps=1), CPU)
    again = ExportConfig(checkpoint=request_.out, out=tmp_path / "export", overwrite=True)
    export(again)
    mine = tmp_path / "export" / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(RequestError, match=rf"{name} is no part of that export, so it is not replaced; move it or"):
        export(again)
    assert mine.read_text() == "mine"


def test_an_export_is_verified_before_training_and_by_command(
    request_: PretrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(replace(request_, steps=1), CPU)
    out = tmp_path / "export"
    export(ExportConfig(checkpoint=request_.out, out=out))
    verify(VerifyConfig(folder=out))
    assert f"ok: {out}, export" in capsys.readouterr().out
    flip_a_byte(out / "model.safetensors")
    with pytest.raises(WorkError, match=r"model.safetensors is damaged"):
        verify(VerifyConfig(folder=out))
    with pytest.raises(WorkError, match=r"model.safetensors is damaged: .* remove .*manifest.json"):
        train(replace(request_, model=out, out=tmp_path / "second"), CPU)
    assert not (tmp_path / "second").exists()


def test_a_link_in_an_export_is_not_lost(request_: PretrainConfig, tmp_path: Path) -> None:
    train(replace(request_, steps=1), CPU)
    again = ExportConfig(checkpoint=request_.out, out=tmp_path / "export", overwrite=True)
    export(again)
    (tmp_path / "export" / "runs").symlink_to(tmp_path)
    with pytest.raises(RequestError, match="runs is no part of that export"):
        export(again)


def test_what_comes_to_the_folder_while_an_export_is_made_is_not_lost(
    request_: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(replace(request_, steps=1), CPU)
    mine = tmp_path / "export" / "mine.txt"

    def slow(*given: Any) -> float:
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("kept")
        return parity(*given)

    monkeypatch.setattr("pretrain.export.parity", slow)
    with pytest.raises(RequestError, match="holds no export"):
        export(ExportConfig(checkpoint=request_.out, out=tmp_path / "export", overwrite=True))
    assert mine.read_text() == "kept"


def test_a_link_that_leads_nowhere_yet_is_the_folder_it_names(request_: PretrainConfig, tmp_path: Path) -> None:
    train(replace(request_, steps=1), CPU)
    (tmp_path / "link").symlink_to(tmp_path / "export")
    export(ExportConfig(checkpoint=request_.out, out=tmp_path / "link"))
    assert (tmp_path / "export" / "config.json").is_file()


def test_a_checkpoint_given_as_the_current_folder_keeps_its_name(
    request_: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(replace(request_, steps=1), CPU)
    monkeypatch.chdir(request_.out / "checkpoints" / "step-1")
    export(ExportConfig(checkpoint=Path("."), out=tmp_path / "export"))
    assert manifest.read(tmp_path / "export", "export", "--model")["source"] == "step-1"


def test_the_card_of_a_method_from_outside_has_the_settings_given_for_it(request_: PretrainConfig) -> None:
    settings = to_dict(request_) | {"method": "mine:build", "outside": {"scale": 2.0}}
    shown = card_of(settings)
    assert "| outside.scale | 2 |" in shown
    assert "asa.tau" not in shown


def test_the_card_has_the_newest_scores_up_to_its_checkpoint(request_: PretrainConfig) -> None:
    """And none of steps behind it."""
    scores = [{"event": "eval", "step": step, "heldout_loss": 3.0 - step} for step in (0, 1, 2)]
    shown = card({"config": to_dict(request_), "step": 1, "inputs": {"data": "0"}}, scores, adversary=True)
    assert "## Held-out scores at step 1\n" in shown
    assert "| heldout loss | 2 |" in shown


def card_of(settings: PretrainConfig | dict[str, Any]) -> str:
    config = settings if isinstance(settings, dict) else to_dict(settings)
    return card({"config": config, "step": 1, "inputs": {"data": "0"}}, [], adversary=True)


def test_a_full_disk_is_one_line_and_leaves_nothing(
    request_: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(replace(request_, steps=1), CPU)

    def full(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(BertForMaskedLM, "save_pretrained", full)
    with pytest.raises(NotWritten, match=r"export cannot be written: No space left on device; free some space"):
        export(ExportConfig(checkpoint=request_.out, out=tmp_path / "export"))
    assert not list(tmp_path.glob("export*"))


def test_an_adversary_can_be_taken_up_again_from_beside_the_model(request_: PretrainConfig, tmp_path: Path) -> None:
    train(replace(request_, steps=1), CPU)
    export(ExportConfig(checkpoint=request_.out, out=tmp_path / "export"))
    adversaries = attach(AutoModelForMaskedLM.from_pretrained(tmp_path / "export"), request_.asa)
    adversaries.load_pretrained(tmp_path / "export")
