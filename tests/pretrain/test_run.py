"""Training runs: resumed equals uninterrupted, exported equals trained, bad input is refused in one line."""

import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertConfig, BertModel

from asa import checkpoint, dist, fused, manifest, methods, record
from asa.attention import has_stock_head, trimmed
from asa.config import to_dict
from asa.engine import Precision, StepStats
from asa.errors import Apart, RequestError, WorkError
from asa.hf import weights_sha256
from asa.methods import METHODS, At, MethodsConfig
from asa.methods.random_mask import RandomMaskConfig
from pretrain import export as export_module
from pretrain import figures, loop
from pretrain.config import PretrainConfig, check
from pretrain.export import ExportConfig, export
from pretrain.loop import train
from pretrain.objective import MaskedLM, evaluate
from pretrain.process import run as command
from pretrain.resume import inputs, newest, only_run
from pretrain.run import build
from tests.asa.conftest import tiny_batch, tiny_engine, tiny_module
from tests.pretrain.conftest import losses, make_model

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_process")


@pytest.mark.parametrize(("method", "zero"), [("asa", 2), ("vanilla", 0), ("asa", 3)])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    request_: PretrainConfig, tmp_path: Path, method: str, zero: int
) -> None:
    whole = replace(request_, method=method, zero=zero)
    train(whole, CPU)
    broken = replace(whole, out=tmp_path / "broken")
    shutil.copytree(whole.out, broken.out)
    shutil.rmtree(broken.out / "checkpoints" / "step-6")
    train(broken, CPU)
    expected, found = (
        load_file(out / "checkpoints" / "step-6" / "model.safetensors") for out in (whole.out, broken.out)
    )
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert losses(broken.out) == losses(whole.out)
    assert [step for step, _ in losses(whole.out)] == [1, 2, 3, 4, 5, 6]
    resumed = [event for event in record.read(broken.out / record.NAME) if event["event"] == "resume"]
    assert resumed == [{"event": "resume", "step": 4, "processes": 1}]


def test_the_record_has_every_term_of_equation_10_and_heldout_scores(request_: PretrainConfig) -> None:
    train(request_, CPU)
    events = record.read(request_.out / record.NAME)
    step = next(event for event in events if event["event"] == "train")
    total = step["task"] + step["asa_token"] + step["asa_sentence"] + step["penalty"]
    assert step["loss"] == pytest.approx(total, rel=1e-6)
    assert len(step["masked_share"]) == 2
    assert [event["step"] for event in events if event["event"] == "eval"] == [0, 3, 6]
    assert record.finished(request_.out / record.NAME)
    assert sorted(path.name for path in checkpoint.complete(request_.out / "checkpoints")) == ["step-4", "step-6"]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_at_every_stage_of_zero_the_head_and_the_last_block_leave_out_what_is_not_read(
    request_: PretrainConfig, zero: int
) -> None:
    """Its engine's hooks are none that could read a token."""
    run = build(replace(request_, zero=zero), CPU)
    batch = run.batches.step(0, 1)[0]
    seen: list[tuple[bool, bool]] = []
    model = run.engine.module.model
    model.base_model.get_submodule("encoder.layer.0").register_forward_pre_hook(
        lambda *_: seen.append((has_stock_head(model), trimmed(model)))
    )
    run.method.backward(run.engine, batch, At(0, 0))
    assert seen[0] == (True, True)


def test_activation_checkpointing_changes_no_update(request_: PretrainConfig, tmp_path: Path) -> None:
    train(request_, CPU)
    again = replace(request_, out=tmp_path / "again", activation_checkpointing=True)
    train(again, CPU)
    one, other = (load_file(c.out / "checkpoints" / "step-6" / "model.safetensors") for c in (request_, again))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_the_export_loads_in_transformers_and_keeps_the_adversary_beside_the_model(
    request_: PretrainConfig, tmp_path: Path
) -> None:
    train(request_, CPU)
    out = tmp_path / "export"
    assert export(ExportConfig(checkpoint=request_.out, out=out)) <= export_module.PARITY
    state = load_file(request_.out / "checkpoints" / "step-6" / "model.safetensors")
    model, info = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, p in model.named_parameters():
        assert torch.equal(p, state[f"model.{name}"])
    assert {name.split(".")[0] for name in load_file(out / "adversary.safetensors")} == {"0", "1"}


def test_an_export_whose_logits_differ_is_not_published(
    request_: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(replace(request_, steps=1), CPU)
    monkeypatch.setattr(export_module, "parity", lambda *_: 0.5)
    with pytest.raises(WorkError, match="differ"):
        export(ExportConfig(checkpoint=request_.out, out=tmp_path / "export"))
    assert not list(tmp_path.glob("export*"))


@pytest.fixture(scope="module")
def finished(model: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory, one_process: None) -> PretrainConfig:
    """A run of two steps."""
    config = PretrainConfig(
        data=shards, model=model, out=tmp_path_factory.mktemp("finished"), steps=2, global_batch=8, micro_batch=4
    )
    train(config, CPU)
    return config


def test_the_record_holds_no_settings_of_methods_that_the_run_does_not_train_with(finished: PretrainConfig) -> None:
    start = record.read(finished.out / record.NAME)[0]
    others = vars(MethodsConfig()).keys() - {"asa"}
    assert start["config"].keys() == to_dict(finished).keys() - others
    assert start["config"]["asa"] == to_dict(finished)["asa"]
    assert start["inputs"] == inputs(finished)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 9), ("method", "vanilla"), ("precision", "bf16"), ("steps", 3)],
)
def test_a_changed_setting_is_named_instead_of_continuing_with_it(
    finished: PretrainConfig, key: str, value: object
) -> None:
    with pytest.raises(RequestError, match=rf"another {key} \({getattr(finished, key)}\); give the same"):
        train(replace(finished, **{key: value}), CPU)


def test_a_run_that_is_to_be_longer_is_told_how(finished: PretrainConfig) -> None:
    with pytest.raises(RequestError, match=r"--out; to train longer, export it and give --model that folder$"):
        newest(replace(finished, steps=finished.steps + 1), 1)


def test_a_changed_setting_within_a_group_is_named_by_its_whole_key(finished: PretrainConfig) -> None:
    with pytest.raises(RequestError, match=r"holds a run with another optim\.lr \([\d.e-]+\); give the same"):
        newest(replace(finished, optim=replace(finished.optim, lr=0.5)), 1)


def test_other_micro_batches_draw_other_dropout_and_it_is_told(finished: PretrainConfig) -> None:
    told: list[str] = []
    assert newest(finished, 1, told.append) is not None
    assert newest(replace(finished, micro_batch=2), 1, told.append) is not None
    assert told == [], "of a complete run"
    path = finished.out / record.NAME
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])  # without its end
    assert newest(replace(finished, micro_batch=2), 1, told.append) is not None
    path.write_bytes(whole)
    assert told == ["micro-batches of 2 rows, not 4: the rows are the same, what is drawn (as dropout) is drawn anew"]


def test_another_model_is_named_and_a_copy_of_the_same_is_not(
    finished: PretrainConfig, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "copy")
    assert newest(replace(finished, model=tmp_path / "copy"), 1) is not None
    weights = tmp_path / "copy" / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(weights).items()}, weights)
    weights_sha256.cache_clear()
    with pytest.raises(RequestError, match="holds a run with another model;"):
        newest(replace(finished, model=tmp_path / "copy"), 1)
    weights_sha256.cache_clear()


def test_a_schedule_of_masks_counts_by_its_content(shards: Path, model: Path, tmp_path: Path) -> None:
    schedule, moved = tmp_path / "schedule.jsonl", tmp_path / "moved.jsonl"
    lines = [{"event": "train", "step": step, "masked_share": [0.5, 0.4]} for step in (1, 2)]
    schedule.write_text("".join(json.dumps(line) + "\n" for line in lines))
    moved.write_text(schedule.read_text())
    masks = RandomMaskConfig(strategy="scheduled", schedule=schedule)
    config = PretrainConfig(
        data=shards, model=model, out=tmp_path / "run", steps=1, global_batch=8, method="random_mask", random_mask=masks
    )
    train(config, CPU)
    assert newest(replace(config, random_mask=replace(masks, schedule=moved)), 1) is not None
    moved.write_text(moved.read_text().replace("0.5", "0.1"))
    with pytest.raises(RequestError, match=r"holds a run with another content of random_mask\.schedule;"):
        newest(replace(config, random_mask=replace(masks, schedule=moved)), 1)


def test_a_tokenizer_that_reads_texts_otherwise_is_refused(shards: Path, model: Path, tmp_path: Path) -> None:
    """It would be exported with a model that was trained on other ids."""
    shutil.copytree(model, tmp_path / "copy")
    file = tmp_path / "copy" / "tokenizer.json"
    found = json.loads(file.read_text())
    found["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    file.write_text(json.dumps(found))
    with pytest.raises(RequestError, match="same vocabulary that reads texts otherwise"):
        check(PretrainConfig(data=shards, model=tmp_path / "copy", out=tmp_path / "run"), 1, cuda=False)


def test_a_changed_file_of_a_method_from_outside_is_another_method(
    shards: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plainly.py"
    file.write_text("from asa.methods.vanilla import Vanilla\n\n\ndef build(settings):\n    return Vanilla()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS, "plainly:build", None)  # for monkeypatch to take it out again
    del METHODS["plainly:build"]
    config = PretrainConfig(
        data=shards, model=model, out=tmp_path / "run", steps=1, global_batch=8, method="plainly:build"
    )
    train(config, CPU)
    assert newest(config, 1) is not None
    file.write_text(file.read_text() + "# changed\n")
    assert newest(config, 1) is not None, "what is loaded is what runs"
    for place in (METHODS, methods._loaded, sys.modules):  # as another process would find it
        monkeypatch.delitem(place, "plainly:build" if place is METHODS else "plainly")
    replace(config)  # a config loads what it names
    with pytest.raises(RequestError, match="holds a run with another file of the method;"):
        newest(config, 1)


def test_a_run_that_died_before_its_last_line_is_finished_when_started_again(
    finished: PretrainConfig, tmp_path: Path
) -> None:
    config = replace(finished, out=tmp_path / "copy")
    shutil.copytree(finished.out, config.out)
    path = config.out / record.NAME
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:-1]))
    train(config, CPU)
    assert record.finished(path)
    assert path.read_text().splitlines(keepends=True)[:-1] == whole[:-1]


def test_a_copy_of_a_checkpoint_is_none(finished: PretrainConfig, tmp_path: Path) -> None:
    shutil.copytree(finished.out, tmp_path / "copy")
    root = tmp_path / "copy" / "checkpoints"
    shutil.copytree(root / "step-2", root / "step-2.bak")
    assert checkpoint.complete(root) == [root / "step-2"]


def test_two_runs_never_write_into_one_folder(finished: PretrainConfig) -> None:
    with only_run(finished.out), pytest.raises(RequestError, match="another process is writing"):
        train(finished, CPU)


def test_exporting_over_anything_but_an_export_is_refused(finished: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for out in (tmp_path / "mine", finished.out, finished.out / "checkpoints" / "step-2"):
        with pytest.raises(RequestError, match="--out"):
            export(ExportConfig(checkpoint=finished.out, out=out, overwrite=True))
    out = tmp_path / "export"
    for _ in range(2):
        export(ExportConfig(checkpoint=finished.out, out=out, overwrite=True))
    assert (finished.out / "checkpoints" / "step-2" / manifest.NAME).is_file()


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_process_count_that_divides_the_batch_has_a_micro_batch(request_: PretrainConfig, world: int) -> None:
    config = replace(request_, global_batch=24, micro_batch=5)
    assert config.micro(world) <= 5
    assert config.micro(world) * config.slots(world) * world == 24


def test_a_damaged_checkpoint_is_not_exported(request_: PretrainConfig, tmp_path: Path) -> None:
    train(replace(request_, steps=2), CPU)
    folder = request_.out / "checkpoints" / "step-2"
    (folder / "model.safetensors").unlink()
    with pytest.raises(WorkError, match=r"lacks model\.safetensors"):
        export(ExportConfig(checkpoint=request_.out, out=tmp_path / "export"))
    assert not list(tmp_path.glob("export*"))


def test_a_flipped_byte_in_a_shard_stops_the_run_before_training(
    request_: PretrainConfig, shards: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    content = bytearray((copy / "train-00000.arrow").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "train-00000.arrow").write_bytes(content)
    with pytest.raises(WorkError, match=r"train-00000\.arrow is damaged"):
        train(replace(request_, data=copy), CPU)
    assert not request_.out.exists()


def test_each_machine_verifies_its_own_shards(
    request_: PretrainConfig, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the first process of the second one, whose copy is damaged."""
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    with (copy / "heldout-00000.arrow").open("r+b") as file:
        file.write(b"\x01")
    monkeypatch.setattr(dist, "rank", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(dist, "all_gather", lambda mine: [None, None, mine])
    config = replace(request_, data=copy)
    loop._verify(config)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(WorkError, match=r"rank 2: .*heldout-00000\.arrow is damaged"):
        loop._verify(config)


def test_an_out_that_is_or_lies_below_a_file_is_refused(
    request_: PretrainConfig, finished: PretrainConfig, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    for out, reason in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "run", "Not a directory")):
        with pytest.raises(RequestError, match=rf"no folder to write into \({reason}\); set another --out"):
            train(replace(request_, out=out), CPU)
    with pytest.raises(RequestError, match=r"\(Not a directory\); set another --out"):
        export(ExportConfig(checkpoint=finished.out, out=tmp_path / "file" / "hf"))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_settings_file_that_cannot_be_written_is_failed_work(request_: PretrainConfig) -> None:
    (request_.out / "config.yaml").mkdir(parents=True)
    (request_.out / record.NAME).write_text('{"event": "start", "stage": "pretrain"}\n')  # or it is somebody's
    with pytest.raises(WorkError, match=r"config\.yaml cannot be written: Is a directory; mend that"):
        train(request_, CPU)


@pytest.mark.parametrize(
    ("method", "recomputed", "shown"),
    [("vanilla", False, True), ("vanilla", True, False), ("asa", False, False), ("asa_sparse", False, False)],
)
def test_mfu_is_shown_where_one_steps_count_is_true_of_all(
    request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch, method: str, recomputed: bool, shown: bool
) -> None:
    monkeypatch.setattr(figures, "peak", lambda *_: 1e12)
    train(replace(request_, steps=3, method=method, activation_checkpointing=recomputed), CPU)
    lines = [event for event in record.read(request_.out / record.NAME) if event["event"] == "train"]
    # Neither the step whose products are counted is timed nor the next, which has the kernels that counting keeps out.
    assert ["mfu" in line for line in lines] == [False, False, shown]
    assert ["tokens_per_s" in line for line in lines] == [not shown, not shown, True]


def test_the_time_of_evaluations_and_saves_is_no_part_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 10.0, 90.0, 100.0))
    monkeypatch.setattr(figures, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    run: Any = SimpleNamespace(method=SimpleNamespace(uses_adversary=True))
    meter = figures.Meter(run)
    meter.steps = 5
    with meter.paused():
        pass
    assert meter.rate() == 5 / 20


def refused(config: PretrainConfig, world: int = 1) -> str:
    with pytest.raises((RequestError, WorkError)) as caught:
        check(config, world, cuda=False)
    assert "\n" not in str(caught.value)
    assert not config.out.exists()
    return str(caught.value)


def test_a_run_is_not_mixed_with_what_it_reads(request_: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(request_.model)
    for out, name in ((request_.model, "model"), (tmp_path / "link", "model"), (request_.data, "data")):
        with pytest.raises(
            RequestError, match=f"is the folder of {name}, which a run must not be mixed with; set --out"
        ):
            check(replace(request_, out=out), 1, cuda=False)
    both = replace(request_, rtd=replace(request_.rtd, generator=tmp_path / "g"), out=tmp_path / "g")
    with pytest.raises(RequestError, match=r"is the folder of rtd\.generator"):
        check(replace(both, objective="rtd"), 1, cuda=False)
    with pytest.raises(RequestError, match="must not be mixed with; set another --out"):
        check(replace(request_, out=request_.data.parent), 1, cuda=False)
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / manifest.NAME).write_text("{}")
    with pytest.raises(RequestError, match=r"export is a finished folder .* must not be mixed with; set another --out"):
        check(replace(request_, out=tmp_path / "export"), 1, cuda=False)
    check(both, 1, cuda=False)  # whose objective reads no generator


def test_a_model_that_is_a_link_to_itself_is_told_in_a_line(request_: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "give a Hugging Face model folder by --model" in refused(replace(request_, model=tmp_path / "loop"))


def test_an_optimizer_that_slows_the_adversary_down_is_told(
    request_: PretrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    for eps, told in ((1e-6, True), (1e-8, False)):
        asked = replace(request_, method="asa", optim=replace(request_.optim, eps=eps))
        build(asked, torch.device("cpu")).engine.close()
        assert ("note: eps = 1e-06 with asa.reversal = 0.0001, a factor of the" in capsys.readouterr().out) == told


def test_a_batch_of_more_rows_than_there_are_is_told(
    request_: PretrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = len(build(request_, CPU).batches.train)
    assert "a step has some several times" not in capsys.readouterr().out
    build(replace(request_, global_batch=4 * rows), CPU)
    told = f"note: --global_batch {4 * rows:,} is over the {rows:,} rows: a step has some several times"
    assert told in capsys.readouterr().out


def test_an_error_that_a_rank_does_not_share_is_told_by_that_rank(
    request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*_: Any) -> int:
        raise Apart("its device is gone")

    monkeypatch.setattr("pretrain.loop.train", lost)
    monkeypatch.setattr("pretrain.process.rank", lambda: 1)
    monkeypatch.setattr(dist, "init", lambda *_: None)
    monkeypatch.setattr(dist, "left", nullcontext)
    given = ["--data", str(request_.data), "--model", str(request_.model), "--out", str(request_.out)]
    with pytest.raises(Apart):
        command(given)
    assert capsys.readouterr().err == "error on rank 1: its device is gone\n"


@pytest.mark.parametrize(("setting", "devices"), [("0", set()), ("1", {"cuda"})])
def test_the_environment_leaves_the_kernels_out(
    setting: str, devices: set[str], request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[set[str]] = []
    monkeypatch.setattr(fused, "DEVICES", {"cuda"})
    monkeypatch.setattr("pretrain.loop.train", lambda *_: found.append(set(fused.DEVICES)))
    monkeypatch.setattr(dist, "init", lambda *_: None)
    monkeypatch.setattr(dist, "left", nullcontext)
    monkeypatch.setenv("ASA_FUSED", setting)
    command(["--data", str(request_.data), "--model", str(request_.model), "--out", str(request_.out)])
    assert found == [devices]


def test_a_flag_of_another_method_is_told(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--data", str(tmp_path / "none"), "--model", str(model), "--out", str(tmp_path / "out")]
    with pytest.raises(RequestError, match="none"):
        command([*given, "--method", "vanilla", "--asa.tau", "0.2"])
    assert capsys.readouterr().out == "note: method vanilla does not read --asa.tau\n"
    with pytest.raises(RequestError, match="none"):
        command([*given, "--method", "asa", "--asa.tau", "0.2"])
    assert capsys.readouterr().out == ""


def test_a_flag_of_another_objective_is_told(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--data", str(tmp_path / "none"), "--model", str(model), "--out", str(tmp_path / "out")]
    given += [
        "--asa.sentence",
        "mse",
        "--asa.token_mean=rows",
        "--asa.regression",
        "squared",
        "--rtd.generator_weight",
        "0.5",
    ]
    told = {
        ("mlm", "asa"): "note: method asa with objective mlm does not read"
        " --asa.token_mean, --asa.regression, --rtd.generator_weight\n",
        ("rtd", "asa"): "note: method asa with objective rtd does not read --asa.sentence, --asa.regression\n",
        ("rtd", "vanilla"): "note: method vanilla does not read --asa.sentence, --asa.token_mean, --asa.regression\n",
    }
    for (objective, method), line in told.items():
        with pytest.raises(RequestError, match="none"):
            command([*given, "--objective", objective, "--method", method])
        assert capsys.readouterr().out == line


def test_what_a_method_has_in_another_way_and_an_entry_of_another_one_are_told(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data", str(tmp_path / "none"), "--model", str(model), "--out", str(tmp_path / "out")]
    entries = "configs/method/alum.yaml:pre-training"
    told = {
        "asa": f"note: method asa reads nothing of {entries}; another one is set by --method\n",
        "alum": "",
        "asa_freelb": f"note: method asa_freelb reads nothing of {entries}; another one is set by --method\n"
        "note: method asa_freelb with objective mlm does not read --asa.dropout\n",
    }
    for method, lines in told.items():
        flags = ["--config", entries, "--method", method] + ["--asa.dropout=shared"] * (method == "asa_freelb")
        with pytest.raises(RequestError, match="none"):
            command([*given, *flags])
        assert capsys.readouterr().out == lines


def test_the_memory_of_a_run_is_not_that_of_what_started_it() -> None:
    look = "import torch; from pretrain.figures import memory; print(memory(torch.device('cpu')))"
    code = (
        "import subprocess, sys, torch; held = torch.ones(2**28);"
        f" print(subprocess.run([sys.executable, '-c', {look!r}], capture_output=True, text=True).stdout)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0.05 < float(found) < 1, "the process that started it holds 1.07 GB more"


def test_shards_without_manifest(request_: PretrainConfig, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert manifest.NAME in refused(replace(request_, data=tmp_path / "empty"))


def test_shards_made_with_another_tokenizer(request_: PretrainConfig, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", extra_words=3)
    assert "another tokenizer" in refused(replace(request_, model=other))


def test_fp16_on_cpu(request_: PretrainConfig) -> None:
    assert "--precision" in refused(replace(request_, precision="fp16"))


def test_weights_and_biases_without_its_package(request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.config.find_spec", lambda name: None)
    assert "--wandb" in refused(replace(request_, wandb="project"))


def test_a_batch_that_the_processes_cannot_share(request_: PretrainConfig) -> None:
    assert "--nproc" in refused(request_, world=3)


def test_a_missing_model_and_one_without_weights(request_: PretrainConfig, model: Path, tmp_path: Path) -> None:
    assert "--model" in refused(replace(request_, model=tmp_path / "nowhere"))
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    (bare / "model.safetensors").unlink()
    assert "no weights" in refused(replace(request_, model=bare))
    (bare / "model.safetensors").write_bytes(b"none")
    assert "model.safetensors is damaged" in refused(replace(request_, model=bare))


def test_a_model_with_fewer_embeddings_than_the_shards_have_ids(
    request_: PretrainConfig, model: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    shutil.copytree(model, small)
    settings = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(settings | {"vocab_size": settings["vocab_size"] - 1}))
    assert "embeddings for" in refused(replace(request_, model=small))


def test_shards_without_heldout_rows(request_: PretrainConfig, shards: Path, tmp_path: Path) -> None:
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    content = json.loads((copy / manifest.NAME).read_text())
    content["facts"]["rows"]["heldout"] = 0
    manifest.write(copy, "shards", content["facts"])
    assert "no heldout row" in refused(replace(request_, data=copy))


def test_rows_longer_than_the_model_reads(request_: PretrainConfig, model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    shutil.copytree(model, short)
    settings = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 8}))
    assert "at most 8 tokens" in refused(replace(request_, model=short))


def test_an_unsupported_family_lists_the_supported_ones(request_: PretrainConfig, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "gpt"
    shutil.copytree(model, other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(settings | {"model_type": "gpt2"}))
    message = refused(replace(request_, model=other))
    assert "gpt2" in message
    assert "bert" in message.replace("gpt2", "")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bf16_on_a_cpu_is_told_what_it_does(
    precision: Precision, request_: PretrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    train(replace(request_, precision=precision, steps=1), CPU)
    assert ("in bf16 on a CPU torch rounds" in capsys.readouterr().out) == (precision == "bf16")


def test_a_checkpoint_without_mlm_head_gets_the_same_new_one_for_the_same_seed(
    request_: PretrainConfig, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    headless = tmp_path / "headless"
    shutil.copytree(model, headless)
    BertModel(BertConfig.from_pretrained(model)).save_pretrained(headless)
    for name in ("first", "second"):
        train(replace(request_, model=headless, steps=1, out=tmp_path / name), CPU)
    assert "drawn from seed 0" in capsys.readouterr().out
    first, second = (losses(tmp_path / name) for name in ("first", "second"))
    assert first == second


@pytest.mark.parametrize(
    ("name", "most"),
    [("NVIDIA H200", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA T400", None)],
)
def test_the_peak_is_that_of_the_device_by_its_whole_name(
    name: str, most: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert figures.peak(torch.device("cuda"), "bf16") == most


def test_what_attention_computes_anew_is_not_counted() -> None:
    aten = torch.ops.aten
    counts = {aten.mm: 10, aten._scaled_dot_product_flash_attention_backward: 50, aten.bmm: 1}
    assert figures.once(counts) == 51


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", False),
        ("NVIDIA GeForce RTX 4090", True),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", False),
    ],
)
def test_a_part_of_a_chip_has_no_known_peak(name: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert (figures.peak(torch.device("cuda"), "bf16") is not None) == known


def test_an_input_that_cannot_be_read_is_named(request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: PretrainConfig) -> dict[str, str]:
        raise PermissionError(13, "Permission denied", "m/model.safetensors")

    monkeypatch.setattr("pretrain.loop.inputs", closed)
    with pytest.raises(WorkError, match=r"^m/model\.safetensors cannot be read: Permission denied$"):
        train(request_, CPU)


def test_terms_that_are_one_tensor_are_summed_over_the_ranks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the loss and the task of plain training."""
    monkeypatch.setattr("asa.dist.all_reduce_", lambda tensor: tensor.mul_(2))
    run: Any = SimpleNamespace(faults=SimpleNamespace(skipped=0), device=CPU)
    meter: Any = SimpleNamespace(rate=lambda: None)
    loss = torch.tensor(1.5)
    values = figures.figures(run, {"loss": loss, "task": loss}, StepStats(True, 1.0, 0.1), meter)
    assert (values["loss"], values["task"]) == (3.0, 3.0)


def test_tokens_per_second_are_those_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As each of them makes all steps."""
    monkeypatch.setattr("asa.dist.world", lambda: 4)
    run: Any = SimpleNamespace(faults=SimpleNamespace(skipped=0), device=CPU, tokens_per_step=512)
    meter: Any = SimpleNamespace(rate=lambda: 2.0, peak=None)
    values = figures.figures(run, {"loss": torch.tensor(1.5)}, StepStats(True, 1.0, 0.1), meter)
    assert values["tokens_per_s"] == 1024


def test_memory_that_the_system_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run: Any = SimpleNamespace(faults=SimpleNamespace(skipped=0), device=CPU)
    meter: Any = SimpleNamespace(rate=lambda: None)
    for told in (True, False):
        values = figures.figures(run, {"loss": torch.tensor(1.5)}, StepStats(True, 1.0, 0.1), meter)
        assert ("memory_gb" in values) == told
        monkeypatch.setattr("asa.resident.STATUS", tmp_path / "none")


def test_every_step_of_every_rank_draws_its_own_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(seed=5, slots=lambda world: 1)
    batches, method = SimpleNamespace(step=lambda *_: []), SimpleNamespace(replays=0)
    objective, watchdog = SimpleNamespace(prepare=lambda *_: ([], {})), SimpleNamespace(beat=lambda: None)

    def seed(step: int, rank: int) -> int:
        monkeypatch.setattr("asa.dist.rank", lambda: rank)
        run = SimpleNamespace(config=config, step=step, batches=batches, objective=objective, method=method)
        session: Any = SimpleNamespace(run=SimpleNamespace(**vars(run), device=CPU, engine=None), watchdog=watchdog)
        loop.update(session, log=False)
        return torch.initial_seed()

    places = [(step, rank) for step in range(3) for rank in range(3)]
    assert len({seed(*place) for place in places}) == len(places)
    assert seed(1, 2) == seed(1, 2)


def test_a_method_is_told_of_the_updates_that_were_made_and_of_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """SMART's teacher follows the weights."""
    made, told = [True, False, True], list[int]()
    monkeypatch.setattr(loop, "_not_applied", lambda *_: None)
    steps = (StepStats(applied, 1.0, 0.1) for applied in made)
    engine = SimpleNamespace(step=lambda norms: next(steps))
    for step in range(len(made)):
        run = SimpleNamespace(
            config=SimpleNamespace(seed=5, slots=lambda world: 1),
            step=step,
            batches=SimpleNamespace(step=lambda *_: []),
            objective=SimpleNamespace(prepare=lambda *_: ([], {})),
            method=SimpleNamespace(replays=1, after_step=lambda _, step=step: told.append(step)),
            faults=SimpleNamespace(applied=lambda: None),
            device=CPU,
            engine=engine,
        )
        session: Any = SimpleNamespace(run=run, watchdog=SimpleNamespace(beat=lambda: None))
        loop.update(session, log=False)
    assert told == [0, 2]


def test_the_lines_of_a_run_are_on_disk_before_the_checkpoint_that_goes_on_behind_them(
    request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else after a power cut the checkpoint may be there and they not."""
    done, sync, save = list[str](), record.Record.sync, checkpoint.save
    monkeypatch.setattr(record.Record, "sync", lambda self: (done.append("lines"), sync(self)))
    monkeypatch.setattr(checkpoint, "save", lambda *given: (done.append("checkpoint"), save(*given)))
    train(replace(request_, method="vanilla", steps=2, save_every=1), CPU)
    assert done == ["lines", "checkpoint"] * 2 + ["lines"]  # the last: of the end


def test_heldout_figures_are_of_the_model_without_dropout_and_training_goes_on_with_it() -> None:
    """Two models of the same weights."""
    modules = [tiny_module(dropout=dropout) for dropout in (0.0, 0.5)]
    still, noisy = (evaluate(MaskedLM(), tiny_engine(module.train()), [tiny_batch()]) for module in modules)
    assert still == noisy
    assert all(part.training for part in modules[1].modules())


def test_every_rank_samples_held_out_tokens_of_its_own_and_each_time_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def seed(rank: int) -> int:
        monkeypatch.setattr("asa.dist.rank", lambda: rank)
        evaluate(MaskedLM(), tiny_engine(tiny_module()), [tiny_batch()])
        return torch.initial_seed()

    assert len({seed(rank) for rank in range(3)}) == 3
    assert seed(1) == seed(1)


@pytest.mark.parametrize("launched", [True, False])
def test_a_stopped_run_has_its_signals_code_and_a_launchers_rank_none(
    launched: bool, request_: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed's launcher takes the code of a rank for a failure, and ends the others at once."""
    monkeypatch.setattr("pretrain.loop.train", lambda *_: 15)
    monkeypatch.setattr(dist, "init", lambda *_: None)
    monkeypatch.setattr(dist, "left", nullcontext)
    monkeypatch.setenv("RANK", "0") if launched else monkeypatch.delenv("RANK", raising=False)
    given = ["--data", str(request_.data), "--model", str(request_.model), "--out", str(request_.out)]
    with nullcontext() if launched else pytest.raises(SystemExit, match="143"):
        command(given)
