"""The forwards that modules of an attached model have in place of their classes', which do the same in our passes: in
types that differ, faster, or at once. In other passes, and where they cannot, they are their classes', to the bit."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers  # not its models, which take seconds to load: who needs one waits for it
from torch import Tensor, nn
from torch.nn.modules import module as _module

from asa import fused
from asa.dropout import dropout
from asa.families import Family
from asa.signal import Signal
from asa.stock import written_by

# B rows, D width, L length

_every_module: Any = _module
# What a part of torch's does, as it is in torch: by others it may have been put into its class. `_learn` adds to it.
PLAIN: dict[type[nn.Module], Any] = {
    part: part.forward for part in (nn.Linear, nn.Dropout, nn.LayerNorm) if written_by(part.forward, "torch.")
}


def forwards(
    model: "transformers.PreTrainedModel", found: Family, signal: Signal
) -> list[tuple[nn.Module, "partial[Tensor]"]]:
    """Modules, and what each is to have. Partials and not bound methods, which would pickle as attributes that the
    class has not."""
    _learn()
    norm = model.base_model.get_submodule(found.norm)
    beside = model.base_model.get_submodule(found.norm.rpartition(".")[0]).children()
    before = [part for part in beside if type(part) is nn.Linear]  # of DeBERTa, whose words may be narrower
    blocks = list(model.base_model.get_submodule(found.layers).children())
    places = f"transformers.models.{model.config.model_type.replace('-', '_')}."
    outputs = _parts(blocks, found.outputs, places)
    intermediates = _parts(blocks, [found.intermediate] if found.intermediate else [], places)
    dropouts = [module for module in model.modules() if type(module) is nn.Dropout]
    made = [
        (norm, partial(wide_norm, norm)),
        *((part, partial(wide_linear, part)) for part in before),
        *((part, partial(dropout, part, signal)) for part in dropouts),
        *((part, partial(fused_output, part, signal, type(part).forward)) for part in outputs),
        *((part, partial(fused_intermediate, part, signal, type(part).forward)) for part in intermediates),
    ]
    return [(part, forward) for part, forward in made if theirs(part) is None]


def theirs(module: nn.Module) -> Any:
    """The forward that somebody has given the module, who is not us; a copied one has ours."""
    found = vars(module).get("forward")
    ours = wide_norm, wide_linear, dropout, fused_output, fused_intermediate
    return None if getattr(found, "func", None) in ours else found


def _learn() -> None:
    """Add transformers' GELU to PLAIN: not on import, where it would load for seconds what a model has loaded."""
    from transformers.activations import GELUActivation

    if written_by(GELUActivation.forward, "transformers."):
        PLAIN.setdefault(GELUActivation, GELUActivation.forward)


def _parts(blocks: list[nn.Module], paths: Iterable[str], places: str) -> list[nn.Module]:
    found = (_part(block, path, places) for block in blocks for path in paths)
    return [part for part in found if part is not None]


def _part(block: nn.Module, path: str, places: str) -> nn.Module | None:
    """A part of the block, as Hugging Face's code of the family has it."""
    try:
        part = block.get_submodule(path)
    except AttributeError:
        return None
    return part if written_by(type(part).forward, places) else None


def wide_norm(module: Any, x_BLD: Tensor) -> Tensor:
    """The embeddings' LayerNorm, which brings a sum that is wider than its weights back to their type."""
    dtype = module.weight.dtype
    if torch.promote_types(x_BLD.dtype, dtype) == dtype:
        return module.__class__.forward(module, x_BLD)
    if not isinstance(module, nn.LayerNorm):  # DeBERTa's own, which takes any type
        return module.__class__.forward(module, x_BLD).to(dtype)
    norm: Any = module
    weight, bias = (None if p is None else p.to(x_BLD.dtype) for p in (norm.weight, norm.bias))
    return F.layer_norm(x_BLD, norm.normalized_shape, weight, bias, norm.eps).to(dtype)


def wide_linear(module: Any, x_BLD: Tensor) -> Tensor:
    """A product on the way from the words to that norm, in the wider type of the two."""
    wide = torch.promote_types(x_BLD.dtype, module.weight.dtype)
    if wide == module.weight.dtype:
        return module.__class__.forward(module, x_BLD)
    return F.linear(x_BLD, module.weight.to(wide), None if module.bias is None else module.bias.to(wide))


def fused_output(
    module: Any,
    signal: Signal,
    known: Callable[..., Tensor],
    hidden_states: Tensor,  # their names of them
    input_tensor: Tensor,
) -> Tensor:
    """LayerNorm(dropout(dense(hidden_states)) + input_tensor), all but the product by one kernel. known: the forward
    that the module's class had at `attach`, and has unless somebody has given either another."""
    theirs_alone = signal.now is None or module.__class__.forward is not known
    if theirs_alone or not _output_fits(module, hidden_states, input_tensor):
        return module.__class__.forward(module, hidden_states, input_tensor)
    dense, norm, drop = module.dense, module.LayerNorm, module.dropout
    product_BLD = F.linear(hidden_states, dense.weight)
    probability = drop.p if drop.training else 0.0
    return fused.add_norm(product_BLD, dense.bias, input_tensor, norm.weight, norm.bias, norm.eps, probability)


def fused_intermediate(module: Any, signal: Signal, known: Callable[..., Tensor], hidden_states: Tensor) -> Tensor:
    """GELU(dense(hidden_states)), whose way back is one kernel with the sum for the bias. known: as in
    `fused_output`."""
    theirs_alone = signal.now is None or module.__class__.forward is not known
    if theirs_alone or not _intermediate_fits(module, hidden_states):
        return module.__class__.forward(module, hidden_states)
    dense = module.dense
    # Without the bias's gradient, which the kernel makes.
    return fused.biased_gelu(F.linear(hidden_states, dense.weight, dense.bias.detach()), dense.bias)


def _intermediate_fits(module: Any, hidden_states: Tensor) -> bool:
    """`_output_fits` for what `fused_intermediate` does."""
    if not _large(hidden_states):
        return False
    _learn()  # where the model came attached, from a pickle
    dense, activation = parts = module.dense, module.intermediate_act_fn
    if not _are(parts, "Linear", "GELUActivation") or activation.act is not fused.GELU or dense.bias is None:
        return False
    return fused.gelu_supported(dense.out_features, hidden_states, dense.weight, dense.bias)


def _large(states: Tensor) -> bool:
    """Whether kernels may be worth it for a block's states. To be asked first: a compiler would look into what follows,
    and compile anew for either side of the size."""
    kind = states.device.type
    if torch.compiler.is_compiling() or kind not in fused.DEVICES or torch.is_autocast_enabled(kind):
        return False
    return states.numel() >= fused.FEWEST_NUMBERS


def _are(parts: tuple[nn.Module, ...], *kinds: str) -> bool:
    """Whether parts are torch's or transformers' of these classes, and nobody watches them."""
    return tuple(type(part).__name__ for part in parts) == kinds and not _watched(*parts)


def _output_fits(module: Any, hidden_states: Tensor, input_tensor: Tensor) -> bool:
    """Whether the parts are torch's, none of which anybody watches, and the kernel takes what they hold."""
    if not _large(input_tensor):
        return False
    dense, _, norm = parts = module.dense, module.dropout, module.LayerNorm
    if not _are(parts, "Linear", "Dropout", "LayerNorm"):
        return False
    weights = (dense.weight, dense.bias, norm.weight, norm.bias)
    shape_BLD = (*hidden_states.shape[:-1], dense.out_features)
    # Not by `in`, which compares.
    fits = (
        all(one is not None for one in weights)
        and input_tensor.shape == shape_BLD
        and norm.normalized_shape == shape_BLD[-1:]
    )
    return fits and fused.norms_supported(input_tensor, hidden_states, *weights)


def _watched(*parts: nn.Module) -> bool:
    """Whether there are hooks on them, such as those by which ZeRO 3 gathers their weights, or another's forward, on
    them or in their class."""
    if _every_module._has_any_global_hook():
        return True
    for part in parts:
        own = vars(part)
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
            return True
        if theirs(part) is not None or type(part).forward is not PLAIN.get(type(part)):
            return True
    return False
