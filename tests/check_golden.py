"""Compare our methods with what the released programs computed: `python -m tests.check_golden DIR`.

Prints one line per golden file: name, largest relative error, ok or FAIL. Exit code 1 on any FAIL, 2 where no file
could be checked.
"""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from asa.adversary import ASAConfig
from asa.batch import IGNORE, Batch, Kind
from asa.engine import PlainEngine, load_parameters
from asa.losses import divergence, kept_units, task_loss
from asa.methods import At
from asa.methods.asa import ASA, Map, attack
from asa.model import TaskModel
from asa.optim import OptimConfig
from asa.signal import Perturb

TOLERANCE = 1e-5
Golden = dict[str, Tensor]


def read(path: Path) -> tuple[Golden, dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference relative to the largest expected value."""
    return relative((ours.double() - theirs.double()).abs().max().item(), theirs.abs().max().item())


def relative(difference: float, scale: float) -> float:
    """`difference` / `scale`; 0 where both are zero. NaN on either side stays NaN, which passes no check."""
    if difference == 0 and scale == 0:
        return 0.0
    return difference / scale if scale else difference * math.inf


def kind_of(meta: dict[str, str]) -> Kind:
    if meta["kind"] == "seq":
        return "regression" if int(meta["num_labels"]) == 1 else "classification"
    return "choice" if meta["kind"] == "choice" else "token"


def build(meta: dict[str, str], kind: Kind, asa: ASAConfig) -> TaskModel:
    classes: dict[Kind, Any] = {
        "classification": BertForSequenceClassification,
        "regression": BertForSequenceClassification,
        "choice": BertForMultipleChoice,
        "token": BertForTokenClassification,
    }
    shape = json.loads(meta["config"]) | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    labels = 1 if kind == "choice" else int(meta["num_labels"])
    return TaskModel(classes[kind](BertConfig(**shape | {"num_labels": labels})), kind, asa)


def batch_of(golden: Golden, kind: Kind) -> Batch:
    labels = golden["labels"]
    inputs = {name: golden[name].long() for name in ("input_ids", "attention_mask", "token_type_ids")}
    rows = inputs["input_ids"].flatten(0, -2).shape[0]
    units = int((labels != IGNORE).sum()) if kind == "token" else labels.shape[0]
    labels = labels if kind == "regression" else labels.long()
    return Batch(kind=kind, inputs=inputs, labels=labels, total_rows=rows, total_labels=units)


def our_name(name: str) -> str:
    head, found, tail = name.partition("bert.encoder.adversary.")
    return f"adversary.{tail}" if found and not head else f"model.{name}"


def check_asa(golden: Golden, meta: dict[str, str]) -> dict[str, float]:
    """Keep maps, logits, losses and gradients of one asa_* file; errors by name."""
    kind = kind_of(meta)
    config = ASAConfig.released(tau=float(meta["tau"]))
    module = build(meta, kind, config)
    weights = {our_name(k.removeprefix("param.")): v for k, v in golden.items() if k.startswith("param.")}
    load_parameters(module, weights)
    engine = PlainEngine(module, OptimConfig(), steps=1, device=torch.device("cpu"))
    batch = batch_of(golden, kind)
    errors = _forward_errors(engine, batch, golden, config)
    loss = ASA(config).backward(engine, batch, At(0, 0))["loss"]
    errors["loss"] = error(loss, golden["loss"])
    errors |= gradient_errors(module, {our_name(k[5:]): v for k, v in golden.items() if k.startswith("grad.")})
    return errors


def gradient_errors(module: TaskModel, theirs: Golden) -> dict[str, float]:
    """Per parameter, relative to the largest gradient of its layer's weight and bias.

    Some biases (of attention keys: softmax sees no shift) have gradient zero but for rounding, and so no scale.
    """
    scales: dict[str, Tensor] = {}
    for name, gradient in theirs.items():
        layer = name.rpartition(".")[0]
        scales[layer] = torch.maximum(scales.get(layer, gradient.new_zeros(())), gradient.abs().max())
    errors = {}
    for name, p in module.named_parameters():
        ours = torch.zeros_like(p) if p.grad is None else p.grad
        difference, scale = (ours - theirs[name]).abs().max(), scales[name.rpartition(".")[0]]
        errors[f"grad {name}"] = relative(difference.item(), scale.item())
    return errors


def _forward_errors(engine: PlainEngine, batch: Batch, golden: Golden, config: ASAConfig) -> dict[str, float]:
    maps: dict[int, Map] = {}
    adversary = engine.module.adversary
    assert adversary is not None
    attend = attack(adversary, [None] * len(adversary), maps)
    clean, other = engine.forward(batch), engine.forward(batch, Perturb(attend=attend))
    plain = task_loss(clean, batch) + torch.stack(list(divergence(clean, other, batch, config).values())).sum()
    kept = torch.stack([kept_units(m.keep, batch.pad_BL, config.penalty_rows) for m in maps.values()]).sum()
    errors = {
        "logits": error(clean.logits.detach(), golden["logits"]),
        "adv_logits": error(other.logits.detach(), golden["adv_logits"]),
        "loss_without_penalty": error(plain.detach(), golden["loss_without_penalty"]),
        "penalty_keep_sum": error(kept.detach() / batch.total_rows, golden["penalty_keep_sum"]),
    }
    for layer, (keep, _) in maps.items():
        # Masks must agree exactly: one differing unit is an infinite error.
        same = torch.equal(keep.detach().double(), golden[f"keep.{layer}"].double())
        errors[f"keep.{layer}"] = 0.0 if same else float("inf")
    return errors


CHECKS: dict[str, Callable[[Golden, dict[str, str]], dict[str, float]]] = {"asa": check_asa}


def verdict(errors: dict[str, float]) -> tuple[bool, str, float]:
    """Whether every error is within TOLERANCE, and the worst error's name and value; NaN is the worst of all."""
    worst = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
    return all(e <= TOLERANCE for e in errors.values()), worst, errors[worst]


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    checked, failed = 0, 0
    for path in sorted(folder.glob("*.safetensors")):
        check = CHECKS.get(path.name.split("_")[0])
        if check is None:
            print(f"{path.stem:16s} -         skipped: no method of this version computes it")
            continue
        good, worst, value = verdict(check(*read(path)))
        checked, failed = checked + 1, failed + (not good)
        print(f"{path.stem:16s} {value:.1e}   {'ok' if good else f'FAIL at {worst}'}")
    if not checked:
        print(f"error: no golden file ({'_*, '.join(CHECKS)}_*.safetensors) to check in {folder}", file=sys.stderr)
        return 2
    return int(failed > 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python -m tests.check_golden DIR", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(sys.argv[1])))
