"""A tiny BERT (2 layers, width 16) for every task, batches with padding for it, and a tiny tokenizer."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from asa.adversary import ASAConfig
from asa.attention import perturbed
from asa.batch import IGNORE, Batch, Kind
from asa.engine import PlainEngine
from asa.methods import METHODS, At, MethodsConfig
from asa.model import TaskModel
from asa.optim import OptimConfig
from asa.signal import Attend, Perturb

VOCAB, ROWS, LENGTH, WIDTH, LAYERS, HEADS = 40, 3, 10, 16, 2, 2
REAL = (10, 7, 5)  # real tokens of each row
KINDS: tuple[Kind, ...] = ("mlm", "classification", "regression", "choice", "token")
CPU = torch.device("cpu")

# B rows, L length


def tiny_bert(kind: Kind = "mlm", dropout: float = 0.0, attention: str = "sdpa", seed: int = 0) -> PreTrainedModel:
    classes: dict[Kind, Any] = {
        "mlm": BertForMaskedLM,
        "classification": BertForSequenceClassification,
        "regression": BertForSequenceClassification,
        "choice": BertForMultipleChoice,
        "token": BertForTokenClassification,
    }
    shape = BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=24,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.3,
    )
    shape.num_labels = 1 if kind in ("regression", "choice") else 3
    shape._attn_implementation = attention
    torch.manual_seed(seed)
    return classes[kind](shape)


def tiny_module(kind: Kind = "mlm", asa: ASAConfig | None = None, **options: Any) -> TaskModel:
    return TaskModel(tiny_bert(kind, **options), kind, asa)


def tiny_engine(module: TaskModel, **optim: Any) -> PlainEngine:
    return PlainEngine(module, OptimConfig(**({"lr": 1e-2, "warmup": 0.0} | optim)), steps=10, device=CPU)


def tiny_batch(kind: Kind = "mlm", seed: int = 1, rows: int = ROWS) -> Batch:
    """Rows of 10, 7 and 5 real tokens (in turn); the values depend on the seed."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, 2, LENGTH) if kind == "choice" else (rows, LENGTH)
    ids = torch.randint(5, VOCAB, shape, generator=generator)
    real_B1 = torch.tensor([REAL[row % len(REAL)] for row in range(rows)]).reshape(rows, *[1] * (len(shape) - 1))
    mask = (torch.arange(LENGTH) < real_B1).long().expand(shape).contiguous()
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    labels, positions = _labels(kind, ids, mask, generator)
    sequences = ids.flatten(0, -2).shape[0]
    units = int((labels != IGNORE).sum()) if kind == "token" else len(labels)
    return Batch(kind, inputs, labels, total_rows=sequences, total_labels=units, positions=positions)


def batch_for(name: str, kind: Kind = "mlm", seed: int = 1) -> Batch:
    """tiny_batch for an encoder of the family `name`."""
    batch = tiny_batch(kind, seed)
    if name in ("distilbert", "modernbert", "mpnet"):
        del batch.inputs["token_type_ids"]
    if name in ("roberta", "xlm-roberta"):
        batch.inputs["token_type_ids"].zero_()
    return batch


def _labels(kind: Kind, ids: Tensor, mask: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    rows = len(ids)
    if kind == "mlm":
        chosen_BL = mask.bool() & (torch.rand(ids.shape, generator=generator) < 0.4)
        chosen_BL[:, 1] = True
        return ids[chosen_BL], chosen_BL.flatten().nonzero().squeeze(-1)
    if kind == "regression":
        return torch.rand(rows, generator=generator), None
    if kind == "token":
        labels_BL = torch.randint(0, 3, ids.shape, generator=generator)
        return labels_BL.masked_fill(mask == 0, IGNORE), None
    return torch.randint(0, 2, (rows,), generator=generator), None


def random_keeps(seed: int, rows: int = ROWS, share: float = 0.5) -> list[Tensor]:
    """One binary keep map per layer. Some rows keep nothing."""
    generator = torch.Generator().manual_seed(seed)
    keeps = [(torch.rand(rows, LENGTH, LENGTH, generator=generator) < share).float() for _ in range(LAYERS)]
    for keep_BLL in keeps:
        keep_BLL[0, 2] = 0
    return keeps


def attend_to(keeps: list[Tensor]) -> Attend:
    return lambda site: keeps[site.layer]


def hidden(model: PreTrainedModel, batch: Batch, keeps: list[Tensor] | None) -> Tensor:
    """The final hidden states under the keep maps, for a model with attached attention."""
    with perturbed(model, Perturb(attend=attend_to(keeps) if keeps else None)):
        return model.base_model(**batch.inputs).last_hidden_state  # type: ignore[operator]


def gradients(module: TaskModel) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def settled(name: str, engine: PlainEngine, batch: Batch, options: MethodsConfig | None = None) -> dict[str, Tensor]:
    """A method's terms, its gradients left in the module; in fp16 again, under half the loss scale, while they
    overflow."""
    while True:
        terms = METHODS[name](options or MethodsConfig()).backward(engine, batch, At(0, 0))
        if all(value.isfinite().all() for value in gradients(engine.module).values()):
            return terms
        assert engine.step().overflow


def tiny_tokenizer(words: tuple[str, ...] = ("one", "two", "three")) -> PreTrainedTokenizerFast:
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    table = {word: index for index, word in enumerate(special + words)}
    backend = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]  # a setter, unknown to the stub
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **dict(zip(names, special, strict=True)))


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()
