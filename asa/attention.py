"""Biased self-attention (Eq. 4 and 5) on ordinary Hugging Face encoders, by hooks: no modelling code is copied.

A hook before each self-attention module asks `Perturb.attend` for a keep map and turns it into the additive mask that
the module already takes (DeBERTa, whose own masking blocks gradients: into its position scores). What a forward pass
is to do lies in the model's Signal while the pass lasts, and while activation checkpointing repeats a part of it.

Tokens that the head does not read end at the last block's attention: what follows it is computed token by token.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers  # not its models, which take seconds to load: who needs one waits for it
from torch import Tensor, nn

from asa.adversary import Adversaries, ASAConfig
from asa.batch import Looked
from asa.errors import RequestError
from asa.families import Family, check_attention, family
from asa.forwards import forwards, theirs
from asa.parts import ATTENTION, BLOCK, Part, Tail, blocks_of, check_parts, ends, parts, refuse_peft, tail
from asa.recompute import forget, recall
from asa.signal import Left, Pass, Perturb, Reads, Signal, Tap
from asa.stock import altered, end_altered, head_altered, head_types, stock, stock_masked_lm_head

# B rows, D width, L length


class _Attached(NamedTuple):
    """What a base model remembers of `attach`. config: by which its attention is attacked. owner: the whole model.
    forwards: of modules, ours and theirs. tail: what must stand where it did for the last block to leave out tokens
    that no head reads; None where it cannot. head: the parts of a masked LM's head that is Hugging Face's. parts: what
    has hooks, and handles these. layers: where its blocks stand."""

    signal: Signal
    config: ASAConfig
    owner: "transformers.PreTrainedModel"
    forwards: list[tuple[nn.Module, Any, Any]]
    tail: Tail | None
    head: list[type] | None
    parts: list[Part]
    handles: list[Any]
    layers: str


def attach(model: "transformers.PreTrainedModel", config: ASAConfig | None = None) -> Adversaries:
    """Make `model` obey `perturbed(model, ...)` and return its (untrained) adversaries.

    The adversaries are no part of the model, which saves and loads as before. `detach` undoes it.
    Raises: RequestError for an unsupported family, one of its variants, or an attention without a float mask.
    """
    from asa.biased import Seat, seat  # and with it the models

    config = _checked(model, config)
    found = family(model.config.model_type)
    _check(model, found, config)
    words = _words(model)
    known, signal = parts(model.base_model, words, found), Signal()
    recall(blocks_of(model.base_model, found.layers), signal)
    detach(model)
    own = stock(model)
    trims = own and _trims(model, found)
    layers = list(model.base_model.get_submodule(found.layers).children())
    handles = [handle for n, block in enumerate(layers) for handle in seat(block, Seat(n, found, config, signal))]
    for n, block in enumerate(layers):
        handles.append(block.register_forward_pre_hook(partial(_tap, signal, n), with_kwargs=True))
    handles.append(words.register_forward_hook(partial(_shift_embeddings, signal)))
    handles.append(model.base_model.register_forward_pre_hook(partial(_begin, signal, found.layers), with_kwargs=True))
    if own and not found.score_method:
        handles.append(model.base_model.register_forward_pre_hook(partial(_give_mask, signal, model), with_kwargs=True))
    handles.append(model.base_model.register_forward_hook(partial(_take_last, signal, len(layers))))
    if trims:
        handles.append(layers[-1].get_submodule(found.tail).register_forward_pre_hook(partial(_trim, signal)))
    ours = [(module, forward, theirs(module)) for module, forward in forwards(model, found, signal)]
    for module, forward, _ in ours:
        vars(module)["forward"] = forward
    vars(model.base_model)["_asa"] = _Attached(
        signal=signal,
        config=config,
        owner=model,
        forwards=ours,
        tail=tail(model.base_model, found) if trims else None,
        head=head_types(model) if stock_masked_lm_head(model) else None,
        parts=known,
        handles=handles,
        layers=found.layers,
    )
    made = Adversaries(len(layers), model.config.hidden_size, model.config.num_attention_heads, config)
    wide = model.dtype == torch.float64
    return made.to(model.device, torch.float64 if wide else None) if wide or model.device.type != "cpu" else made


def _checked(model: Any, config: Any) -> ASAConfig:
    """The settings, or the default ones. Raises RequestError for what is no Hugging Face model and no settings."""
    refuse_peft(model)
    if not isinstance(getattr(model, "config", None), transformers.PreTrainedConfig):
        raise RequestError(f"{type(model).__name__} is no Hugging Face model; give a PreTrainedModel")
    if not isinstance(config, ASAConfig | None):
        raise RequestError(f"{type(config).__name__} is no ASAConfig; give one, or nothing for the default settings")
    return ASAConfig() if config is None else config


def _check(model: Any, found: Family, config: ASAConfig) -> None:
    found.check(model.config)
    check_attention(model.config._attn_implementation)
    if config.masked_score == "replaced" and not found.replaceable:
        raise RequestError(
            f"masked_score 'replaced' is the released program's and only for BERT and its like, not for"
            f" {model.config.model_type!r}; set --asa.masked_score shifted"
        )


def _words(model: "transformers.PreTrainedModel") -> nn.Module:
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        raise RequestError(
            f"{type(model).__name__} does not tell its word embeddings; set its base_model_prefix to the name of its"
            " encoder, or define get_input_embeddings"
        ) from None


def _trims(model: "transformers.PreTrainedModel", found: Family) -> bool:
    """Whether the last block of a stock model may leave out tokens: not where it is also the first, to which DeBERTa v2
    adds a convolution of all, or where chunks of a length ask for a multiple of it."""
    chunks = getattr(model.config, "chunk_size_feed_forward", 0)
    return bool(found.tail) and model.config.num_hidden_layers > 1 and not chunks


def settings(model: "transformers.PreTrainedModel") -> ASAConfig | None:
    """Those by which the attention of an attached model is attacked."""
    attached = _found(model)
    return None if attached is None else attached.config


def _found(model: "transformers.PreTrainedModel") -> _Attached | None:
    return vars(model.base_model).get("_asa")


def _attached(model: "transformers.PreTrainedModel") -> _Attached:
    """Raises RequestError for a model that is not."""
    attached = _found(model)
    if attached is None:
        raise RequestError(f"{type(model).__name__} obeys no perturbation yet; call asa.attach(model) first")
    return attached


def depth(model: "transformers.PreTrainedModel") -> int:
    """How many blocks an attached model has, which one that was cut does not tell by its config."""
    attached = _attached(model)
    return sum(known.kind == BLOCK and known.part is not None for known in attached.parts)


def trimmed(model: "transformers.PreTrainedModel") -> bool:
    """Whether the last block of an attached model leaves out tokens that no head reads: not where blocks were added,
    replaced or cut off since, nor where somebody's hook or forward has come to what sees final states."""
    attached = _attached(model)
    return attached.tail is not None and ends(model.base_model, attached.tail) and not end_altered(model)


def has_stock_head(model: "transformers.PreTrainedModel") -> bool:
    """Whether the head of an attached masked LM is still Hugging Face's, which reads each token by itself."""
    attached = _attached(model)
    return attached.head is not None and attached.head == head_types(model) and not head_altered(model)


def detach(model: "transformers.PreTrainedModel") -> None:
    """Remove what `attach` added; a model that was never attached stays as it is. Copies made of its parts keep what
    they got, which does nothing."""
    attached = _found(model)
    if attached is None:
        return
    from asa.biased import obeys, unseat

    del vars(model.base_model)["_asa"]
    for handle in attached.handles:
        handle.remove()
    for module, ours, before in attached.forwards:
        if vars(module).get("forward") is ours:  # and not what somebody put there since
            del vars(module)["forward"]
            vars(module).update({} if before is None else {"forward": before})
    cut = [known.part for known in attached.parts if known.part is not None]  # off the model, perhaps
    for module in (*attached.owner.modules(), *cut):
        # And not what obeys another model by now.
        if obeys(module, attached.signal):
            unseat(module)
        forget(module, attached.signal)


@contextmanager
def perturbed(
    model: "transformers.PreTrainedModel",
    perturb: Perturb | None = None,
    tap: Tap | None = None,
    *,
    reads: Reads | None = None,
    whole: bool = False,
    same_dropout: bool = False,
    looked: Looked | None = None,
    once: bool = False,
) -> Generator[Pass]:
    """Inside, an attached model's forward is perturbed.

    Args: tap(n, h_BLD) sees what enters block n, and what leaves the last one as the input of a further block. reads
        says which final states the head gets (None: all); the last block computes no others after its attention,
        unless the pass is to be `whole` or its tap sees them. same_dropout tells that the random state is that of
        another pass, whose dropout this one is to repeat. looked is what is known of the padding mask; None: the model
        is to look, for which the host waits for a GPU. once: a perturbation or a tap is of one forward of the encoder,
        so that a model which runs it for each of two texts is refused.
    Raises: RequestError for a model that was not attached, whose parts are no longer those that were, or under
        checkpointing that is reentrant.
    """
    attached = _attached(model)
    perturb = perturb or Perturb()
    asked = perturb.embed_BLD is not None, perturb.attend is not None, tap is not None
    check_parts(model.base_model, [part for part in attached.parts if asked[part.kind]])
    if asked[ATTENTION]:
        _check_seats(attached)
    recall(blocks_of(model.base_model, attached.layers), attached.signal)
    once = once and any(asked)
    now = Pass(perturb, tap, reads, Left([], []), whole or not trimmed(model), same_dropout, looked, once)
    with attached.signal.during(now):
        yield now


def _shift_embeddings(signal: Signal, module: nn.Module, args: tuple[Any, ...], words_BLD: Tensor) -> Tensor | None:
    """Add delta to the word embeddings; inputs_embeds would change how positions are counted.

    The sum has the wider type of the two, delta's fp32 in a half-precision model: there 1e-5 would be rounded away.
    """
    if signal.now is None or (delta_BLD := signal.now.perturb.embed_BLD) is None:
        return None
    has, wanted = delta_BLD.shape, words_BLD.shape
    sizes = zip(reversed(has), reversed(wanted), strict=False)  # it may be one for all rows
    if len(has) > len(wanted) or any(size not in (1, of_words) for size, of_words in sizes):
        raise RequestError(
            f"the model embeds words of shape {list(wanted)} where the perturbation has {list(has)};"
            " give one of that shape, and let the model embed input_ids as they are given"
        )
    return words_BLD + delta_BLD.expand_as(words_BLD)  # as it is, a lone number would have no say in the type


def _begin(signal: Signal, layers: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    now = signal.now
    if now is None:
        return
    if now.once and now.left.begun:
        raise RequestError(
            "the model runs its encoder more than once in a pass, and a method perturbs one run of it; give it both"
            " texts as one row, or train by vanilla or r_drop"
        )
    now.left.begun = True
    if not torch.compiler.is_compiling():
        now.left.masks.clear()  # of an earlier forward of the same pass
        recall(blocks_of(module, layers), signal)  # of what was switched on since the pass began
    if now.perturb.embed_BLD is not None and kwargs.get("inputs_embeds") is not None:
        raise RequestError("inputs_embeds pass the word embeddings by, which are perturbed; give input_ids")


def _give_mask(
    signal: Signal, model: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any] | None:
    """What transformers would make of the padding mask, without the look at it for which the host waits for a GPU."""
    looked = None if signal.now is None else signal.now.looked
    mask: Any = kwargs.get("attention_mask")
    # Hooks and a forward that came after `attach` may read the mask, or give another.
    if looked is None or torch.compiler.is_compiling() or altered(module):
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 2 or not looked.holds(mask):
        return None
    if not looked.padded:
        return args, kwargs | {"attention_mask": None}
    # ModernBERT's local layers have masks of their own.
    if model.config._attn_implementation != "sdpa" or getattr(model.config, "layer_types", None):
        return None
    # Laid out as transformers' is: torch's kernels choose by strides.
    mask_B1LL = mask.bool()[:, None, None].expand(-1, 1, mask.shape[1], -1).contiguous()
    return args, kwargs | {"attention_mask": mask_B1LL}


def _tap(signal: Signal, block: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if signal.now is not None and signal.now.tap is not None:
        signal.now.tap(block, args[0] if args else kwargs["hidden_states"])


def _take_last(signal: Signal, blocks: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Show the tap what leaves the last block. Leave the head only the rows asked for: over a vocabulary it costs as
    much as several layers."""
    now = signal.now
    if now is None:
        return
    if now.final_tap is not None:
        now.final_tap(blocks, output.last_hidden_state)
    if now.reads is None:
        return
    rows, firsts, head_at_firsts, head_whole = now.reads
    if head_whole:
        now.left.first.append(_at(output.last_hidden_state, rows).squeeze(0))
        return
    states: Tensor = output.last_hidden_state if now.trims else _at(output.last_hidden_state, rows)
    if firsts:
        parts = states.split_with_sizes((rows.shape[1] - firsts, firsts), dim=1)
        now.left.first.append(parts[1].squeeze(0))
        states = states if head_at_firsts else parts[0]
    output.last_hidden_state = states


def _trim(signal: Signal, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Leave what follows the last block's attention only the rows asked for."""
    now = signal.now
    if now is None or now.reads is None or not now.trims:
        return None
    return tuple(_at(x_BLD, now.reads.rows) for x_BLD in args)


def _at(x_BLD: Tensor, rows: Tensor) -> Tensor:
    return x_BLD.flatten(0, 1)[rows]


def _check_seats(attached: _Attached) -> None:
    """Raises RequestError for blocks that obey another model, in which they stand as well, since it was attached."""
    from asa.biased import obeys

    for known in attached.parts:
        if known.kind == ATTENTION and known.part is not None and not obeys(known.part, attached.signal):
            raise RequestError(
                f"{known.path}{known.inside} is part of another model too, which was attached or detached since;"
                " attach again"
            )
