"""Real articles, read by hand beside their markup: what must be there, word for word, and what must not.

The first forty come from the dump excerpt that `python -m data_prep sample --out assets` fetches (Wikipedia
contributors, CC BY-SA). The others need ASA_DATA, the folder that holds wiki_dbpedia_minidumps/XX_wiki.xml.bz2.
"""

import hashlib
import json
import os
import re
from collections import Counter
from pathlib import Path

import mwparserfromhell
import pytest

from data_prep import sources
from data_prep.dump import Span, pages
from data_prep.finished import RECIPE
from data_prep.text import Document

SAMPLE = Path("assets/enwiki/enwiki-sample.xml.bz2")
MARKUP = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|<ref|==|'''")
LEFT_OVER = re.compile(
    r"</?[a-z]+\b|&[a-z]+;|https?://|\|thumb|accessdate|access-date|harvnb|\[\[|\{\{|^\||''|\x01|^(?:File|Category|Datei):",
    re.MULTILINE,
)
MOST = 0.001

ENGLISH = {
    "A": "is used for the open front unrounded vowel",
    "Aardvark": "probably Myorycteropus africanus from Kenyan Miocene deposits. The earliest example",
    "Aardwolf": "will occupy a territory of 1\u20134 km².",
    "Abacus": "with both abacuses and abaci in use. The user of an abacus is called an abacist.",
    "Abortion": "may require deep sedation or general anesthesia.",
    "Abraham Lincoln": "They met in Springfield, Illinois, in December 1839 and were engaged the following December.",
    "Abstract (law)": "to question to novelty or inventive step (or non-obviousness in United States patent law)",
    "Academy Awards": "held at the Dolby Theatre on February 28, 2016 and hosted by Chris Rock. A total of 2,947",
    "Acid": "H3A(aq) + H2O(l)",
    "Adventure": "a bold, usually risky undertaking, with an uncertain outcome. Adventures may be",
    "Affirming the consequent": "the only inference that can be made is non-Q implies non-P. (Non-P and non-Q",
    "Agnostida": "Agnostida is an order of arthropod which first developed near the end of the Early Cambrian",
    "Alain Connes": "including number theory, differential geometry and particle physics.",
    "Alaska": "the three outer Aleutian Islands \u2013 Attu, Agattu and Kiska \u2013 that were invaded",
    "Albania": "Albania. The country is called Shqip\u00ebri by its people.",
    "Albert Einstein": "Einstein produced E = mc² from his special relativity equations. Einstein's 1905 work",
    "Albert Sidney Johnston": "served as a general in three different armies: the Texian",
    "Alkali metal": "For example, lithium iodide (LiI) will dissolve in organic solvents, a property",
    "Allan Dwan": "from August 1911 to July 1912. Flying A was one of the first",
    "Alphabet": "end with \u00e6\u2014\u00f8\u2014\u00e5",
    "Altruism": "in his 1902 book Mutual Aid: A Factor of Evolution and Peter Singer in his book A Darwinian Left.",
    "Amateur astronomy": "with the unaided eye, binoculars, or telescopes. Even though",
    "Ambiguity": "to a variable and a function, for example. Then, if one sees, there is no way",
    "America the Beautiful": "peaked at number 98 on the US R&B Charts, and is included on the soundtrack",
    "American Football Conference": "By contrast, the NFC has sent 11 different teams",
    "Anarchism": "particularly Jean-Jacques Rousseau's arguments for the moral centrality of freedom.",
    "Andre Agassi": "Andre Agassi Tennis for the SNES, Sega Genesis, Sega Game Gear, Master System, and Mobile phone",
    "Andrei Tarkovsky": "Konsentrat) is a never-filmed 1958 screenplay by Russian film director Andrei Tarkovsky.",
    "Android (robot)": "with robot-like internal mechanics. In other stories, authors have used",
    "Anthropology": 'topics very close to the author\'s "home". It is also argued',
    "Apollo 8": 'discovery of a large black monolith", but discretion prevailed.',
    "Arithmetic mean": "The arithmetic mean (or mean or average) is the most commonly used",
    "Arthur Schopenhauer": "whose Mahavakya, Tat Tvam Asi is mentioned throughout The World as Will",
    "Aruba": "varies little from 26.7 \u00b0C to 29.2 \u00b0C, moderated by constant trade winds",
    "Asia": "which means 'to go outside' or 'to ascend', referring to the direction",
    "Asphalt": 'the words jatu, meaning "pitch," and jatu-krit, meaning "pitch creating"',
    "Astronomer": "They look at stars, planets, moons, comets and galaxies, as well as",
    "Atlantic Ocean": "These include the Norwegian Sea, Baltic Sea, North Sea, Labrador Sea",
    "Autism": "Self-injury includes movements that injure or can injure the person, such as eye-poking",
    "International Atomic Time": "based on SI seconds with no leap seconds. During this time, irregularities",
}
NOT_THERE = {
    "International Atomic Time": "McCarthy & Seidelmann 2009",  # a reference
    "Abraham Lincoln": "Donald (1996), p. 86",  # a reference
    "Aruba": "Motto",  # the infobox
    "Alaska": "See also",  # a closing section
    "Albert Einstein": "Einstein in 1921",  # a picture's caption
    "Ambiguity": "f(y+1)",  # a formula
}
OTHERS = {
    "ar": "\u062c\u0648\u0631\u062c \u0628\u0631\u0627\u0643\u060c \u0628\u0648\u0644 \u0643\u0644\u064a",
    "de": "Reclam, Stuttgart 1952.",
    "en": "south of the North Pole to the subantarctic Bouvet Island at 54\u00b0S.",
    "es": "Palacio de Charlottenburgo.",
    "fr": "il est major de l'agr\u00e9gation de grammaire.",
    "he": "\u05d7\u05d5\u05de\u05ea \u05d1\u05e8\u05dc\u05d9\u05df",
    "it": "L'Admiralspalast, nel Mitte,",
    "ja": "\u526f\u5e02\u9577\uff08B\u00fcrgermeister\u3001",
    "nl": "Berlijn (Duits: Berlin) is de hoofdstad van Duitsland",
    "pt": "Eisb\u00e4ren Berlin, participante da Deutsche Eishockey-Liga,",
    "ru": "(\u0432 \u0441\u0432\u044f\u0437\u0438 \u0441 \u0447\u0435\u043c",
    "simple": "1990 After German reunification,",
    "vi": "Ngo\u00e0i Berliner Philharmoniker, Staatskapelle Berlin v\u00e0",
    "zh": "\u6d8c\u5165\u897f\u67cf\u6797\u548c\u897f\u5fb7\uff0c1961\u5e74",
}


def read(path: Path) -> list[Document]:
    tasks = [part.task[1] for part in sources.parts([str(path)])]
    return [document for task in tasks for document in sources.documents(task, Counter(), 40)]


@pytest.fixture(scope="module")
def sample() -> dict[str, str]:
    if not SAMPLE.is_file():
        pytest.skip(f"{SAMPLE} is not there: fetch it with python -m data_prep sample --out assets")
    return {document.title: document.text for document in read(SAMPLE)}


@pytest.fixture(scope="module")
def minidumps() -> Path:
    if "ASA_DATA" not in os.environ:
        pytest.skip("ASA_DATA is not set: no dumps of other languages here")
    return Path(os.environ["ASA_DATA"]) / "wiki_dbpedia_minidumps"


@pytest.mark.parametrize("title", ENGLISH)
def test_what_must_be_there(title: str, sample: dict[str, str]) -> None:
    assert ENGLISH[title] in sample[title]
    assert not LEFT_OVER.search(sample[title])


@pytest.mark.parametrize("title", NOT_THERE)
def test_what_must_not(title: str, sample: dict[str, str]) -> None:
    assert NOT_THERE[title] not in sample[title]


def test_the_sample_holds_no_markup(sample: dict[str, str]) -> None:
    assert len(sample) == 98
    assert sum(bool(MARKUP.search(text)) for text in sample.values()) <= MOST * len(sample)


def test_other_text_is_another_recipe(sample: dict[str, str]) -> None:
    """Whoever changes what comes out raises RECIPE, or finished work of the rules before counts as up to date."""
    found = hashlib.sha256(json.dumps(sample, sort_keys=True).encode()).hexdigest()[:16]
    assert (RECIPE, found) == (16, "b220120b0370cdc2"), "raise RECIPE in data_prep/finished.py and put both down here"


@pytest.mark.parametrize("language", OTHERS)
def test_other_languages(language: str, minidumps: Path) -> None:
    found = read(minidumps / f"{language}_wiki.xml.bz2")
    assert any(OTHERS[language] in document.text for document in found)
    marked = [document.title for document in found if MARKUP.search(document.text)]
    assert len(marked) <= MOST * len(found), marked
    headings = {line.casefold() for document in found for line in document.text.split("\n")}
    assert not headings & {"weblinks", "liens externes", "enlaces externos", "см. также", "外部リンク", "ראו גם"}


# The slow twin: an independent parser must find no words in plain paragraphs that we lack.
NO_PROSE = re.compile(
    r"<!--.*?-->|<ref[^<>]*/>|<ref.*?</ref>|\n\{\|.*?\n\|\}|\n== *(?:See also|Notes|References).*", re.DOTALL
)


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]{2,}", text)


def test_a_parser_of_another_make_finds_no_other_words(sample: dict[str, str]) -> None:
    lacking, total = [], 0
    for page in pages(Span(SAMPLE, 0, SAMPLE.stat().st_size)):
        ours = set(words(sample.get(page.title, "")))
        for line in NO_PROSE.sub("", page.wikitext).split("\n") if page.title in sample else ():
            if line[:1].isalnum() and not re.search(r"[{}<>|&]|\[http|File:|Image:", line):
                theirs = words(mwparserfromhell.parse(line).strip_code())
                lacking += [word for word in theirs if word not in ours]
                total += len(theirs)
    assert total > 30_000
    assert len(lacking) <= MOST * total, lacking
