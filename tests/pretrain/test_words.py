"""Word starts, read off real kinds of vocabularies."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from asa.errors import RequestError
from pretrain.words import words_of

SENTENCE = "rivers, (longriver)\nunlong:river unlong-the river's"
WORDS = ["rivers", ",", "(", "longriver", ")", "unlong", ":", "river", "unlong", "-", "the", "river"]
TEXT = ["unbelievable rivers, unbelievably long: the river's unbelief (un)\nun-the"] * 3


def save(folder: Path, tokenizer: Tokenizer, trainer: trainers.Trainer) -> Path:
    tokenizer.train_from_iterator(TEXT, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def wordpiece(folder: Path) -> Path:
    tokenizer = Tokenizer(models.WordPiece({}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return save(folder, tokenizer, trainers.WordPieceTrainer(vocab_size=60, show_progress=False))


def byte_level(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return save(folder, tokenizer, trainers.BpeTrainer(vocab_size=60, show_progress=False))


def sentencepiece(folder: Path) -> Path:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    return save(folder, tokenizer, trainers.UnigramTrainer(vocab_size=60, show_progress=False))


@pytest.mark.parametrize("make", [wordpiece, byte_level, sentencepiece])
def test_words_begin_where_the_text_has_them(make: Callable[[Path], Path], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(make(tmp_path) / "tokenizer.json"))
    encoding = tokenizer.encode(SENTENCE)
    starts_V, ends_V = words_of(tmp_path, tokenizer.get_vocab_size())
    words: list[str] = []
    ended = True
    for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
        piece = SENTENCE[start:stop].strip()
        if starts_V[index] or ended:
            words.append(piece)
        else:
            words[-1] += piece
        ended = ends_V[index]
    assert [word for word in words if word][: len(WORDS)] == WORDS
    assert len(encoding.ids) > len(words), "some word must be in pieces for this to say anything"


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_pieces_of_scripts_without_spaces_are_words(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Han, kana, Thai, signs of full width; not Korean or Hindi, which have spaces."""
    apart, joined = "長い川。のกา\uff0c", "긴강नदी"
    monkeypatch.setattr("tests.pretrain.test_words.TEXT", [apart, joined] * 3)
    tokenizer = Tokenizer.from_file(str(make(tmp_path) / "tokenizer.json"))
    starts_V, _ = words_of(tmp_path, tokenizer.get_vocab_size())
    for text in (apart, joined):
        encoding = tokenizer.encode(text)
        pieces = {start for start, _ in encoding.offsets}  # a character may be of several
        begun = {start for index, (start, _) in zip(encoding.ids, encoding.offsets, strict=True) if starts_V[index]}
        assert len(pieces) > 1
        assert begun == (pieces if text == apart else {0}), encoding.tokens


def test_a_vocabulary_without_marks_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(RequestError, match="--masking token"):
        words_of(save(tmp_path, tokenizer, trainers.BpeTrainer(vocab_size=60, show_progress=False)), 60)
