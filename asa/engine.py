"""Engines: forward and backward passes accumulate gradients, step() applies them. DeepSpeed's is in zero.py.

Both have the same semantics: gradients are summed over backward calls, micro-batches and ranks, since losses are
already divided by the totals of the whole step. Both give and take their state parameter by parameter, whole and in
fp32, so that what one has saved any other reads.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from asa import dist
from asa.attention import trimmed
from asa.batch import Batch
from asa.errors import RequestError
from asa.loss_scale import LossScale, in_fp16
from asa.model import Output, TaskModel
from asa.optim import (
    ClippingAdamW,
    OptimConfig,
    PartNorms,
    check_optimizer,
    check_trained,
    known,
    learning_rate,
    named,
    set_rate,
    set_updates,
    start,
)
from asa.signal import Below, Perturb, Tap

Precision = Literal["fp32", "bf16", "fp16"]
State = Literal["weights", "exp_avg", "exp_avg_sq"]  # of every trainable parameter: itself and Adam's two averages


class StepStats(NamedTuple):
    """applied: False where a gradient was not finite, so that nothing was updated. overflow: FP16's loss scale was too
    high for it, no fault.

    grad_norm: before clipping, of model and adversaries together; model_norm, adversary_norm: apart, None where not
    asked for, not applied or, of the adversaries, where there are none. loss_scale: what the step's gradients were
    multiplied by on their way, 1 outside FP16.
    """

    applied: bool
    grad_norm: Tensor | float
    lr: float
    loss_scale: float = 1.0
    model_norm: Tensor | float | None = None
    adversary_norm: Tensor | float | None = None
    overflow: bool = False


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
        """Add the loss's gradients to what the next step applies; those of a loss that is not finite are NaN."""
        ...

    def types(self) -> AbstractContextManager[Any]:
        """Inside, what is computed beside the passes has their types: those of the caller's autocast, where the engine
        goes by it."""
        ...

    def same_dropout(self, masks: bool = True, taps: bool = True) -> AbstractContextManager[None]:
        """Inside, every forward and probe draws the same dropout masks.

        Args: masks is False where no pass attacks attention, so that torch may take its fastest kernel in all of them;
            taps is False where no pass has a tap that sees final states, so that none computes tokens that no head
            reads.
        Raises: RequestError, inside, for such a tap where there is to be none.
        """
        ...

    def step(self, norms: bool = False) -> StepStats:
        """Apply and clear the accumulated gradients; those that are not finite are cleared only. The loop's alone.

        Args: norms asks for the norms of model and adversaries apart.
        Raises: WorkError where FP16 gradients overflow at the smallest loss scale.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """Every parameter by name, whole, as it is computed with; not to be changed. All ranks must call it."""
        ...

    def parts(self, state: State) -> Iterator[tuple[str, Tensor]]:
        """One parameter's name and its weight, or one trainable parameter's name and its average, at a time; whole, not
        to be changed. All ranks must go through all of them."""
        ...

    def restore(self, state: State, parts: Iterable[tuple[str, Tensor]]) -> None:
        """Put in what parts gave, on any engine and number of processes; what is not trained stays. All ranks must give
        the same."""
        ...

    def counters(self) -> dict[str, Any]:
        """The rest of the state, good for JSON: updates applied, the loss scale."""
        ...

    def set_counters(self, counters: dict[str, Any]) -> None:
        """Take what counters gave; of another precision's loss scale no note is taken."""
        ...

    def full_state(self) -> dict[str, Tensor]:
        """Every parameter by name, whole and in fp32 on the CPU; all ranks must call it."""
        ...

    def close(self) -> None:
        """Let go of the model. Nothing is done with the engine afterwards."""
        ...


class Passes:
    """What both engines share: probing, ascending, repeatable dropout, the count of applied updates."""

    partitioned = False

    def __init__(self, module: TaskModel, optim: OptimConfig, steps: int, device: torch.device) -> None:
        if steps < 1:
            raise RequestError(f"steps = {steps}: allowed: whole numbers from 1, the updates of the whole run")
        self.module = module
        self.optim = optim
        self.steps = steps
        self.device = device
        self.applied = 0
        self._dropout_state: tuple[Tensor, Tensor | None] | None = None

    def probe(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        # Not through DeepSpeed's wrapper: torch.autograd.grad fails through it on ZeRO 1 and 2.
        self._restore_dropout(tap)
        return self.module(batch, perturb, tap)

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        with self._own_types():
            return torch.autograd.grad(loss, tuple(wrt))

    def types(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def _own_types(self) -> AbstractContextManager[Any]:
        """Gradients have the types of their forward pass, also where the caller's autocast is around both: it would
        bring the adversaries' to half precision, in which most of them are nothing."""
        return torch.autocast(self.device.type, enabled=False)

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in named(self.module)}

    def parts(self, state: State) -> Iterator[tuple[str, Tensor]]:
        """Weights only, as they are computed with: all that passes without an optimizer of their own have."""
        assert state == "weights"
        yield from self.weights().items()

    def full_state(self) -> dict[str, Tensor]:
        return {name: p.to("cpu", torch.float32, copy=True) for name, p in self.parts("weights")}

    def close(self) -> None:
        """Nobody but the caller holds what these passes need."""

    @staticmethod
    def _vetoed(loss: Tensor) -> Tensor:
        """The loss, whose gradients are NaN where it is not finite: an infinite one may have finite gradients, and
        step() looks at gradients alone."""
        return loss * torch.where(torch.isfinite(loss.detach()), 1.0, torch.nan)

    @contextmanager
    def same_dropout(self, masks: bool = True, taps: bool = True) -> Generator[None]:
        module = self.module
        if self.device.type not in ("cpu", "cuda"):
            raise RequestError(
                f"passes on {self.device.type} cannot be given the same dropout; set the method's dropout to"
                " independent, or train on a GPU of NVIDIA's or the CPU"
            )
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        before = self._dropout_state, module.same_dropout, module.whole
        self._dropout_state, module.same_dropout, module.whole = (torch.get_rng_state(), cuda), masks, taps
        try:
            yield
        finally:
            self._dropout_state, module.same_dropout, module.whole = before

    def _restore_dropout(self, tap: Tap | None) -> None:
        if self._dropout_state is None:
            return
        module = self.module
        if tap is not None and not isinstance(tap, Below) and not module.whole and trimmed(module.model):
            raise RequestError(
                "this pass has a tap of final states, so its dropout may not be that of passes without; leave"
                " taps=False out of same_dropout, or give the tap as asa.signal.Below"
            )
        cpu, cuda = self._dropout_state
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, self.device)

    def _next_rate(self) -> float:
        return learning_rate(self.optim, self.applied, self.steps)


class PlainEngine(Passes):
    """Plain torch in fp32, the reference for DeepSpeed; several processes add their gradients up, and begin from the
    weights of rank 0.

    Passes may be under autocast; where that is fp16, losses and their gradients are scaled until `step`. Weights in
    bf16 are trained as they are, so that of an update what is less than some 256th of a weight is lost. Raises:
    RequestError for weights in fp16.
    """

    def __init__(self, module: TaskModel, optim: OptimConfig, steps: int, device: torch.device) -> None:
        if any(p.requires_grad and p.dtype == torch.float16 for p in module.parameters()):
            raise RequestError(
                "weights in fp16 are not trained by plain torch, since what Adam divides by is 0 there; load the model"
                " with dtype=torch.float32 and put its passes under autocast, or take DeepSpeed's engine"
            )
        super().__init__(module.to(device), optim, steps, torch.device(device))
        if dist.world() > 1:  # heads and adversaries are drawn by each process
            for p in module.parameters():
                dist.broadcast_(p.data)
        self._scale = LossScale()
        self.optimizer = ClippingAdamW(self.module, optim)
        self._norms = PartNorms(self.optimizer, partitioned=False)
        start(self.optimizer, self._trainable())

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def forward(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        self._look()
        self._restore_dropout(tap)
        return self.module(batch, perturb, tap)

    def probe(self, batch: Batch, perturb: Perturb | None = None, tap: Tap | None = None) -> Output:
        self._look()
        return super().probe(batch, perturb, tap)

    def _look(self) -> None:
        """Begin to scale losses at the first pass in fp16."""
        if not self._scale.on and in_fp16(self.device.type):
            self._begin()

    def _begin(self) -> None:
        self._scale.begin()
        for p in self._trainable():
            if p.grad is not None:
                p.grad.mul_(self._scale.value)

    def ascend(self, loss: Tensor, wrt: Sequence[Tensor], scaled: bool = False) -> tuple[Tensor, ...]:
        if scaled or not self._scale.on:
            return super().ascend(loss, wrt)
        gradients = [gradient.float() for gradient in super().ascend(loss * self._scale.value, wrt)]
        self._scale.climbed(loss, gradients)
        return tuple(gradient / self._scale.value for gradient in gradients)

    def backward(self, loss: Tensor) -> None:
        self._scale.lost(loss)
        with self._own_types():
            torch.autograd.backward(self._vetoed(loss) * self._scale.value)

    def step(self, norms: bool = False) -> StepStats:
        """Raises, beside the protocol's: RequestError for a parameter that was frozen, of another size or not there
        when the engine was made."""
        check_optimizer(self.optimizer)
        check_trained(self.module, lambda p: known(self.optimizer, p))
        trainable = self._trainable()
        if dist.any_(self._scale.on) and not self._scale.on:  # this rank has had no pass yet
            self._begin()
        for p in trainable:
            # As under DeepSpeed: what no loss has reached has a gradient of zero, of which Adam's averages take note.
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce_(p.grad)
            if self._scale.on:
                p.grad.div_(self._scale.value)
        rate, scale = self._next_rate(), self._scale.value
        set_rate(self.optimizer, rate)
        self._norms.listen(norms)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        forget_old_weights()
        norm, applied = self.optimizer.grad_norm, not self.optimizer.overflow
        self.applied += int(applied)
        apart = self._norms.read(norm) if applied else (None, None)
        return StepStats(applied, norm, rate, scale, *apart, overflow=self._scale.update(applied))

    def parts(self, state: State) -> Iterator[tuple[str, Tensor]]:
        for name, p in named(self.module):
            if state == "weights":
                yield name, p.detach()
            elif p.requires_grad:
                yield name, self.optimizer.state[p][state]

    def restore(self, state: State, parts: Iterable[tuple[str, Tensor]]) -> None:
        mine = dict(self.parts(state))
        for name, part in parts:
            mine[name].copy_(part)
        forget_old_weights()

    def counters(self) -> dict[str, Any]:
        return {"applied": self.applied, "scaler": self._scale.state()}

    def set_counters(self, counters: dict[str, Any]) -> None:
        self.applied = counters["applied"]
        self._scale.restore(counters["scaler"])
        set_updates(self.optimizer, self.applied)


def forget_old_weights() -> None:
    """After a change of weights: where the caller's autocast is around several passes, it would go on with what it has
    made of the ones before."""
    torch.clear_autocast_cache()


def broken_weight(engine: Engine) -> str | None:
    """The name of a weight that is not finite, the same on every rank; all call it."""
    mine = next((name for name, p in engine.weights().items() if not torch.isfinite(p).all()), None)
    return next((name for name in dist.all_gather(mine) if name is not None), None)


def load_parameters(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Copy tensors into the parameters of the same names; every parameter must be there."""
    with torch.no_grad():
        for name, p in named(module):
            p.copy_(state[name])
    forget_old_weights()
