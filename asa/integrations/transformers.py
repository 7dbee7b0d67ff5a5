"""AdversarialTrainer: Hugging Face's Trainer with a method of the registry in place of its training step."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from asa import hf, manifest
from asa.adversary import FILE as ADVERSARY_FILE
from asa.adversary import Adversaries, ASAConfig
from asa.attention import depth
from asa.batch import Kind
from asa.config import flat, to_dict
from asa.engine import Engine, Precision, forget_old_weights
from asa.errors import RequestError
from asa.integrations.own_loss import refuse_loss
from asa.integrations.passes import AcceleratedPasses, Means
from asa.integrations.refusals import (
    refuse_args,
    refuse_optimizer,
    refuse_trainer,
    refuse_types,
    tell_slow,
    tell_wrapped,
)
from asa.integrations.search import SearchingTrainer
from asa.integrations.tasks import classes_of, kind_of, to_batch, totals
from asa.methods import METHODS, At, MethodsConfig, build_method, groups_read, limits, source_sha256
from asa.model import TaskModel
from asa.typed import fork_rng

METHOD_FILE = "method.safetensors"
SOURCE = "the method's file"  # among its settings, for one from outside
COMPARED = 8  # micro-batches whose loss by the model's own forward is looked at: of one class alone it tells nothing


class AdversarialTrainer(SearchingTrainer):
    """A Trainer that trains by `method`, a name of asa.methods.METHODS or MODULE:BUILDER; all else is Trainer's own.

        AdversarialTrainer(model, args, train_dataset=rows, processing_class=tokenizer, method="asa").train()

    Args beyond Trainer's, all of which it takes: method; options, the settings of all methods, of which the method
    reads its own (without them the defaults; for masked LM ASA's are those of pre-training); kind, the task, where the
    model's class does not tell it.

    The model stays an ordinary one: evaluation, prediction and best-model selection run it unperturbed, saving writes
    an ordinary folder with the adversary in adversary.safetensors beside it. Checkpoints hold the optimizer's and the
    method's state too: resuming goes on bit for bit. The method's terms are logged beside the loss, as means over the
    steps since the last log (a term per layer: over the layers too). Losses are divided by the totals of the whole
    optimizer step, so that accumulation does not change them. The adversary starts from `args.seed`.

    Refused with a RequestError, and why:
      deepspeed, fsdp, parallelism_config, several processes or GPUs, a device_map over several devices: a method
        makes several passes with an adversary beside the model, and none of these would know of either.
      torch_compile, use_liger_kernel: they replace the forward passes that perturbations reach by hooks.
      compute_loss_func, label_smoothing_factor, an overridden compute_loss, a loss of the model's own in its forward:
        the method makes the loss.
      a forward whose labels have no default: methods do not give them.
      without bf16 or fp16, a model under the autocast of an earlier trainer: it would be trained in half precision.
      neftune_noise_alpha: each pass would draw its own noise, and a divergence between passes would measure that.
      torch_empty_cache_steps: there is no one place between forward and backward.
      optim lomo, adalomo and the layerwise ones: they update during backward, of which a method may do several.
      optimizers=(yours, ...), a create_optimizer of yours or parameters in optimizer_cls_and_kwargs that leave out
        the adversary of a method that has one.
      activation_checkpointing with use_reentrant=True, attention without a float mask, models that are no
        PreTrainedModel of a supported family (PEFT's are none), multi-label tasks, question answering, a multiple
        choice without an answer.
      perturbations that drown in half precision, a start outside its ball.
      methods with replays: they take several optimizer steps per batch, the Trainer one.
      resuming from a checkpoint of another method or other settings of it, or one saved with save_only_model.
      a model without a parameter that requires a gradient, one put in the trained one's place after the trainer was
        built.
    """

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        args: TrainingArguments | None = None,
        *rest: Any,
        method: str,
        options: MethodsConfig | None = None,
        kind: Kind | None = None,
        **keywords: Any,
    ) -> None:
        outside = isinstance(cast("Any", method), str) and ":" in method  # which build_method loads
        if method not in list(METHODS) and not outside:  # of whatever type it is
            raise RequestError(
                f"method {method!r} is unknown; set method= to one of {', '.join(METHODS)}, or MODULE:BUILDER"
            )
        refuse_types(model, options, args)
        if args is not None:
            refuse_args(args)
        self._name, self._given = method, options
        self._asked: Kind | None = kind
        self._means = Means()
        super().__init__(model, args, *rest, **keywords)
        if args is None:
            refuse_args(self.args)  # those the Trainer has made itself
        if self.model_init is None:
            self._take(self.model)
        refuse_trainer(self)
        self.add_callback(_Updates(self._begin, self._updated))

    @property
    def adversary(self) -> Adversaries | None:
        """The adversaries in training; None for a method without."""
        return self._task.adversary

    def _take(self, model: Any) -> None:
        """Make `model` the one that is trained, with a new adversary beside it."""
        refuse_args(self.args)  # those of the trial, in a search
        refuse_types(model)
        self._kind: Kind = kind_of(model, self._asked)
        if self._kind == "regression":  # as Trainer's passes leave it; without it pipelines squash the score
            model.config.problem_type = "regression"
        if self._given is not None:
            self._options = self._given
        else:
            self._options = MethodsConfig(asa=ASAConfig.pretraining() if self._kind == "mlm" else ASAConfig())
        self._method = build_method(self._name, self._options, self._precision(model), zero=0)
        if self._method.replays > 1:
            raise RequestError(
                f"method {self._name!r} takes {self._method.replays} optimizer steps per batch, a Trainer one;"
                " set another method="
            )
        self._settings = _settings(self._name, self._options)
        with fork_rng(devices=[]):  # what the Trainer draws stays what it would draw without us
            torch.default_generator.manual_seed(self.args.seed)
            self._task = TaskModel(model, self._kind, self._options.asa if self._method.uses_adversary else None)
        limits.check_depth(self._method, depth(model))

    def _precision(self, model: PreTrainedModel) -> Precision:
        """What passes are computed in; not the arguments alone, but accelerate's launcher too may ask for autocast."""
        autocast = self.accelerator.mixed_precision
        if autocast == "fp16" or model.dtype == torch.float16:
            return "fp16"
        return "bf16" if autocast == "bf16" or model.dtype == torch.bfloat16 else "fp32"

    def call_model_init(self, trial: Any = None) -> nn.Module:
        if trial is not None and self.hp_search_backend is not None:
            self.begin_trial(trial, self._settings)
        model = super().call_model_init(trial)
        self._take(model)
        return model

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        self._task.to(self.args.device)
        return super().create_optimizer(_by_own_names(self.model, self.adversary) if model is None else model)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """One optimizer step's batches, counted: all their losses are divided by the totals."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:  # of data without a length the Trainer asks on when they have ended
            return batches, items
        # The Trainer clears the gradients of the model alone, and not those of a window that was cut short.
        self._task.zero_grad()
        for p in () if self.adversary is None else self.adversary.parameters():
            # In a step without an attack too Adam's averages of the adversary go on, as under our engines.
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        self._totals, self._slot = totals(self._kind, batches, classes_of(self._task.model, self._kind)), 0
        self._cut = len(batches) < num_batches
        return batches, items

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """One micro-batch's gradients by the method; returns its share of the step's loss, detached."""
        if self._cut:  # the Trainer makes no step of such a window
            return torch.zeros((), device=self.args.device)
        self._task.train()
        prepare = getattr(self.optimizer, "train", None)  # schedule-free optimizers have one
        if callable(prepare):
            prepare()
        inputs = self._prepare_inputs(inputs)
        if self._compared < COMPARED:
            refuse_loss(self._task, self._kind, inputs)
            self._compared += 1
        batch = to_batch(self._kind, inputs, self._totals)
        terms = self._method.backward(self._engine(), batch, At(self._slot, replay=0))
        self._slot += 1
        self._means.add(terms)
        return terms["loss"]

    def _engine(self) -> Engine:
        """What the method may use of an engine; the rest of one is the Trainer's work."""
        return cast(Engine, AcceleratedPasses(self._task, self.state.max_steps, self.accelerator))

    def _begin(self) -> None:
        if self.model is not self._task.model:
            raise RequestError(
                "trainer.model is another than the one the trainer was built for, which alone would be attacked and not"
                " trained; build a trainer for it, or give model_init"
            )
        self._task.to(self.args.device)  # where the optimizer was made by a create_optimizer of the user's own
        refuse_optimizer(self)
        refuse_args(self.args)  # as they are by now, and so below
        refuse_trainer(self, fitted=True)
        tell_slow(self)
        method = build_method(self._name, self._options, self._precision(self._task.model), zero=0)
        self._means, self._compared = Means(), 0
        if self.state.global_step == 0:  # of a trainer that has trained before too
            self._method, self._settings = method, _settings(self._name, self._options)

    def _updated(self) -> None:
        """After each optimizer step; a method hears of it where it was not skipped by an fp16 overflow."""
        forget_old_weights()
        self._means.step()
        if not self.accelerator.optimizer_step_was_skipped:
            self._method.after_step(self._engine())

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        return super()._clip_grad_norm(self._task)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return super()._get_grad_norm(self._task, grad_norm=grad_norm)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's log; a line with the training loss also gets the method's terms."""
        if "loss" in logs:
            terms = self._means.drain()
            if taken := sorted(terms.keys() & ({*logs, "epoch", "step"} - {"loss"})):
                raise RequestError(
                    f"a term of the method is called {taken[0]!r}, as a figure of Trainer's is; rename it"
                )
            logs.update((name, value) for name, value in terms.items() if name != "loss")
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = output_dir or self.args.output_dir  # one process, which saves
        assert folder is not None
        # Another model's, saved here before, and first: a kill leaves none beside a model that is not its own.
        (Path(folder) / ADVERSARY_FILE).unlink(missing_ok=True)
        super()._save(output_dir, state_dict)
        tell_wrapped(self.model, folder)
        if self.adversary is not None:
            self.adversary.save_pretrained(Path(folder))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        told = json.dumps([self._name, self._settings])  # of several keys safetensors has another order each time
        save_file(self._method.state_dict(), Path(output_dir) / METHOD_FILE, metadata={"method": told})

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        state = _read_method(Path(resume_from_checkpoint), self._name, self._settings)  # before anything is taken
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        hf.load_renamed(self.model, Path(resume_from_checkpoint), "resume_from_checkpoint")
        self._method.load_state_dict(state)
        if self.adversary is not None:
            self.adversary.load_pretrained(Path(resume_from_checkpoint))
        forget_old_weights()

    def _load_best_model(self) -> None:
        super()._load_best_model()
        assert self.state.best_model_checkpoint is not None
        best = Path(self.state.best_model_checkpoint)
        hf.load_renamed(self.model, best, "resume_from_checkpoint")
        if self.adversary is not None:
            self.adversary.load_pretrained(best)
        forget_old_weights()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        if not load_result.unexpected_keys:  # of other names load_renamed sees to it
            super()._issue_warnings_after_load(load_result)


def _by_own_names(model: PreTrainedModel, adversary: Adversaries | None) -> nn.Module:
    """What the optimizer is made for: the model's parts by the names they have in it, which rules on weight decay or
    target modules are written for, and the adversary."""
    if adversary is None:
        return model
    whole = nn.Module()
    for name, p in model.named_parameters(recurse=False):
        whole.register_parameter(name, p)
    for name, part in model.named_children():
        whole.add_module(name, part)
    ours = "adversary"
    while hasattr(model, ours):  # a part of the user's own
        ours += "_"
    whole.add_module(ours, adversary)
    return whole


def _settings(name: str, options: MethodsConfig) -> dict[str, Any]:
    """Those that the method reads, by dotted key; a file by its content."""
    settings = to_dict(options)
    found = flat({group: settings[group] for group in groups_read(name)})
    if (schedule := found.get("random_mask.schedule")) is not None:
        found["random_mask.schedule"] = manifest.file_sha256(Path(schedule))
    if (source := source_sha256(name)) is not None:
        found[SOURCE] = source
    return found


def _read_method(folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Tensor]:
    """A method's state from a checkpoint. Raises RequestError where there is none, or it is of another method or of one
    with other settings."""
    if not folder.is_dir():
        raise RequestError(f"resume_from_checkpoint: no folder {folder}")
    path = folder / METHOD_FILE
    try:
        with safe_open(path, "pt") as file:
            found, before = json.loads(file.metadata()["method"])
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f"{path} is no method's state ({error}); resume from a checkpoint that AdversarialTrainer saved without"
            " save_only_model"
        ) from None
    if found != name:
        raise RequestError(f"{folder} was trained by method {found!r}, not {name!r}; set method={found!r}")
    if other := [key for key in sorted(before | settings) if before.get(key) != settings.get(key)]:
        if other == [SOURCE] and before.get(SOURCE):
            raise RequestError(f"{folder} was trained by another file of {name}; put that back, or train anew")
        changed = ", ".join(f"{key} = {before.get(key)!r}, now {settings.get(key)!r}" for key in other)
        raise RequestError(f"{folder} was trained with {changed}; set options= as it was, or train anew")
    return state


class _Updates(TrainerCallback):
    """Tells the trainer what it has no method to override for."""

    def __init__(self, begin: Callable[[], None], updated: Callable[[], None]) -> None:
        self._begin, self._updated = begin, updated

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begin()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._updated()
