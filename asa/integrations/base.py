"""Hugging Face's Trainer with the types that its own signatures leave out."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Trainer

if TYPE_CHECKING:

    class TypedTrainer(Trainer):
        """What AdversarialTrainer overrides or reads, as transformers has it."""

        model: Any
        optimizer: Any
        compute_loss_func: Any

        def __init__(self, *args: Any, **keywords: Any) -> None: ...

        hp_search_backend: Any
        hp_space: Any

        def call_model_init(self, trial: Any = None) -> nn.Module: ...
        def hyperparameter_search(self, *args: Any, **keywords: Any) -> Any: ...

        def _hp_search_setup(self, trial: Any) -> None: ...

        def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer: ...

        def get_batch_samples(
            self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
        ) -> tuple[list[Any], Tensor | int | None]: ...

        def _clip_grad_norm(self, model: nn.Module) -> Any: ...

        def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any: ...

        def _issue_warnings_after_load(self, load_result: Any) -> None: ...

        def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None: ...

else:
    TypedTrainer = Trainer
