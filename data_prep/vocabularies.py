"""Vocabularies trained on text: WordPiece as BERT has it, byte-level BPE as RoBERTa has it, by `tokenizers`.

The same text gives the same bytes for any number of threads. For that the library must never choose among equals: it
numbers the pieces it meets in the order of a hash table, so every single character is named to it beforehand.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from threading import Thread
from typing import Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

Kind = Literal["wordpiece", "bpe"]
Texts = Callable[[], Iterable[str]]  # gives the text anew each time it is called
# Special tokens by role in the order of their ids. RoBERTa counts positions from the id of padding, which must be 1.
SPECIAL = {
    "wordpiece": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bpe": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
}
_CONTINUES = "##"
_MOST_LETTERS = 1000
_LONGEST = 1000  # characters without a space between them


def train(kind: Kind, texts: Texts, size: int, lowercase: bool, segments: int) -> Tokenizer:
    """A tokenizer of at most `size` tokens; fewer where the text gives no more.

    Args: lowercase folds case (and, in WordPiece, strips accents); segments is 1 or 2: the token types of the model.
    """
    make = _wordpiece if kind == "wordpiece" else _bpe
    tokenizer = _apart(lambda: make(lambda: map(_without_runs, texts()), size, lowercase))
    special = SPECIAL[kind]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special.values()])
    cls, sep, second = special["cls"], special["sep"], segments - 1
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:{second} {sep}:{second}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return tokenizer


def _apart(work: Callable[[], Tokenizer]) -> Tokenizer:
    """In a thread, so that a signal ends the command: the library is deaf to them for as long as it counts pairs."""
    done: Future[Tokenizer] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # the caller's, which waits
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done.result()


def _without_runs(text: str) -> str:
    """With a break in what goes on for longer without a space than any word: the library takes as one of these, a
    table of hex digits or letters, the square of its length."""
    if len(text) <= _LONGEST or max(map(len, text.split()), default=0) <= _LONGEST:
        return text
    return re.sub(rf"(\S{{{_LONGEST}}})(?=\S)", "\\1\n", text)


def _wordpiece(texts: Texts, size: int, lowercase: bool) -> Tokenizer:
    special, normalizer = list(SPECIAL["wordpiece"].values()), normalizers.BertNormalizer(lowercase=lowercase)
    letters = _letters(texts, normalizer, min(_MOST_LETTERS, size // 10))
    tokenizer = Tokenizer(models.WordPiece({}, unk_token=special[1], continuing_subword_prefix=_CONTINUES))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    continuing = [letter for letter in letters if _continues_a_word(letter, normalizer, tokenizer.pre_tokenizer)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=[*special, *letters, *(_CONTINUES + letter for letter in continuing)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        continuing_subword_prefix=_CONTINUES,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    # Anew from the vocabulary: to the trainer all letters were special tokens, which must not be cut out of words.
    trained = Tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token=special[1]))
    trained.normalizer, trained.pre_tokenizer = normalizer, tokenizer.pre_tokenizer
    trained.decoder = decoders.WordPiece(_CONTINUES)
    return trained


def _continues_a_word(
    letter: str, normalizer: normalizers.Normalizer, pre_tokenizer: pre_tokenizers.PreTokenizer
) -> bool:
    """False for signs and the characters of Chinese, which are always words of their own."""
    return len(pre_tokenizer.pre_tokenize_str(normalizer.normalize_str("a" + letter))) == 1


def _letters(texts: Texts, normalizer: normalizers.Normalizer, most: int) -> list[str]:
    """The most frequent characters, of equally frequent ones the first by code, sorted by code."""
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(normalizer.normalize_str(text))
    ranked = sorted((letter for letter in counts if not letter.isspace()), key=lambda letter: (-counts[letter], letter))
    return sorted(ranked[:most])


def _bpe(texts: Texts, size: int, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        show_progress=False,
        special_tokens=list(SPECIAL["bpe"].values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer
