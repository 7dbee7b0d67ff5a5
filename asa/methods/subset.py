"""Some rows of a batch, and of what a pass over all of it gave."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from asa.batch import Batch
from asa.model import Output

# B rows, K chosen rows, L length, M masked positions


class Subset(NamedTuple):
    """batch: the chosen rows, with the totals of the whole step. units: indices of the whole batch's labelled units
    they hold, K of rows or those of masked positions."""

    batch: Batch
    rows_K: Tensor
    units: Tensor


def choose(batch: Batch, rows_K: Tensor) -> Subset:
    """The examples `rows_K` of a batch, in that order."""
    inputs = batch.inputs | {name: tensor[rows_K] for name, tensor in batch.by_row().items()}
    padded = None if batch.padded else batch.padded  # of some rows of a padded batch it is not known
    if batch.positions is None:
        return Subset(replace(batch, inputs=inputs, labels=batch.labels[rows_K]).marked(padded), rows_K, rows_K)
    rows, length = batch.inputs["input_ids"].shape
    place_B = torch.full((rows,), -1, device=rows_K.device)
    place_B[rows_K] = torch.arange(len(rows_K), device=rows_K.device)
    moved_M = place_B[batch.positions // length] * length + batch.positions % length
    held = (moved_M >= 0).nonzero().squeeze(-1)  # once: each time a GPU is waited for
    part = replace(batch, inputs=inputs, labels=batch.labels[held], positions=moved_M[held])
    return Subset(part.marked(padded), rows_K, held)


def of(out: Output, subset: Subset) -> Output:
    """What a pass over the whole batch predicted for the chosen rows."""
    cls_KD, cls_logits = (None if t is None else t[subset.rows_K] for t in (out.cls_BD, out.cls_logits))
    return Output(out.logits[subset.units], cls_KD, cls_logits)
