"""A tiny encoder (2 layers, width 16) of every supported family, with weights that make attention matter."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from asa.batch import Kind
from asa.families import FAMILIES

VOCAB, LENGTH, WIDTH, LAYERS, HEADS = 40, 10, 16, 2, 2

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
DEBERTA: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
OWN: dict[str, dict[str, Any]] = {
    "roberta": {"max_position_embeddings": LENGTH + 1},
    "xlm-roberta": {"max_position_embeddings": LENGTH + 1},
    "electra": {"embedding_size": 8},
    "mpnet": {"max_position_embeddings": LENGTH + 2, "pad_token_id": 1},
    "modernbert": {
        "local_attention": 4,
        "global_attn_every_n_layers": 2,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "initializer_cutoff_factor": 3.0,
    },
    "deberta": DEBERTA | {"max_relative_positions": -1, "pooler_hidden_size": WIDTH},
    "deberta-v2": DEBERTA
    | {"position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm", "pooler_hidden_size": WIDTH},
}
EAGER_ONLY = ("mpnet", "deberta", "deberta-v2")
DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "classifier_dropout",
    "seq_classif_dropout",
)
CLASSES: dict[Kind, Any] = {
    "mlm": AutoModelForMaskedLM,
    "classification": AutoModelForSequenceClassification,
    "regression": AutoModelForSequenceClassification,
    "choice": AutoModelForMultipleChoice,
    "token": AutoModelForTokenClassification,
}
PAIRS = [(name, how) for name in FAMILIES for how in ("sdpa", "eager") if how == "eager" or name not in EAGER_ONLY]


def tiny(
    name: str, kind: Kind = "mlm", attention: str = "eager", dropout: float = 0.0, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """A model of the family `name` in training mode, its dropout probabilities all set to `dropout`."""
    shape = AutoConfig.for_model(name, **COMMON | OWN.get(name, {}) | changes)
    for field in DROPOUTS:
        if hasattr(shape, field):
            setattr(shape, field, dropout)
    shape.num_labels = 1 if kind in ("regression", "choice") else 3
    torch.manual_seed(seed)
    return CLASSES[kind].from_config(shape, attn_implementation=attention).train()
