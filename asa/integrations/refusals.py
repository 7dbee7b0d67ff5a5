"""What of Hugging Face's Trainer the adversarial one turns down rather than do wrongly or not at all."""

import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType
from transformers import PreTrainedModel, Trainer, TrainingArguments

from asa.errors import RequestError
from asa.methods import MethodsConfig
from asa.methods.limits import slow_adversary
from asa.parts import refuse_peft

if TYPE_CHECKING:
    from asa.integrations.transformers import AdversarialTrainer

_INSIDE_BACKWARD = ("lomo", "adalomo")


def refuse_types(model: Any, options: Any = None, args: Any = None) -> None:
    """Raises RequestError for a model, options or arguments of a class that is none of theirs; None passes."""
    if not isinstance(model, PreTrainedModel | None):
        refuse_peft(model, ", and save by its save_pretrained")
        raise RequestError(f"{type(model).__name__} is no PreTrainedModel; give an ordinary Hugging Face model")
    if not isinstance(options, MethodsConfig | None):
        name = type(options).__name__
        raise RequestError(f"{name} is no MethodsConfig; give one, as options=MethodsConfig(asa=ASAConfig())")
    if not isinstance(args, TrainingArguments | None):
        raise RequestError(f"{type(args).__name__} is no TrainingArguments; give one, as args=TrainingArguments(DIR)")


def refuse_args(args: TrainingArguments) -> None:
    """Raises RequestError for training arguments we cannot honour; before the Trainer acts on them."""
    for found in _wrong_args(args):
        raise RequestError(found)


def refuse_trainer(trainer: "AdversarialTrainer", fitted: bool = False) -> None:
    """Raises RequestError for what the user gave a Trainer, or its environment made of it, that we cannot honour.
    fitted: the optimizer is the one it trains with, of which `refuse_optimizer` tells."""
    for found in _wrong_trainer(trainer, fitted):
        raise RequestError(found)


def refuse_optimizer(trainer: "AdversarialTrainer") -> None:
    """Raises RequestError where nothing of the model is to be trained, where torch's optimizers would train weights in
    fp16, or where the optimizer, by whomever it was made, would leave the adversary as it is. One that shows none of
    the model's parameters either, but copies of its own (offloading ones do), cannot be told."""
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    if not trained:
        raise RequestError("no parameter of the model requires a gradient; set requires_grad of those to be trained")
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate's has it inside
    if type(optimizer).__module__.startswith("torch.optim") and any(p.dtype == torch.float16 for p in trained):
        raise RequestError(
            "weights in fp16 are not trained by torch's optimizers, since what Adam divides by is 0 there; load the"
            " model with dtype=torch.float32 and set fp16=True"
        )
    state: Any = getattr(optimizer, "state", {})
    torchs = type(optimizer).__module__.startswith("torch.optim")  # others have averages of other shapes
    averages = ((state.get(p, {}).get("exp_avg"), p) for p in trained if torchs)
    if any(average is not None and average.shape != p.shape for average, p in averages):
        raise RequestError(
            "weights were resized since the optimizer was made, which goes on with averages of their old size; make"
            " the trainer anew"
        )
    if trainer.adversary is None:
        return
    held = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    known = any(id(p) in held for p in trainer.model.parameters())
    if known and any(p.requires_grad and id(p) not in held for p in trainer.adversary.parameters()):
        raise RequestError(
            "the optimizer does not hold the adversary's parameters; in a create_optimizer of yours, or in the params"
            " of optimizer_cls_and_kwargs, add those of trainer.adversary"
        )


def tell_wrapped(model: torch.nn.Module, folder: str) -> None:
    """Warn where a saved folder has weights under the names of PEFT's wrappers."""
    loaded = getattr(model, "_hf_peft_config_loaded", False)  # transformers' own adapters, which it saves as such
    if not loaded and any(".base_layer." in name for name, _ in model.named_parameters()):
        warnings.warn(
            f"{folder} has names of PEFT's, under which from_pretrained finds no weights; save with the PEFT model's"
            " save_pretrained, or merge_and_unload() first",
            stacklevel=3,
        )


def tell_slow(trainer: "AdversarialTrainer") -> None:
    """Warn where the optimizer goes by the size of the adversary's gradients, which `asa.reversal` is a factor of."""
    if trainer.adversary is None:
        return
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    eps = optimizer.param_groups[0].get("eps", 0.0)
    if isinstance(optimizer, torch.optim.SGD | torch.optim.ASGD):  # which divide by nothing
        eps = math.inf
    if isinstance(eps, int | float) and (told := slow_adversary(eps, trainer.adversary.config.reversal)):
        mend = "set optim or adam_epsilon, or options=MethodsConfig(asa=ASAConfig(reversal=1))"
        warnings.warn(f"{told}; {mend}", stacklevel=3)


def _wrong_args(args: TrainingArguments) -> Iterator[str]:
    partly: Any = args  # what Hugging Face gives no whole type
    if partly.deepspeed:
        yield "deepspeed: its engine would keep the last of a method's backward passes alone; leave deepspeed out"
    if args.fsdp:
        yield "fsdp: the adversary's parameters would not be sharded with the model's; leave fsdp out"
    if partly.parallelism_config is not None:
        yield "parallelism_config: the adversary needs whole rows on one device; leave parallelism_config out"
    if partly.world_size > 1:
        yield f"{partly.world_size} processes: losses are divided by one process's totals; start a single process"
    if args.n_gpu > 1:
        yield f"{args.n_gpu} GPUs: the model would be copied without its hooks; set CUDA_VISIBLE_DEVICES=0"
    if args.torch_compile:
        yield "torch_compile: the perturbed passes run hooks that a compiled model skips; leave torch_compile out"
    if args.use_liger_kernel:
        yield "use_liger_kernel: its fused loss would take the place of the method's; leave use_liger_kernel out"
    if args.label_smoothing_factor:
        yield f"label_smoothing_factor = {args.label_smoothing_factor}: the method makes the loss; allowed: 0"
    if args.neftune_noise_alpha is not None:
        yield "neftune_noise_alpha: each pass would draw its own noise and be told apart by it; leave it out"
    if args.torch_empty_cache_steps is not None:
        yield "torch_empty_cache_steps: forward and backward are one inside a method; leave torch_empty_cache_steps out"
    if args.optim in _INSIDE_BACKWARD or "layerwise" in args.optim:
        yield f"optim = {args.optim!r} updates during backward, of which a method may do several; set another optim"


def _wrong_trainer(trainer: "AdversarialTrainer", fitted: bool) -> Iterator[str]:
    kind = trainer.accelerator.distributed_type
    if kind != DistributedType.NO:
        yield f"accelerate is set up for {kind.value}: one process on one device is needed; unset its configuration"
    if trainer.is_model_parallel:
        yield "the model lies on several devices, its adversary on one; load it without device_map"
    if trainer.compute_loss_func is not None:
        yield "compute_loss_func: the method makes the loss from logits and labels; leave compute_loss_func out"
    if type(trainer).compute_loss is not Trainer.compute_loss or "compute_loss" in vars(trainer):
        yield f"{type(trainer).__name__}.compute_loss would not be called in training; remove it"
    if "_original_forward" in vars(trainer.model) and trainer.accelerator.mixed_precision == "no":
        yield (
            "the model still runs under the autocast of an earlier trainer; set bf16 or fp16 as there, or take it off"
            " by accelerator.unwrap_model(model, keep_fp32_wrapper=False)"
        )
    if trainer.optimizer is not None and trainer.adversary is not None and not fitted:
        yield "optimizers: yours does not hold the adversary's parameters; give optimizer_cls_and_kwargs instead"
