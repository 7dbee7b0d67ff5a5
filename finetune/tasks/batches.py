"""Texts -> batches. Which rows a training batch holds is a pure function of (seed, step)."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from asa.batch import IGNORE, Batch
from asa.errors import RequestError
from asa.tokenizer import for_words
from finetune.tasks.ragged import Ragged
from finetune.tasks.task import Kind, Label, Split, Text

# B rows, C choices, L length

STRETCH = 50  # batches, at most, whose rows are sorted by length together
STRETCHES = 4  # at least, where there are as many batches: with one, the same rows would meet in every epoch
CHUNK = 4096  # texts that a tokenizer gets at once: what it returns takes a hundred times the memory of their ids
NOTHING = 2**60  # a divisor after which a loss and its gradients are lost in those of real rows


@dataclass(frozen=True, eq=False)
class Encoded:
    """A tokenized split. columns: what the model takes, token ids or the like: L of each row, or of each answer of each
    row.

    padding: the value each column is padded with. labels: what the loss takes, R or L of each row; None where there are
    none. gold: the labels as the task has them. answers: of each row of kind choice, the number of its real answers.
    cut, unread: of kind token, the words for which `length` leaves no place, and those of which the tokenizer leaves
    nothing.
    """

    kind: Kind
    columns: dict[str, Ragged]
    padding: dict[str, int]
    labels: Ragged | Tensor | None
    gold: list[Label] | None
    answers: list[int]
    cut: int = 0
    unread: int = 0

    def batch(self, rows: Sequence[int] | np.ndarray, step: Sequence[int] | np.ndarray | None = None) -> Batch:
        """The rows padded to the longest of them, and to the most answers. Args: step, all rows of the optimizer step,
        over which losses are means; None: these are all."""
        inputs = {name: self._column(name, rows) for name in self.columns}
        labels = self._labels(rows, inputs["input_ids"].shape[-1])
        sequences, units = self._totals(rows if step is None else step)
        return Batch(self.kind, inputs, labels, total_rows=sequences, total_labels=units)

    def _column(self, name: str, rows: Sequence[int] | np.ndarray) -> Tensor:
        """BL, or BCL."""
        column, value = self.columns[name], self.padding[name]
        if not self.answers:
            return column.padded(rows, value)
        spans = [(int(self._firsts[row]), self.answers[row]) for row in rows]
        answers = column.padded(list(chain(*(range(first, first + number) for first, number in spans))), value)
        numbers_B = torch.tensor([number for _, number in spans])
        table_BCL = answers.new_full((len(rows), int(numbers_B.max()), answers.shape[1]), value)
        table_BCL[torch.arange(table_BCL.shape[1]) < numbers_B[:, None]] = answers
        return table_BCL

    @cached_property
    def _firsts(self) -> np.ndarray:
        """Where each row's answers begin."""
        return np.cumsum(self.answers) - self.answers

    def _totals(self, rows: Sequence[int] | np.ndarray) -> tuple[int, int]:
        """Sequences that pass the encoder, and labelled units, at least 1."""
        sequences = sum(self.answers[row] for row in rows) if self.answers else len(rows)
        if not isinstance(self.labels, Ragged):
            return sequences, len(rows)
        return sequences, max(1, sum(int((self.labels[row] != IGNORE).sum()) for row in rows))

    def _labels(self, rows: Sequence[int] | np.ndarray, length: int) -> Tensor:
        if self.labels is None:
            shape = (len(rows), length) if self.kind == "token" else (len(rows),)
            return torch.full(shape, 0 if self.kind != "token" else IGNORE)
        return self.labels.padded(rows, IGNORE) if isinstance(self.labels, Ragged) else self.labels[list(rows)]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Of each row, or of the longest of its answers."""
        lengths = self.columns["input_ids"].lengths_R
        return np.maximum.reduceat(lengths, self._firsts) if self.answers else lengths

    @cached_property
    def order(self) -> Callable[..., list[np.ndarray]]:
        """The rows of each batch of an epoch, by size, seed, epoch, buckets; the newest epoch is kept in memory."""
        return lru_cache(maxsize=1)(partial(_order, self.lengths))

    def __len__(self) -> int:
        return len(self.answers or self.columns["input_ids"])


def encode(kind: Kind, split: Split, tokenizer: PreTrainedTokenizerBase, length: int) -> Encoded:
    """Tokenize a split, cut to `length` tokens: the longer segment of a pair first, words that do not fit left out."""
    labels: Ragged | Tensor | None = None
    answers: list[int] = []
    cut = unread = 0
    if kind == "token":
        columns, labels, unread = _words(split, tokenizer, length)
        cut = sum(map(len, split.texts)) - int((labels.numbers_N != IGNORE).sum())
    elif kind == "choice":
        answers = [len(text) for text in split.texts]
        columns = _segments([_text(answer) for text in split.texts for answer in text], tokenizer, length)
    else:
        columns = _segments([_text(text) for text in split.texts], tokenizer, length)
    if split.labels is not None and kind != "token":
        labels = torch.tensor(split.labels, dtype=torch.float32 if kind == "regression" else torch.int64)
    padding = {name: _padding(tokenizer, name) for name in columns}
    return Encoded(kind, columns, padding, labels, split.labels, answers, cut, unread)


def _padding(tokenizer: PreTrainedTokenizerBase, column: str) -> int:
    known = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    return int(known.get(column, 0))


def _text(text: Any) -> Text:
    """A row's, or an answer's: which of the two a split holds follows from the task's kind, not from its type."""
    assert all(isinstance(part, str) for part in text)
    return text


def _segments(texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase, length: int) -> dict[str, Ragged]:
    parts = []
    for at in range(0, len(texts), CHUNK):
        first, *second = zip(*texts[at : at + CHUNK], strict=True)
        pair = list(second[0]) if second else None
        parts.append(_ragged(tokenizer(list(first), pair, truncation="longest_first", max_length=length)))
    return _joined(parts)


def _ragged(table: Mapping[str, Any]) -> dict[str, Ragged]:
    return {name: Ragged.of(column) for name, column in table.items()}


def _joined(parts: Sequence[Mapping[str, Ragged]]) -> dict[str, Ragged]:
    return {name: Ragged.joined([part[name] for part in parts]) for name in parts[0]}


def _words(split: Split, tokenizer: PreTrainedTokenizerBase, length: int) -> tuple[dict[str, Ragged], Ragged, int]:
    """Columns, labels and how many words are read as unknown ones. A word's label stands at its first token; the others
    and the special tokens have none. Too long a row loses its last words, whichever the tokenizer cuts otherwise: they
    are those without a prediction."""
    tokenizer = for_words(tokenizer)
    if tokenizer.truncation_side != "right":
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.truncation_side = "right"
    words, lost = _visible(split, tokenizer)
    # Rows without labels have marks as well: they say where a prediction is read off.
    wanted: Any = split.labels or [[0] * len(text) for text in split.texts]
    parts, marks, unread = [], [], 0
    for at in range(0, len(words), CHUNK):
        table = tokenizer(words[at : at + CHUNK], is_split_into_words=True, truncation=True, max_length=length)
        parts.append(_ragged(table))
        rows = wanted[at : at + CHUNK]
        marks.append(Ragged.of([_marks(table.word_ids(row), labels) for row, labels in enumerate(rows)]))
        for row, text in enumerate(split.texts[at : at + CHUNK] if lost else ()):
            unread += sum(text[word] in lost for word in set(table.word_ids(row)) if word is not None)
    return _joined(parts), Ragged.joined(marks), unread


def _marks(places: Sequence[int | None], labels: Sequence[int]) -> list[int]:
    """Of each token the label of the word that begins there. Args: places, of each token the number of its word."""
    pairs = zip(places, [None, *places[:-1]], strict=True)
    return [IGNORE if word is None or word == before else labels[word] for word, before in pairs]


def _visible(split: Split, tokenizer: PreTrainedTokenizerBase) -> tuple[list[list[str]], set[str]]:
    """The words, and the unknown token (the mask, where there is none) for those of which the tokenizer leaves nothing,
    such as a lone variation selector: every word keeps a place for its label. Also which these are. Raises RequestError
    for a tokenizer without either."""
    texts = [_text(text) for text in split.texts]
    words = sorted({word for text in texts for word in text})
    lost = set()
    for at in range(0, len(words), CHUNK):
        some = words[at : at + CHUNK]
        left = tokenizer(some, add_special_tokens=False)["input_ids"]
        lost |= {word for word, ids in zip(some, left, strict=True) if not ids}
    instead = tokenizer.unk_token or tokenizer.mask_token
    if lost and not instead:
        word = min(lost)
        raise RequestError(
            f"the tokenizer leaves nothing of the word {word!r} and has no unknown or mask token to stand for it; give"
            " a model whose tokenizer has one by --models, or rows without such words"
        )
    return [[str(instead) if word in lost else word for word in text] for text in texts], lost


def training_rows(data: Encoded, size: int, seed: int, step: int, buckets: bool) -> np.ndarray:
    """The rows of batch number `step` (from 0, over all epochs) of a run."""
    epoch, position = divmod(step, steps_per_epoch(len(data), size))
    return data.order(size, seed, epoch, buckets)[position]


def window(data: Encoded, rows: np.ndarray, micro: int, rank: int = 0, world: int = 1) -> list[Batch]:
    """A process's micro-batches of a step, `micro` rows each at most, as many on every rank: engines want it so."""
    slots = -(-len(rows) // (world * micro))
    mine = np.array_split(rows, world * slots)[rank * slots : (rank + 1) * slots]
    return [data.batch(part, rows) if len(part) else _weightless(data.batch(rows[:1])) for part in mine]


def _weightless(batch: Batch) -> Batch:
    """What a rank computes on that has got no row of a small batch: it adds nothing to the step."""
    return replace(batch, total_rows=NOTHING, total_labels=NOTHING)


def evaluation_batches(data: Encoded, size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Every row once with its number, shortest first, so that little is padded."""
    order = np.argsort(data.lengths, kind="stable")
    for first in range(0, len(data), size):
        rows = order[first : first + size]
        yield rows, data.batch(rows)


def steps_per_epoch(rows: int, size: int) -> int:
    return -(-rows // size)


def _order(lengths: np.ndarray, size: int, seed: int, epoch: int, buckets: bool) -> list[np.ndarray]:
    """The rows of each batch of an epoch. With buckets, rows of like length share a batch: less padding, and the
    batches come in random order. The short batch, whose rows weigh more than others in their step, is of any length."""
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    whole = len(order) // size * size
    if buckets:
        stretch = size * max(1, min(STRETCH, len(order) // (STRETCHES * size)))
        parts = [order[at : min(at + stretch, whole)] for at in range(0, whole, stretch)]
        order = np.concatenate([*(part[np.argsort(lengths[part], kind="stable")] for part in parts), order[whole:]])
    batches = [order[at : at + size] for at in range(0, len(order), size)]
    return [batches[index] for index in random.permutation(len(batches))] if buckets else batches
