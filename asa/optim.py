"""AdamW, its parameter groups and the learning-rate schedule: the same objects for every engine."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from asa import dist
from asa.config import config
from asa.errors import RequestError
from asa.typed import vector_norm

ADVERSARY = "adversary."  # how the names of a TaskModel's adversary parameters begin
MOMENTS = ("exp_avg", "exp_avg_sq")
PIECE = 1024  # numbers whose squares are added up in fp32


@config
class OptimConfig:
    """AdamW with linear warm-up and linear decay to zero, one optimizer for the model and its adversaries."""

    lr: Annotated[float, Field(gt=0, le=1)] = 2e-5
    """Peak learning rate."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.06
    """Share of the optimizer steps spent warming up, to the nearest whole step."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Decoupled weight decay; biases and LayerNorm weights have none."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the second moment."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added to the root of the second moment; to be a ten-thousandth of asa.reversal at most, or less of an adversary's
    step is left."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest global gradient norm of one step; 0 turns clipping off."""


class ClippingAdamW(torch.optim.AdamW):
    """AdamW that clips by the global norm of what it updates and applies no gradient that is not finite.

    Where its gradients are whole: each rank must see the same. `overflow` (not applied) and `_global_grad_norm` have
    the names that DeepSpeed looks for after a step.
    """

    def __init__(self, module: nn.Module, optim: OptimConfig) -> None:
        super().__init__(parameter_groups(module, optim.weight_decay), **_options(optim), fused=True)
        self.clip = optim.clip or float("inf")
        self.overflow = False
        self._global_grad_norm: Tensor | float = 0.0

    @property
    def grad_norm(self) -> Tensor | float:
        """The last step's, before clipping."""
        return self._global_grad_norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Args: closure, which makes the gradients of this step, as torch's own take one. Returns: what it returns.

        Raises: RequestError under a GradScaler.
        """
        # What a GradScaler gives a fused optimizer, and leaves there where it raises.
        left = [vars(self).pop(name, None) for name in ("grad_scale", "found_inf")]
        if any(one is not None for one in left):
            raise RequestError(
                "a GradScaler divides gradients by a loss scale that no pass was given; leave it out: the engine scales"
                " losses itself, under torch.autocast in fp16"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        self._global_grad_norm = norm_of([p.grad for p in parameters if p.grad is not None])
        nn.utils.clip_grads_with_norm_(parameters, self.clip, self._global_grad_norm)
        self.overflow = not bool(torch.isfinite(self._global_grad_norm))
        if not self.overflow:
            adam: Any = super()
            adam.step()
        return loss


def norm_of(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of all of them together."""
    if not gradients or gradients[0].device.type != "cpu":
        return nn.utils.get_total_norm(gradients)
    # There torch adds up a tensor's squares one by one, in fp32 1 % too few of 100 million.
    norms = torch.cat([vector_norm(piece, dim=1) for gradient in gradients for piece in _pieces(gradient)])
    return vector_norm(norms, dtype=torch.float64).to(norms.dtype)


def _pieces(gradient: Tensor) -> Iterator[Tensor]:
    """A tensor's numbers, in fp32 at least, as rows of PIECE and, where some are left, one of these."""
    flat = gradient.reshape(-1).to(torch.promote_types(gradient.dtype, torch.float32))
    whole = flat.numel() - flat.numel() % PIECE
    if whole:
        yield flat[:whole].view(-1, PIECE)
    if whole < flat.numel() or not whole:  # of an empty one none
        yield flat[whole:].unsqueeze(0)


def named(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters by the names that they have without the modules that torch.compile puts around others."""
    return ((name.replace("_orig_mod.", ""), p) for name, p in module.named_parameters())


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters, those of the model and those of its adversaries ("part") apart, matrices with decay and
    vectors without."""
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, p in named(module):
        if p.requires_grad:
            part = "adversary" if name.startswith(ADVERSARY) else "model"
            groups.setdefault((part, p.ndim < 2), []).append(p)
    return [
        {"params": groups[part, vector], "weight_decay": 0.0 if vector else weight_decay, "part": part}
        for part, vector in sorted(groups, key=lambda key: (key[0] == "adversary", key[1]))
    ]


def build_optimizer(module: nn.Module, optim: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; clipping is left to others."""
    return torch.optim.AdamW(parameter_groups(module, optim.weight_decay), **_options(optim), fused=True)


def _options(optim: OptimConfig) -> dict[str, Any]:
    return {"lr": optim.lr, "betas": (optim.beta1, optim.beta2), "eps": optim.eps}


def start(optimizer: torch.optim.Optimizer, updated: Iterable[Tensor]) -> None:
    """Make the state of what the optimizer updates, as its first step would: memory is taken at once or not at all,
    and a checkpoint finds the same tensors before and after the first step."""
    for p in updated:
        averages = {name: torch.zeros_like(p) for name in MOMENTS}
        optimizer.state[p] = {"step": torch.zeros((), device=p.device), **averages}


def known(optimizer: torch.optim.Optimizer, p: Tensor) -> bool:
    """Whether the optimizer has a state for a parameter as large as it is now: torch's fused Adam does not look, and
    writes past averages of embeddings that were resized since."""
    average = optimizer.state.get(p, {}).get(MOMENTS[0])
    return average is not None and average.shape == p.shape


def check_optimizer(optimizer: Any) -> None:
    """Raises RequestError for another one than the engine's, or Lightning's wrapper of it."""
    if not hasattr(optimizer, "grad_norm"):
        raise RequestError(
            f"engine.optimizer is {type(optimizer).__name__}, which neither clips nor tells norms; leave the engine's"
            " own there, and set it by OptimConfig"
        )


def check_trained(module: nn.Module, knows: Callable[[nn.Parameter], bool]) -> None:
    """Raises RequestError for a parameter that is to be trained, which an engine did not know so when it was made."""
    if (name := next((name for name, p in named(module) if p.requires_grad and not knows(p)), None)) is not None:
        raise RequestError(
            f"{name} was frozen, of another size or not there yet when the engine was made, which does not train"
            " it; make the engine anew"
        )


def set_updates(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Tell Adam how many updates its averages have seen."""
    for state in optimizer.state.values():
        state["step"].fill_(updates)


def set_rate(optimizer: Any, rate: float) -> None:
    """Give every group of an optimizer the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class PartNorms:
    """Gradient norms of the model and of its adversaries apart, as the optimizer sees them in a step."""

    def __init__(self, optimizer: torch.optim.Optimizer, partitioned: bool) -> None:
        """Args: partitioned tells that each rank's optimizer has a share of every gradient."""
        self._partitioned = partitioned
        self._wanted = False
        self._squares: dict[tuple[str, int], Tensor] = {}
        optimizer.register_step_pre_hook(self._note)

    def listen(self, wanted: bool) -> None:
        """Before a step: whether its norms are asked for."""
        self._wanted = wanted
        self._squares = {}

    def read(self, norm: Tensor | float) -> tuple[Tensor | None, Tensor | None]:
        """After a step that was applied: the norms of model and adversaries that make up `norm`, the whole one before
        clipping. None: not asked for, or not there. All ranks must call it."""
        if not self._wanted:
            return None, None
        parts = sorted({part for part, _ in self._squares})
        squares = torch.stack([sum_of(self._squares, part) for part in parts])
        if self._partitioned:
            dist.all_reduce_(squares)
        whole = squares.sum()
        shares = squares / whole.where(whole != 0, torch.ones_like(whole))  # where every gradient is zero: 0, not 0/0
        norms = dict(zip(parts, (shares.sqrt() * norm).float(), strict=True))
        return norms.get("model"), norms.get("adversary")

    def _note(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """DeepSpeed steps once per group, and torch may call a hook twice in a step: the later has what is applied."""
        if not self._wanted:
            return
        for group in optimizer.param_groups:
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if gradients:
                # In fp64, since the squares of an adversary's small gradients leave fp32's range.
                norms = [vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
                self._squares[group.get("part", "model"), id(group)] = torch.stack(norms).square().sum()


def sum_of(squares: dict[tuple[str, int], Tensor], part: str) -> Tensor:
    return torch.stack([square for (name, _), square in squares.items() if name == part]).sum()


def learning_rate(optim: OptimConfig, step: int, steps: int) -> float:
    """The rate of update number `step` (from 0) of `steps`; skipped updates do not advance it."""
    if step >= steps:
        warnings.warn(
            f"an update after the last of steps={steps} has the rate 0 and moves nothing; give the engine all updates"
            " as steps",
            stacklevel=4,  # the line that calls engine.step()
        )
    warmup = round(optim.warmup * steps)
    if step < warmup:
        return optim.lr * (step + 1) / warmup
    return optim.lr * max(0.0, (steps - step) / max(1, steps - warmup))
