"""A tiny dump, tiny leads and a tiny tokenizer, built on the spot."""

import bz2
import json
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEXT = "the a river city is in on of and science history old new long see also alpha beta gamma delta"
WORDS = TEXT.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def page_xml(title: str, text: str, number: int = 1, namespace: int = 0, redirect: bool = False) -> str:
    mark = '<redirect title="Elsewhere" />' if redirect else ""
    revision = f"<revision><id>9</id><text>{escape(text)}</text></revision>"
    return f"<page><title>{title}</title><ns>{namespace}</ns><id>{number}</id>{mark}{revision}</page>"


def dump_xml(*pages: str) -> str:
    names = '<namespace key="0" /><namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>'
    head = f"<siteinfo><namespaces>{names}</namespaces></siteinfo>"
    return f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">{head}{"".join(pages)}</mediawiki>'


def prose(seed: int, words: int = 60) -> str:
    return " ".join(WORDS[(seed * 7 + index * (seed + 3)) % len(WORDS)] for index in range(words))


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Forty articles, a redirect, a disambiguation page, a talk page and a page that is too short."""
    pages = [page_xml(f"Article {n}", f"'''{prose(n)}'''\n\n== See ==\n{prose(n + 1)}", n) for n in range(40)]
    pages.append(page_xml("Moved", "#REDIRECT [[Article 1]]", 101, redirect=True))
    pages.append(page_xml("River (names)", "'''River''' may be: {{disambig}}" + prose(3), 102))
    pages.append(page_xml("Talk:Article 1", prose(4), 103, namespace=1))
    pages.append(page_xml("Stub", "{{infobox}} old", 104))
    path = tmp_path / "wiki.xml.bz2"
    path.write_bytes(bz2.compress(dump_xml(*pages).encode()))
    return path


@pytest.fixture
def leads(tmp_path: Path) -> Path:
    """Eighty leads on two topics and ten without one; half of them bear titles of the dump, in another case."""
    topics = ["Rivers", "Arts"]
    entries = {f"ARTICLE {n}": _lead(f"ARTICLE {n}", n, topics[n % 2]) for n in range(80)}
    entries |= {f"Loose {n}": _lead(f"Loose {n}", n, "Uncategorized") for n in range(10)}
    path = tmp_path / "leads.json"
    path.write_text(json.dumps(entries))
    return path


def _lead(title: str, seed: int, topic: str) -> dict[str, str]:
    return {"title": title, "extract": f"lead {prose(seed, 30)} {title}", "description": "", "topic": topic}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("model"))


def save_tokenizer(folder: Path, extra_words: int = 0) -> Path:
    """A WordPiece tokenizer that, like many published ones, carries truncation in its file."""
    letters = [f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789.,:()[]" for mark in ("", "##")]
    extra = [f"extra{number}" for number in range(extra_words)]
    vocab = {word: index for index, word in enumerate([*SPECIAL, *WORDS, *letters, *extra])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.enable_truncation(8)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(folder)
    return folder


@pytest.fixture
def build_argv(dump: Path, leads: Path, model: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of a `build` into `tmp_path`/NAME, with more flags as keywords."""

    def argv(name: str = "out", **flags: object) -> list[str]:
        values = {"dumps": dump, "leads": leads, "model": model, "length": 32, "heldout": 0.2, "out": tmp_path / name}
        return [part for key, value in (values | flags).items() for part in (f"--{key}", str(value))]

    return argv
