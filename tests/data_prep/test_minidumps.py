"""Real dumps in several languages. ASA_DATA names the folder that holds wiki_dbpedia_minidumps/XX_wiki.xml.bz2."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from data_prep.dump import pages
from data_prep.text import documents

LANGUAGES = ("en", "de", "ar", "ja")
MARKUP = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|<ref|===")
MOST = 0.001


@pytest.fixture(scope="module")
def dumps() -> Path:
    if "ASA_DATA" not in os.environ:
        pytest.skip("ASA_DATA is not set: no real dumps here")
    folder = Path(os.environ["ASA_DATA"]) / "wiki_dbpedia_minidumps"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist: no real dumps here")
    return folder


@pytest.mark.parametrize("language", LANGUAGES)
def test_articles_of_a_real_dump_come_out_without_markup(language: str, dumps: Path) -> None:
    found = list(documents(pages(dumps / f"{language}_wiki.xml.bz2"), Counter(), min_chars=200))
    assert found
    marked = [document.title for document in found if MARKUP.search(document.text)]
    assert len(marked) <= MOST * len(found), marked
