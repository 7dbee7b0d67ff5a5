"""ASA's adversary: one per self-attention layer, it decides which token pairs may attend (Wu et al. 2023, Eq. 5-8)."""

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from asa.config import config

MASKED = -1e4  # score of a masked unit: tau is calibrated for this constant, so it is no option

# B rows, L length (queries, then keys), D width


@config
class ASAConfig:
    """Adversarial Self-Attention. The defaults are the released behaviour with its defects mended (docs/asa.md)."""

    tau: Annotated[float, Field(gt=0, le=10)] = 0.3
    """Price of an attended unit, squared in the loss; lower attacks more (0.1 pre-training, 0.3 fine-tuning)."""
    reversal: Annotated[float, Field(gt=0, le=1)] = 1e-4
    """Scale of the reversed gradient: 1e-4 undoes the mask constant and keeps it out of the clip norm; released: 1."""
    empty_row: Literal["unmasked", "uniform"] = "unmasked"
    """A query with every unit masked attends as if unmasked, or to all keys alike (released)."""
    penalty_rows: Literal["valid", "all"] = "valid"
    """The penalty counts the attended units of real queries only, or of padding queries too (released)."""
    masked_score: Literal["shifted", "replaced"] = "shifted"
    """A masked unit's score is lowered by 1e4, or replaced by -1e4 at padding keys too (released)."""
    regression: Literal["squared", "batch_softmax"] = "squared"
    """Divergence of two regressions: squared error, or a softmax across the batch (released)."""
    token_mean: Literal["labelled", "rows"] = "labelled"
    """Token tasks: mean of the divergence over labelled tokens, or sum over all tokens divided by rows (released)."""

    @model_validator(mode="after")
    def _fits(self) -> "ASAConfig":
        if self.empty_row == "uniform" and self.masked_score == "shifted":
            # Lowering every score of a row by the same number changes nothing.
            raise ValueError("empty_row uniform needs masked_score replaced; set --asa.masked_score or --asa.empty_row")
        return self

    @classmethod
    def released(cls, **changes: Any) -> "ASAConfig":
        """The authors' program exactly, its defects included."""
        values: dict[str, Any] = {
            "reversal": 1.0,
            "empty_row": "uniform",
            "penalty_rows": "all",
            "masked_score": "replaced",
            "regression": "batch_softmax",
            "token_mean": "rows",
        }
        return cls(**(values | changes))


class _ReversedThreshold(torch.autograd.Function):
    """1[x > 0] forwards; backwards the sigmoid's derivative, reversed and scaled.

    Written as one function because hard + soft - soft.detach() is not exactly 0 or 1 in low precision.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        soft = torch.sigmoid(x)
        return -ctx.scale * grads[0] * soft * (1 - soft), None


class Adversary(nn.Module):
    """Mask maker of one layer: two D x D maps, one keep map shared by all heads.

    Source: Eq. 5-8; hard threshold with the sigmoid's straight-through gradient, as released.
    """

    def __init__(self, width: int, reversal: float, init_std: float = 0.02) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.reversal = reversal
        for linear in (self.query, self.key):
            nn.init.normal_(linear.weight, std=init_std)
            nn.init.zeros_(linear.bias)

    def scores(self, h_BLD: Tensor, pad_BL: Tensor) -> Tensor:
        """Scores x_BLL in fp32; positive attends, padding keys at -1e4."""
        with torch.autocast(h_BLD.device.type, enabled=False):
            h_BLD = h_BLD.detach().float()
            q_BLD = F.linear(h_BLD, self.query.weight.float(), self.query.bias.float())
            k_BLD = F.linear(h_BLD, self.key.weight.float(), self.key.bias.float())
            x_BLL = q_BLD @ k_BLD.transpose(-1, -2) / h_BLD.shape[-1] ** 0.5
            return x_BLL.masked_fill(pad_BL[:, None, :], MASKED)

    def forward(self, h_BLD: Tensor, pad_BL: Tensor) -> Tensor:
        """keep_BLL in {0, 1}, fp32; its gradient arrives reversed at this layer's parameters and nowhere else."""
        x_BLL = self.scores(h_BLD, pad_BL)
        keep_BLL = _ReversedThreshold.apply(x_BLL, self.reversal)
        assert isinstance(keep_BLL, Tensor)
        return keep_BLL


class Adversaries(nn.ModuleList):
    """One Adversary per self-attention layer, indexed bottom to top."""

    def __init__(self, layers: int, width: int, config: ASAConfig) -> None:
        super().__init__(Adversary(width, config.reversal) for _ in range(layers))
        self.config = config
