"""docs/adding-a-method.md works as printed: its file is a method, its commands are requests, the contract holds."""

import copy
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from asa import record
from asa.errors import RequestError
from asa.methods import METHODS, At, MethodsConfig, base, build_method, limits
from asa.methods.asa_sparse import ASASparse, ASASparseConfig
from asa.model import TaskModel
from cli import parse
from finetune.config import FinetuneConfig
from pretrain.config import PretrainConfig
from tests.asa import test_methods as contract
from tests.asa.conftest import KINDS, tiny_batch, tiny_bert, tiny_engine, tiny_module
from tests.test_layout import LOOPS_ALONE

PAGE = Path("docs/adding-a-method.md").read_text()
NAME = "sign_step:Sign"


@pytest.fixture
def method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's file where Python finds it; the name by which its method is asked for."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "sign_step.py").write_text(code)
    assert [word for word in LOOPS_ALONE if word in code] == []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sign_step", raising=False)
    monkeypatch.setitem(METHODS, NAME, None)
    del METHODS[NAME]
    flags = re.findall(r"python -m finetune run (.*)", PAGE)[0].split()
    assert parse(FinetuneConfig, flags, "prog").methods == ("vanilla", NAME)
    return NAME


def test_its_commands_are_requests_and_carry_its_settings(method: str) -> None:
    for stage, prefix in ((FinetuneConfig, "finetune run "), (PretrainConfig, "launch pretrain ")):
        flags = re.findall(rf"python -m {prefix}(.*)", PAGE)[0].split()
        request = parse(stage, flags, "prog")
        assert METHODS[method](request).size == 0.02  # type: ignore[attr-defined]
    quickstarts = yaml.safe_load(Path("configs/pretrain/quickstart.yaml").read_text())["out"]
    assert request.out != Path(quickstarts)  # that of another method's finished run


def test_it_trains(method: str) -> None:
    engine, built = tiny_engine(tiny_module("classification")), METHODS[method](MethodsConfig())
    losses = []
    for _ in range(8):
        losses.append(built.backward(engine, tiny_batch("classification"), At(0, 0))["loss"])
        engine.step()
        built.after_step(engine)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("kind", KINDS)
def test_it_keeps_the_contract(method: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    contract.test_without_strength_every_method_is_plain_training(method, kind)
    contract.test_a_method_leaves_the_weights_alone_and_counts_its_backwards(method, kind)
    if kind == "mlm":
        contract.test_with_strength_none_is(method)
        contract.test_a_methods_state_comes_back_bit_for_bit_and_goes_on_alike(method)
        contract.test_an_examples_part_does_not_depend_on_the_rest_of_the_batch(method, monkeypatch)
    last = contract.run(method, kind, contract.LOUD)[0].deltas[-1]
    assert last.abs().max() == pytest.approx(0.1)
    assert last[tiny_batch(kind).pad_BL].count_nonzero() == 0


def test_a_wrong_setting_is_explained(method: str) -> None:
    with pytest.raises(RequestError, match=r"unknown key 'outside\.siz'; did you mean 'outside\.size'"):
        METHODS[method](MethodsConfig(outside={"siz": 0.1}))
    with pytest.raises(RequestError, match=r"^outside\.size = 99: .*0 <= size <= 10, set --outside\.size$"):
        METHODS[method](MethodsConfig(outside={"size": 99}))


@pytest.mark.parametrize(("backwards", "passes"), [(0, 1), (1, 2)])
def test_other_backward_passes_than_it_says_are_refused(
    backwards: int, passes: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["sign_step"].Sign, "passes", passes)
    engine, built = tiny_engine(tiny_module("classification")), METHODS[method](MethodsConfig())
    if not backwards:
        monkeypatch.setattr(sys.modules["sign_step"].Sign, "backward", lambda *_: {"loss": torch.zeros(())})
    said = f"method sign_step:Sign called engine.backward {backwards} times .* passes = {passes};"
    with pytest.raises(RequestError, match=said):
        built.backward(engine, tiny_batch("classification"), At(0, 0))


def test_masked_shares_that_are_none_are_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(count: int, engine: Any = None) -> Any:
        made = METHODS[method](MethodsConfig())
        kept = {"loss": torch.zeros(()), "masked_share": torch.ones(count)}
        monkeypatch.setattr(sys.modules["sign_step"].Sign, "backward", lambda self, engine, *_: kept)
        monkeypatch.setattr(sys.modules["sign_step"].Sign, "passes", 0)
        engine = engine or tiny_engine(tiny_module("classification"))
        return made.backward(engine, tiny_batch("classification"), At(0, 0))

    with pytest.raises(RequestError, match=r"method sign_step:Sign returned masked_share of shape \[5\]; .* 2 layers$"):
        shares(5)
    cut: Any = tiny_bert("classification")
    cut.bert.encoder.layer = cut.bert.encoder.layer[:1]  # which its config does not tell
    shares(1, tiny_engine(TaskModel(cut, "classification")))
    terms = shares(2)
    assert record.numbers(terms)["masked_share"] == [1, 1]
    base.add(terms, shares(2))  # as over two micro-batches
    with pytest.raises(RequestError, match=r"^masked_share = 2, .*divide the sum over rows by batch\.total_rows$"):
        record.numbers(terms)


def test_one_that_was_put_into_the_registry_by_hand_is_held_to_its_word_too(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = sys.modules["sign_step"].Sign
    monkeypatch.setitem(METHODS, "sign", sign)
    monkeypatch.setattr(sign, "backward", lambda *_: {"loss": torch.zeros(())})
    built = build_method("sign", MethodsConfig(), "fp32", zero=0)
    with pytest.raises(RequestError, match=r"method sign called engine\.backward 0 times"):
        built.backward(tiny_engine(tiny_module("classification")), tiny_batch("classification"), At(0, 0))


def test_the_depth_that_one_asks_for_is_checked_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deep(ASASparse):
        pass

    monkeypatch.setitem(METHODS, "deep", lambda config: Deep(config.asa, ASASparseConfig(layers=(7,))))
    with pytest.raises(RequestError, match="the model has layers 0 to 1"):
        limits.check_depth(build_method("deep", MethodsConfig(), "fp32", zero=0), 2)


def test_one_may_refuse_an_arithmetic_before_training(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_run(self: object, precision: str, zero: int) -> None:
        if (precision, zero) == ("bf16", 2):
            raise RequestError("sign wants fp32; set --precision fp32")

    monkeypatch.setattr(sys.modules["sign_step"].Sign, "check_run", check_run, raising=False)
    build_method(method, MethodsConfig(), "fp32", zero=2)
    with pytest.raises(RequestError, match="sign wants fp32"):
        build_method(method, MethodsConfig(), "bf16", zero=2)


def test_a_method_from_outside_can_be_copied(method: str) -> None:
    built = METHODS[method](MethodsConfig(outside={"size": 0.5}))
    assert copy.deepcopy(built).size == 0.5  # type: ignore[attr-defined]


NO_BUILDERS = {
    "no_such_module:Sign": "ModuleNotFoundError",
    "sign_step:Nothing": "AttributeError",
    ".sign_step:Sign": "TypeError",
    "failing:Sign": "ZeroDivisionError",
    "torn:Sign": "SyntaxError",
    "ending:Sign": "SystemExit",
    "sign_step:__doc__": "not callable",
    "os:getcwd": "not callable with the settings alone",
    "json:JSONDecoder": "not callable with the settings alone",
}


@pytest.mark.parametrize("name", NO_BUILDERS)
def test_a_builder_that_is_not_there_is_a_wrong_request(
    method: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for module, code in (("failing", "1 / 0"), ("torn", "def"), ("ending", "raise SystemExit(3)")):
        (tmp_path / f"{module}.py").write_text(code)
    with pytest.raises(SystemExit) as exit_:
        parse(FinetuneConfig, ["--config", "configs/finetune/quickstart.yaml", "--methods", name], "prog")
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert "allowed: MODULE:BUILDER" in said
    assert NO_BUILDERS[name] in said
    assert said.count("\n") == 1
    assert name not in METHODS
