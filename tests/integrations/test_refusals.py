"""What AdversarialTrainer refuses: one line that says what to change, before anything is trained."""

import importlib
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType
from accelerate.utils.other import extract_model_from_parallel
from torch import nn
from transformers import (
    BertConfig,
    BertForNextSentencePrediction,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    TrainingArguments,
)

from asa import methods
from asa.adversary import ASAConfig
from asa.batch import Kind
from asa.errors import RequestError
from asa.integrations import transformers as drop_in
from asa.integrations.tasks import classes_of, kind_of, totals
from asa.integrations.transformers import AdversarialTrainer
from asa.methods import METHODS, MethodsConfig
from asa.methods.asa_sparse import ASASparseConfig
from asa.methods.freelb import FreeLBConfig
from asa.methods.random_mask import RandomMaskConfig
from asa.methods.vanilla import Vanilla
from tests.asa.conftest import HEADS, KINDS, LAYERS, LENGTH, VOCAB, WIDTH, tiny_bert
from tests.integrations.trainers import arguments, assert_close, rows, weights


def build(folder: Path, method: str = "asa", model: Any = None, args: Any = None, **given: Any) -> AdversarialTrainer:
    return AdversarialTrainer(
        model or tiny_bert("classification"),
        args or arguments(folder),
        train_dataset=given.pop("train_dataset", rows("classification", 8)),
        method=method,
        **given,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deepspeed": {"zero_optimization": {"stage": 1}, "train_batch_size": "auto"}}, "deepspeed"),
        ({"torch_compile": True}, "torch_compile"),
        ({"use_liger_kernel": True}, "use_liger_kernel"),
        ({"label_smoothing_factor": 0.1}, r"label_smoothing_factor = 0\.1.*allowed: 0"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        ({"torch_empty_cache_steps": 1}, "torch_empty_cache_steps"),
        ({"optim": "adalomo"}, "optim.*adalomo.*set another"),
        ({"optim": "galore_adamw_layerwise"}, "optim.*layerwise.*set another"),
    ],
)
def test_training_arguments(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, **changes)
    with pytest.raises(RequestError, match=message):
        build(tmp_path, args=args)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("smart", MethodsConfig(), "smart.radius.*bf16"),
        ("freelb", MethodsConfig(freelb=FreeLBConfig(start=5.0)), "freelb.start"),
    ],
)
def test_settings_that_the_method_cannot_work_with(
    method: str, options: MethodsConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=message):
        build(tmp_path, method, args=arguments(tmp_path, bf16=True), options=options)


def test_half_precision_that_accelerates_launcher_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(RequestError, match=r"smart\.radius.*bf16"):
        build(tmp_path, "smart")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("world_size", 2, "2 processes.*start a single process"),
        ("n_gpu", 2, "2 GPUs.*CUDA_VISIBLE_DEVICES=0"),
        ("fsdp", "full_shard", "leave fsdp out"),
        ("parallelism_config", object(), "leave parallelism_config out"),
    ],
)
def test_more_than_one_device(
    name: str, value: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = arguments(tmp_path)
    if hasattr(type(args), name):
        monkeypatch.setattr(TrainingArguments, name, value)
    setattr(args, name, value) if name in vars(args) else None
    with pytest.raises(RequestError, match=message):
        build(tmp_path, args=args)


def test_a_distributed_environment_of_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.MULTI_CPU)
    with pytest.raises(RequestError, match=r"MULTI_CPU.*one process"):
        build(tmp_path)


def test_a_model_on_several_devices(tmp_path: Path) -> None:
    model = tiny_bert("classification")
    object.__setattr__(model, "hf_device_map", {"bert": 0, "classifier": 1})
    with pytest.raises(RequestError, match="device_map"):
        build(tmp_path, model=model)


def test_another_loss(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="leave compute_loss_func out"):
        build(tmp_path, compute_loss_func=lambda outputs, labels, num_items_in_batch: outputs.logits.sum())

    class Weighted(AdversarialTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs) * 2

    with pytest.raises(RequestError, match=r"Weighted\.compute_loss would not be called"):
        Weighted(tiny_bert("classification"), arguments(tmp_path), method="vanilla")


def test_what_was_set_after_the_trainer_was_built(tmp_path: Path) -> None:
    trainer: Any = build(tmp_path)
    trainer.compute_loss = lambda *args, **given: None
    with pytest.raises(RequestError, match="compute_loss would not be called"):
        trainer.train()
    trainer = build(tmp_path)
    trainer.args.label_smoothing_factor = 0.1
    with pytest.raises(RequestError, match="label_smoothing_factor"):
        trainer.train()
    trainer = build(tmp_path)
    trainer.model = trainer.model_wrapped = tiny_bert("classification")
    with pytest.raises(RequestError, match=r"trainer\.model is another than .*; build a trainer for it"):
        trainer.train()
    trainer = build(tmp_path, "smart")
    trainer.model.to(torch.bfloat16)  # as an evaluation with bf16_full_eval leaves it
    with pytest.raises(RequestError, match=r"smart\.radius.*bf16"):
        trainer.train()


def test_weights_in_fp16_are_left_to_optimizers_that_keep_others(tmp_path: Path) -> None:
    """Adam's eps is 0 in fp16, so that single weights go off by hundreds of times the rate in a step."""

    class Own(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float = 1e-3) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            """It may have masters in fp32."""

    with pytest.raises(RequestError, match=r"^weights in fp16 .* dtype=torch.float32 and set fp16=True$"):
        build(tmp_path, "vanilla", tiny_bert("classification").half()).train()
    half = tiny_bert("classification").half()
    build(tmp_path, "vanilla", half, optimizer_cls_and_kwargs=(Own, {})).train()


def test_a_model_under_the_autocast_of_an_earlier_trainer(tmp_path: Path) -> None:
    """It stays on the model, which would be trained in bf16 by one whose arguments say fp32."""
    model: Any = tiny_bert("classification")
    build(tmp_path, "vanilla", model, arguments(tmp_path, bf16=True)).train()
    with pytest.raises(RequestError, match=r"autocast of an earlier trainer; set bf16 or fp16.*unwrap_model"):
        build(tmp_path, "vanilla", model)
    build(tmp_path, "vanilla", model, arguments(tmp_path, bf16=True)).train()
    build(tmp_path, "vanilla", extract_model_from_parallel(model, keep_fp32_wrapper=False)).train()


def test_embeddings_that_were_resized_between_two_trainings(tmp_path: Path) -> None:
    model: Any = tiny_bert("classification")
    trainer = AdversarialTrainer(
        model, arguments(tmp_path, max_steps=1), train_dataset=rows("classification", 4), method="vanilla"
    )
    trainer.train()
    model.resize_token_embeddings(model.config.vocab_size + 8)
    with pytest.raises(RequestError, match=r"resized since the optimizer was made.*make the trainer anew"):
        trainer.train()


def test_an_optimizer_without_the_adversary(tmp_path: Path) -> None:
    model = tiny_bert("classification")
    given = (torch.optim.SGD(model.parameters(), lr=1e-3), None)
    with pytest.raises(RequestError, match="optimizer_cls_and_kwargs"):
        build(tmp_path, model=model, optimizers=given)
    build(tmp_path, "vanilla", model=model, optimizers=given).train()
    trainer = build(tmp_path, optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 1e-3}))
    trainer.train()
    assert trainer.adversary is not None
    assert isinstance(trainer.optimizer, AcceleratedOptimizer)
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert held >= {id(p) for p in trainer.adversary.parameters()}


class Offloading(torch.optim.SGD):
    """Of copies of the parameters: what it shows tells nothing of what it trains."""

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        self.originals = [p for group in groups for p in group["params"]]
        super().__init__([p.detach().clone().requires_grad_() for p in self.originals], lr=lr)


def test_an_optimizer_of_a_subclass_or_of_given_parameters(tmp_path: Path) -> None:
    """Their makers may forget the adversary, which would then stay as it was drawn."""

    class Forgetful(AdversarialTrainer):
        def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
            return self.optimizer

    class Mindful(AdversarialTrainer):
        def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
            assert self.adversary is not None
            self.optimizer = torch.optim.SGD([*self.model.parameters(), *self.adversary.parameters()], lr=1e-3)
            return self.optimizer

    data: Any = rows("classification", 8)
    model = tiny_bert("classification")
    forgetful = Forgetful(model, arguments(tmp_path), train_dataset=data, method="asa")
    given = {"params": list(model.parameters()), "lr": 1e-3}
    listed = build(tmp_path, model=model, optimizer_cls_and_kwargs=(torch.optim.SGD, given))
    for trainer in (forgetful, listed):
        before = weights(model)
        with pytest.raises(RequestError, match=r"does not hold the adversary's parameters.*add those of"):
            trainer.train()
        assert_close(weights(model), before, atol=0)
    Forgetful(model, arguments(tmp_path), train_dataset=data, method="r_drop").train()
    build(tmp_path, optimizer_cls_and_kwargs=(Offloading, {"lr": 1e-3})).train()
    Mindful(model, arguments(tmp_path), train_dataset=data, method="asa").train()


@pytest.mark.parametrize("method", ["vanilla", "asa"])
def test_rules_on_weight_decay_meet_the_models_own_names(method: str, tmp_path: Path) -> None:
    class Encoder(AdversarialTrainer):
        def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
            seen.extend(name for name, _ in model.named_parameters())
            return [name for name in super().get_decay_parameter_names(model) if name.startswith("bert.encoder")]

    seen: list[str] = []
    model, data = tiny_bert("classification"), rows("classification", 8)
    trainer = Encoder(model, arguments(tmp_path), train_dataset=data, method=method)  # type: ignore[arg-type]
    trainer.train()
    names = [name for name, _ in model.named_parameters()]
    assert seen[: len(names)] == names
    assert all(name.startswith("adversary.") for name in seen[len(names) :])
    decayed = [p for group in trainer.optimizer.param_groups if group["weight_decay"] for p in group["params"]]
    matrices = [p for name, p in model.named_parameters() if name.startswith("bert.encoder") and p.ndim == 2]
    assert {id(p) for p in decayed} == {id(p) for p in matrices}


def test_a_part_that_is_called_adversary_is_trained_beside_ours(tmp_path: Path) -> None:
    class Domains(BertForSequenceClassification):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.adversary = nn.Linear(config.hidden_size, config.num_labels)
            self.adversary_ = nn.Parameter(torch.zeros(config.num_labels))
            self.post_init()

        def forward(  # type: ignore[override]
            self, input_ids: Any, attention_mask: Any, token_type_ids: Any, labels: Any = None
        ) -> Any:
            out: Any = super().forward(input_ids, attention_mask, token_type_ids, output_hidden_states=True)
            out.logits = out.logits + self.adversary(out.hidden_states[-1][:, 0]) + self.adversary_
            out.loss = None if labels is None else nn.functional.cross_entropy(out.logits, labels)
            out.hidden_states = None
            return out

    model = Domains(tiny_bert("classification").config)
    trainer = build(tmp_path, model=model, kind="classification")
    before, ours = weights(model), weights(trainer.adversary)
    trainer.train()
    after = weights(model)
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert {"adversary.weight", "adversary.bias", "adversary_", "classifier.weight"} <= moved
    assert any(not torch.equal(tensor, ours[name]) for name, tensor in weights(trainer.adversary).items())


def test_an_optimizer_that_goes_by_the_size_of_gradients_is_told(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def told(method: str, reversal: float = 1e-4, **changes: Any) -> list[str]:
        recwarn.clear()
        options = MethodsConfig(asa=ASAConfig(reversal=reversal))
        build(tmp_path, method, args=arguments(tmp_path, **changes), options=options).train()
        return [str(warning.message) for warning in recwarn if "learns more slowly" in str(warning.message)]

    assert told("asa", adam_epsilon=1e-6)[0].startswith("eps = 1e-06 with asa.reversal = 0.0001, a factor of")
    assert told("asa", optim="sgd")[0].startswith("an optimizer that goes by the size of gradients with asa.reversal")
    assert told("asa", optim="sgd", reversal=1) == []  # as the line says
    assert told("asa", adam_epsilon=1e-8) == told("asa", 1, adam_epsilon=1e-6) == told("freelb", optim="sgd") == []


def test_the_price_of_attention_is_that_of_the_task_where_none_is_given(tmp_path: Path) -> None:
    def tau(kind: Kind, **given: Any) -> float:
        adversary = build(tmp_path, "asa", model=tiny_bert(kind), **given).adversary
        assert adversary is not None
        return adversary.config.tau

    assert (tau("mlm"), tau("classification"), tau("mlm", options=MethodsConfig())) == (0.1, 0.3, 0.3)


def test_layers_that_the_model_has_not_are_refused_when_the_trainer_is_built(tmp_path: Path) -> None:
    options = MethodsConfig(asa_sparse=ASASparseConfig(layers=(LAYERS,)))
    with pytest.raises(RequestError, match=r"set --asa_sparse.layers to some of them"):
        build(tmp_path, "asa_sparse", options=options)


def test_a_method_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_method.py").write_text(
        "from asa.methods.vanilla import Vanilla\n\n\ndef plain(config):\n    return Vanilla()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(methods, "METHODS", dict(METHODS))
    trainer = build(tmp_path, "plain_method:plain")
    trainer.train()
    with pytest.raises(RequestError, match="No module named 'no_method'; allowed: MODULE:BUILDER"):
        build(tmp_path, "no_method:plain")


OWN = """from asa.methods.vanilla import Vanilla

class Own(Vanilla):
    def __init__(self, settings):
        pass

    def backward(self, engine, batch, at):
        terms = super().backward(engine, batch, at)
        return terms | {"NAME": terms["loss"]}
"""


def test_a_method_from_outside_is_what_its_module_has_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook loads it anew, and a checkpoint of the one before is not gone on from."""
    file = tmp_path / "own_method.py"
    file.write_text(OWN.replace("NAME", "first"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(methods, "METHODS", dict(METHODS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    args = arguments(tmp_path / "out", max_steps=1, save_strategy="steps", save_steps=1)
    trainer = build(tmp_path, "own_method:Own", args=args)
    trainer.train()
    assert any("first" in line for line in trainer.state.log_history)
    file.write_text(OWN.replace("NAME", "grad_norm"))
    importlib.reload(sys.modules["own_method"])
    trainer = build(tmp_path, "own_method:Own", args=args)
    with pytest.raises(RequestError, match="a term of the method is called 'grad_norm', as a figure of Trainer's"):
        trainer.train()
    with pytest.raises(RequestError, match="checkpoint-1 was trained by another file of own_method:Own; put that back"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))


def test_an_answer_of_padding_alone_is_refused(tmp_path: Path) -> None:
    data = rows("choice", 8)
    data[3]["attention_mask"][int(data[3]["labels"])] = 0
    with pytest.raises(RequestError, match="the answer of a question is padding alone; mend the data set"):
        build(tmp_path, "vanilla", model=tiny_bert("choice"), train_dataset=data).train()
    for label in (data[3]["attention_mask"].shape[0], -1, -5):
        data[3]["labels"] = torch.tensor(label)
        with pytest.raises(RequestError, match=rf"a label is {label}, for this model allowed: 0 to"):
            build(tmp_path, "vanilla", model=tiny_bert("choice"), train_dataset=data).train()


def test_a_model_whose_outputs_have_no_names(tmp_path: Path) -> None:
    model = tiny_bert("classification")
    model.config.return_dict = False
    with pytest.raises(RequestError, match="set return_dict = True"):
        build(tmp_path, model=model)


def test_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="method 'assa' is unknown; set method= to one of vanilla, asa"):
        build(tmp_path, "assa")
    many = Vanilla()
    many.replays = 3
    monkeypatch.setitem(drop_in.METHODS, "many", lambda options: many)
    with pytest.raises(RequestError, match="'many' takes 3 optimizer steps per batch"):
        build(tmp_path, "many")


def bert(head: Any, **changes: Any) -> Any:
    shape = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 24}
    return head(BertConfig(vocab_size=VOCAB, max_position_embeddings=LENGTH, **shape, **changes))


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (bert(BertForQuestionAnswering), None, "BertForQuestionAnswering is no head for"),
        (bert(BertForSequenceClassification, problem_type="multi_label_classification"), None, "multi_label"),
        (bert(BertForSequenceClassification, problem_type="regression"), None, "regression of 2 numbers"),
        (bert(BertForSequenceClassification), "token", "'token' does not fit .*'classification'"),
        (bert(BertForSequenceClassification), "sentences", "kind 'sentences' is unknown; .*mlm, classification"),
        (nn.Linear(2, 2), None, "Linear is no PreTrainedModel"),
        (SimpleNamespace(get_base_model=None), None, r"SimpleNamespace is PEFT's; give what its get_base_model\(\)"),
    ],
)
def test_models(model: Any, kind: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        build(tmp_path, model=model, kind=kind)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "bert-base-uncased"}, "str is no PreTrainedModel"),
        ({"options": ASAConfig()}, r"ASAConfig is no MethodsConfig; .*MethodsConfig\(asa=ASAConfig\(\)\)"),
        ({"options": {"asa": {}}}, "dict is no MethodsConfig"),
        ({"args": {"output_dir": "x"}}, r"dict is no TrainingArguments; give one, as args=TrainingArguments\(DIR\)"),
        ({"method": ["asa"]}, r"method \['asa'\] is unknown; set method= to one of"),
        ({"method": ["a:b"]}, r"method \['a:b'\] is unknown; set method= to one of"),
    ],
)
def test_what_is_of_another_class(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        build(tmp_path, **given)


def test_the_kind_comes_from_the_model_and_for_unknown_heads_from_the_user() -> None:
    assert [kind_of(tiny_bert(kind)) for kind in KINDS] == list(KINDS)

    class Mine(BertForSequenceClassification):
        pass

    assert kind_of(bert(Mine)) == "classification"
    assert kind_of(bert(Mine, num_labels=1)) == "regression"
    assert kind_of(bert(Mine, problem_type="single_label_classification")) == "classification"
    assert kind_of(bert(BertForNextSentencePrediction), "classification") == "classification"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, "no tensor 'labels', only input_ids"),
        ({"input_ids": None}, "no tensor 'input_ids'"),
        ({"labels": torch.tensor(0.5)}, "torch.float32.*int64"),
        ({"labels": torch.tensor(1, dtype=torch.int32)}, "torch.int32.*int64"),
        ({"labels": torch.tensor(1, dtype=torch.uint8)}, "torch.uint8.*int64"),
        ({"labels": torch.tensor([0, 1])}, r"labels are \[4, 2\].*must be \[4\]"),
        ({"labels": torch.tensor(7)}, "a label is 7, for this model allowed: 0 to 2 and -100; mend the data set"),
        ({"labels": torch.tensor(-1)}, "a label is -1, "),
    ],
)
def test_batches(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = [{**row, **change} for row in rows("classification", 8)]
    data = [{name: value for name, value in row.items() if value is not None} for row in data]
    with pytest.raises(RequestError, match=message):
        build(tmp_path, train_dataset=data).train()


def test_a_regression_to_what_is_no_number(tmp_path: Path) -> None:
    data = rows("regression", 8)
    data[3]["labels"] = torch.tensor(math.nan)
    with pytest.raises(RequestError, match="a label is no finite number, which 'regression' needs; mend the data set"):
        build(tmp_path, model=tiny_bert("regression"), train_dataset=data).train()


def test_labels_that_a_head_has_not_are_known_where_it_says_what_it_has() -> None:
    class Mine(BertForSequenceClassification):
        pass

    found = {kind: classes_of(tiny_bert(kind), kind) for kind in KINDS}
    assert found == {"mlm": VOCAB, "classification": 3, "regression": None, "choice": None, "token": 3}
    assert classes_of(bert(Mine), "classification") is None
    assert classes_of(bert(BertForNextSentencePrediction), "classification") is None
    model = tiny_bert("classification")
    model.classifier = torch.nn.Linear(WIDTH, 9)
    assert classes_of(model, "classification") == 9
    model = tiny_bert("mlm")
    model.set_output_embeddings(torch.nn.Linear(WIDTH, VOCAB + 8))
    assert classes_of(model, "mlm") == VOCAB + 8
    model.cls = torch.nn.Linear(2, VOCAB)  # in which transformers finds no output layer
    assert classes_of(model, "mlm") is None
    batch = {"input_ids": torch.zeros(2, 3, 4, dtype=torch.long), "labels": torch.tensor([2, 3])}
    with pytest.raises(RequestError, match="a label is 3, for this model allowed: 0 to 2; mend"):
        totals("choice", [batch])
    row = {**batch, "input_ids": batch["input_ids"][:, 0]}
    assert totals("classification", [row]).labels == 2
    with pytest.raises(RequestError, match="must be rows x choices x tokens"):
        totals("choice", [row])


def test_resuming_what_another_trainer_or_method_left(tmp_path: Path) -> None:
    def trainer(name: str, method: str, options: MethodsConfig | None = None, **changes: Any) -> AdversarialTrainer:
        args = arguments(tmp_path / name, save_strategy="steps", save_steps=2, **changes)
        return build(tmp_path, method, args=args, options=options)

    trainer("whole", "asa").train()
    trainer("bare", "asa", save_only_model=True).train()
    with pytest.raises(RequestError, match="trained by method 'asa', not 'vanilla'; set method='asa'"):
        trainer("again", "vanilla").train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    options = MethodsConfig(asa=ASAConfig(tau=0.9), random_mask=RandomMaskConfig(share=0.3))
    told = r"checkpoint-2 was trained with asa\.tau = 0\.3, now 0\.9; set options= as it was"
    other = trainer("again", "asa", options)
    before = weights(other.model)
    with pytest.raises(RequestError, match=told):  # of other methods nothing is asked
        other.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert_close(weights(other.model), before, atol=0)
    with pytest.raises(RequestError, match=r"resume_from_checkpoint: no folder .*none"):
        trainer("again", "asa").train(resume_from_checkpoint=str(tmp_path / "none"))
    with pytest.raises(RequestError, match=r"is no method's state .* without save_only_model"):
        trainer("again", "asa").train(resume_from_checkpoint=str(tmp_path / "bare" / "checkpoint-2"))
    (tmp_path / "whole" / "checkpoint-2" / "adversary.safetensors").write_bytes(b"cut")
    with pytest.raises(RequestError, match="is no saved adversary"):
        trainer("again", "asa").train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))


@pytest.mark.parametrize("method", ["vanilla", "asa"])
def test_a_model_of_which_nothing_is_trained_is_refused(method: str, tmp_path: Path) -> None:
    trainer = build(tmp_path, method)
    trainer.model.requires_grad_(False)
    with pytest.raises(RequestError, match="no parameter of the model requires a gradient"):
        trainer.train()


def test_a_question_without_an_answer_is_refused(tmp_path: Path) -> None:
    data = rows("choice", 8)
    data[5]["labels"] = torch.tensor(-100)
    with pytest.raises(RequestError, match="label -100, for 'choice' each needs one"):
        build(tmp_path, model=tiny_bert("choice"), train_dataset=data).train()


def test_without_accelerate_the_line_says_what_to_install() -> None:
    program = "import sys; sys.modules['accelerate'] = None; import asa.integrations.transformers"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.endswith("ModuleNotFoundError: AdversarialTrainer needs accelerate; pip install '.[trainer]'\n")
