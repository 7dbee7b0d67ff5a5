"""The encoder families we know: where each keeps its parts."""

from typing import NamedTuple

from transformers import PreTrainedConfig

from asa.errors import RequestError

FLOAT_MASKS = ("eager", "sdpa")


class Family(NamedTuple):
    """Paths and habits of an encoder family.

    layers: of the base model, the list of blocks. attention: of a block, the module that scores queries against keys.
    norm: of the base model, the LayerNorm that word embeddings reach after position and type.
    outputs: of a block, modules that make LayerNorm(dropout(dense(x)) + y), as BERT's do at the end of each half.
    intermediate: of a block, the module that makes activation(dense(x)), as BERT's does; "" where none does.
    tail: of a block, the module from whose inputs on every token of the block is computed by itself; "" where none is.
    replaceable: the attention has BERT's query, key and value, so that the released program's scores can be rebuilt.
    score_method: DeBERTa's own mask is a masked_fill, through which no gradient passes, so a map goes into the result
        of this method of the attention module, which adds position scores to content scores.
    counts_from_pad: position ids begin after the padding token's id, so that many places of the table are no use.
    pad: that id where the family's code has it fixed, whatever the config says.
    recomputes: Hugging Face's code offers activation checkpointing.
    """

    layers: str
    attention: str
    norm: str = "embeddings.LayerNorm"
    outputs: tuple[str, ...] = ()
    intermediate: str = ""
    tail: str = ""
    replaceable: bool = False
    score_method: str = ""
    counts_from_pad: bool = False
    pad: int | None = None
    recomputes: bool = True

    def check(self, config: PreTrainedConfig) -> None:
        """Raises RequestError for a variant of the family that no published model uses and we do not serve."""
        if self.score_method and not getattr(config, "relative_attention", False):
            raise RequestError("DeBERTa without relative_attention has no scores to bias; give another by --model")
        if not config.return_dict:
            raise RequestError("return_dict is off, but outputs are read by name; set return_dict = True in the config")
        if getattr(config, "is_decoder", False):
            raise RequestError("is_decoder is set, but causal attention is not biased; give an encoder by --model")
        if (kind := getattr(config, "position_embedding_type", None)) in ("relative_key", "relative_key_query"):
            raise RequestError(
                f"position_embedding_type is {kind}, which transformers has no more; give another model by --model"
            )
        if getattr(config, "talking_head", False):
            raise RequestError("DeBERTa with talking_head mixes the heads' masks; give another model by --model")

    def longest(self, config: PreTrainedConfig) -> int:
        """Token ids a row may have."""
        pad = config.pad_token_id if self.pad is None else self.pad
        if self.counts_from_pad and pad is None:
            raise RequestError("the model's config.json has no pad_token_id, from which it counts positions; set it")
        return config.max_position_embeddings - (pad + 1 if self.counts_from_pad else 0)


_BERT = Family(
    "encoder.layer",
    "attention.self",
    outputs=("attention.output", "output"),
    intermediate="intermediate",
    tail="attention.output",
    replaceable=True,
)
_ROBERTA = _BERT._replace(counts_from_pad=True)
_DEBERTA = _BERT._replace(replaceable=False)

FAMILIES = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": _BERT,
    "mpnet": Family(
        "encoder.layer",
        "attention.attn",
        outputs=("output",),
        intermediate="intermediate",
        tail="attention.LayerNorm",
        counts_from_pad=True,
        pad=1,
        recomputes=False,
    ),
    "distilbert": Family("transformer.layer", "attention", tail="sa_layer_norm"),
    # Without a tail: what attention gives is added to the block's input by no module.
    "modernbert": Family("layers", "attn", norm="embeddings.norm"),
    "deberta": _DEBERTA._replace(outputs=(), score_method="disentangled_att_bias"),  # with a norm of its own
    "deberta-v2": _DEBERTA._replace(score_method="disentangled_attention_bias"),
}


def check_attention(name: str) -> None:
    """Raises RequestError for an implementation of attention whose masks carry no gradient."""
    if name not in FLOAT_MASKS:
        raise RequestError(f"attention {name!r} takes no mask with a gradient; load with attn_implementation='sdpa'")


def family(model_type: str, flag: str = "--model") -> Family:
    """The parts of a `config.model_type`. Raises RequestError listing the supported ones and naming `flag`."""
    if model_type not in FAMILIES:
        supported = ", ".join(sorted(FAMILIES))
        raise RequestError(f"encoder family {model_type!r} is not supported; give one of {supported} by {flag}")
    return FAMILIES[model_type]
