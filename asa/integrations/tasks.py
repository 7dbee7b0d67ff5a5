"""What a Hugging Face model is trained for, and its collators' batches as ours."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto as auto

from asa.batch import IGNORE, Batch, Kind
from asa.errors import RequestError
from asa.parts import bare

# B rows, C choices, L length, M masked positions

KINDS = get_args(Kind)
_HEADS: dict[Kind, Collection[str]] = {
    "mlm": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values(),
    "classification": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values(),
    "choice": auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values(),
    "token": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.values(),
}


class Totals(NamedTuple):
    """Sequences and labelled units of one optimizer step, over all its micro-batches."""

    rows: int
    labels: int


def kind_of(model: PreTrainedModel, asked: Kind | None = None) -> Kind:
    """The task of a model by its class and config; `asked` where the class is none of Hugging Face's or from one.

    Raises: RequestError for a task we have no loss for, or an `asked` that contradicts the class.
    """
    name = type(model).__name__
    if asked is not None and asked not in KINDS:
        raise RequestError(f"kind {asked!r} is unknown; set kind= to one of {', '.join(KINDS)}")
    lineage = {cls.__name__ for cls in type(model).__mro__}
    found: Kind | None = next((kind for kind, classes in _HEADS.items() if lineage & set(classes)), None)
    if found == "classification":
        found = _sequence_kind(model.config)
    if found and asked and found != asked:
        raise RequestError(f"kind {asked!r} does not fit {name}, which is for {found!r}; leave kind out")
    kind = found or asked
    if kind is None:
        heads = "masked LM, sequence classification, multiple choice or token classification"
        raise RequestError(f"{name} is no head for {heads}; give such a model, or say by kind= which of these yours is")
    return kind


def _sequence_kind(config: PreTrainedConfig) -> Kind:
    problem, numbers = config.problem_type, len(config.id2label or ())
    if problem == "multi_label_classification":
        raise RequestError(f"problem_type {problem!r} has no loss here; give one label per row, or one number")
    if problem != "regression" and (problem or numbers > 1):
        return "classification"
    if numbers > 1:
        raise RequestError(
            f"a regression of {numbers} numbers has no loss here; load with num_labels=1, or for"
            " classes with problem_type=None"
        )
    return "regression"


def classes_of(model: PreTrainedModel, kind: Kind) -> int | None:
    """How many labels there are for a head as Hugging Face makes them, by its last layer: the config may say another
    number. None for numbers, choices and other heads."""
    if not type(model).__module__.startswith("transformers.") or kind in ("regression", "choice"):
        return None
    whole: Any = model
    try:
        head = whole.get_output_embeddings() if kind == "mlm" else getattr(model, "classifier", None)
    except AttributeError:  # of a head that somebody has put there
        return None
    head = bare(getattr(bare(head), "out_proj", head))
    return head.out_features if isinstance(head, nn.Linear) else None


def totals(kind: Kind, batches: Sequence[Mapping[str, Any]], classes: int | None = None) -> Totals:
    """Count a window of the collator's batches; a window without labels counts as 1, since its task losses are all 0.

    Args: classes, how many labels there are, where that is known. Raises: RequestError for a batch we cannot train on.
    """
    for inputs in batches:
        _check(kind, inputs, classes)
    rows = sum(_sequences(inputs) for inputs in batches)
    counts = [_labelled(kind, inputs["labels"]).sum() for inputs in batches]
    return Totals(rows, max(1, int(sum(counts))))


def _sequences(inputs: Mapping[str, Any]) -> int:
    """Those that pass the encoder, without the fillers of a multiple choice: sequences of padding alone."""
    mask = inputs.get("attention_mask")
    if mask is None or inputs["input_ids"].dim() != 3:
        return inputs["input_ids"].flatten(0, -2).shape[0]
    return int(mask.any(-1).sum())


def to_batch(kind: Kind, inputs: Mapping[str, Any], total: Totals) -> Batch:
    """A collator's batch (input_ids and labels; attention_mask and others where it has them) as one of ours."""
    rest = {name: value for name, value in inputs.items() if name != "labels"}
    labels, positions = inputs["labels"], None
    if kind != "token":
        labels = labels.flatten()
    if kind == "mlm":
        positions = _labelled(kind, labels).nonzero().squeeze(-1)
        labels = labels[positions]
    return Batch(kind, rest, labels, total.rows, total.labels, positions)


def _labelled(kind: Kind, labels: Tensor) -> Tensor:
    return torch.ones_like(labels, dtype=torch.bool) if kind == "regression" else labels != IGNORE


def _check(kind: Kind, inputs: Mapping[str, Any], classes: int | None) -> None:
    for name in ("input_ids", "labels"):
        if not isinstance(inputs.get(name), Tensor):
            raise RequestError(
                f"a training batch has no tensor {name!r}, only {', '.join(inputs)}; mend the data set or its collator"
            )
    ids, labels = inputs["input_ids"], inputs["labels"]
    # Of smaller integers torch's losses take some, and some cannot be -100.
    if kind != "regression" and labels.dtype != torch.long:
        raise RequestError(f"labels are {labels.dtype}, for {kind!r} they must be torch.int64; mend the data set")
    if kind == "regression" and not labels.isfinite().all():
        raise RequestError("a label is no finite number, which 'regression' needs; mend the data set")
    if kind == "choice" and ids.dim() != 3:
        raise RequestError(
            f"input_ids are {list(ids.shape)}, for 'choice' they must be rows x choices x tokens; mend the collator"
        )
    if kind == "choice" and (labels == IGNORE).any():
        raise RequestError(f"a question has label {IGNORE}, for {kind!r} each needs one; leave unlabelled ones out")
    expected = ids.shape if kind in ("mlm", "token") else ids.shape[:1]
    if labels.numel() != expected.numel():
        shape = list(labels.shape)
        raise RequestError(f"labels are {shape}, for {kind!r} they must be {list(expected)}; mend the data set")
    classes = ids.shape[1] if kind == "choice" else classes
    if classes is not None and len(wrong := labels[(labels != IGNORE) & ((labels < 0) | (labels >= classes))]):
        # A GPU would end the process there, or by our kernels give no number.
        allowed = f"0 to {classes - 1}" if kind == "choice" else f"0 to {classes - 1} and {IGNORE}"
        raise RequestError(
            f"a label is {int(wrong.flatten()[0])}, for this model allowed: {allowed}; mend the data set"
        )
    mask = inputs.get("attention_mask")
    if kind == "choice" and mask is not None and not mask.any(-1)[torch.arange(len(ids)), labels.flatten()].all():
        raise RequestError("the answer of a question is padding alone; mend the data set")
