"""The hooks on one self-attention module: a keep map becomes an additive mask, or the released program's scores."""

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from asa import dispatch
from asa.adversary import MASKED, ASAConfig
from asa.batch import version
from asa.errors import RequestError
from asa.families import Family, check_attention
from asa.fused.products import Keys, Products, fits
from asa.signal import Pass, Signal, Site

# B rows, D width, H heads, K width of one head, L length (queries, then keys)


@dataclass
class Seat:
    """What the hooks of one attention module know. A copied model gets copies of its seats, bound to its own signal."""

    layer: int
    family: Family
    config: ASAConfig
    signal: Signal
    keep_B1LL: Tensor | None = field(default=None, repr=False)  # between the hooks of one call
    products: Products | None = field(default=None, repr=False)  # between a call's first hook and its attention
    blind_BL: Tensor | None = field(default=None, repr=False)  # the same, queries to which attention gives zeros
    whole_config: Any = field(default=None, repr=False)  # what the module had for a config, where it got another


def seat(block: nn.Module, given: Seat) -> list[Any]:
    """Make one block's attention module obey its signal; the handles of its hooks."""
    module = block.get_submodule(given.family.attention)
    unseat(module)  # of another model, of which it is part or a copy, or from another block with the same attention
    module._asa_seat = given  # type: ignore[assignment]  # neither a module nor saved
    config: Any = getattr(module, "config", None)
    if getattr(config, "_attn_implementation", None) == "sdpa":
        # A copy of its own: the model's tells how masks are made, and is the user's.
        own, given.whole_config = copy.copy(config), config
        own._attn_implementation = dispatch.NAME
        vars(module)["config"] = own
    if given.family.score_method:
        setattr(module, given.family.score_method, partial(_biased_scores, module))
    handles = [module.register_forward_pre_hook(_before, with_kwargs=True)]
    if given.config.masked_score == "replaced":
        handles.append(module.register_forward_hook(_replace_output, with_kwargs=True))
    return handles


def obeys(module: nn.Module, signal: Signal) -> bool:
    """Whether an attention module has a seat that is bound to the signal."""
    given: Seat | None = vars(module).get("_asa_seat")
    return given is not None and given.signal is signal


def unseat(module: nn.Module) -> None:
    """Undo `seat`. Not by the hooks' handles: to those of a copied module there are none."""
    own = vars(module)
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        for key in [key for key, hook in own[kind].items() if hook in (_before, _replace_output)]:
            del own[kind][key]
            own[f"{kind}_with_kwargs"].pop(key, None)
    given: Seat | None = own.pop("_asa_seat", None)
    if given is not None:
        own.pop(given.family.score_method, None)
        if given.whole_config is not None:
            own["config"] = given.whole_config


def fill_empty_rows(keep_BLL: Tensor, seen_BLL: Tensor) -> Tensor:
    """A keep map (BLL or BHLL) in which a query that keeps no key it sees keeps all these; it then passes no gradient.
    Not the padding: with `masked_score` "replaced" nothing else masks that."""
    empty_BL1 = ((keep_BLL.detach() * seen_BLL).amax(dim=-1, keepdim=True) == 0).to(keep_BLL.dtype)
    return keep_BLL * (1 - empty_BL1) + empty_BL1 * seen_BLL


def bias(keep_BLL: Tensor, seen_BLL: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask of a keep map: 0 where attended, -1e4 where masked, half the minimum where not seen.

    Half, because the minimum plus a negative score is -inf in fp16; it is still below every masked score.
    """
    # Not below fp32's either: ModernBERT takes its softmax in fp32 whatever it is given.
    unseen = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min) / 2
    seen_BLL = seen_BLL.to(dtype)
    # By products, exact with 0 and 1: a masked_fill takes ten times as long on a CPU, forwards and backwards.
    return ((1 - keep_BLL) * MASKED).to(dtype) * seen_BLL + (1 - seen_BLL) * unseen


def _blind(module: Any, seen_BLL: Tensor) -> Tensor | None:
    """Queries that see no key, to which sdpa gives zeros; None where it does not run.

    By the bias they attend uniformly, and wrongly backwards: torch's kernels keep the logarithm of the weights' sum, of
    which nothing is left beside half the minimum, and so their gradients are as of weights of 1 each.
    """
    runs = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return ~seen_BLL.any(-1) if runs == dispatch.NAME else None


def _before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """Put the keep map into the mask of one layer."""
    seat: Seat = module._asa_seat
    now = seat.signal.now
    seat.keep_B1LL = seat.products = seat.blind_BL = None
    _follow(module, seat)
    if now is None or now.perturb.attend is None:
        return None
    h_BLD: Tensor = args[0] if args else kwargs["hidden_states"]
    config = seat.whole_config or getattr(module, "config", None)
    if (named := getattr(config, "_attn_implementation", None)) is not None:  # the user may have set another since
        check_attention(named)
    last = len(h_BLD) if now.perturb.last is None else now.perturb.last
    if not 1 <= last <= len(h_BLD):
        raise RequestError(f"Perturb.last = {last}, allowed: 1 to the pass's {len(h_BLD)} rows, or None for all")
    seen_BLL, keys = _masks(now, _mask(args, kwargs), h_BLD, last, additive=not seat.family.score_method)
    weights = partial(_weights, module, args, kwargs, seen_BLL)
    fused = partial(_fused, module, h_BLD[-last:])
    keep = now.perturb.attend(Site(seat.layer, h_BLD[-last:], keys, lambda: weights()[-last:], fused))
    if isinstance(keep, Products):
        seat.products = keep
        return None
    if keep is None:
        return None
    _check_map(keep, last, h_BLD.shape[1])
    keep = keep.expand(last, *keep.shape[1:])  # what follows counts its rows
    keep = keep.to(h_BLD.dtype) if keep.dtype == torch.bool else keep
    keep_B1LL, seen_B1LL = keep if keep.dim() == 4 else keep.unsqueeze(1), seen_BLL.unsqueeze(1)
    if seat.config.empty_row == "unmasked":
        keep_B1LL = fill_empty_rows(keep_B1LL, seen_B1LL[-last:])
    if seat.config.masked_score == "replaced":
        seat.keep_B1LL = keep_B1LL
        return None
    if last < len(h_BLD):
        free = keep_B1LL.new_ones(len(h_BLD) - last, *keep_B1LL.shape[1:])
        keep_B1LL = torch.cat([free, keep_B1LL])
    if seat.family.score_method:
        seat.keep_B1LL = keep_B1LL
        return None
    seat.blind_BL = _blind(module, seen_BLL)
    return _with_mask(bias(keep_B1LL, seen_B1LL, _score_dtype(h_BLD)), args, kwargs)


def _check_map(keep: Tensor, rows: int, length: int) -> None:
    """Raises RequestError for a map that is none, of which broadcasting might make another. Sizes of 1 stand for all;
    the number of heads is left to attention."""
    sizes = zip((*keep.shape[:1], *keep.shape[-2:]), (rows, length, length), strict=False)
    if keep.dim() in (3, 4) and all(size in (1, full) for size, full in sizes):
        return
    allowed = f"[{rows}, {length}, {length}], or [{rows}, heads, {length}, {length}]"
    raise RequestError(f"Perturb.attend gave a map of {list(keep.shape)}, allowed: {allowed}; sizes of 1 stand for all")


def _fused(module: Any, h_BLD: Tensor, config: ASAConfig) -> torch.dtype | None:
    """What Site says of fused attention."""
    seat: Seat = module._asa_seat
    dtype = _score_dtype(h_BLD)
    return dtype if seat.family.replaceable and fits(module, config, h_BLD, dtype) else None


def _follow(module: Any, seat: Seat) -> None:
    """Run the attention that the model's config names now: a user may have set another since `attach`."""
    if seat.whole_config is not None:
        named = seat.whole_config._attn_implementation
        named = dispatch.NAME if named == "sdpa" else named
        if module.config._attn_implementation != named:
            module.config._attn_implementation = named


def _score_dtype(h_BLD: Tensor) -> torch.dtype:
    """The type of the layer's scores. Under autocast an fp32 bias would be cast to it, its minimum to -inf."""
    device = h_BLD.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h_BLD.dtype


def _mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    return kwargs["attention_mask"] if "attention_mask" in kwargs else args[1] if len(args) > 1 else None


def _with_mask(mask_B1LL: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    if "attention_mask" in kwargs or len(args) < 2:
        return args, kwargs | {"attention_mask": mask_B1LL}
    return (args[0], mask_B1LL, *args[2:]), kwargs


def _masks(now: Pass, mask_B1LL: Tensor | None, h_BLD: Tensor, last: int, additive: bool) -> tuple[Tensor, Keys]:
    """What a layer's mask lets all rows see, and the `last` ones; made once for layers that are given the same mask."""
    # A compiler would take note of the list and compile for each of its lengths.
    kept = not torch.compiler.is_compiling()
    changes = version(mask_B1LL) if kept and mask_B1LL is not None else None
    for mask, then, seen_BLL, keys in now.left.masks if kept else ():
        same = (seen_BLL.device, seen_BLL.shape[-1], keys.rows) == (h_BLD.device, h_BLD.shape[1], last)
        if same and mask is mask_B1LL and then == changes:
            return seen_BLL, keys
    seen_BLL = _seen(mask_B1LL, h_BLD, additive)
    made = seen_BLL, Keys(seen_BLL[-last:], last)
    if kept:
        now.left.masks.append((mask_B1LL, changes, *made))
    return made


def _seen(mask_B1LL: Tensor | None, h_BLD: Tensor, additive: bool) -> Tensor:
    """Where the module's own mask lets a query attend: a float mask is added to scores, or (DeBERTa's) 1 is seen."""
    if mask_B1LL is None:
        return h_BLD.new_ones((1, 1, h_BLD.shape[1]), dtype=torch.bool)
    if mask_B1LL.shape[1] > 1:
        raise RequestError("an attention mask per head is not supported; give one of two dimensions")
    mask_BLL = mask_B1LL[:, 0]
    if additive and mask_BLL.is_floating_point():
        return mask_BLL >= 0
    return mask_BLL.bool()


def _weights(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seen_BLL: Tensor) -> Tensor:
    """Attention weights BHLL of an unperturbed layer without dropout."""
    if module._asa_seat.family.score_method:
        args = args[:2]  # a third one would be output_attentions, given below
    else:
        h_BLD: Tensor = args[0] if args else kwargs["hidden_states"]
        mask_B1LL = bias(torch.ones_like(seen_BLL, dtype=h_BLD.dtype), seen_BLL, h_BLD.dtype).unsqueeze(1)
        args, kwargs = _with_mask(mask_B1LL, args, kwargs)
    # Only the eager attention tells its weights. MPNet and DeBERTa have no other, and no config either.
    config, modes = getattr(module, "config", None), [(part, part.training) for part in module.modules()]
    before = getattr(config, "_attn_implementation", None)
    try:
        module.eval()
        if config is not None:
            config._attn_implementation = "eager"
        with torch.no_grad():
            return module.forward(*args, **kwargs | {"output_attentions": True})[1]
    finally:
        for part, training in modes:
            part.training = training
        if config is not None:
            config._attn_implementation = before


def _biased_scores(module: Any, *args: Any) -> Tensor:
    """DeBERTa's position scores, (B*H)LL in v2 and BHLL in v1, with a keep map's bias on top."""
    seat: Seat = module._asa_seat
    score = getattr(module.__class__, seat.family.score_method)(module, *args)
    query: Tensor = args[0]
    # Under autocast v1 has queries in fp32 and scores in half, which it then fills with fp32's minimum, and fails.
    score = score.to(query.dtype) if isinstance(score, Tensor) else score
    keep_B1LL, seat.keep_B1LL = seat.keep_B1LL, None
    if keep_B1LL is None:
        return score
    bias_B1LL = ((1 - keep_B1LL) * MASKED).to(query.dtype)
    if query.dim() == 4:
        return score + bias_B1LL
    bias_BHLL = bias_B1LL.expand(-1, len(query) // len(bias_B1LL), -1, -1)
    return score + bias_BHLL.flatten(0, 1)


def _replace_output(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """With `masked_score` "replaced": the output of the released program's attention in place of the module's own, in
    the attacked rows."""
    seat: Seat = module._asa_seat
    keep_B1LL, seat.keep_B1LL = seat.keep_B1LL, None
    if keep_B1LL is None:
        return None
    h_BLD: Tensor = (args[0] if args else kwargs["hidden_states"])[-len(keep_B1LL) :]

    def heads(linear: nn.Module) -> Tensor:
        return linear(h_BLD).unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2)

    q_BHLK, k_BHLK, v_BHLK = heads(module.query), heads(module.key), heads(module.value)
    scores_BHLL = q_BHLK @ k_BHLK.transpose(-1, -2) * module.scaling
    # The released program zeroes scores by a masked_fill, through which no gradient reaches the map.
    scores_BHLL = scores_BHLL * keep_B1LL.detach() + (1 - keep_B1LL) * MASKED
    weights_BHLL = scores_BHLL.softmax(dim=-1)
    context_BLD = (module.dropout(weights_BHLL).to(v_BHLK.dtype) @ v_BHLK).transpose(1, 2).flatten(-2)
    clean_BLD, clean_BHLL = output[0][: -len(context_BLD)], output[1]
    if clean_BHLL is not None:  # asked for
        clean_BHLL = torch.cat([clean_BHLL[: len(clean_BLD)], weights_BHLL])
    return torch.cat([clean_BLD, context_BLD]), clean_BHLL
