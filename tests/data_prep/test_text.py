"""Markup -> prose, and which pages become documents."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asa.errors import WorkError
from data_prep.dump import Page, pages
from data_prep.parallel import batches, ordered_map
from data_prep.text import convert, documents
from data_prep.wikitext import is_disambiguation, plain_text

SILENT = frozenset({"file", "category", "datei"})


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("'''Bold''' and ''slanted''", "Bold and slanted"),
        ("A [[river]], [[city|the city]]s and [[:Category:X]]", "A river, the citys and Category:X"),
        ("Go to [[Town#History]] now", "Go to Town now"),
        ("x[[File:A.jpg|thumb|A [[nested]] caption]]y[[Datei:B.png]][[Bild:C.svg|100px]]", "xy"),
        ("text[[Category:Rivers]][[de:Fluss]][[wikt:word|word]]", "textword"),
        ("one<ref>cited</ref> two<ref name=a /> three<!-- hidden -->.", "one two three."),
        ("a {{infobox|x={{y}}}}b", "a b"),
        ("5 {{convert|5|km|mi}} long, {{convert|2|to|4|ft|m}}", "5 5 km long, 2 to 4 ft"),
        ("{{lang|fr|le mot}} and {{lang-de|Wort}}, {{nowrap|3 kg}}, H{{chem|2|O}}", "le mot and Wort, 3 kg, H2O"),
        ("A ({{IPA|x}}; born 1900) b ({{IPAc-en|a}}) c", "A (born 1900) b c"),
        ("T&amp;N &#8211; &nbsp;x&#xD800;&zwnj;&#1;", "T&N \u2013 x"),
        ("before\n{| class=x\n! head\n|-\n| cell\n|}\nafter", "before\n\nafter"),
        ("a <math>x^2</math> b <gallery>\nA.jpg\n</gallery> <code>f()</code>", "a b f()"),
        ("x<sub>2</sub> <div>in a box</div> line<br/>break", "x2\nin a box\nline\nbreak"),
        ("* one\n* two\n: three", "one\ntwo\nthree"),
        ("see [http://a.b label] and http://a.b/c?d [http://x.y]", "see label and"),
        (
            "lead\n== Part ==\ntext\n=== Empty ===\n== See also ==\n* x\n=== deeper ===\ny\n== Last ==\nend",
            "lead\n\nPart\n\ntext\n\nLast\n\nend",
        ),
        ("* {{cite book}}. First of them.\n* {{cite}}.\n* kept", "First of them.\n\nkept"),
        ("__NOTOC__ text __NO_TITLE__", "text"),
    ],
)
def test_markup(markup: str, expected: str) -> None:
    assert plain_text(markup, SILENT) == expected


@pytest.mark.parametrize("markup", ["{{open a", "[[open|b", "{| x\n| y", "<ref>never closed", "a ]] }} b", "=== x"])
def test_broken_markup_leaves_no_signs(markup: str) -> None:
    text = plain_text(f"prose {markup} more\n\nlater", SILENT)
    assert text.startswith("prose")
    assert text.endswith("later")
    assert not any(sign in text for sign in ("[[", "]]", "{{", "}}", "{|", "|}", "<ref", "==="))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["[[", "]]", "{{", "}}", "|", "'''", "<ref>", "</ref>", "\n", "== ", "a", " "])))
def test_any_mix_of_signs_is_survived(parts: list[str]) -> None:
    result = convert(Page("1", "T", 0, False, "".join(parts)), 1)
    assert isinstance(result, str) or not any(sign in result.text for sign in ("[[", "]]", "{{", "}}", "<ref"))


@pytest.mark.parametrize("markup", ["{{disambig}}", "{{Disambiguation|geo}}", "{{ Hndis |x}}", "__DISAMBIG__"])
def test_disambiguation(markup: str) -> None:
    assert is_disambiguation("River", f"text {markup}")
    assert not is_disambiguation("River", "text {{disambiguation needed}}")
    assert is_disambiguation("River (disambiguation)", "")


def test_every_dropped_page_is_counted_by_reason(dump: Path) -> None:
    dropped: Counter[str] = Counter()
    found = list(documents(pages(dump), dropped, min_chars=40, kept_out=frozenset({"article 7"})))
    assert len(found) == 39
    assert dropped == {
        "redirect": 1,
        "disambiguation": 1,
        "not in the main namespace": 1,
        "too short": 1,
        "in the task's dev or test split": 1,
    }
    assert found[0].title == "Article 0"
    assert "\n\nSee\n\n" in found[0].text


def test_two_workers_give_the_same_documents_and_counts(dump: Path) -> None:
    counts: list[Counter[str]] = [Counter(), Counter()]
    found = [list(documents(pages(dump), counts[n - 1], min_chars=40, workers=n)) for n in (1, 2)]
    assert found[0] == found[1]
    assert counts[0] == counts[1]


def _die(number: int) -> int:
    import os

    os._exit(number)


def test_a_dead_worker_is_one_line_not_a_hang() -> None:
    with pytest.raises(WorkError, match="--workers below 2"):
        list(ordered_map(_die, [3, 4], workers=2))


def test_batches() -> None:
    assert list(batches(range(5), 2)) == [[0, 1], [2, 3], [4]]
