"""Masking: the right share, the right mixture, special tokens untouched, words, spans, the same masks as ever."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain import masking
from pretrain.masking import SPAN_MOST, MaskedRows, Rule, Special, Words, mask_rows

SPECIAL = Special(pad=0, cls=2, sep=3, mask=4, vocab=1000)
STARTS_V = np.arange(SPECIAL.vocab) % 3 != 1  # a third of the ids continue a word
ENDS_V = np.arange(SPECIAL.vocab) % 11 == 5
WORDS = Words(STARTS_V, ENDS_V)
TOKEN, WORD = Rule(SPECIAL, 0.15), Rule(SPECIAL, 0.15, WORDS)
SPAN = Rule(SPECIAL, 0.15, WORDS, spans=True)
RULES = {"token": TOKEN, "word": WORD, "span": SPAN}


def rows(count: int, length: int, padding: int = 0, documents: int = 1) -> np.ndarray:
    ids_GL = np.random.default_rng(0).integers(5, 1000, (count, length)).astype(np.uint16)
    ids_GL[:, 0], ids_GL[:, length - padding - 1] = SPECIAL.cls, SPECIAL.sep
    for row in range(count):
        ids_GL[row, [(7 + row + 5 * k) % (length - padding - 2) + 1 for k in range(documents - 1)]] = SPECIAL.sep
    ids_GL[:, length - padding :] = SPECIAL.pad
    return ids_GL


def units(ids_L: np.ndarray) -> list[list[int]]:
    """The places of each word of a row, worked out one token at a time."""
    found: list[list[int]] = []
    inside = False
    for place, token in enumerate(ids_L.tolist()):
        if token in (SPECIAL.pad, SPECIAL.cls, SPECIAL.sep, SPECIAL.mask):
            inside = False
        elif STARTS_V[token] or not inside:
            found.append([place])
            inside = not ENDS_V[token]
        else:
            found[-1].append(place)
            inside = not ENDS_V[token]
    return found


@given(
    length=st.integers(6, 40),
    padding=st.integers(0, 3),
    documents=st.integers(1, 4),
    share=st.floats(0.01, 0.5),
    kind=st.sampled_from(sorted(RULES)),
    seed=st.integers(0, 2**31),
)
def test_every_row_predicts_its_share_and_special_tokens_never(
    length: int, padding: int, documents: int, share: float, kind: str, seed: int
) -> None:
    ids_GL = rows(5, length, padding, documents)
    rule = Rule(SPECIAL, share, RULES[kind].words, RULES[kind].spans)
    masked = mask_rows(ids_GL, rule, np.random.default_rng(seed))
    special_GL = np.isin(ids_GL, [SPECIAL.pad, SPECIAL.cls, SPECIAL.sep, SPECIAL.mask])
    wanted = max(1, np.rint(share * (length - padding - 2)))
    expected_G = np.minimum((~special_GL).sum(axis=1), wanted)
    assert (masked.chosen_RL.sum(axis=1) == expected_G).all()
    assert masked.total_labels == max(1, expected_G.sum())
    assert not (masked.chosen_RL & special_GL).any()
    assert (masked.ids_RL[~masked.chosen_RL] == ids_GL[~masked.chosen_RL]).all()
    assert (masked.labels_RL == ids_GL).all()


@pytest.mark.parametrize("kind", RULES)
def test_of_the_chosen_four_fifths_become_the_mask_and_a_tenth_another_word(kind: str) -> None:
    ids_GL = rows(2000, 128)
    masked = mask_rows(ids_GL, RULES[kind], np.random.default_rng(1))
    read, original = masked.ids_RL[masked.chosen_RL], ids_GL[masked.chosen_RL]
    assert abs((read == SPECIAL.mask).mean() - 0.8) < 0.01
    assert abs((read == original).mean() - 0.1) < 0.01
    assert not np.isin(read, [SPECIAL.pad, SPECIAL.cls, SPECIAL.sep]).any()


@pytest.mark.parametrize("kind", RULES)
def test_full_rows_predict_equally_many_tokens_so_shapes_are_static(kind: str) -> None:
    """However many documents share a row."""
    masked = mask_rows(rows(50, 128, documents=9), RULES[kind], np.random.default_rng(2))
    assert set(masked.chosen_RL.sum(axis=1)) == {19}


def test_words_are_chosen_whole_but_for_one_that_fills_the_row_up() -> None:
    ids_GL = rows(300, 60, documents=3)
    masked = mask_rows(ids_GL, WORD, np.random.default_rng(3))
    in_part = [sum(0 < chosen[word].sum() < len(word) for word in units(ids)) for ids, chosen in pairs(ids_GL, masked)]
    assert set(in_part) == {0, 1}
    assert any(len(word) > 2 and chosen[word].all() for ids, chosen in pairs(ids_GL, masked) for word in units(ids))


def test_a_word_ends_after_a_sign() -> None:
    """Whatever comes then begins another, chosen or left by itself."""
    sign, piece = (
        next(n for n in range(5, 1000) if STARTS_V[n] and ENDS_V[n]),
        next(n for n in range(5, 1000) if not STARTS_V[n] and not ENDS_V[n]),
    )
    ids_GL = np.full((200, 42), piece, dtype=np.uint16)
    ids_GL[:, 1:-1:2] = sign
    ids_GL[:, 0], ids_GL[:, -1] = SPECIAL.cls, SPECIAL.sep
    masked = mask_rows(ids_GL, WORD, np.random.default_rng(6))
    signs_RL, pieces_RL = masked.chosen_RL[:, 1:-1:2], masked.chosen_RL[:, 2:-1:2]
    assert (signs_RL & ~pieces_RL).sum() > 200
    assert (~signs_RL & pieces_RL).sum() > 200


def pairs(ids_GL: np.ndarray, masked: MaskedRows) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(ids_GL, masked.chosen_RL, strict=True))


def test_rows_of_special_tokens_alone_have_a_total_by_which_a_loss_can_be_divided() -> None:
    ids_GL = np.array([[SPECIAL.cls, SPECIAL.mask, SPECIAL.sep, SPECIAL.pad]], dtype=np.uint16)
    masked = mask_rows(ids_GL, TOKEN, np.random.default_rng(0))
    assert not masked.chosen_RL.any()
    assert masked.total_labels == 1


def test_spans_are_runs_of_words_that_cross_no_special_token() -> None:
    ids_GL = np.random.default_rng(1).choice(np.flatnonzero(STARTS_V[5:]) + 5, (400, 200)).astype(np.uint16)
    ids_GL[:, 0], ids_GL[:, -1], ids_GL[:, 90] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
    # Few tokens a row, so that two spans seldom touch and a run is a span.
    masked = mask_rows(ids_GL, Rule(SPECIAL, 0.02, WORDS, spans=True), np.random.default_rng(2))
    runs = [len(run) for chosen in masked.chosen_RL for run in "".join(map(str, chosen.astype(int))).split("0") if run]
    assert masked.chosen_RL[:, 90].sum() == 0
    assert max(runs) <= SPAN_MOST
    assert np.mean(runs) > 2, "single tokens would give runs of 1"
    token = mask_rows(ids_GL, Rule(SPECIAL, 0.02), np.random.default_rng(2))
    singles = [len(run) for c in token.chosen_RL for run in "".join(map(str, c.astype(int))).split("0") if run]
    assert np.mean(singles) < 1.1


def test_span_lengths_are_the_geometric_ones_scaled_to_one_to_ten() -> None:
    """As SpanBERT's program draws them: P(10) is 0.03, where a cut at ten would put all longer spans."""
    words_RL, alone_RL = np.ones((20, 4000), dtype=bool), np.zeros((20, 4000), dtype=bool)
    alone_RL[:, 0] = True
    begins_RL = masking._spans(words_RL, alone_RL, np.random.default_rng(8).random((20, 4000), dtype=np.float32))
    lengths = np.concatenate([np.diff(np.flatnonzero(begins_L)) for begins_L in begins_RL])
    expected = 0.2 * 0.8 ** np.arange(SPAN_MOST) / (1 - 0.8**SPAN_MOST)
    assert np.abs(np.bincount(lengths)[1:] / len(lengths) - expected).max() < 0.01
    assert lengths.mean() == pytest.approx(3.80, abs=0.05)


@pytest.mark.parametrize(("rule", "least", "most"), [(SPAN, 0.85, 1.0), (TOKEN, 0.0, 0.75)])
def test_a_span_is_corrupted_as_one(rule: Rule, least: float, most: float) -> None:
    """Neighbouring predictions share their fate where they are of one span, by chance alone where they are not."""
    masked = mask_rows(rows(500, 200), rule, np.random.default_rng(4))
    both_RL = masked.chosen_RL[:, 1:] & masked.chosen_RL[:, :-1]
    hidden_RL = masked.ids_RL == SPECIAL.mask
    assert least < (hidden_RL[:, 1:] == hidden_RL[:, :-1])[both_RL].mean() < most


@pytest.mark.parametrize("kind", RULES)
def test_wanted_rows_are_masked_as_they_are_among_all(kind: str) -> None:
    ids_GL, wanted = rows(12, 50, documents=3), np.array([7, 2, 11])
    every = mask_rows(ids_GL, RULES[kind], np.random.default_rng(5))
    some = mask_rows(ids_GL, RULES[kind], np.random.default_rng(5), wanted)
    assert (some.ids_RL == every.ids_RL[wanted]).all()
    assert (some.chosen_RL == every.chosen_RL[wanted]).all()
    assert some.total_labels == every.total_labels


@pytest.mark.parametrize(
    ("kind", "sha256"), [("token", "de427e76b6505bd2"), ("word", "c63f42c2bd17089e"), ("span", "a746d0eeb65eeff6")]
)
def test_masks_are_those_of_every_earlier_version(kind: str, sha256: str) -> None:
    """Figures in the lab log and runs that are resumed rest on it; those of spans are younger, with the
    lengths of SpanBERT's program."""
    words = None if kind == "token" else Words(STARTS_V, np.zeros_like(ENDS_V))  # WordPiece's
    rule = Rule(SPECIAL, 0.15, words, spans=kind == "span")
    masked = mask_rows(rows(64, 128, padding=9), rule, np.random.Generator(np.random.Philox(6)))
    content = masked.ids_RL.astype("<i8").tobytes() + masked.chosen_RL.tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == sha256
