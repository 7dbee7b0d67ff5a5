"""Rows of whole numbers, of a length each, one behind the other: a tensor for each would take many times the memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
import torch
from torch import Tensor

# R rows, N numbers of all rows, B rows of a batch, L length


@dataclass(frozen=True, eq=False)
class Ragged:
    """numbers_N: in the smallest type that holds them. lengths_R: how many of them each row has."""

    numbers_N: np.ndarray
    lengths_R: np.ndarray
    ends_R: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        lengths_R = np.fromiter(map(len, rows), np.int64, len(rows))
        numbers_N = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths_R.sum()))
        return cls(_small(numbers_N), lengths_R, lengths_R.cumsum())

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts, one part behind the other; at least one part."""
        lengths_R = np.concatenate([part.lengths_R for part in parts])
        return cls(np.concatenate([part.numbers_N for part in parts]), lengths_R, lengths_R.cumsum())

    def __len__(self) -> int:
        return len(self.lengths_R)

    def __getitem__(self, row: int) -> Tensor:
        """A row, L, int64."""
        end = self.ends_R[row]
        return torch.from_numpy(self.numbers_N[end - self.lengths_R[row] : end].astype(np.int64))

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self)))

    def padded(self, rows: Sequence[int] | np.ndarray, value: int) -> Tensor:
        """Some rows, to the length of the longest of them: BL, int64. Without a slice for each, which would be most of
        the time of a batch."""
        chosen = np.asarray(rows)
        lengths_B, ends_B = self.lengths_R[chosen], self.ends_R[chosen]
        table_BL = np.full((len(lengths_B), lengths_B.max()), value, np.int64)
        places = np.arange(lengths_B.sum()) + np.repeat(ends_B - lengths_B.cumsum(), lengths_B)
        table_BL[np.arange(table_BL.shape[1]) < lengths_B[:, None]] = self.numbers_N[places]
        return torch.from_numpy(table_BL)


def _small(numbers_N: np.ndarray) -> np.ndarray:
    if not len(numbers_N):
        return numbers_N
    least, most = (np.min_scalar_type(bound) for bound in (numbers_N.min(), numbers_N.max()))
    return numbers_N.astype(np.result_type(least, most))
