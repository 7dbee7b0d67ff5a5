"""Engines: forward and backward passes accumulate gradients, step() applies them. The only file that imports deepspeed.

Both engines have the same semantics: gradients are summed over backward calls, micro-batches and ranks, since losses
are already divided by the totals of the whole step.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from asa import dist
from asa.batch import Batch
from asa.model import Output, TaskModel
from asa.optim import OptimConfig, build_optimizer, learning_rate
from asa.signal import Perturb, Tap


class StepStats(NamedTuple):
    """applied: False when an FP16 overflow skipped the update. grad_norm: before clipping, of model and adversaries."""

    applied: bool
    grad_norm: Tensor | float
    lr: float


class Engine(Protocol):
    """What methods and loops may use. Methods never call step."""

    module: TaskModel
    steps: int
    """Updates of the whole run."""
    partitioned: bool
    """Whether the parameters are spread over the ranks (ZeRO 3), so that no part of the model runs by itself."""

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        """A pass whose loss may be given to backward."""
        ...

    def probe(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        """A pass whose loss may be given to ascend only."""
        ...

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        """Gradients of a probe's loss in `wrt`; parameter gradients stay as they are.

        Args: scaled tells that the loss's gradients have a size that half precision holds, so that no loss scale is
        put on them.
        """
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients to what the next step applies."""
        ...

    def same_dropout(self) -> AbstractContextManager[None]:
        """Inside, every forward and probe draws the same dropout masks."""
        ...

    def step(self) -> StepStats:
        """Apply and clear the accumulated gradients. The loop's alone."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Every parameter by name, whole, as it is computed with; not to be changed. All ranks must call it."""
        ...

    def full_state(self) -> dict[str, Tensor]:
        """Every parameter by name, whole and in fp32 on the CPU; all ranks must call it."""
        ...

    def save(self, folder: Path) -> None:
        """Write this rank's weights and optimizer state below `folder`; all ranks must call it."""
        ...

    def load(self, folder: Path) -> None:
        """Read what save wrote, bit for bit; all ranks must call it."""
        ...


class _Passes:
    """What both engines share: probing, ascending, repeatable dropout, the count of applied updates."""

    partitioned = False

    def __init__(self, module: TaskModel, optim: OptimConfig, steps: int, device: torch.device) -> None:
        self.module = module
        self.optim = optim
        self.steps = steps
        self.device = device
        self.applied = 0
        self._dropout_state: tuple[Tensor, Tensor | None] | None = None

    def probe(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        # Not through DeepSpeed's wrapper: torch.autograd.grad fails through it on ZeRO 1 and 2.
        self._restore_dropout()
        return self.module(batch, perturb, tap)

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, tuple(wrt))

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.module.named_parameters()}

    @contextmanager
    def same_dropout(self) -> Iterator[None]:
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        self._dropout_state = (torch.get_rng_state(), cuda)
        try:
            yield
        finally:
            self._dropout_state = None

    def _restore_dropout(self) -> None:
        if self._dropout_state is None:
            return
        cpu, cuda = self._dropout_state
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, self.device)

    def _next_rate(self) -> float:
        return learning_rate(self.optim, self.applied, self.steps)


class PlainEngine(_Passes):
    """Plain torch in fp32, the reference for DeepSpeed; several processes add their gradients up."""

    def __init__(self, module: TaskModel, optim: OptimConfig, steps: int, device: torch.device) -> None:
        super().__init__(module.to(device), optim, steps, device)
        self.optimizer = build_optimizer(module, optim)

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        self._restore_dropout()
        return self.module(batch, perturb, tap)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> StepStats:
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        for p in parameters:
            # As under DeepSpeed: what no loss has reached has a gradient of zero, of which Adam's averages take note.
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.sum_(p.grad)
        limit = self.optim.clip or float("inf")
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        rate = self._next_rate()
        _set_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.applied += 1
        return StepStats(True, norm, rate)

    def full_state(self) -> dict[str, Tensor]:
        return {name: p.detach().cpu().clone() for name, p in self.module.named_parameters()}

    def save(self, folder: Path) -> None:
        if dist.is_main():
            weights = {name: p.detach() for name, p in self.module.named_parameters()}
            state = {"weights": weights, "optimizer": self.optimizer.state_dict(), "applied": self.applied}
            torch.save(state, folder / "engine.pt")

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "engine.pt", map_location=self.device, weights_only=True)
        load_parameters(self.module, state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.applied = state["applied"]


Precision = Literal["fp32", "bf16", "fp16"]


class DeepSpeedEngine(_Passes):
    """DeepSpeed ZeRO 0 to 3 with the accumulation window in our hands.

    DeepSpeed's own window keeps only the last backward before step() on ZeRO 1 and 2; unmanaged accumulation is exact.
    """

    def __init__(
        self,
        module: TaskModel,
        optim: OptimConfig,
        steps: int,
        device: torch.device,
        zero: int,
        precision: Precision,
        micro_batch: int,
    ) -> None:
        import deepspeed

        super().__init__(module, optim, steps, device)
        settings = deepspeed_settings(optim, zero, precision, micro_batch)
        optimizer = build_optimizer(module, optim)
        self._norm: Tensor | None = None
        if zero == 0 and precision == "fp32":
            # The one mode where DeepSpeed clips without telling the norm, so we clip the reduced gradients ourselves.
            settings["gradient_clipping"] = 0.0
            optimizer.register_step_pre_hook(self._clip)
        self._engine, self._optimizer, _, _ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings)
        self._zero = zero
        self.partitioned = zero == 3

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        self._restore_dropout()
        return self._engine(batch, perturb, tap)

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        # On their way through a half-precision model small gradients vanish, and adversaries have small ones.
        scale = 1.0 if scaled else float(getattr(self._optimizer, "loss_scale", 1.0))
        return tuple(gradient.float() / scale for gradient in super().ascend(loss * scale, wrt))

    def backward(self, loss: Tensor) -> None:
        # DeepSpeed averages over ranks; our losses are shares of a sum.
        self._engine.backward(loss * dist.world())

    def step(self) -> StepStats:
        rate = self._next_rate()
        _set_rate(self._optimizer, rate)
        self._engine.step()
        if self.partitioned:
            # It clears a parameter's sum by overwriting it in the first backward, which may not reach the parameter.
            cast(Any, self._optimizer).grad_partitions_flat_buffer.zero_()
        applied = self._engine.was_step_applied()
        self.applied += int(applied)
        norm = self._engine.get_global_grad_norm() if self._norm is None else self._norm
        assert norm is not None
        return StepStats(applied, norm, rate)

    def _clip(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        limit = self.optim.clip or float("inf")
        self._norm = nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], limit)

    def weights(self) -> dict[str, Tensor]:
        return self.full_state() if self.partitioned else super().weights()

    def full_state(self) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_fp32_param

        state = {}
        for name, p in self.module.named_parameters():
            whole = safe_get_full_fp32_param(p) if self._zero else None
            state[name] = (p if whole is None else whole).detach().float().cpu().clone()
        return state

    def save(self, folder: Path) -> None:
        self._engine.save_checkpoint(
            str(folder), tag="engine", client_state={"applied": self.applied}, save_latest=False
        )

    def load(self, folder: Path) -> None:
        path, client = self._engine.load_checkpoint(str(folder), tag="engine", load_lr_scheduler_states=False)
        assert path is not None, f"DeepSpeed found no state in {folder}"
        assert client is not None
        self.applied = client["applied"]


def deepspeed_settings(optim: OptimConfig, zero: int, precision: Precision, micro_batch: int) -> dict[str, Any]:
    """DeepSpeed's configuration with every key we rely on: absent ones have defaults that surprise (clipping at 1)."""
    return {
        "train_batch_size": micro_batch * dist.world(),
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optim.clip,
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": zero,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "overlap_comm": False,
            "reduce_bucket_size": 50_000_000,
            "allgather_bucket_size": 50_000_000,
            "allgather_partitions": True,
            "use_multi_rank_bucket_allreduce": True,
            "round_robin_gradients": False,
            "ignore_unused_parameters": True,
            "load_from_fp32_weights": True,
            "elastic_checkpoint": False,
            "compute_grad_norm": True,
            "sub_group_size": 1_000_000_000,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "stage3_prefetch_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 0,
            "stage3_gather_16bit_weights_on_model_save": False,
        },
        "zero_allow_untested_optimizer": False,
        "fp16": {
            "enabled": precision == "fp16",
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        },
        "bf16": {"enabled": precision == "bf16"},
        "steps_per_print": 2**31,
        "wall_clock_breakdown": False,
        "dump_state": False,
    }


def load_parameters(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Copy tensors into the parameters of the same names; every parameter must be there."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(state[name])


def _set_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
