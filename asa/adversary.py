"""ASA's adversary: one per self-attention layer, it decides which token pairs may attend (Wu et al. 2023, Eq. 5-8 and
Fast Implementation)."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from asa import dist
from asa.config import config, from_dict
from asa.errors import RequestError
from asa.typed import Function

FILE = "adversary.safetensors"
# The settings that a TaskModel decides; a method decides the others.
OF_MODEL = ("mask", "temperature", "heads", "reversal", "empty_row", "masked_score", "sentence", "dropout")
MASKED = -1e4  # score of a masked unit: tau is calibrated for this constant, so it is no option

# B rows, D width, H heads, L length (queries, then keys)


@config
class ASAConfig:
    """Adversarial Self-Attention. The defaults are the released behaviour with its defects mended (docs/asa.md)."""

    tau: Annotated[float, Field(gt=0, le=10)] = 0.3
    """Price of an attended unit, squared in the loss; lower attacks more (0.1 pre-training, 0.3 fine-tuning)."""
    mask: Literal["hard", "gumbel"] = "hard"
    """A unit is attended where its score is positive (hard), or by a draw with that log odds (gumbel)."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Divides the scores inside the gradient's sigmoid (after the noise, with mask gumbel)."""
    heads: Literal["shared", "each"] = "shared"
    """One keep map for all heads of a layer, or one each, scored over the head's share of the width."""
    reversal: Annotated[float, Field(gt=0, le=1)] = 1e-4
    """Scale of the reversed gradient: 1e-4 undoes the mask constant and keeps it out of the clip norm; released: 1."""
    empty_row: Literal["unmasked", "uniform"] = "unmasked"
    """A query with every unit masked attends as if unmasked, or to all keys alike (released)."""
    penalty_rows: Literal["valid", "all"] = "valid"
    """The penalty counts the attended units of real queries only, or of padding queries too (released)."""
    masked_score: Literal["shifted", "replaced"] = "shifted"
    """A masked unit's score is lowered by 1e4, or replaced by -1e4 at padding keys too (released; BERT's like only)."""
    divergence: Literal["symmetric", "one_sided"] = "symmetric"
    """Half the sum of both KL divergences, or KL(clean || attacked) alone."""
    stop_gradient: bool = False
    """The clean prediction is a fixed target: through the divergence only the attacked pass learns."""
    regression: Literal["squared", "batch_softmax"] = "squared"
    """Divergence of two regressions: squared error, or a softmax across the batch (released), not to be split."""
    token_mean: Literal["labelled", "rows"] = "labelled"
    """Token tasks: mean of the divergence over labelled tokens, or sum over all tokens divided by rows (released)."""
    sentence: Literal["hidden_softmax", "head", "mse", "cosine"] = "hidden_softmax"
    """MLM's sentence term at [CLS]: divergence of a softmax over the hidden axis, or of the MLM head's distributions;
    mean squared difference; 1 - cosine."""
    dropout: Literal["independent", "shared"] = "independent"
    """The two passes draw their own dropout masks, or use the same."""

    @model_validator(mode="after")
    def _fits(self) -> "ASAConfig":
        if self.empty_row == "uniform" and self.masked_score == "shifted":
            # Lowering every score of a row by the same number changes nothing.
            raise ValueError("empty_row uniform needs masked_score replaced; set --asa.masked_score or --asa.empty_row")
        if self.dropout == "shared" and self.masked_score == "replaced":
            # The module's own attention draws a mask too before its output is replaced.
            raise ValueError("dropout shared needs masked_score shifted; set --asa.masked_score or --asa.dropout")
        return self

    @property
    def in_attention(self) -> bool:
        """Whether attention can make the map itself, while it attends: of signs, for all heads, lowering scores."""
        return (self.mask, self.heads, self.masked_score) == ("hard", "shared", "shifted")

    @classmethod
    def pretraining(cls) -> "ASAConfig":
        """The defaults with the paper's tau of pre-training; that of fine-tuning is the class's own."""
        return cls(tau=0.1)

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


class _ReversedThreshold(Function):
    """1[x > 0] forwards; backwards the derivative of sigmoid(x / temperature), reversed and scaled.

    Written as one function because hard + soft - soft.detach() is not exactly 0 or 1 in low precision.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, temperature: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale, ctx.temperature = scale, temperature
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        soft = torch.sigmoid(x if ctx.temperature == 1 else x / ctx.temperature)
        slope = torch.ops.aten.sigmoid_backward(grads[0], soft)
        return slope.mul_(-ctx.scale / ctx.temperature), None, None


class _Together(Function):
    """Tensors as they are, whose gradients arrive at once.

    On ZeRO 2 DeepSpeed adds up whatever gradients come one after another from each rank, and trusts that all ranks'
    come in one order. What becomes of an adversary's parts follows the shape of a rank's rows, and so would the order
    of their gradients: one's would be added to another's.
    """

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> tuple[Tensor, ...]:
        return parts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads


def threshold(x: Tensor, scale: float, temperature: float = 1.0) -> Tensor:
    """1 where x > 0, else 0; the sigmoid's gradient arrives at x reversed, times `scale`."""
    return _ReversedThreshold.apply(x, scale, temperature)


def logistic_noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """fp32 draws of the standard logistic distribution, the difference of two Gumbel draws."""
    return torch.logit(torch.rand(shape, device=device), eps=torch.finfo(torch.float32).eps)


def merges(shape_BLD: torch.Size) -> bool:
    """Whether one D x D map made of two is less work: 6 D^3 for it and its gradient against 4 D^2 + 2 L D a token."""
    rows, length, width = shape_BLD
    return rows * length * (2 * width + length) > 3 * width**2


class Adversary(nn.Module):
    """Mask maker of one layer: two D x D maps, whose products are the keep map's scores.

    Source: Eq. 5-8; maps and scores: Fast Implementation; hard threshold with the sigmoid's straight-through gradient,
    as released.
    """

    def __init__(self, width: int, heads: int, config: ASAConfig, init_std: float = 0.02) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.heads = heads if config.heads == "each" else 1
        self.config = config
        for linear in (self.query, self.key):
            nn.init.normal_(linear.weight, std=init_std)
            nn.init.zeros_(linear.bias)

    def scores(self, h_BLD: Tensor, seen_BLL: Tensor) -> Tensor:
        """Scores x_BLL, or x_BHLL with one map per head, at least in fp32: positive attends, -1e4 where not seen."""
        with torch.autocast(h_BLD.device.type, enabled=False):
            q_BLD, k_BLD, bias_BL = self._factors(_wide(h_BLD.detach()))
            if bias_BL is not None:
                scale = q_BLD.shape[-1] ** -0.5
                x_BLL = torch.baddbmm(bias_BL.unsqueeze(-1) * scale, q_BLD, k_BLD.transpose(1, 2), alpha=scale)
            else:
                if self.heads > 1:
                    split = (self.heads, -1)
                    q_BLD, k_BLD = (torch.unflatten(x_BLD, -1, split).transpose(1, 2) for x_BLD in (q_BLD, k_BLD))
                    seen_BLL = seen_BLL.unsqueeze(1)
                x_BLL = q_BLD @ k_BLD.transpose(-1, -2) / q_BLD.shape[-1] ** 0.5
            seen_BLL = seen_BLL.to(x_BLL.dtype)
            return x_BLL.mul_(seen_BLL).add_((1 - seen_BLL) * MASKED)

    def _factors(self, h_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(q_BLD, k_BLD, bias_BL): q k^T + bias, None for 0, are the scores times sqrt(D), in the type of h.

        h gets no gradient, so the scores know the maps by Wq^T Wk alone: (h Wq^T + bq) (h Wk^T + bk)^T is q h^T + bias.
        Where tokens are enough that product saves a map of each and the keys' gradient.
        """
        query_DD, query_D, key_DD, key_D = self._weights(h_BLD.dtype)
        if self.heads > 1 or not merges(h_BLD.shape):
            return F.linear(h_BLD, query_DD, query_D), F.linear(h_BLD, key_DD, key_D), None
        q_BLD = F.linear(h_BLD, key_DD.T @ query_DD, query_D @ key_DD)
        return q_BLD, h_BLD, h_BLD @ (key_D @ query_DD) + query_D @ key_D

    def _weights(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        # Copies under ZeRO 3, which takes back what it has gathered; elsewhere four launches a layer for nothing.
        copied = hasattr(self.query.weight, "ds_id")
        given = (self.query.weight, self.query.bias, self.key.weight, self.key.bias)
        parts = [x.to(dtype, copy=copied) for x in given]
        # A view each, whose gradients torch passes on in the order of the views, last one first.
        return _Together.apply(*(x.view_as(x) for x in parts)) if dist.world() > 1 else tuple(parts)

    def forward(self, h_BLD: Tensor, seen_BLL: Tensor, noise_BLL: Tensor | None = None) -> Tensor:
        """Keep map in {0, 1}, BLL or BHLL, at least in fp32; its gradient arrives reversed at this layer's parameters
        and nowhere else. Args: noise is added to the scores; with mask gumbel None gives the likeliest map."""
        x_BLL = self.scores(h_BLD, seen_BLL)
        if noise_BLL is not None:
            x_BLL = x_BLL + noise_BLL
        return threshold(x_BLL, self.config.reversal, self.config.temperature)

    def products(self, h_BLD: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
        """(q_BLD, k_BLD, bias_BL), the factors in `dtype`, the bias as it was made: the map is the signs of
        q k^T + bias, and the scores are that over sqrt(D), without the -1e4."""
        wide = torch.promote_types(dtype, torch.float32)
        q_BLD, k_BLD, bias_BL = self._factors(h_BLD.detach().to(dtype if dtype == wide else self.query.weight.dtype))
        return q_BLD.to(dtype), k_BLD.to(dtype), bias_BL

    def noise(self, ids_BL: Tensor) -> Tensor | None:
        """What forward takes as noise for rows of this shape: with mask gumbel a draw, else None."""
        if self.config.mask == "hard":
            return None
        rows, length = ids_BL.shape
        shape = (rows, self.heads, length, length) if self.heads > 1 else (rows, length, length)
        return logistic_noise(shape, ids_BL.device)


def _wide(x: Tensor) -> Tensor:
    """fp32, or fp64 where it already is."""
    return x if x.dtype == torch.float64 else x.float()


def saved_config(folder: Path) -> ASAConfig:
    """The settings an adversary beside a model was trained with. Raises RequestError where there is none."""
    try:
        with safe_open(folder / FILE, "pt") as file:
            return from_dict(ASAConfig, json.loads(file.metadata()["asa"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{folder / FILE} is no saved adversary ({error}); give another folder") from None


def check_saved(folder: Path, config: ASAConfig) -> None:
    """Raises RequestError where the adversary beside a model is of another kind of map, or there is none."""
    heads = saved_config(folder).heads
    if heads != config.heads:
        raise RequestError(f"{folder / FILE} has heads {heads!r}, not {config.heads!r}; set --asa.heads")


class Adversaries(nn.ModuleList):
    """One Adversary per self-attention layer, indexed bottom to top."""

    def __init__(self, layers: int, width: int, heads: int, config: ASAConfig) -> None:
        super().__init__(Adversary(width, heads, config) for _ in range(layers))
        self.config = config

    def save_pretrained(self, folder: Path | str) -> None:
        """Write `folder`/adversary.safetensors, beside a model: weights and settings."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: p.detach().contiguous().cpu() for name, p in self.state_dict().items()}
        # A subclass's further settings are its method's.
        settings = {field.name: getattr(self.config, field.name) for field in fields(ASAConfig)}
        save_file(state, folder / FILE, metadata={"asa": json.dumps(settings)})

    def load_pretrained(self, folder: Path | str) -> None:
        """Read what save_pretrained wrote. Raises RequestError where there is none, or another shape or kind of map."""
        folder = Path(folder)
        check_saved(folder, self.config)
        state = load_file(folder / FILE)
        try:
            self.load_state_dict(state)
        except RuntimeError:
            raise RequestError(f"{folder / FILE} belongs to a model of another shape; give another folder") from None
