"""What settings of pre-training, and of fine-tuning under DeepSpeed, change: tiny runs in a process of their own, since
DeepSpeed keeps the first process group it sees. Writes {setting: [what was seen without, with it]}."""

import bz2
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers.models.bert.modeling_bert import BertIntermediate

from asa import dist, record, zero
from asa.config import from_dict, to_dict
from data_prep.build import build
from data_prep.config import BuildConfig
from finetune.sweep import sweep
from pretrain import loop
from pretrain import process as command
from pretrain.config import PretrainConfig
from pretrain.loop import train
from tests.data_prep.conftest import dump_xml, page_xml, prose
from tests.finetune.conftest import write_model, write_task
from tests.pretrain.conftest import LENGTH, make_model

# Setting -> what is looked at, its other value, what stands on both sides.
PRETRAIN: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "objective": ("numbers", "rtd", {}),
    "method": ("numbers", "r_drop", {}),
    "steps": ("numbers", 3, {}),
    "global_batch": ("numbers", 4, {}),
    "micro_batch": ("layers", 2, {}),
    "mask_share": ("numbers", 0.4, {}),
    "masking": ("numbers", "span", {}),
    "seed": ("numbers", 1, {}),
    "zero": ("settings", 1, {}),
    "offload": ("settings", True, {}),
    "precision": ("numbers", "bf16", {}),
    "activation_checkpointing": ("layers", True, {}),
    "rtd.generator_weight": ("numbers", 1.0, {"objective": "rtd"}),
    "log_every": ("numbers", 2, {}),
    "eval_every": ("numbers", 1, {}),
    "eval_rows": ("numbers", 3, {}),
    "save_every": ("saved", 1, {}),
    "keep": ("saved", 1, {"save_every": 1}),
}
FINETUNE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "engine": ("settings", "deepspeed", {"engine": "plain"}),
    "zero": ("settings", 2, {"engine": "deepspeed"}),
    "precision": ("numbers", "bf16", {"engine": "deepspeed"}),
}
told: list[dict[str, Any]] = []  # what DeepSpeed was told in a run
layers: list[int] = []  # rows of each pass through a layer


def main(folder: Path) -> None:
    _watch()
    dist.init(cuda=False, launched=False)
    base = _pretraining(folder)
    found: dict[str, Any] = {}
    known: dict[str, Any] = {}
    for stage, table in (("pretrain", PRETRAIN), ("finetune", FINETUNE)):
        for setting, (what, value, beside) in table.items():
            pair = []
            for changed in (beside, {**beside, setting: value}):
                key = f"{stage} {changed}"
                if key not in known:
                    out = folder / f"run-{len(known)}"
                    known[key] = _pretrained(base, changed, out) if stage == "pretrain" else _tuned(changed, out)
                pair.append(known[key][what])
            found[f"{stage}.{setting}"] = pair
    dist.close()
    found["pretrain.deterministic"] = [_deterministic(base, folder, asked) for asked in (False, True)]
    (folder / "found.json").write_text(json.dumps(found))


def _watch() -> None:
    inner, forward = zero.deepspeed_settings, BertIntermediate.forward

    def noted(*args: Any, **kwargs: Any) -> dict[str, Any]:
        told.append(inner(*args, **kwargs))
        return told[-1]

    def counted(self: BertIntermediate, hidden_states: torch.Tensor) -> torch.Tensor:
        layers.append(len(hidden_states))
        return forward(self, hidden_states)

    # Not the layer itself, whose own forward is what is computed again.
    zero.deepspeed_settings, BertIntermediate.forward = noted, counted  # type: ignore[method-assign]


def _pretraining(folder: Path) -> PretrainConfig:
    model = make_model(folder / "model")
    dump = folder / "wiki.xml.bz2"
    pages = [page_xml(f"Article {n}", f"'''{prose(n)}'''", n) for n in range(40)]
    dump.write_bytes(bz2.compress(dump_xml(*pages).encode()))
    build(BuildConfig(out=folder / "built", model=model, dumps=[dump], length=LENGTH, heldout=0.2))
    sizes: dict[str, Any] = {
        "steps": 2,
        "global_batch": 8,
        "micro_batch": 4,
        "eval_rows": 9,
        "log_every": 1,
        "eval_every": 2,
    }
    return PretrainConfig(
        data=folder / "built/shards", model=model, out=folder, method="vanilla", save_every=2, **sizes
    )


def _pretrained(base: PretrainConfig, changed: dict[str, Any], out: Path) -> dict[str, Any]:
    values = to_dict(replace(base, out=out))
    for setting, value in changed.items():
        group, _, inner = setting.rpartition(".")
        (values[group] if group else values)[inner] = value
    _forget()
    train(from_dict(PretrainConfig, values), torch.device("cpu"))
    saved = sorted(path.name for path in (out / "checkpoints").iterdir())
    return {"numbers": _numbers(out), "saved": saved, "settings": list(told), "layers": list(layers)}


def _tuned(changed: dict[str, Any], out: Path) -> dict[str, Any]:
    model = write_model(out / "model")
    _forget()
    asked = {"task": {"folder": write_task(out / "task")}, "models": {"tiny": model}, "methods": ["vanilla"]}
    sweep({**asked, "seeds": [0], "length": 16, "batch": 8, "epochs": 1, "out": out / "runs", **changed})
    return {"numbers": _numbers(out / "runs/colours/tiny-vanilla-0"), "settings": list(told)}


def _forget() -> None:
    told.clear()
    layers.clear()


def _numbers(run: Path) -> list[dict[str, Any]]:
    """The losses and scores of a record."""
    events = [event for event in record.read(run / record.NAME) if event["event"] in ("train", "eval")]
    return [{key: value for key, value in event.items() if not key.endswith(("per_s", "seconds"))} for event in events]


def _deterministic(base: PretrainConfig, folder: Path, asked: bool) -> bool:
    loop.train = lambda *_: None  # type: ignore[assignment]  # how it trains is seen above
    flags = {"data": base.data, "model": base.model, "out": folder / "d", "deterministic": str(asked).lower()}
    command.run([part for key, value in flags.items() for part in (f"--{key}", str(value))])
    return torch.are_deterministic_algorithms_enabled()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
