"""Texts -> batches. Which rows a training batch holds is a pure function of (seed, step)."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from asa.batch import Batch
from finetune.tasks.folder import Split

# B rows, L length


class Encoded(NamedTuple):
    """A tokenized split. columns: what the model takes, per row one tensor of token ids (or the like).

    padding: the value each column is padded with.
    """

    columns: dict[str, list[Tensor]]
    padding: dict[str, int]
    labels_B: Tensor

    def batch(self, rows: Sequence[int] | np.ndarray, total: int) -> Batch:
        """The rows padded to the longest of them; `total` is the number of rows the loss is divided by."""
        inputs = {
            name: pad_sequence([column[row] for row in rows], batch_first=True, padding_value=self.padding[name])
            for name, column in self.columns.items()
        }
        labels_B = self.labels_B[torch.as_tensor(rows)]
        return Batch("classification", inputs, labels_B, total_rows=total, total_labels=total)

    def __len__(self) -> int:
        return len(self.labels_B)


def encode(split: Split, tokenizer: PreTrainedTokenizerBase, length: int) -> Encoded:
    """Tokenize a split, cut to `length` tokens."""
    table = tokenizer(split.texts, truncation=True, max_length=length)
    columns = {name: [torch.tensor(ids) for ids in column] for name, column in table.items()}
    known = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    padding = {name: int(known.get(name, 0)) for name in columns}
    return Encoded(columns, padding, torch.tensor(split.labels))


def training_batch(data: Encoded, size: int, seed: int, step: int) -> Batch:
    """Batch number `step` (from 0, over all epochs) of a run."""
    per_epoch = steps_per_epoch(len(data), size)
    epoch, position = divmod(step, per_epoch)
    rows = _order(len(data), seed, epoch)[position * size : (position + 1) * size]
    return data.batch(rows, total=len(rows))


def evaluation_batches(data: Encoded, size: int) -> Iterator[Batch]:
    """Every row once, shortest first, so that little is padded; losses add up to the mean over the split."""
    order = np.argsort([len(ids) for ids in data.columns["input_ids"]], kind="stable")
    for first in range(0, len(data), size):
        yield data.batch(order[first : first + size], total=len(data))


def steps_per_epoch(rows: int, size: int) -> int:
    return -(-rows // size)


@lru_cache(maxsize=2)
def _order(rows: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(rows)
