"""Pre-training by replaced-token detection: same updates on every engine, exact resume, exports one can fine-tune."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
)

from asa import checkpoint, hf, record
from asa.config import from_dict, to_dict
from asa.engine import PlainEngine
from asa.errors import RequestError, WorkError
from asa.optim import OptimConfig
from asa.tokenizer import load_tokenizer
from pretrain.config import PretrainConfig, RTDConfig, check
from pretrain.export import PARITY, ExportConfig, export
from pretrain.loop import train
from pretrain.objective import ReplacedTokens, evaluate
from pretrain.resume import newest
from tests.contract.worker import micro_batch
from tests.pretrain.conftest import LENGTH, make_model
from tests.pretrain.rtd_worker import EVERY, QUICK, STEPS, build
from tests.ranks import run_ranks

CPU = torch.device("cpu")
TOLERANCE = 1e-6
REFERENCE = ("plain", 1, 1)  # engine, micro-batches, processes that the others are compared with


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases of the quick suite, computed by one process and by two."""
    return computed(tmp_path_factory.mktemp("updates"))


def computed(out: Path, *more: str) -> Path:
    for world in QUICK:
        run_ranks(world, "tests.pretrain.rtd_worker", out, *more, timeout=500)
    return out


COMPARED = [(*case, world) for world, cases in QUICK.items() for case in cases if (*case[2:], world) != REFERENCE]


@pytest.mark.parametrize(("family", "method", "engine", "slots", "world"), COMPARED)
def test_update_equals_the_plain_reference(
    updates: Path, family: str, method: str, engine: str, slots: int, world: int
) -> None:
    expected = load_file(updates / f"{family}-{method}-plain-1-1.safetensors")
    found = load_file(updates / f"{family}-{method}-{engine}-{slots}-{world}.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, value.abs().max().item())
        assert (found[name] - value).abs().max().item() <= TOLERANCE * scale, name


def test_a_batch_that_only_keeps_the_ranks_together_changes_no_heldout_figure() -> None:
    """Its row is another batch's, of which the discriminator would be asked twice."""
    engine, batch = PlainEngine(build("electra", "vanilla"), OptimConfig(), 1, CPU), micro_batch(0, 0, 1)
    nothing = torch.zeros(0, dtype=torch.long)
    first = {name: value[:1] for name, value in batch.inputs.items()}
    empty = replace(batch, inputs=first, labels=nothing, positions=nothing)
    alone, beside = (evaluate(ReplacedTokens(0.5), engine, batches) for batches in ([batch], [batch, empty]))
    assert alone is not None
    assert beside == pytest.approx(alone, rel=1e-6)


@pytest.mark.slow
def test_updates_on_every_engine_process_count_and_accumulation(tmp_path: Path) -> None:
    """The whole product of what the test above takes a part of."""
    found = computed(tmp_path, "every")
    for world in QUICK:
        for case in EVERY:
            test_update_equals_the_plain_reference(found, *case, world)


@pytest.mark.parametrize(("family", "method"), [("bert", "asa"), ("electra", "vanilla")])
def test_the_updates_compared_are_not_nothing(updates: Path, family: str, method: str) -> None:
    """Tokens were replaced, every part moved, and the tied embeddings are there once."""
    after = load_file(updates / f"{family}-{method}-plain-1-1.safetensors")
    for step in range(STEPS):
        assert after[f"term.{step}.replaced"] > 0.05
    before = build(family, method).state_dict()
    query = f"{family}.encoder.layer.0.attention.self.query.weight"
    words = f"{family}.embeddings.word_embeddings.weight"
    for name in (f"model.{query}", f"generator.{query}", f"model.{words}"):
        assert (after[f"weight.{name}"] - before[name]).abs().max() > 1e-4
    assert f"weight.generator.{words}" not in after


pytestmark = pytest.mark.usefixtures("one_process")


@pytest.fixture
def rtd_(request_: PretrainConfig) -> PretrainConfig:
    return replace(request_, objective="rtd", steps=4)


@pytest.fixture(scope="session")
def electra(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Path, Path]:
    """Folders of an ELECTRA discriminator and of its smaller generator, with the vocabulary of `model`."""
    folders = []
    for name, size, kind in (("model", 16, ElectraForPreTraining), ("generator", 8, ElectraForMaskedLM)):
        folder = tmp_path_factory.mktemp("electra") / name
        tokenizer = AutoTokenizer.from_pretrained(model)
        tokenizer.save_pretrained(folder)
        torch.manual_seed(5)
        shape = ElectraConfig(
            vocab_size=1 + max(tokenizer.get_vocab().values()),
            embedding_size=8,
            hidden_size=size,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=LENGTH,
        )
        kind(shape).save_pretrained(folder)
        folders.append(folder)
    return folders[0], folders[1]


def train_lines(run: Path) -> list[dict[str, Any]]:
    """Train events, but for how long they took and the memory that the process has had."""
    events = [event for event in record.read(run / record.NAME) if event["event"] == "train"]
    return [{k: value for k, value in event.items() if k not in ("tokens_per_s", "memory_gb")} for event in events]


@pytest.mark.parametrize(("method", "zero"), [("asa", 2), ("vanilla", 3)])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(
    rtd_: PretrainConfig, tmp_path: Path, method: str, zero: int
) -> None:
    """Dropout is on and tokens are drawn."""
    whole = replace(rtd_, method=method, zero=zero, steps=4)
    train(whole, CPU)
    broken = replace(whole, out=tmp_path / "broken")
    shutil.copytree(whole.out, broken.out)
    shutil.rmtree(broken.out / "checkpoints" / "step-4")
    train(broken, CPU)
    expected, found = (
        load_file(out / "checkpoints" / "step-4" / "model.safetensors") for out in (whole.out, broken.out)
    )
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    assert train_lines(broken.out) == train_lines(whole.out)
    assert len(train_lines(whole.out)) == 4


def test_the_record_has_every_term_and_scores_that_the_originals_cannot_hide(rtd_: PretrainConfig) -> None:
    train(rtd_, CPU)
    events = record.read(rtd_.out / record.NAME)
    step = train_lines(rtd_.out)[0]
    total = rtd_.rtd.generator_weight * step["generator"] + step["task"] + step["asa"] + step["penalty"]
    assert step["loss"] == pytest.approx(total, rel=1e-6)
    assert 0.05 < step["replaced"] < 0.25
    scores = [event for event in events if event["event"] == "eval"]
    assert [event["step"] for event in scores] == [0, 3, 4]
    assert {"heldout_separation", "heldout_recall", "heldout_precision", "heldout_generator_accuracy"} <= {*scores[0]}


def test_changed_settings_of_the_objective_are_named(rtd_: PretrainConfig) -> None:
    train(replace(rtd_, steps=1), CPU)
    for changed in (replace(rtd_, steps=1, objective="mlm"), replace(rtd_, steps=1, rtd=RTDConfig(generator_weight=1))):
        with pytest.raises(RequestError, match=r"with another (objective|rtd)"):
            train(changed, CPU)


def counts(**changes: float) -> dict[str, float]:
    """Of 15 replaced and 85 original tokens, nothing found."""
    zero = dict.fromkeys(("hits", "alarms", "belief_replaced", "belief_original", "generator_right"), 0.0)
    return zero | {"loss": 1.0, "replaced": 15.0, "original": 85.0, "generator_loss": 1.0} | changes


def test_calling_everything_original_scores_accuracy_alone() -> None:
    scores = ReplacedTokens(0.02).scores(counts(belief_replaced=15 * 0.15, belief_original=85 * 0.15))
    assert scores["heldout_accuracy"] == pytest.approx(0.85)
    assert scores["heldout_separation"] == pytest.approx(0)
    assert scores["heldout_recall"] == scores["heldout_precision"] == 0


def test_scores_of_a_perfect_and_of_a_partly_right_discriminator() -> None:
    objective = ReplacedTokens(0.02)
    scores = objective.scores(counts(hits=15, belief_replaced=15))
    assert [scores[f"heldout_{name}"] for name in ("accuracy", "separation", "recall", "precision")] == [1, 1, 1, 1]
    scores = objective.scores(counts(hits=6, alarms=4, belief_replaced=6, belief_original=8.5))
    found = [scores[f"heldout_{name}"] for name in ("accuracy", "separation", "recall", "precision")]
    assert found == pytest.approx([0.87, 0.3, 0.4, 0.6])


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_an_export_is_three_folders_that_transformers_loads(
    rtd_: PretrainConfig, electra: tuple[Path, Path], tmp_path: Path, family: str
) -> None:
    """The encoder takes a new task head of any size; discriminator and generator come whole."""
    request, detector = replace(rtd_, steps=2), AutoModelForTokenClassification
    if family == "electra":
        request = replace(request, model=electra[0], rtd=RTDConfig(generator=electra[1]))
        detector = AutoModelForPreTraining
    check(request, 1, cuda=False)
    train(request, CPU)
    out = tmp_path / "export"
    assert export(ExportConfig(checkpoint=request.out, out=out)) <= PARITY
    state = load_file(request.out / "checkpoints" / "step-2" / "model.safetensors")
    for auto, folder, prefix in (
        (detector, "discriminator", "model."),
        (AutoModelForMaskedLM, "generator", "generator."),
    ):
        whole, info = auto.from_pretrained(out / folder, output_loading_info=True)
        assert not info["missing_keys"] | info["unexpected_keys"]
        own = [name for name, _ in whole.named_parameters() if prefix + name in state]
        assert len(own) > 20
        assert [name for name in own if not torch.equal(whole.get_parameter(name), state[prefix + name])] == []
        words = whole.get_input_embeddings().weight
        assert torch.equal(words, AutoModel.from_pretrained(out).get_input_embeddings().weight)
    for classes in (1, 3):
        _, info = AutoModelForSequenceClassification.from_pretrained(out, num_labels=classes, output_loading_info=True)
        assert all(name.startswith(("classifier", "bert.pooler")) for name in info["missing_keys"])
        assert not info["unexpected_keys"]
        assert not info["mismatched_keys"]
        assert "classifier" in " ".join(info["missing_keys"])
    assert AutoModelForSequenceClassification.from_pretrained(out).config.num_labels == 2
    assert load_file(out / "adversary.safetensors")
    for folder in (out, out / "discriminator", out / "generator"):
        hf.check_model(folder, "--model", LENGTH)
        assert load_tokenizer(folder, "--model").mask_token == "[MASK]"


def test_a_generator_with_a_weight_that_is_not_finite_is_named(rtd_: PretrainConfig, tmp_path: Path) -> None:
    train(replace(rtd_, steps=1), CPU)
    out = tmp_path / "export"
    export(ExportConfig(checkpoint=rtd_.out, out=out))
    shutil.copytree(out / "generator", bad := tmp_path / "bad", ignore=shutil.ignore_patterns("manifest.json"))
    broken = load_file(bad / "model.safetensors")
    name = next(name for name in broken if name.endswith("key.bias"))
    broken[name][0] = torch.nan
    save_file(broken, bad / "model.safetensors", metadata={"format": "pt"})
    pair = RTDConfig(generator=bad)
    told = rf"the weight generator\..*key\.bias of {bad} is not finite; give another --rtd\.generator"
    with pytest.raises(WorkError, match=told):
        train(replace(rtd_, steps=1, model=out / "discriminator", rtd=pair, out=tmp_path / "again"), CPU)


def test_an_exported_pair_is_where_the_next_run_starts(
    rtd_: PretrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(replace(rtd_, steps=1), CPU)
    out = tmp_path / "export"
    export(ExportConfig(checkpoint=rtd_.out, out=out))
    capsys.readouterr()
    pair = RTDConfig(generator=out / "generator")
    again = replace(rtd_, steps=1, model=out / "discriminator", rtd=pair, out=tmp_path / "again")
    check(again, 1, cuda=False)
    train(again, CPU)
    assert "drawn from" not in capsys.readouterr().out
    before, after = (record.read(run / record.NAME) for run in (rtd_.out, again.out))
    last, first = [event for event in before if event["event"] == "eval"][-1], after[1]
    assert first["step"] == 0
    assert first["heldout_loss"] == pytest.approx(last["heldout_loss"], rel=1e-5)
    moved = shutil.copytree(out / "generator", tmp_path / "moved")
    assert newest(replace(again, rtd=RTDConfig(generator=moved)), 1) is not None
    with pytest.raises(RequestError, match=r"holds a run with another rtd\.generator;"):
        newest(replace(again, rtd=RTDConfig()), 1)
    shape = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(shape | {"num_attention_heads": 1}))
    hf.weights_sha256.cache_clear()
    with pytest.raises(RequestError, match=r"holds a run with another rtd\.generator;"):
        newest(replace(again, rtd=RTDConfig(generator=moved)), 1)


def test_new_heads_and_foreign_embeddings_are_said(
    rtd_: PretrainConfig, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    net = AutoModelForMaskedLM.from_pretrained(other)
    torch.nn.init.normal_(net.get_input_embeddings().weight)
    net.save_pretrained(other)
    train(replace(rtd_, steps=1, rtd=RTDConfig(generator=other)), CPU)
    said = capsys.readouterr().out
    assert "has no classifier.bias, classifier.weight: drawn from seed 0" in said
    assert f"generator {other}: its word embeddings give way to those of {model}" in said


def test_a_generator_that_does_not_fit_is_refused_before_any_model_is_built(
    rtd_: PretrainConfig, model: Path, tmp_path: Path
) -> None:
    words = make_model(tmp_path / "words", extra_words=3)
    wide = shutil.copytree(model, tmp_path / "wide")
    settings = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps(settings | {"hidden_size": 32}))
    for folder, reason in (
        (tmp_path / "nowhere", "there is no folder"),
        (words, "another vocabulary"),
        (wide, "are 32 wide, the model's 16"),
    ):
        with pytest.raises(RequestError, match=f"{reason}.*--rtd.generator") as caught:
            check(replace(rtd_, rtd=RTDConfig(generator=folder)), 1, cuda=False)
        assert "\n" not in str(caught.value)
    assert checkpoint.complete(rtd_.out / "checkpoints") == []


def test_a_generator_that_cannot_recompute_is_refused_with_checkpointing(
    rtd_: PretrainConfig, model: Path, tmp_path: Path
) -> None:
    plain = shutil.copytree(model, tmp_path / "plain")
    settings = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(settings | {"model_type": "mpnet", "max_position_embeddings": 32}))
    asked = replace(rtd_, rtd=RTDConfig(generator=plain))
    check(asked, 1, cuda=False)
    with pytest.raises(RequestError, match=rf"{plain} knows no activation checkpointing; set --activation_check"):
        check(replace(asked, activation_checkpointing=True), 1, cuda=False)


def test_the_settings_survive_yaml(rtd_: PretrainConfig, model: Path) -> None:
    config = replace(rtd_, rtd=RTDConfig(generator=model, generator_weight=0.5))
    assert from_dict(PretrainConfig, to_dict(config)) == config
