"""What somebody does who has the wheel and its declared dependencies: imports every module, trains in both ways.

Run by test_wheel.py outside the checkout. Its argument is the folder in which the library must be found.
"""

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

UNDECLARED = ("deepspeed", "datasets", "triton", "scipy", "sklearn", "pyarrow", "jsonargparse", "matplotlib")


def main(folder: Path) -> None:
    absent: Any = dict.fromkeys(UNDECLARED)
    sys.modules.update(absent)
    import asa

    assert Path(asa.__file__).parent == folder / "asa", asa.__file__
    for module in pkgutil.walk_packages(asa.__path__, "asa."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # kernels, asked for by nobody without Triton
            if error.name != "triton" or not module.name.startswith("asa.fused."):
                raise
    step_by_step()
    in_a_trainer()


def step_by_step() -> None:
    """Two steps as README.md shows them."""
    import torch

    from asa import At, Batch, MethodsConfig, OptimConfig, PlainEngine, TaskModel, build_method

    options = MethodsConfig()
    module = TaskModel(tiny_bert(), "classification", options.asa)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    engine = PlainEngine(module, OptimConfig(lr=1e-2, warmup=0), steps=2, device=torch.device("cpu"))
    tokens = {"input_ids": torch.arange(16).reshape(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    batch = Batch("classification", tokens, torch.tensor([0, 1]), total_rows=2, total_labels=2)
    method = build_method("asa", options, "fp32", zero=0)
    module.train()
    for _ in range(2):
        for replay in range(method.replays):
            terms = method.backward(engine, batch, At(slot=0, replay=replay))
            assert torch.isfinite(terms["loss"])
            assert engine.step().applied
            method.after_step(engine)
    still = [name for name, p in module.named_parameters() if torch.equal(p, before[name])]
    assert len(still) < len(before) / 2, still


def in_a_trainer() -> None:
    """Two steps of AdversarialTrainer, which needs the extra `trainer`."""
    from transformers import TrainingArguments

    from asa.integrations.transformers import AdversarialTrainer

    rows: Any = [{"input_ids": list(range(8)), "attention_mask": [1] * 8, "labels": n % 2} for n in range(4)]
    args = TrainingArguments("out", max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True)
    trainer = AdversarialTrainer(tiny_bert(), args, train_dataset=rows, method="asa")
    trainer.train()
    trainer.save_model("out")
    assert trainer.state.global_step == 2
    assert (Path("out") / "adversary.safetensors").is_file()


def tiny_bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    shape = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    return BertForSequenceClassification(shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
