"""Which tokens of a row are predicted and what the model reads in their place, vectorised over rows.

token: single tokens (Devlin et al. 2019, section 3.1). word: whole words (the same authors' whole-word models).
span: runs of 1 to 10 words, lengths geometric with p = 0.2 (Joshi et al. 2020, SpanBERT, section 3.1; as in its program
the probabilities of 1 to 10 are scaled to sum to 1), each run corrupted as one. What differs from the papers: a row's
count is exact, so at most one word or span of it is chosen in part, and spans are drawn by cutting the whole row into
them, so no draw is ever repeated. Never chosen are padding, [CLS], [SEP] and [MASK]; [UNK] is, as in BERT's program.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

# G rows of the global batch, R rows wanted of it, L length, V vocabulary

Masking = Literal["token", "word", "span"]
Ids = NDArray[np.integer]
Flags = NDArray[np.bool_]

TO_MASK, TO_RANDOM = 0.8, 0.1
SPAN_END, SPAN_MOST = 0.2, 10  # p of the geometric distribution; words of the longest span
SPAN_UP_TO = (1 - (1 - SPAN_END) ** np.arange(1, SPAN_MOST)) / (1 - (1 - SPAN_END) ** SPAN_MOST)  # P(words <= 1 to 9)


@dataclass(frozen=True)
class Special:
    """The four ids that are never chosen, and the size of the vocabulary random tokens come from."""

    pad: int
    cls: int
    sep: int
    mask: int
    vocab: int

    def table_V(self) -> Flags:
        """True at the ids that are never chosen."""
        table_V = np.zeros(self.vocab, dtype=bool)
        table_V[[self.pad, self.cls, self.sep, self.mask]] = True
        return table_V


class Words(NamedTuple):
    """Which ids begin a word, and after which another begins, whatever comes."""

    starts_V: Flags
    ends_V: Flags


@dataclass(frozen=True)
class Rule:
    """How rows are masked. words: of the vocabulary (words.py); without them single tokens are chosen."""

    special: Special
    share: float
    words: Words | None = None
    spans: bool = False


class MaskedRows(NamedTuple):
    """ids_RL: what the model reads. labels_RL: the original ids. chosen_RL: True where the model predicts.

    total_labels: positions chosen in all G rows, 1 at least.
    """

    ids_RL: Ids
    labels_RL: Ids
    chosen_RL: Flags
    total_labels: int


def mask_rows(ids_GL: Ids, rule: Rule, generator: np.random.Generator, wanted: Ids | None = None) -> MaskedRows:
    """Choose tokens of each row and corrupt them: 80 % [MASK], 10 % a random token, 10 % left.

    A row's count is `share` of its ids between the first and the last that are not padding, at least one and at most
    its real tokens. So all full rows have the same count, and shapes are static where rows are packed.
    Args: wanted are the R rows to return, all G without it. Their masks are the same whichever are wanted.
    """
    special, table_V = rule.special, rule.special.table_V()
    scores_GL = generator.random(ids_GL.shape, dtype=np.float32)
    actions_GL = generator.random(ids_GL.shape, dtype=np.float32)
    random_GL = generator.integers(0, special.vocab, ids_GL.shape)
    cuts_GL = generator.random(ids_GL.shape, dtype=np.float32) if rule.spans else None
    fixed_GL = table_V[ids_GL]
    counts_G = _counts(ids_GL, fixed_GL, rule)
    rows = slice(None) if wanted is None else wanted
    ids_RL, fixed_RL, scores_RL, actions_RL = ids_GL[rows], fixed_GL[rows], scores_GL[rows], actions_GL[rows]
    if rule.words is not None:
        alone_RL = _alone(fixed_RL)
        words_RL = alone_RL | rule.words.starts_V[ids_RL]
        words_RL[:, 1:] |= rule.words.ends_V[ids_RL[:, :-1]]
        first_RL = _first(words_RL if cuts_GL is None else _spans(words_RL, alone_RL, cuts_GL[rows]))
        scores_RL = np.take_along_axis(scores_RL, first_RL, axis=1)
        if cuts_GL is not None:
            actions_RL = np.take_along_axis(actions_RL, first_RL, axis=1)
    chosen_RL = _lowest(np.where(fixed_RL, np.float32(np.inf), scores_RL), counts_G[rows])
    random_RL = random_GL[rows]
    # Random tokens avoid the special ids, which are never what the model should read as a word.
    random_RL = np.where(table_V[random_RL], ids_RL, random_RL)
    corrupted_RL = np.select(
        [~chosen_RL | (actions_RL >= TO_MASK + TO_RANDOM), actions_RL < TO_MASK], [ids_RL, special.mask], random_RL
    )
    return MaskedRows(corrupted_RL, ids_RL, chosen_RL, max(1, int(counts_G.sum())))


def _counts(ids_GL: Ids, fixed_GL: Flags, rule: Rule) -> Ids:
    inner_G = (ids_GL != rule.special.pad).sum(axis=1) - 2
    wanted_G = np.maximum(1, np.rint(rule.share * inner_G)).astype(np.int64)
    return np.minimum(wanted_G, (~fixed_GL).sum(axis=1))


def _lowest(scores_RL: NDArray[np.float32], counts_R: Ids) -> Flags:
    """True at the `counts_R` lowest scores of each row; of equal ones the leftmost."""
    last_R = np.maximum(counts_R - 1, 0)
    edge_R1 = np.take_along_axis(np.sort(scores_RL, axis=1), last_R[:, None], axis=1)
    below_RL, tied_RL = scores_RL < edge_R1, scores_RL == edge_R1
    places_R1 = (counts_R - below_RL.sum(axis=1))[:, None]
    return below_RL | (tied_RL & (tied_RL.cumsum(axis=1) <= places_R1))


def _alone(fixed_RL: Flags) -> Flags:
    """True at special ids and right after them: words and spans never cross one."""
    alone_RL = fixed_RL.copy()
    alone_RL[:, 1:] |= fixed_RL[:, :-1]
    alone_RL[:, 0] = True
    return alone_RL


def _spans(words_RL: Flags, alone_RL: Flags, cuts_RL: NDArray[np.float32]) -> Flags:
    """True where a span begins, given where words do: where the words that the one before has drawn are over."""
    lengths_RL = (1 + np.searchsorted(SPAN_UP_TO, cuts_RL, side="right")).astype(np.int8)  # of a span that begins here
    words_LR, begins_LR, lengths_LR = words_RL.T.copy(), alone_RL.T.copy(), lengths_RL.T.copy()
    left_R = np.zeros(len(words_RL), dtype=np.int8)  # words that the span still takes
    for words_R, begins_R, lengths_R in zip(words_LR, begins_LR, lengths_LR, strict=True):
        begins_R |= words_R & (left_R == 0)
        np.copyto(left_R, lengths_R, where=begins_R)
        left_R -= words_R
    return begins_LR.T


def _first(begins_RL: Flags) -> Ids:
    """For each position the place at which its word or span begins."""
    return np.maximum.accumulate(np.where(begins_RL, np.arange(begins_RL.shape[1]), 0), axis=1)
