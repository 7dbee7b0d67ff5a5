"""BERT's masking (Devlin et al. 2019, section 3.1), vectorised: 15 % of a row's real tokens, of those 80/10/10."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# G rows, L length, K most masked tokens a row can have

TO_MASK, TO_RANDOM = 0.8, 0.1


@dataclass(frozen=True)
class Special:
    """Ids that are never masked, the mask id, and the size of the vocabulary random tokens come from."""

    pad: int
    cls: int
    sep: int
    mask: int
    vocab: int

    @property
    def untouched(self) -> list[int]:
        return [self.pad, self.cls, self.sep, self.mask]


class MaskedRows(NamedTuple):
    """ids_GL: what the model reads. labels_GL: the original ids. chosen_GL: True where the model predicts."""

    ids_GL: NDArray[np.int64]
    labels_GL: NDArray[np.int64]
    chosen_GL: NDArray[np.bool_]


def mask_rows(ids_GL: NDArray[np.int64], share: float, special: Special, generator: np.random.Generator) -> MaskedRows:
    """Choose round(share * real tokens) positions per row, at least one, and corrupt them.

    Full rows all get the same number, so shapes are static where rows are packed.
    """
    rows, length = ids_GL.shape
    scores_GL = generator.random((rows, length), dtype=np.float32)
    actions_GL = generator.random((rows, length), dtype=np.float32)
    # Random tokens avoid the special ids, which are never what the model should read as a word.
    random_GL = generator.integers(0, special.vocab, (rows, length))
    fixed_GL = np.isin(ids_GL, special.untouched)
    scores_GL[fixed_GL] = np.inf
    counts_G = np.maximum(1, np.rint(share * (~fixed_GL).sum(axis=1))).astype(np.int64)
    ranks_GL = scores_GL.argsort(axis=1).argsort(axis=1)
    chosen_GL = (ranks_GL < counts_G[:, None]) & ~fixed_GL
    random_GL = np.where(np.isin(random_GL, special.untouched), ids_GL, random_GL)
    corrupted_GL = np.where(actions_GL < TO_MASK, special.mask, ids_GL)
    corrupted_GL = np.where((actions_GL >= TO_MASK) & (actions_GL < TO_MASK + TO_RANDOM), random_GL, corrupted_GL)
    return MaskedRows(np.where(chosen_GL, corrupted_GL, ids_GL), ids_GL, chosen_GL)
