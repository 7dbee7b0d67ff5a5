"""Masking: the right share, the right mixture, special tokens untouched."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretrain.masking import Special, mask_rows

SPECIAL = Special(pad=0, cls=2, sep=3, mask=4, vocab=1000)


def rows(count: int, length: int, padding: int = 0) -> np.ndarray:
    ids_GL = np.random.default_rng(0).integers(5, 1000, (count, length))
    ids_GL[:, 0], ids_GL[:, -1] = SPECIAL.cls, SPECIAL.sep
    if padding:
        ids_GL[:, -padding:] = SPECIAL.pad
    return ids_GL


@given(length=st.integers(4, 40), padding=st.integers(0, 3), share=st.floats(0.01, 0.5), seed=st.integers(0, 2**31))
def test_every_row_predicts_its_share_and_special_tokens_never(
    length: int, padding: int, share: float, seed: int
) -> None:
    ids_GL = rows(5, length, padding)
    masked = mask_rows(ids_GL, share, SPECIAL, np.random.default_rng(seed))
    special_GL = np.isin(ids_GL, SPECIAL.untouched)
    real_G = (~special_GL).sum(axis=1)
    expected_G = np.minimum(real_G, np.maximum(1, np.rint(share * real_G)))
    assert (masked.chosen_GL.sum(axis=1) == expected_G).all()
    assert not (masked.chosen_GL & special_GL).any()
    assert (masked.ids_GL[~masked.chosen_GL] == ids_GL[~masked.chosen_GL]).all()
    assert (masked.labels_GL == ids_GL).all()


def test_of_the_chosen_four_fifths_become_the_mask_and_a_tenth_another_word() -> None:
    ids_GL = rows(2000, 128)
    masked = mask_rows(ids_GL, 0.15, SPECIAL, np.random.default_rng(1))
    read, original = masked.ids_GL[masked.chosen_GL], ids_GL[masked.chosen_GL]
    assert abs((read == SPECIAL.mask).mean() - 0.8) < 0.01
    assert abs((read == original).mean() - 0.1) < 0.01
    assert not np.isin(read, [SPECIAL.pad, SPECIAL.cls, SPECIAL.sep]).any()


def test_full_rows_predict_equally_many_tokens_so_shapes_are_static() -> None:
    masked = mask_rows(rows(50, 128), 0.15, SPECIAL, np.random.default_rng(2))
    assert set(masked.chosen_GL.sum(axis=1)) == {19}
