"""What a micro-batch is. Its totals are of the whole optimizer step: sums over micro-batches and ranks are means."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from asa.errors import RequestError

Kind = Literal["mlm", "classification", "regression", "choice", "token"]
IGNORE = -100  # label of an unlabelled token, as Hugging Face has it

# B rows, C choices, L length, M masked positions of the micro-batch


def version(tensor: Tensor) -> int | None:
    """How often the tensor was changed in place; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def _has(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows


class Looked(NamedTuple):
    """What a padding mask was found to hold. version: of the mask when it was; torch counts a tensor's changes."""

    mask: Tensor
    version: int
    padded: bool

    def holds(self, mask: Tensor) -> bool:
        """Whether that is the mask, or a view of all of it, and was not changed since."""
        mine = self.mask
        same = mask.data_ptr() == mine.data_ptr() and mask.numel() == mine.numel() and mask.dtype == mine.dtype
        return same and mask.is_contiguous() == mine.is_contiguous() and version(mask) == self.version


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one rank.

    inputs: what the Hugging Face model takes (input_ids, attention_mask, token_type_ids), each BL or BCL; without a
    mask there is no padding.
    labels: M token ids (mlm), B classes (classification, choice), B floats (regression) or BL with -100 (token).
    positions: M indices into the flattened BL of the masked tokens (mlm only).
    looked: what `to` has found in the attention mask; see `padded`. Copies and pickles begin without.
    total_rows: sequences that pass the encoder in this optimizer step, over all micro-batches and ranks, without the
    fillers of kind choice: an answer that a question does not have is a sequence of padding alone.
    total_labels: labelled units in this optimizer step, over all micro-batches and ranks, 1 at least. Of kind
    classification a row may be unlabelled (-100); choices and numbers are all labelled.
    """

    kind: Kind
    inputs: dict[str, Tensor]
    labels: Tensor
    total_rows: int
    total_labels: int
    positions: Tensor | None = None
    looked: Looked | None = None

    def __post_init__(self) -> None:
        """Raises RequestError for totals below 1, by which losses are divided, for inputs that are lists, for classes
        that are no int64, and for positions that are no indices, a mask of tokens say, or not as many as
        labels."""
        if lists := [name for name, value in self.inputs.items() if isinstance(value, list)]:
            raise RequestError(f"{lists[0]} is a list; give tensors, as a tokenizer does with return_tensors='pt'")
        given: Any = self.labels
        if not isinstance(given, Tensor):
            raise RequestError(f"labels are a {type(given).__name__}; give a tensor")
        if self.kind != "regression" and self.labels.dtype != torch.int64:  # torch's losses take others in part
            kind = str(self.labels.dtype).removeprefix("torch.")
            raise RequestError(f"labels of kind {self.kind} are {kind}, allowed: int64; give labels.long()")
        for name in ("total_rows", "total_labels"):
            total = getattr(self, name)
            if isinstance(total, int | float) and not total >= 1:  # of a tensor a look would wait for its device
                known = "numbers from 1, what the whole optimizer step has"
                raise RequestError(f"{name} = {total}: allowed: {known}; give 1 where nothing of it is labelled")
        found, labels = self.positions, self.labels
        if found is not None and (found.dtype not in (torch.int64, torch.int32) or found.shape != labels.shape):
            kind = str(found.dtype).removeprefix("torch.")
            raise RequestError(
                f"positions are {list(found.shape)} of {kind} beside labels of {list(labels.shape)}; give the index of"
                " each masked token in the flattened ids, and its label"
            )

    @property
    def ids(self) -> Tensor:
        """The token ids, BL or BCL. Raises RequestError for a batch without."""
        if "input_ids" not in self.inputs:
            raise RequestError(f"the batch has {', '.join(self.inputs) or 'nothing'} and no input_ids; give token ids")
        return self.inputs["input_ids"]

    @property
    def padded(self) -> bool | None:
        """Whether there is padding; None where nobody has looked at this very mask. A look into a GPU's memory would
        wait for all that the GPU still has to do."""
        # Who gives a batch other masks, or changes one in place, need not know of this. No look while compiling:
        # transformers has none there either.
        mask, looked = self.inputs.get("attention_mask"), self.looked
        if looked is None or torch.compiler.is_compiling() or mask is None or not looked.holds(mask):
            return None
        return looked.padded

    @property
    def pad_BL(self) -> Tensor:
        """True at padding, with choices flattened into rows; without a mask there is none. Raises RequestError for a
        mask that is not of tokens."""
        mask, ids = self.inputs.get("attention_mask"), self.ids
        if mask is None:
            return torch.zeros_like(ids, dtype=torch.bool).flatten(0, -2)
        if mask.dim() != ids.dim():
            raise RequestError(
                f"attention_mask is {list(mask.shape)} where input_ids are {list(ids.shape)}, so it tells no padding;"
                " give one number per token"
            )
        return (mask == 0).flatten(0, -2)

    @property
    def total_compared(self) -> int:
        """Units in this optimizer step of which two predictions are compared: as those labelled, but of kind
        classification every row, since a divergence needs no label."""
        return self.total_rows if self.kind == "classification" else self.total_labels

    def by_row(self) -> dict[str, Tensor]:
        """The inputs that have something for each row; the others are what all rows share."""
        rows = len(self.ids)
        return {name: value for name, value in self.inputs.items() if _has(value, rows)}

    def twice(self) -> "Batch":
        """Its rows, then its rows again; the totals stay, and what all rows share."""
        positions = self.positions
        if positions is not None:
            positions = torch.cat([positions, positions + self.ids.numel()])
        inputs = self.inputs | {name: torch.cat([value, value]) for name, value in self.by_row().items()}
        twice = replace(self, inputs=inputs, labels=torch.cat([self.labels, self.labels]), positions=positions)
        return twice.marked(self.padded)

    def to(self, device: torch.device) -> "Batch":
        """On the device. What lies in the host's memory is looked at for padding on the way."""

        def move(tensor: Tensor) -> Tensor:
            if device.type == "cuda" and tensor.device.type == "cpu":
                # For a copy out of memory that may be paged out the host would wait, and so for all queued before it.
                tensor = tensor.contiguous().pin_memory()
            return tensor.to(device, non_blocking=True)

        positions = None if self.positions is None else move(self.positions)
        inputs = {name: move(tensor) for name, tensor in self.inputs.items()}
        moved = replace(self, inputs=inputs, labels=move(self.labels), positions=positions)
        return moved.marked(_padded(self) if _readable(self) else self.padded)

    def marked(self, padded: bool | None) -> "Batch":
        """With this for what its mask holds; None: nobody has looked."""
        mask = self.inputs.get("attention_mask")
        if padded is None or mask is None or (changes := version(mask)) is None:
            return replace(self, looked=None)
        return replace(self, looked=Looked(mask, changes, padded))

    def __getstate__(self) -> dict[str, Any]:
        # A copied tensor's changes are counted anew.
        return vars(self) | {"looked": None}


def _readable(batch: Batch) -> bool:
    """Whether the mask lies in the host's memory, is one of tokens, and has contents."""
    mask, ids = batch.inputs.get("attention_mask"), batch.inputs.get("input_ids")
    if torch.compiler.is_compiling() or mask is None or ids is None:
        return False
    return type(mask) is Tensor and mask.device.type == "cpu" and mask.shape == ids.shape


def _padded(batch: Batch) -> bool:
    return bool((batch.inputs["attention_mask"] == 0).any())
