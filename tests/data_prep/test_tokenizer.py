"""The checkpoint's own tokenizer, encoding word by word, and vocabularies trained on documents."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, BertConfig, RobertaConfig

from asa import manifest
from asa.errors import RequestError, WorkError
from asa.families import FAMILIES
from data_prep import __main__ as commands
from data_prep import vocabularies
from data_prep.config import TokenizerConfig
from data_prep.encode import Encoder
from data_prep.tokenizer import Vocabulary, refuse_shared
from data_prep.train_tokenizer import train_tokenizer
from data_prep.workspace import workspace
from tests.asa.encoders import COMMON, tiny
from tests.data_prep.conftest import content, dump_xml, page_xml, prose, save_tokenizer


@pytest.fixture(scope="session")
def encoder(model: Path) -> Encoder:
    return Encoder(model / "tokenizer.json")


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder of sixty documents of made-up words, some with rare letters."""
    folder = tmp_path_factory.mktemp("text")
    parts = [first + second for first in "bdfgklmnprstvz" for second in "aeiouäé"]
    draw = np.random.default_rng(0)
    texts = [" ".join("".join(draw.choice(parts, draw.integers(1, 4))) for _ in range(80)) for _ in range(60)]
    pages = [page_xml(f"Article {n}", f"{prose(n)} {text}", n) for n, text in enumerate(texts)]
    (folder / "wiki.xml").write_text(dump_xml(*pages))
    commands.text([str(folder / "wiki.xml"), "--out", str(folder / "documents")])
    return folder / "documents"


def test_special_tokens_written_in_a_text_stay_text(encoder: Encoder, model: Path) -> None:
    ids = encoder.encode("the [MASK] river [SEP]")
    assert not set(ids.tolist()) & set(Vocabulary(model, 16).special)


def test_a_saved_tokenizer_is_the_same_whatever_the_environment_says_of_the_network(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers writes down whether it was offline: another folder by its hash, so another data set."""
    saved = []
    for offline in (False, True):
        monkeypatch.setattr("transformers.tokenization_utils_base.is_offline_mode", lambda offline=offline: offline)
        folder = Vocabulary(model, 16).save(tmp_path / str(offline)).parent
        saved.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert saved[0] == saved[1]


def test_the_tokenizers_own_truncation_is_off(encoder: Encoder) -> None:
    assert len(encoder.encode("river " * 50)) == 50


def test_the_width_of_ids_follows_the_vocabulary(tmp_path: Path, encoder: Encoder) -> None:
    assert encoder.encode("the").dtype == np.uint16
    folder = save_tokenizer(tmp_path, extra_words=66_000)
    assert Encoder(folder / "tokenizer.json").encode("extra65999").dtype == np.uint32


def as_bert_has_it(folder: Path) -> tuple[Tokenizer, Path]:
    """The tests' tokenizer with BERT's full normalizer, and the file it is in."""
    tokenizer = Tokenizer.from_file(str(save_tokenizer(folder) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.encode_special_tokens = True
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer, folder / "tokenizer.json"


def test_word_by_word_gives_the_ids_of_the_whole(tmp_path: Path) -> None:
    """Also with accents, Chinese, control characters, spaces of every kind and special tokens in the text."""
    whole, path = as_bert_has_it(tmp_path)
    by_word = Encoder(path)
    assert by_word._chunks is not None
    pieces = st.sampled_from(
        [
            "river",
            "Thé",
            "\u0301",
            "\u6cb3\u5ddd",
            "\x00",
            "\x1c",
            "\u00a0",
            "\n\n",
            "\t",
            "[MASK]",
            "(a,b).",
            "\u00ab-\u00bb",
        ]
    )

    assert_same_ids(by_word, whole, st.one_of(pieces, st.just(" "), st.text(max_size=4)))


def assert_same_ids(by_piece: Encoder, whole: Tokenizer, pieces: st.SearchStrategy[str]) -> None:
    """For texts of up to thirty pieces."""

    @given(st.lists(pieces, max_size=30).map("".join))
    def law(text: str) -> None:
        assert by_piece.encode(text).tolist() == whole.encode(text, add_special_tokens=False).ids

    law()


def byte_level(folder: Path, normalizer: normalizers.Normalizer | None = None) -> tuple[Tokenizer, Path]:
    """A byte-level BPE tokenizer of a few words, and the file it is in."""
    texts = [f"{prose(n)} it's  two\n\n the_end, <mask> 1900 Thé \u6cb3\u5ddd" for n in range(20)]
    tokenizer = vocabularies.train("bpe", lambda: iter(texts), 330, False, 1)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.encode_special_tokens = True
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer, folder / "tokenizer.json"


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.Lowercase()])
def test_byte_level_pieces_give_the_ids_of_the_whole(normalizer: normalizers.Normalizer | None, tmp_path: Path) -> None:
    """Also with runs of spaces of every kind, accents after a space, contractions and special tokens in the text."""
    whole, path = byte_level(tmp_path, normalizer)
    by_piece = Encoder(path)
    assert by_piece._chunks is not None
    words = ["river", "it's", "'s", "1900", "Thé", "́", "河川", "a_b", "(a,b).", "<mask>", "<s>", "😀", "Σ"]
    spaces = [" ", "  ", "\n", "\t ", "\r\n", "\x1c", "\x1f", "\x85", "\u00a0", "\u180e", "\u200b", "\u2028", "\u3000"]

    assert_same_ids(by_piece, whole, st.sampled_from([*words, *spaces, " "]) | st.text(max_size=3))


SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def unigram(signs: str, fallback: bool = False) -> Tokenizer:
    """As XLM-R has it: special tokens stand in the vocabulary, with the best score there is."""
    pieces = ["\u2581", "ab", *signs, *(f"<0x{byte:02X}>" for byte in range(256 * fallback))]
    vocabulary = [*((one, 0.0) for one in SPECIAL[:4]), *((one, -5.0) for one in pieces), (SPECIAL[4], 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def words(model: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "pieces"),
    [
        (unigram("<s>/kpadm"), "\u2581 ab \u2581 < s > ab < / s > \u2581 < m a s k >"),
        (unigram("s/kpadm"), "\u2581 ab \u2581 <unk> s <unk> ab <unk> / s <unk> \u2581 <unk> m a s k <unk>"),
        (
            unigram("s/kpadm", True),
            "\u2581 ab \u2581 <0x3C> s <0x3E> ab <0x3C> / s <0x3E> \u2581 <0x3C> m a s k <0x3E>",
        ),
        (
            words(models.WordLevel({**dict(zip(SPECIAL, range(5), strict=True)), "ab": 5}, unk_token="<unk>")),
            "ab <unk> <unk>",
        ),
        (
            words(models.WordPiece({**dict(zip(SPECIAL, range(5), strict=True)), "ab": 5}, unk_token="<unk>")),
            "ab <unk> <unk>",
        ),
    ],
    ids=["unigram", "unknown signs", "bytes", "words", "word pieces"],
)
def test_no_piece_of_a_text_is_a_special_token(tokenizer: Tokenizer, pieces: str, tmp_path: Path) -> None:
    tokenizer.add_special_tokens([*SPECIAL, "<later>"])
    tokenizer.add_tokens(["new york"])
    tokenizer.save(str(path := tmp_path / "tokenizer.json"))
    found: Any = [tokenizer.id_to_token(token) for token in Encoder(path).encode("ab <s>ab</s> <mask>").tolist()]
    assert found == pieces.split()
    assert tokenizer.token_to_id("<later>") not in Encoder(path).encode("ab <later>").tolist()
    for text in ("ab a", "ab new york"):
        assert Encoder(path).encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False).ids


def test_byte_level_tokenizers_that_add_a_space_are_asked_for_the_whole(tmp_path: Path) -> None:
    tokenizer, path = byte_level(tmp_path)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.save(str(path))
    assert Encoder(path)._chunks is None
    assert Encoder(path).encode("a b").tolist() == tokenizer.encode("a b", add_special_tokens=False).ids


def test_tokenizers_that_look_across_spaces_are_asked_for_the_whole(tmp_path: Path) -> None:
    tokenizer, path = as_bert_has_it(tmp_path)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(path))
    assert Encoder(path)._chunks is None
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_tokens(["new york"])
    tokenizer.save(str(path))
    assert Encoder(path)._chunks is None
    assert len(Encoder(path).encode("new york")) == 1


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("mask", "pad", "pad and mask"),
        ("pad", "sep", "pad and sep"),
        ("cls", "mask", "its cls token"),
        ("pad", "unk", "unknown words"),
        ("mask", "unk", "unknown words"),
    ],
)
def test_special_tokens_are_told_apart(one: str, other: str, told: str, model: Path, tmp_path: Path) -> None:
    """Attention leaves out what has the id of padding: no [MASK] would be seen."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    setattr(tokenizer, f"{one}_token", getattr(tokenizer, f"{other}_token"))
    tokenizer.save_pretrained(tmp_path / "shared")
    found = Vocabulary(tmp_path / "shared", 16)
    with pytest.raises(RequestError, match=rf"shared has .*{told}.*; give an encoder by --model"):
        refuse_shared(tmp_path / "shared", found.special, found.unknown, "--model")


def test_rows_longer_than_the_model_takes(model: Path) -> None:
    with pytest.raises(RequestError, match=r"length = 1024.*512.*--length"):
        Vocabulary(model, 1024)


def test_rows_longer_than_the_model_beside_the_tokenizer_takes(tmp_path: Path) -> None:
    """Whose tokenizer does not say how long they may be; another family's config.json tells nothing."""
    save_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    BertConfig(max_position_embeddings=64).save_pretrained(tmp_path)
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    Vocabulary(tmp_path, 64)
    with pytest.raises(RequestError, match=r"length = 65.*at most 64.*--length"):
        Vocabulary(tmp_path, 65)
    (tmp_path / "config.json").write_text('{"model_type": "bert"')
    with pytest.raises(RequestError, match="--model"):
        Vocabulary(tmp_path, 64)


def test_ids_that_the_model_beside_the_tokenizer_has_no_embeddings_for(tmp_path: Path) -> None:
    """Such as [MASK] of a vocabulary without it, which transformers adds: no model could be trained on the rows."""
    size = Vocabulary(save_tokenizer(tmp_path), 16).size
    BertConfig(vocab_size=size).save_pretrained(tmp_path)
    Vocabulary(tmp_path, 16)
    BertConfig(vocab_size=size - 1).save_pretrained(tmp_path)
    with pytest.raises(RequestError, match=f"has embeddings for {size - 1} ids, the tokenizer {size}; set --model"):
        Vocabulary(tmp_path, 16)


def test_the_encoders_hash_sees_what_the_vocabularys_does_not(model: Path, tmp_path: Path) -> None:
    _, path = as_bert_has_it(tmp_path)
    mine, other = Vocabulary(model, 16), Vocabulary(path.parent, 16)
    assert mine.vocab_sha256 == other.vocab_sha256
    assert mine.encoder_sha256 != other.encoder_sha256


SHAPES = {"wordpiece": BertConfig, "bpe": RobertaConfig}
BY_ITSELF = """import json, sys
from data_prep import __main__ as commands
for argv in json.loads(sys.argv[1]):
    commands.tokenizer(argv)
"""


@pytest.fixture(scope="module")
def trained(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders KIND-1 and KIND-2, made alike in two processes with other numbers of threads."""
    root = tmp_path_factory.mktemp("trained")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    requests = []
    for kind, shape in SHAPES.items():
        types = 2 if kind == "wordpiece" else 1
        shape(**sizes, max_position_embeddings=66, type_vocab_size=types).save_pretrained(root / f"{kind}-arch")
        flags = ["--kind", kind, "--vocab_size", "310", "--arch", str(root / f"{kind}-arch")]
        requests.append([str(documents), "--out", str(root / f"{kind}-1"), *flags])
        commands.tokenizer([str(documents), "--out", str(root / f"{kind}-2"), *flags])
    command = [sys.executable, "-c", BY_ITSELF, json.dumps(requests)]
    subprocess.run(command, check=True, env=os.environ | {"RAYON_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    return root


@pytest.mark.parametrize("kind", SHAPES)
def test_a_trained_vocabulary_and_its_model(kind: str, trained: Path) -> None:
    """The same bytes for any number of threads, good for rows and a model."""
    first, second = ({p.name: p.read_bytes() for p in (trained / f"{kind}-{n}").iterdir()} for n in (1, 2))
    assert first == second
    assert not any(str(trained).encode() in content for content in first.values())
    out = trained / f"{kind}-1"
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == 310
    assert tokenizer.model_max_length == (66 if kind == "wordpiece" else 64)
    Vocabulary(out, 64)
    batch = tokenizer(
        ["the river", "old"], ["a science", "new"], padding="max_length", max_length=64, return_tensors="pt"
    )
    logits = AutoModelForMaskedLM.from_pretrained(out)(**batch).logits
    assert logits.shape == (2, 64, 310)
    assert tokenizer.unk_token_id not in batch["input_ids"]
    decoded = tokenizer.decode(tokenizer("the river science").input_ids, skip_special_tokens=True)
    assert decoded == "the river science"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_a_run_of_letters_without_end_is_no_word(kind: vocabularies.Kind) -> None:
    """One of 1.5 MB did not end within ten minutes."""
    words = "the river and the city " * 99
    trained = vocabularies.train(kind, lambda: iter([words, "x" * 400_000, words]), 300, False, 2)
    assert {"the", "river"} <= {token.strip("\u0120") for token in trained.get_vocab()}


def test_a_signal_is_heard_while_the_library_is_deaf_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    over: list[bool] = []

    def deaf(texts: vocabularies.Texts, size: int, lowercase: bool) -> Tokenizer:
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1)).start()
        try:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**7)  # as training: without Python's lock, back when it is done
        finally:
            over.append(True)
        return Tokenizer(models.BPE())

    monkeypatch.setattr(vocabularies, "_bpe", deaf)
    before = signal.signal(signal.SIGUSR1, ended)
    try:
        with pytest.raises(KeyboardInterrupt):
            vocabularies.train("bpe", lambda: iter([]), 300, False, 2)
        assert not over
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("lowercase", [False, True])
def test_no_token_is_kept_for_a_sign_that_never_continues_a_word(lowercase: bool) -> None:
    text = "the river (old), half-way; 河川 かわ река 10 %, 8½ °C. " * 9
    trained = vocabularies.train("wordpiece", lambda: iter([text]), 1000, lowercase, 2)
    pieces = trained.get_vocab().keys()
    assert {"a", "##a", "1", "##1", "か", "##か", "к", "##к", "°", "##°", "(", "-", "%", "河"} <= pieces
    assert not {"##(", "##)", "##,", "##-", "##;", "##.", "##%", "##河", "##川"} & pieces
    assert "[UNK]" not in trained.encode(text).tokens


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", [*FAMILIES, "xlm-roberta-xl", "roberta-prelayernorm"])
def test_the_longest_row_that_the_tokenizer_says_is_the_longest_that_the_fresh_model_reads(
    name: str, kind: Literal["wordpiece", "bpe"], documents: Path, tmp_path: Path
) -> None:
    if name in FAMILIES:
        shape = tiny(name, max_position_embeddings=32).config
    else:
        shape = AutoConfig.for_model(name, **COMMON | {"max_position_embeddings": 32})
    shape.save_pretrained(tmp_path / "arch")
    train_tokenizer(
        TokenizerConfig(
            documents=[documents], out=tmp_path / "out", kind=kind, vocab_size=300, arch=tmp_path / "arch", share=0.2
        )
    )
    tokenizer, model = (
        AutoTokenizer.from_pretrained(tmp_path / "out"),
        AutoModelForMaskedLM.from_pretrained(tmp_path / "out"),
    )
    longest = tokenizer.model_max_length
    assert longest == 32 - (2 if name == "mpnet" else tokenizer.pad_token_id + 1 if "roberta" in name else 0)
    rows = torch.full((1, longest + 1), len(tokenizer) - 1)  # of no special token
    model(rows[:, :longest])
    if longest < 32:
        with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
            model(rows)


def test_a_trained_vocabulary_is_reused_refused_and_replaced(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TokenizerConfig(documents=[documents], out=tmp_path / "out", vocab_size=300, lowercase=True)
    train_tokenizer(config)
    train_tokenizer(config)
    assert "up to date" in capsys.readouterr().out
    other = {"documents": [documents], "out": tmp_path / "out", "vocab_size": 305}
    with pytest.raises(RequestError, match="--overwrite true"):
        train_tokenizer(TokenizerConfig(**other))
    (tmp_path / "out" / "notes.txt").write_text("what I saw")
    with pytest.raises(RequestError, match="notes"):
        train_tokenizer(TokenizerConfig(**other, overwrite=True))
    (tmp_path / "out" / "notes.txt").unlink()
    train_tokenizer(TokenizerConfig(**other, overwrite=True))
    assert len(json.loads((tmp_path / "out/tokenizer.json").read_text())["model"]["vocab"]) == 305


def test_a_damaged_vocabulary_is_replaced_and_an_empty_folder_taken(documents: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = TokenizerConfig(documents=[documents], out=out, vocab_size=300, lowercase=True)
    out.mkdir()
    train_tokenizer(config)
    whole = content(out)
    (out / "tokenizer.json").write_text("{")
    with pytest.raises(WorkError, match=r"tokenizer\.json has not the \d+ bytes"):
        train_tokenizer(config)
    train_tokenizer(replace(config, overwrite=True))
    assert content(out) == whole


def test_a_finished_folder_of_another_kind_is_never_replaced(documents: Path, tmp_path: Path) -> None:
    shutil.copytree(documents, tmp_path / "out")
    refused(documents, tmp_path / "out", "documents")
    model = tmp_path / "model"  # whose files have the names of a tokenizer's
    tiny("bert").save_pretrained(model)
    manifest.write(model, "model", {})
    refused(documents, model, "model")


def refused(documents: Path, out: Path, kind: str) -> None:
    before = content(out)
    for overwrite in (False, True):
        with pytest.raises(RequestError, match=f"holds {kind}, not tokenizer"):
            train_tokenizer(TokenizerConfig(documents=[documents], out=out, overwrite=overwrite))
    assert content(out) == before


def test_unfinished_work_of_another_command_is_left_alone(documents: Path, tmp_path: Path) -> None:
    def fail() -> None:
        with workspace(tmp_path / "out", {"stage": "text"}, overwrite=False) as space:
            (space.out / "manifest.json").write_text("hours of work")
            raise WorkError("full")

    with pytest.raises(WorkError, match="full"):
        fail()
    with pytest.raises(RequestError, match="unfinished work from other"):
        train_tokenizer(TokenizerConfig(documents=[documents], out=tmp_path / "out", vocab_size=300, lowercase=True))
    assert (tmp_path / "out.partial/out/manifest.json").read_text() == "hours of work"


def test_what_cannot_be_trained(documents: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"the text gives [\d,]+ tokens, not 20,000"):
        train_tokenizer(TokenizerConfig(documents=[documents], out=tmp_path / "out", vocab_size=20_000))
    with pytest.raises(WorkError, match=r"the text gives [\d,]+ tokens, not 20,000; raise --share or set --vocab_size"):
        train_tokenizer(TokenizerConfig(documents=[documents], out=tmp_path / "out", vocab_size=20_000, share=0.5))
    with pytest.raises(RequestError, match="--arch"):
        train_tokenizer(TokenizerConfig(documents=[documents], out=tmp_path / "out", arch=tmp_path))
    for config in ("{}", "[]", "no json", '{"model_type": "gpt2"}', '{"model_type": "bert", "hidden_size": 7}'):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(RequestError, match=r"config\.json is no masked language model's.*--arch"):
            train_tokenizer(TokenizerConfig(documents=[documents], out=tmp_path / "out", arch=tmp_path))
    with pytest.raises(RequestError, match="--documents"):
        train_tokenizer(TokenizerConfig(documents=[tmp_path], out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
