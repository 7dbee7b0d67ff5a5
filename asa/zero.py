"""DeepSpeed's engine, ZeRO 0 to 3. The only file that imports deepspeed."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from inspect import getclosurevars
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asa import dist
from asa.batch import Batch
from asa.engine import Passes, Precision, State, StepStats, forget_old_weights
from asa.errors import WorkError
from asa.loss_scale import Scaled, check_lower
from asa.model import Output, TaskModel
from asa.optim import (
    ClippingAdamW,
    OptimConfig,
    PartNorms,
    build_optimizer,
    check_trained,
    named,
    set_rate,
    set_updates,
    start,
)
from asa.signal import Perturb, Tap
from asa.zero_at_once import at_once
from asa.zero_linear import lean
from asa.zero_settings import deepspeed_settings, working_stage

TORCHS = F.linear  # in whose place DeepSpeed puts its own, when a model is first spread over the ranks
SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")  # what changes of DeepSpeed's loss scalers


class DeepSpeedEngine(Passes):
    """DeepSpeed ZeRO 0 to 3 with the accumulation window in our hands.

    DeepSpeed's own window keeps only the last backward before step() on ZeRO 1 and 2; unmanaged accumulation is exact.
    Passes and gradients are in the engine's precision, whatever autocast is around.
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
        offload: bool = False,
    ) -> None:
        """Args: offload keeps the optimizer's state and its work on the CPU (ZeRO 1 to 3). Several processes have met
        by asa.dist.init."""
        import deepspeed

        # On a CPU it would try which of its C++ parts compile, and build the one for inference's all-reduce: a minute,
        # and a lock left behind by a process that is killed meanwhile. Training calls none of them.
        deepspeed.ops.__compatible_ops__ = {}
        super().__init__(module, optim, steps, device)
        zero = working_stage(zero, precision)
        self._zero, self.partitioned = zero, zero == 3
        settings = deepspeed_settings(optim, zero, precision, micro_batch, offload)
        self._shapes = {p: _shape(p) for p in module.parameters() if p.requires_grad}
        given = {} if precision == "fp32" else _whole_weights(module)
        self._adam: torch.optim.Optimizer
        if zero == 0:
            # The one mode where DeepSpeed clips without telling the norm, and updates by whatever the gradient is.
            settings["gradient_clipping"] = 0.0
            self._adam = ClippingAdamW(module, optim)
        else:
            self._adam = build_optimizer(module, optim)
        now, self._linear = F.linear, _lean_linear() if self.partitioned else None
        try:
            made = deepspeed.initialize(model=module, optimizer=self._adam, config=settings)
        finally:
            F.linear = now
        self._engine, self._optimizer, _, _ = made
        dist.wait_as_long(self._engine.seq_data_parallel_group)
        # DeepSpeed's own ways with gradients, one parameter after another.
        singly = precision == "fp32" or offload
        if zero == 2 and not singly:
            at_once(self._optimizer)
        self._norms = PartNorms(self._adam, partitioned=zero > 0)
        start(self._adam, self._updated())
        if zero in (1, 2):
            self._optimizer._lazy_init_hp_params_optimizer_state()
        self._order = _Order(self._optimizer, module) if zero == 2 and singly and dist.world() > 1 else None
        self._update_scale = None
        self._scaled = Scaled()  # in fp16
        if precision == "fp16":
            # DeepSpeed changes the scale between the check of the gradients and their division by it.
            self._update_scale = self._optimizer._update_scale
            self._optimizer._update_scale = _later
        if given:
            # DeepSpeed makes its fp32 weights of those that it has rounded.
            self.restore("weights", given.items())

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        self._restore_dropout(tap)
        with self.types(), self._own_linear():
            return self._engine(batch, perturb, tap)

    def probe(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        with self.types(), self._own_linear():
            return super().probe(batch, perturb, tap)

    def types(self) -> AbstractContextManager[Any]:
        """The engine's own, whatever autocast is around: on a GPU DeepSpeed has its passes so."""
        return self._own_types()

    @contextmanager
    def _own_linear(self) -> Generator[None]:
        """Inside, ZeRO 3's linear layer, in backward passes too, which may make a forward pass again. DeepSpeed puts it
        in the place of torch's for the whole process, so that other engines' passes would go by it. What a user has
        put there stays."""
        now: Any = F.linear
        deepspeeds = str(getattr(now, "__module__", "")).startswith("deepspeed.")
        if self._linear is not None and (now is TORCHS or deepspeeds):
            F.linear = self._linear
        try:
            yield
        finally:
            F.linear = now

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        # On their way through a half-precision model small gradients vanish, and adversaries have small ones.
        scale = 1.0 if scaled else self._loss_scale()
        with self._own_linear():
            gradients = [gradient.float() for gradient in super().ascend(loss * scale, wrt)]
        if self._update_scale is not None and not scaled:
            self._scaled.climbed(loss, gradients)
        return tuple(gradient / scale for gradient in gradients)

    def backward(self, loss: Tensor) -> None:
        """Raises RequestError for a parameter that was frozen, not there or, on ZeRO 0 to 2, of another size when the
        engine was made: torch's fused Adam would write past its averages."""
        check_trained(self.module, lambda p: self._shapes.get(p) == _shape(p))
        if self._update_scale is not None:
            self._scaled.lost(loss)
        # DeepSpeed averages over ranks; our losses are shares of a sum.
        with self._own_types(), self._own_linear():
            self._engine.backward(self._vetoed(loss) * dist.world())

    def step(self, norms: bool = False) -> StepStats:
        if self._order is not None:
            self._order.check()
        rate, scale = self._next_rate(), self._loss_scale()
        set_rate(self._optimizer, rate)
        self._norms.listen(norms)
        self._engine.step()
        forget_old_weights()
        self._clear()
        applied = self._engine.was_step_applied()
        self.applied += int(applied)
        overflow = False
        if self._update_scale is not None:
            overflow = self._scaled.overflowed(applied)
            self._rescale(applied, overflow, scale)
        norm = self._engine.get_global_grad_norm()
        assert norm is not None
        apart = self._norms.read(norm) if applied else (None, None)
        return StepStats(applied, norm, rate, scale, *apart, overflow=overflow)

    def _rescale(self, applied: bool, overflow: bool, scale: float) -> None:
        """Change the loss scale after an update. One that was left out for another fault has nothing to do with it.
        Raises WorkError where there is no smaller one."""
        assert self._update_scale is not None
        if overflow:
            mend = "set --precision bf16 or fp32, or lower --optim.lr, and start from an older checkpoint"
            check_lower(scale, mend)
        if applied or overflow:
            self._update_scale(overflow)

    def _loss_scale(self) -> float:
        return float(getattr(self._optimizer, "loss_scale", 1.0))

    def _clear(self) -> None:
        """Gradients that DeepSpeed leaves to be overwritten, by a backward that may not reach their parameters."""
        if self.partitioned:
            self._optimizer.grad_partitions_flat_buffer.zero_()
        elif self._zero:
            # With offload, a step that is skipped would leave its sums to the next.
            sums = self._optimizer.averaged_gradients
            sums.update(dict.fromkeys(sums))
        for p in self._updated():
            if p.grad is not None:
                p.grad.zero_()

    def close(self) -> None:
        """Let go of the model, which DeepSpeed otherwise keeps for the life of the process. No other engine may be at
        work in it."""
        from deepspeed.runtime.zero import parameter_offload
        from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

        self._engine.destroy()
        parameter_offload.FWD_MODULE_STACK.clear()
        # What ZeRO 3 releases is cached by module and for the whole class, inside a decorated method. Another DeepSpeed
        # may do without.
        decorated = vars(PartitionedParameterCoordinator).get("_PartitionedParameterCoordinator__params_to_release")
        cached = getclosurevars(decorated).nonlocals.get("func") if self.partitioned and decorated else None
        if cached is not None:
            cached.cache_clear()

    def weights(self) -> dict[str, Tensor]:
        return self.full_state() if self.partitioned else super().weights()

    def parts(self, state: State) -> Iterator[tuple[str, Tensor]]:
        from deepspeed.runtime.zero import GatheredParameters

        for name, p in named(self.module):
            if p.requires_grad and p in self._shapes:
                yield name, self._whole(p, state)
            elif state == "weights":
                with GatheredParameters([p], enabled=self.partitioned):
                    yield name, p.detach()

    def restore(self, state: State, parts: Iterable[tuple[str, Tensor]]) -> None:
        mine = dict(named(self.module))
        for name, part in parts:
            if mine[name].requires_grad:
                self._set(mine[name], state, part)
        if state == "weights":
            self._follow_masters()
        forget_old_weights()

    def counters(self) -> dict[str, Any]:
        scaler = self._scaler()
        return {"applied": self.applied, "scaler": {key: vars(scaler)[key] for key in SCALER if key in vars(scaler)}}

    def set_counters(self, counters: dict[str, Any]) -> None:
        self.applied = counters["applied"]
        set_updates(self._adam, self.applied)
        scaler = self._scaler()
        for key in vars(scaler).keys() & counters["scaler"].keys():
            setattr(scaler, key, counters["scaler"][key])

    def _scaler(self) -> object:
        """What holds the state of the dynamic loss scale; an empty thing outside FP16."""
        if self._update_scale is None:
            return SimpleNamespace()
        return self._optimizer.loss_scaler

    def _updated(self) -> list[Tensor]:
        """The fp32 tensors that AdamW updates: parameters, their fp32 copies, or this rank's part of all in a row."""
        if self.partitioned:
            return self._optimizer.fp32_partitioned_groups_flat
        return [p for group in self._adam.param_groups for p in group["params"]]

    def _whole(self, p: nn.Parameter, state: State) -> Tensor:
        """On ZeRO 0 the tensor itself, else gathered from all ranks."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if self._zero == 0:
            return (p if state == "weights" else self._adam.state[p][state]).detach()
        whole = safe_get_full_fp32_param(p) if state == "weights" else safe_get_full_optimizer_state(p, state)
        assert whole is not None, f"DeepSpeed has no {state} of a parameter of shape {tuple(p.shape)}"
        return whole.detach()

    def _set(self, p: nn.Parameter, state: State, value: Tensor) -> None:
        from deepspeed.utils import (
            safe_set_full_fp32_param,
            safe_set_full_optimizer_state,
            safe_set_local_fp32_param,
            safe_set_local_optimizer_state,
        )

        if self._zero == 0:
            self._whole(p, state).copy_(value)
            return
        if self.partitioned:
            # Not by its functions for whole tensors, which fail where the ranks' shares are not of one size.
            assert value.numel() == cast(Any, p).ds_numel, f"{tuple(value.shape)} is not all of a parameter"
            size = cast(Any, p).ds_tensor.numel()
            value = F.pad(value.flatten(), (0, size * dist.world() - value.numel()))
            value = value.narrow(0, size * dist.rank(), size)
        weights = safe_set_local_fp32_param if self.partitioned else safe_set_full_fp32_param
        averages = safe_set_local_optimizer_state if self.partitioned else safe_set_full_optimizer_state
        weights(p, value) if state == "weights" else averages(p, value, state)

    def _follow_masters(self) -> None:
        """Make the weights that are computed with from the fp32 ones, as a step does."""
        if self.partitioned:
            # What the last pass has gathered would be computed with for longer: of a fine-tuning run's chosen weights
            # the last ones' scores were told.
            self._optimizer._partition_all_parameters()
            for group in range(len(self._optimizer.fp16_groups)):
                self._optimizer._reassign_or_swap_out_partitioned_parameters(group)
        elif self._zero:
            self._optimizer.update_lp_params()


class _Order:
    """In which order gradients came since the last update, as a number.

    On ZeRO 2, in fp32 and with offload, DeepSpeed adds up whatever gradients come one after another from each rank, and
    does not look whether they are of the same parameters; on ZeRO 3 it sorts them first.
    """

    def __init__(self, optimizer: Any, module: nn.Module) -> None:
        self._number = 0
        places = {id(p): place for place, p in enumerate(module.parameters(), 1)}
        passed_on = optimizer.reduce_ready_partitions_and_remove_grads

        def note(p: nn.Parameter, *group: int) -> None:
            self._number = (self._number * 1_000_003 + places[id(p)]) % (2**61 - 1)
            passed_on(p, *group)

        optimizer.reduce_ready_partitions_and_remove_grads = note

    def check(self) -> None:
        """Raises WorkError where it was another one on another rank; nothing is updated yet."""
        number, self._number = self._number, 0
        if not dist.alike(number):
            raise WorkError(
                "the ranks' gradients came in different orders, and DeepSpeed would add one parameter's to another's;"
                " set --zero 3, in fp32 --zero 1, in half precision --offload false, or give rows of one length"
            )


def _shape(p: nn.Parameter) -> torch.Size:
    """Of all of it, also where it is spread over the ranks."""
    return getattr(p, "ds_shape", p.shape)


def _whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """Rank 0's, as they are given, of all that is trained; none where an engine before, or the user, has spread them
    over the ranks, which DeepSpeed rounds where they are."""
    if any(hasattr(p, "ds_id") for p in module.parameters()):
        return {}
    trained = ((name, p.detach()) for name, p in named(module) if p.requires_grad)
    return {name: dist.broadcast_(p.to("cpu", torch.float32, copy=True).contiguous()) for name, p in trained}


def _lean_linear() -> Callable[..., Tensor]:
    from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3

    return lean(LinearFunctionForZeroStage3)


def _later(overflow: bool) -> None:
    """In the place of DeepSpeed's change of the loss scale, which `step` makes."""
