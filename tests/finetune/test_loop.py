"""One run: determinism, selection, evaluation, what is recorded."""

import errno
import os
import shutil
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, pipeline

from asa import fused, manifest, record
from asa.adversary import Adversaries, ASAConfig
from asa.engine import PlainEngine, StepStats
from asa.errors import RequestError, WorkError
from asa.hf import weights_sha256
from asa.methods import METHODS, At
from asa.methods.vanilla import Vanilla
from finetune import loop, saved
from finetune.loop import steps_of
from finetune.meter import Meter
from finetune.model import HEADS, build, engine_of, save_model
from finetune.predictions import Predictions, predict
from finetune.run import Run
from finetune.sweep import Sweep, sweep
from finetune.tasks.task import Kind
from finetune.together import Alone
from tests.asa.conftest import tiny_module
from tests.finetune.conftest import WORDS, Given, Make, events, small_task

COLOURS = small_task("classification")


def scores(out: Path, name: str) -> list[dict[str, Any]]:
    """Everything after the start line but the costs."""
    costs = ("seconds", "train_seconds", "peak_resident_bytes")
    return [{key: value for key, value in event.items() if key not in costs} for event in events(out, name)[1:]]


def test_the_same_seed_gives_the_same_metrics_and_another_seed_others(given: Given, tmp_path: Path) -> None:
    sweep(given(methods=["vanilla", "asa"], seeds=[0, 1]))
    sweep(given(methods=["asa", "vanilla"], seeds=[1, 0], out=tmp_path / "again"))
    for method in ("vanilla", "asa"):
        first = scores(tmp_path / "runs", f"tiny-{method}-0")
        assert first == scores(tmp_path / "again", f"tiny-{method}-0")
        assert first != scores(tmp_path / "runs", f"tiny-{method}-1")


@pytest.mark.parametrize(
    ("error", "told", "closed"),
    [(None, "", 2), (WorkError("no"), "2 of 2 runs failed", 2), (Alone("lost"), "lost", 0)],
)
def test_a_run_closes_its_engine_where_the_process_goes_on(
    error: WorkError | None, told: str, closed: int, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        assert error is not None
        raise error

    engines: list[PlainEngine] = []
    monkeypatch.setattr(PlainEngine, "close", lambda engine: engines.append(engine))
    if error is not None:
        monkeypatch.setattr(Vanilla, "backward", refuse)
    with pytest.raises(WorkError, match=told) if error else nullcontext():
        sweep(given(seeds=[0, 1]))
    assert len(engines) == closed


def test_peak_memory_is_that_of_steps_and_not_of_evaluations(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = [0]  # what a GPU would have counted since it was last told to forget

    def taking(work: Any, size: int) -> Any:
        def counted(*args: Any) -> Any:
            most[0] = max(most[0], size)
            return work(*args)

        return counted

    monkeypatch.setattr(loop, "_step", taking(loop._step, 100))
    monkeypatch.setattr(loop, "predict", taking(loop.predict, 900))
    monkeypatch.setattr(loop, "_peak", lambda device: most[0])
    monkeypatch.setattr(loop, "_forget_peak", lambda device: most.__setitem__(0, 0))
    sweep(given(evals_per_epoch=2))
    end = events(tmp_path / "runs", "tiny-vanilla-0")[-1]
    assert [value for key, value in end.items() if key.startswith("peak_")] == [100]


def test_every_update_draws_its_own_dropout(given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a method that makes several of a batch, too, which its record tells."""
    seeds = list[tuple[int, ...]]()
    monkeypatch.setattr(loop, "seed_all", lambda *parts: seeds.append(parts))
    sweep(given(methods=["freeat"], max_steps=3))
    assert len(set(seeds)) == len(seeds) == 6
    end = events(tmp_path / "runs", "tiny-freeat-0")[-1]
    assert (end["steps"], end["updates"]) == (3, 6)


def test_every_step_has_dropout_those_behind_an_evaluation_too(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was loaded or scored has none."""
    modes, backward = list[bool](), Vanilla.backward

    def noted(method: Vanilla, engine: PlainEngine, *given: Any) -> dict[str, Any]:
        modes.append(all(part.training for part in engine.module.modules()))
        return backward(method, engine, *given)

    monkeypatch.setattr(Vanilla, "backward", noted)
    sweep(given(epochs=2, batch=12, evals_per_epoch=2))
    assert modes == [True] * 4


def test_a_run_begins_when_nothing_is_left_of_the_one_before(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref] = []

    def building(*args: Any) -> Any:
        assert [ref() for ref in made] == [None] * len(made)
        module, new = build(*args)
        made.append(weakref.ref(module.model.base_model))
        return module, new

    monkeypatch.setattr(loop, "build", building)
    sweep(given(seeds=[0, 1, 2]))
    assert len(made) == 3


@pytest.mark.parametrize(("setting", "devices"), [("0", set()), ("1", {"cuda"})])
def test_the_environment_leaves_the_kernels_out(
    setting: str, devices: set[str], monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    monkeypatch.setattr(fused, "DEVICES", {"cuda"})
    monkeypatch.setenv("ASA_FUSED", setting)
    engine_of(make(), tiny_module(), 1)
    assert devices == fused.DEVICES
    monkeypatch.setattr(fused, "DEVICES", {"cuda"})
    saved.device()
    assert devices == fused.DEVICES


def test_a_worker_tells_torch_and_deepspeed_which_gpu_is_its_own(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    third, taken = torch.device("cuda", 3), []
    monkeypatch.setattr("finetune.model.device_of", lambda config: third)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr("finetune.model.PlainEngine", lambda module, optim, updates, device: device)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert engine_of(make(), tiny_module(), 1) == third
    assert taken == [third]
    assert os.environ["LOCAL_RANK"] == "3"


def test_a_run_is_recorded_as_documented(given: Given, tmp_path: Path) -> None:
    sweep(given(methods=["asa"], evals_per_epoch=2))
    start, *middle, end = events(tmp_path / "runs", "tiny-asa-0")
    assert {key: start[key] for key in ("stage", "model", "task", "metrics", "method", "seed", "processes")} == {
        "stage": "finetune",
        "model": "tiny",
        "task": "colours",
        "metrics": ["accuracy", "macro_f1"],
        "method": "asa",
        "seed": 0,
        "processes": 1,
    }
    assert start["config"]["optim"]["lr"] == 0.01
    assert start["request"]["optim"] == {"lr": 0.01}
    assert {"classifier.bias", "classifier.weight"} <= set(start["new_weights"])
    trained = [event for event in middle if event["event"] == "train"]
    assert [event["step"] for event in trained] == [2, 4, 6]
    assert {"loss", "task", "asa", "penalty", "masked_share", "grad_norm", "lr"} <= trained[0].keys()
    assert len(trained[0]["masked_share"]) == 2
    dev = [event for event in middle if event["event"] == "eval"]
    assert [(event["step"], event["epoch"]) for event in dev] == [(2, 0.666667), (3, 1.0), (5, 1.666667), (6, 2.0)]
    assert {"split", "accuracy", "macro_f1", "loss"} <= dev[0].keys()
    assert {"dev_accuracy", "test_accuracy", "test_macro_f1", "seconds", "train_seconds", "steps"} <= end.keys()


def test_a_log_line_holds_the_means_of_its_steps(given: Given, tmp_path: Path) -> None:
    sweep(given(log_every=1, out=tmp_path / "each"))
    sweep(given(log_every=6, out=tmp_path / "mean"))
    singles = [event["loss"] for event in events(tmp_path / "each", "tiny-vanilla-0") if event["event"] == "train"]
    (whole,) = [event["loss"] for event in events(tmp_path / "mean", "tiny-vanilla-0") if event["event"] == "train"]
    assert whole == pytest.approx(sum(singles) / 6, rel=1e-6)


def test_the_colours_are_learnt(given: Given, tmp_path: Path) -> None:
    sweep(given(epochs=20))
    assert events(tmp_path / "runs", "tiny-vanilla-0")[-1]["test_accuracy"] > 0.9


def dev_scores(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Let the evaluations on dev find these accuracies, and those after them 0.5."""
    found = iter(values)
    monkeypatch.setattr(loop, "score", lambda *_: {"accuracy": next(found, 0.5), "loss": 0.0})


def test_the_first_of_the_best_dev_evaluations_is_selected_and_its_weights_are_what_test_sees(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev_scores(monkeypatch, 0.2, 0.6, 0.6, 0.4)
    heads = []

    def noting(module: Any, *rest: Any) -> Predictions:
        heads.append(module.model.classifier.weight.detach().clone())
        return predict(module, *rest)

    monkeypatch.setattr(loop, "predict", noting)
    sweep(given(epochs=4, save_model=True))
    end = events(tmp_path / "runs", "tiny-vanilla-0")[-1]
    assert (end["best_step"], end["best_epoch"], end["dev_accuracy"], end["test_accuracy"]) == (6, 2.0, 0.6, 0.5)
    assert len(heads) == 5
    assert torch.equal(heads[4], heads[1])
    assert not torch.equal(heads[4], heads[3])
    (folder,) = (tmp_path / "runs").glob("*/tiny-vanilla-0/model")
    assert torch.equal(load_file(folder / "model.safetensors")["classifier.weight"], heads[1])


def test_a_run_ends_when_its_patience_does_and_the_rate_has_decayed_as_if_it_did_not(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev_scores(monkeypatch, 0.6, 0.6, 0.7, 0.7, 0.1, 0.9)
    sweep(given(epochs=6, patience=2, log_every=4, out=tmp_path / "short"))
    sweep(given(epochs=6, log_every=4, out=tmp_path / "long"))
    *_, last, end = events(tmp_path / "short", "tiny-vanilla-0")
    assert (end["steps"], end["best_step"], end["dev_accuracy"]) == (15, 9, 0.7)
    assert (last["event"], last["step"]) == ("train", 15)
    lines = [
        {event["step"]: event["lr"] for event in events(tmp_path / out, "tiny-vanilla-0") if event["event"] == "train"}
        for out in ("short", "long")
    ]
    assert all(lines[0][step] == lines[1][step] for step in (4, 8, 12))


@pytest.mark.parametrize("kind", ["classification", "regression", "token", "choice"])
def test_the_seed_decides_head_and_adversary_and_the_method_does_not_change_the_head(make: Make, kind: Kind) -> None:
    config, task = make(), small_task(kind)
    runs = [Run("small", "tiny", method, seed) for method, seed in (("vanilla", 0), ("asa", 0), ("vanilla", 1))]
    a, b, c = (build(run, config, task)[0].model.get_parameter("classifier.weight") for run in runs)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_kept_model_that_is_lost_is_made_again_and_a_damaged_one_told(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = given(save_model=True, max_steps=2)
    sweep(asked)
    (model,) = (tmp_path / "runs").glob("*/tiny-vanilla-0/model")
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:100])
    with pytest.raises(WorkError, match=rf"make the folder anew: remove {model} and give the same command again"):
        sweep(asked)
    sweep(given(max_steps=2))  # which asks for no model
    (model / manifest.NAME).unlink()
    capsys.readouterr()
    sweep(asked)
    assert "finished before" not in capsys.readouterr().out
    assert (model / "model.safetensors").read_bytes() == weights


def test_a_head_of_another_task_is_kept_where_it_fits_and_made_anew_where_it_does_not(
    given: Given, make: Make, tmp_path: Path
) -> None:
    """Two stages, as RTE after MNLI or ARC after RACE."""
    sweep(given(save_model=True, methods=["asa"], max_steps=2))
    (first,) = (tmp_path / "runs").glob("*/tiny-asa-0/model")
    manifest.verify(first, "model", "-")
    assert {"tokenizer.json", "adversary.safetensors"} <= {path.name for path in first.iterdir()}
    stored = load_file(first / "model.safetensors")
    run = Run("small", "next", "vanilla", 7)
    same, new = build(run, make(models={"next": first}), COLOURS)
    assert new == []
    assert all(torch.equal(p, stored[name]) for name, p in same.model.named_parameters())
    other, new = build(run, make(models={"next": first}), small_task("regression"))
    assert new == ["classifier.bias", "classifier.weight"]
    body = dict(other.model.named_parameters())
    assert all(torch.equal(body[name], value) for name, value in stored.items() if name not in new)


def test_a_pipeline_gives_a_saved_regressions_score_as_it_is(make: Make, tmp_path: Path) -> None:
    config, task = make(), small_task("regression")
    module, _ = build(Run("near", "tiny", "vanilla", 0), config, task)
    save_model(engine_of(config, module, 1), config.models["tiny"], tmp_path / "saved", {})
    scorer: Any = pipeline("text-classification", model=str(tmp_path / "saved"))
    (found,) = scorer("red")
    assert found["score"] == pytest.approx(float(scorer.model(**scorer.tokenizer("red", return_tensors="pt")).logits))


def test_a_folder_without_such_a_head_is_a_wrong_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HEADS["classification"], "from_pretrained", refusing(ValueError("no head")))
    told = r"cannot be loaded as a model for a classification task \(no head\); give another by --models\.tiny"
    with pytest.raises(RequestError, match=told):
        build(Run("colours", "tiny", "vanilla", 0), make(), COLOURS)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), OSError(errno.EIO, os.strerror(errno.EIO))]
)
def test_what_the_machine_lacks_while_a_model_is_read_costs_that_run_alone(
    error: Exception, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HEADS["classification"].from_pretrained
    first = refusing(error)

    def load(*args: Any, **keywords: Any) -> Any:
        monkeypatch.setattr(HEADS["classification"], "from_pretrained", real)
        return first()

    monkeypatch.setattr(HEADS["classification"], "from_pretrained", load)
    with pytest.raises(WorkError, match=r"1 of 2 runs failed"):
        sweep(given(seeds=[0, 1]))
    ends = [events(tmp_path / "runs", f"tiny-vanilla-{seed}")[-1]["event"] for seed in (0, 1)]
    assert ends == ["failed", "end"]


def refusing(error: Exception) -> Callable[..., Any]:
    def load(*_: Any, **__: Any) -> Any:
        raise error

    return load


def test_an_exported_adversary_is_the_start_where_asked_for_and_there_is_one(
    make: Make, given: Given, model_folder: Path, tmp_path: Path
) -> None:
    pretrained = shutil.copytree(model_folder, tmp_path / "pretrained")
    adversary = build(Run("small", "tiny", "asa", 7), make(), COLOURS)[0].adversary
    assert adversary is not None
    adversary.save_pretrained(pretrained)
    wanted = {"models": {"tiny": model_folder, "asa": pretrained}, "adversary": "exported", "max_steps": 1}
    for name, same in (("asa", True), ("tiny", False)):
        found = build(Run("small", name, "asa", 0), make(**wanted), COLOURS)[0].adversary
        assert found is not None
        pairs = zip(found.parameters(), adversary.parameters(), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs) == same
    (note,) = Sweep(given(**wanted, methods=["asa", "vanilla"])).notes
    assert note == "--adversary exported: no adversary.safetensors in tiny, where those of asa are fresh"
    assert Sweep(given(**wanted, methods=["vanilla"])).notes == []
    half = Sweep(given(**wanted, methods=["vanilla", "r_drop"], engine="deepspeed", precision="bf16")).notes
    assert [line[:40] for line in half] == ["note: in bf16 on a CPU torch rounds sums"]
    sweep(given(**wanted, methods=["asa", "vanilla"]))
    starts = [events(tmp_path / "runs", f"{name}-asa-0")[0] for name in ("asa", "tiny")]
    assert [start["adversary"] for start in starts] == ["exported", "fresh"]
    assert "adversary" not in events(tmp_path / "runs", "asa-vanilla-0")[0]


@pytest.mark.parametrize(
    ("name", "kind", "around"),
    [
        ("model.safetensors", "export", False),
        ("model.safetensors", "export", True),  # as the parts of an export of replaced-token detection
        ("model.safetensors", "tokenizer", False),
        ("adversary.safetensors", "export", False),
    ],
)
def test_weights_that_are_not_the_exported_ones_are_refused(
    name: str, kind: str, around: bool, make: Make, given: Given, model_folder: Path, tmp_path: Path
) -> None:
    """Unless the manifest, which knows them, is removed."""
    exported = shutil.copytree(model_folder, tmp_path / "all" / "exported")
    adversary = build(Run("small", "tiny", "asa", 7), make(), COLOURS)[0].adversary
    assert adversary is not None
    adversary.save_pretrained(exported)
    manifest.write(exported.parent if around else exported, kind, {})
    asked = given(models={"tiny": exported}, adversary="exported", max_steps=1, methods=["asa"])
    content = bytearray((exported / name).read_bytes())
    content[-1] ^= 1  # of the last number
    (exported / name).write_bytes(content)
    weights_sha256.cache_clear()
    with pytest.raises(WorkError, match=f"{name} is damaged: .* if the change is yours, remove .*manifest.json"):
        sweep(asked)
    assert not (tmp_path / "runs").exists()
    (exported.parent / "manifest.json" if around else exported / "manifest.json").unlink()
    sweep(asked)


def test_a_manifest_with_other_line_ends_is_told_with_what_mends_it(
    given: Given, model_folder: Path, tmp_path: Path
) -> None:
    """As git may leave a text file; a model is of use without it."""
    folder = shutil.copytree(model_folder, tmp_path / "export")
    manifest.write(folder, "export", {})
    file = folder / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    wanted = given(models={"tiny": folder}, max_steps=1, methods=["vanilla"])
    with pytest.raises(WorkError, match=r"manifest.json is damaged: .* or remove that file if the change is yours$"):
        sweep(wanted)
    file.unlink()
    sweep(wanted)


def test_a_damaged_model_is_one_line(given: Given, model_folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(model_folder, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"none")
    with pytest.raises(RequestError, match=r"model.safetensors is damaged .* by --models.bad") as caught:
        sweep(given(models={"tiny": model_folder, "bad": damaged}))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_tokenizer_with_more_ids_than_the_model_is_refused_before_anything_is_made(
    given: Given, model_folder: Path, tmp_path: Path
) -> None:
    small = shutil.copytree(model_folder, tmp_path / "small")
    model = AutoModelForMaskedLM.from_pretrained(small)
    model.resize_token_embeddings(len(WORDS) - 1)
    model.save_pretrained(small)
    with pytest.raises(RequestError, match=r"small has embeddings for 15 ids, the tokenizer 16; set --models.small"):
        sweep(given(models={"tiny": model_folder, "small": small}))
    assert not (tmp_path / "runs").exists()


def test_an_out_that_is_a_file_is_refused_before_any_input_is_read(given: Given, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(RequestError, match=r"file is no folder; set another --out"):
            sweep(given(out=out, task={"folder": tmp_path / "nowhere"}))
    assert (tmp_path / "file").read_text() == "mine"


def test_an_exported_adversary_with_other_maps_is_refused_before_anything_is_made(
    given: Given, model_folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(model_folder, tmp_path / "other")
    Adversaries(1, 8, 2, ASAConfig(heads="each")).save_pretrained(other)
    with pytest.raises(RequestError, match=r"has heads 'each', not 'shared'; set --asa.heads"):
        sweep(given(models={"bad": other}, methods=["vanilla", "asa"], adversary="exported"))
    assert not (tmp_path / "runs").exists()
    sweep(given(models={"bad": other}, methods=["vanilla"], adversary="exported", max_steps=1))  # which takes none


def test_a_model_that_is_not_there_is_told_before_tasks_are_read(given: Given, tmp_path: Path) -> None:
    asked = given(models={"tiny": tmp_path / "nowhere"}, task={"folder": tmp_path / "nor this"})
    with pytest.raises(RequestError, match=r"there is no folder .*nowhere; .*--models\.tiny"):
        sweep(asked)


def test_a_run_that_its_model_refuses_is_told_at_the_end_and_the_others_are_made(
    given: Given, model_folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(model_folder, tmp_path / "other")
    Adversaries(1, 8, 2, ASAConfig()).save_pretrained(other)
    wanted = given(models={"bad": other, "tiny": model_folder}, methods=["asa"], adversary="exported", max_steps=2)
    with pytest.raises(RequestError, match=r"1 of 2 runs failed \(colours/bad-asa-0\); the first: .* another shape"):
        sweep(wanted)
    *_, failed = events(tmp_path / "runs", "bad-asa-0")
    assert failed["event"] == "failed"
    assert "another shape" in failed["error"]
    assert events(tmp_path / "runs", "tiny-asa-0")[-1]["event"] == "end"


def test_predictions_that_are_not_finite_concern_their_run_alone(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*rest: Any) -> Predictions:
        found = predict(*rest)
        return found._replace(logits=[row * float("nan") for row in found.logits])

    with monkeypatch.context() as patched:
        patched.setattr(loop, "predict", lost)
        with pytest.raises(WorkError, match=r"the first: colours/tiny-vanilla-0: a prediction is not finite; lower"):
            sweep(given())
    assert events(tmp_path / "runs", "tiny-vanilla-0")[-1]["event"] == "failed"


def test_a_weight_that_the_last_update_has_broken_is_named(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Vanilla):
        def after_step(self, engine: Any) -> None:
            next(engine.module.parameters()).data[:] = torch.nan

    monkeypatch.setitem(METHODS, "vanilla", lambda config: Broken())
    with pytest.raises(WorkError, match=r"a prediction is not finite; weight model\.\S+ is not: lower --optim\.lr or"):
        sweep(given(max_steps=1))


@pytest.mark.parametrize(("epochs", "limit", "steps"), [(2, None, 6), (1.5, None, 5), (0.1, None, 1), (9, 4, 4)])
def test_steps(make: Make, epochs: float, limit: int | None, steps: int) -> None:
    assert steps_of(make(epochs=epochs, max_steps=limit), 24) == steps


def test_a_part_of_an_epoch_is_no_step_more_by_rounding(make: Make) -> None:
    assert steps_of(make(epochs=1.1, batch=10), 500) == 55  # 1.1 * 50 is 55.00000000000001
    assert steps_of(make(epochs=0.07, batch=10), 1000) == 7
    assert steps_of(make(epochs=1e-9, batch=10), 1000) == 1


def test_replays_pass_over_the_same_batch(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int]]] = []

    class Twice(Vanilla):
        replays = 2

        def backward(self, engine: Any, batch: Any, at: At) -> Any:
            seen.append((at.replay, batch.labels.tolist()))
            return super().backward(engine, batch, at)

    monkeypatch.setitem(METHODS, "vanilla", lambda config: Twice())
    sweep(given(max_steps=2))
    assert [replay for replay, _ in seen] == [0, 1, 0, 1]
    assert seen[0][1] == seen[1][1]
    assert seen[2][1] == seen[3][1]
    assert seen[0][1] != seen[2][1]


def test_a_weight_that_is_not_finite_is_named(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Vanilla):
        def backward(self, engine: Any, batch: Any, at: At) -> Any:
            next(engine.module.parameters()).data[:] = torch.nan
            return super().backward(engine, batch, at)

    monkeypatch.setitem(METHODS, "vanilla", lambda config: Broken())
    with pytest.raises(WorkError, match=r"step 1 is not finite; weight model\.\S+ is not: lower --optim\.lr or"):
        sweep(given())


def test_an_update_that_was_not_made_ends_the_run_unless_the_loss_scale_was_too_high() -> None:
    run = SimpleNamespace(name="a")
    session = SimpleNamespace(cell=SimpleNamespace(run=run), progress=SimpleNamespace(step=3))
    session.engine = SimpleNamespace(weights=dict)
    with pytest.raises(WorkError, match=r"a: loss or gradient of step 4 is not finite"):
        loop._applied(StepStats(False, torch.nan, 0.1), cast(Any, session))
    assert not loop._applied(StepStats(False, torch.nan, 0.1, overflow=True), cast(Any, session))
    assert loop._applied(StepStats(True, 1.0, 0.1), cast(Any, session))


def test_a_line_of_fp16_has_the_loss_scale_and_what_was_left_out() -> None:
    meter = Meter(dynamic_scale=True)
    meter.skip(StepStats(False, torch.inf, 0.1, 512.0))
    assert not meter.empty
    meter.add({"loss": torch.tensor(2.0)}, StepStats(True, 3.0, 0.2, 256.0))
    assert meter.drain() == {"loss": 2.0, "grad_norm": 3.0, "lr": 0.2, "loss_scale": 256.0, "skipped": 1}
    assert meter.empty
    meter.skip(StepStats(False, torch.inf, 0.2, 256.0))
    assert meter.drain() == {"lr": 0.2, "loss_scale": 256.0, "skipped": 1}


def test_terms_are_summed_over_the_ranks_and_the_norm_that_each_knows_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asa.dist.all_reduce_", lambda tensor: tensor.mul_(2))
    meter = Meter()
    meter.add({"loss": torch.tensor(2.0)}, StepStats(True, torch.tensor(3.0), 0.2))
    assert meter.drain() == {"loss": 4.0, "grad_norm": 3.0, "lr": 0.2}


def test_a_diverged_run_is_told_at_the_end_and_the_others_are_made(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lost(Vanilla):
        def backward(self, engine: Any, batch: Any, at: At) -> Any:
            engine.backward(engine.forward(batch).logits.sum() * float("nan"))
            return super().backward(engine, batch, at)

    monkeypatch.setitem(METHODS, "pgd", lambda config: Lost())
    why = r"1 of 2 runs failed \(colours/tiny-pgd-0\); the first: .* step 1 is not finite; lower --optim.lr"
    with pytest.raises(WorkError, match=why):
        sweep(given(methods=["pgd", "vanilla"]))
    assert "colours/tiny-pgd-0                       failed: " in capsys.readouterr().out
    assert events(tmp_path / "runs", "tiny-pgd-0")[-1]["event"] == "failed"
    (good,) = (tmp_path / "runs").glob("*/tiny-vanilla-0")
    assert record.finished(good / record.NAME)
