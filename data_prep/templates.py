"""The few templates that carry prose. All others (infoboxes, citations, navigation, warnings) are dropped.

Dropping these too would leave holes in sentences: "the river is {{convert|5|km}} long".
"""

import calendar
import re
from collections.abc import Callable

from data_prep import figures
from data_prep.brackets import APOSTROPHE, EQUALS, HOLE, NOTHING, PIPE
from data_prep.figures import Arguments
from data_prep.languages import CODES

_MONTHS = {key: name for n, name in enumerate(calendar.month_name) if n for key in (str(n), name[:3].lower())}
_YEAR = re.compile(r"(?<!\d)\d{3,4}$")
_NAMED = re.compile(r"\s*+([\w-][\w -]{0,29}?)\s*+=")


def prose(body: str) -> str | None:
    """The words that a template shows inside a sentence; None for templates that carry none.

    Args: body is what stands between the braces, brackets inside it already resolved.
    """
    # A comment may stand in it, a HOLE by now.
    name = body.partition("|")[0].replace(HOLE, "").strip().lower().replace("_", " ")
    shown = _SHOWN.get(name)
    if shown is None and name.startswith(("lang-", "link-")):
        shown = _argument(0)
    if shown is not None:
        return shown(_arguments(body))
    return name.removeprefix("formatnum:").strip() if name.startswith("formatnum:") else None


def _arguments(body: str) -> Arguments:
    positional, named = [], {}
    for part in body.split("|")[1:]:
        if match := _NAMED.match(part):
            value = part[match.end() :].strip()
            named[match[1].lower()] = value if value.strip(NOTHING) else ""
        else:
            positional.append(part.strip())
    # Positions may be named too: {{lang|fr|2=mot}}.
    for index in range(9):
        if str(index + 1) in named:
            positional[index : index + 1] = [named[str(index + 1)]]
    return positional, named


def _argument(index: int, name: str = "text") -> Callable[[Arguments], str]:
    """Shows the argument called `name` or, where it is not given, a positional one; -1 is the last one."""

    def shown(arguments: Arguments) -> str:
        positional, named = arguments
        if named.get(name):
            return named[name]
        return positional[index] if -len(positional) <= index < len(positional) else HOLE

    return shown


def _fixed(text: str) -> Callable[[Arguments], str]:
    return lambda arguments: text


def _circa(arguments: Arguments) -> str:
    return "c. " + "-".join(arguments[0]) if arguments[0] else HOLE


def _as_of(arguments: Arguments) -> str:
    """{{as of|2011|08|19|lc=y}}: the words for a date that will be out of date, or those given for it."""
    positional, named = arguments
    if not positional:
        return named.get("alt") or HOLE
    year, month, day = (*(word.strip(NOTHING) for word in positional[:3]), "", "")[:3]
    month, day = _MONTHS.get(month.lstrip("0").lower(), month), day.lstrip("0")
    american = named.get("df", "").lower() == "us" and day
    date = f"{month} {day}, {year}" if american else " ".join(filter(None, (day, month, year)))
    words = "since" if named.get("since") else "as of"
    start = named.get("pre") or (words if named.get("lc") else words.capitalize())
    shown = named.get("alt") or (date if named.get("bare") else f"{start} {date}")
    return shown + named.get("post", "")


def _hours(arguments: Arguments) -> str:
    """{{heure|14|30}}: `14 h 30`; {{heure|1}}: `1 h`."""
    hour, minutes, seconds = (*arguments[0][:3], "", "", "")[:3]
    after = f" {minutes} min {seconds} s" if minutes and seconds else f" {minutes}" if minutes else ""
    return f"{hour} h{after}" if hour else HOLE


def _aside(arguments: Arguments) -> str:
    """{{incise|words}} between dashes; {{incise|words|stop}} ends the sentence, and so has no second one."""
    words, stop = (*arguments[0][:2], "", "")[:2]
    return HOLE if not words else f"\u2013 {words}" if stop else f"\u2013 {words} \u2013"


def _joined(sign: str) -> Callable[[Arguments], str]:
    return lambda arguments: sign.join(arguments[0])


def _linked_up(arguments: Arguments) -> str:
    """{{linktext|ice| |cream}}: the arguments one after the other; a blank one is a space."""
    return "".join(part or " " for part in arguments[0]).strip() or HOLE


def _between(before: str, after: str) -> Callable[[Arguments], str]:
    """Shows the first argument between two strings."""
    return lambda arguments: before + arguments[0][0] + after if arguments[0] else HOLE


def _foreign(arguments: Arguments) -> str:
    """Russian {{нп5|title|words shown|language|its title}}; the oldest form names all of them."""
    positional, named = arguments
    words = [named.get("текст", ""), *positional[1:2], *positional[:1], named.get("надо", "")]
    return next((word for word in words if word.strip(NOTHING)), HOLE)


def _linked(arguments: Arguments) -> str:
    """{{ill|title|de|its title|lt=words}}; before 2017 the language came first: {{ill|de|title}}."""
    positional, named = arguments
    shown = positional[1:2] if positional and positional[0] in CODES else positional[:1]
    return named.get("lt") or next(iter(shown or positional), HOLE)


def _local(arguments: Arguments) -> str:
    """Chinese {{tsl|en|title|title in Chinese|words shown}}."""
    return next((word for word in reversed(arguments[0][1:4]) if word.strip(NOTHING)), HOLE)


def _date(arguments: Arguments) -> str:
    """French {{date|12|février|1990|en musique}}: what comes after the year only sorts."""
    parts = arguments[0]
    end = next((place + 1 for place, part in enumerate(parts[:4]) if _YEAR.search(part)), 3)
    return " ".join(filter(None, parts[:end]))


def _ordinal(word: str) -> Callable[[Arguments], str]:
    """{{1er|champion}}: `1er champion`."""
    return lambda arguments: " ".join([word, *arguments[0][:1]])


def _translated(arguments: Arguments) -> str:
    """{{Lien|langue=de|trad=A|fr=B|texte=C}}: the words of the link."""
    positional, named = arguments
    return named.get("texte") or named.get("fr") or (positional[0] if positional else HOLE)


def _century(arguments: Arguments) -> str:
    """French {{s|XII}} is a century; Russian {{s|words}} keeps words on one line."""
    shown = _argument(0)(arguments)
    return f"{shown}e siècle" if re.fullmatch("[IVX]+", shown) else shown


def _table(shown: Callable[[Arguments], str], *lines: str) -> dict[str, Callable[[Arguments], str]]:
    return dict.fromkeys((name for line in lines for name in line.split(", ")), shown)


# Of all languages together: a name means the same in most, and what a template of another meaning shows is no worse
# than a hole.
_SHOWN = {
    **_table(_fixed(" "), "nbsp, spaces, space"),
    **_table(lambda arguments: next(iter(arguments[0]), " "), "esd"),
    **_table(_fixed(" \u2013 "), "snd, spnd, spaced ndash"),
    **_table(_fixed("\u2013"), "ndash"),
    **_table(_fixed("\u2014"), "mdash, mdashb, em dash"),
    **_table(_fixed(APOSTROPHE), "'"),
    **_table(_fixed(APOSTROPHE + "s"), "'s"),
    **_table(_fixed(""), "-"),
    **_table(_fixed(PIPE), "!"),
    **_table(_fixed(EQUALS), "="),
    **_table(_fixed("Ier"), "ier"),
    **_table(_fixed("Ire"), "ire"),
    **_table(_ordinal("1er"), "1er"),
    **_table(_ordinal("1re"), "1re"),
    **_table(_fixed("er"), "er"),
    **_table(
        _argument(0),
        "nowrap, nobr, nobold, small, smaller, big, larger, sc, smallcaps, abbr, strong, em, tooltip",
        "vanchor, angbr, visible anchor, notatypo, not a typo, proper name, mvar",
        "quote, blockquote, cquote, quotation",
        "poem, verse, format price, currency, formatnum, eqm, nihongo, track gauge, railgauge",
        "zitat, latin, souligner, citation bloc, petit, cita, versalitas, ta, citazione, fmtn, citação, dtlink",
        "цитата, 読み仮名, le",
        "ilh, internal link helper",
    ),
    **_table(_linked, "ill, interlanguage link, ilc"),
    **_table(_foreign, "нп, нп1, нп2, нп3, нп4, нп5, iw, не переведено, не переведено 2, не переведено 3"),
    **_table(_foreign, "не переведено 4, не переведено 5"),
    **_table(_local, "tsl, translink"),
    **_table(_argument(0, "label"), "仮リンク"),
    **_table(_argument(1), "lang, langx, script, rtl-lang, color"),
    **_table(_argument(1, "texte"), "langue, en langue"),
    **_table(_argument(-1), "transl, transliteration, font color, resize"),
    **_table(_as_of, "as of, asof"),
    **_table(_circa, "circa, c., circa year"),
    **_table(figures.formula, "chem, chem2"),
    **_table(figures.raised, "sup, exp, exposant"),
    **_table(figures.lowered, "sub, indice"),
    **_table(figures.fraction, "frac, sfrac, fraction"),
    **_table(figures.value, "val"),
    **_table(figures.quantity, "unité, unite, unidad, nombre"),
    **_table(figures.power_of_ten("\u00d7"), "e, x10^, x10"),
    **_table(figures.power_of_ten(""), "10^"),
    **_table(_fixed(figures.MINUS), "minus"),
    **_table(_joined("\u2013"), "dash year"),
    **_table(_joined(" "), "число, tmp"),
    **_table(_linked_up, "sic, linktext"),
    **_table(_date, "date, date-"),
    **_table(_hours, "heure"),
    **_table(figures.measure, "convert, cvt"),
    **_table(_century, "s, s-, siècle"),
    **_table(_between("siglo ", ""), "siglo"),
    **_table(_between("século ", ""), "séc, século"),
    **_table(_between("née ", ""), "née"),
    **_table(_between("", " €"), "euro"),
    **_table(_aside, "incise"),
    **_table(_between("« ", " »"), "citation, citation étrangère"),
    **_table(_between("\u201e", "\u201c"), '"'),
    **_table(_translated, "lien"),
    **{name: _between(f"بال{name}: ", "") for name in ("ألمانية", "إنجليزية", "فرنسية", "لاتينية", "إيطالية", "تركية")},
}
