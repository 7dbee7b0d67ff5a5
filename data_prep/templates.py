"""The few templates that carry prose. All others (infoboxes, citations, navigation, warnings) are dropped.

Dropping these too would leave holes in sentences: "the river is {{convert|5|km}} long".
"""

import re
from collections.abc import Callable

from data_prep.brackets import HOLE, PIPE, PLUS

# Positional arguments (the first one is at 0) and named ones.
Arguments = tuple[list[str], dict[str, str]]
_NAMED = re.compile(r"\s*([\w -]{1,30}?)\s*=")
# Between two numbers of {{convert|2|to|4|km}}.
_RANGE = {"to", "and", "or", "by", "x", "+/-", "to(-)", "and(-)", "-", "\u2013"}
# Units that share a measure, the larger ones first: {{convert|6|ft|2|in|m}}.
_SHARED = (("mi", "furlong", "ch", "yd", "ft", "in"), ("st", "lb", "oz"))
_LENGTHS = ("mi", "yd", "ft", "in")
# The units of {{convert}} that are not written as they are shown.
_UNITS = {
    **{f"{word}{unit}": f"{word} {unit}" for word in ("sq", "cu") for unit in _LENGTHS},
    **{f"{unit}{power}": f"{word} {unit}" for power, word in ((2, "sq"), (3, "cu")) for unit in _LENGTHS},
    **{f"{code}{change}": f"°{code}" for code in "CFR" for change in ("", "-change")},
    "sqkm": "km<sup>2</sup>",
    "kmh": "km/h",
    "lbs": "lb",
    "USgal": "US gal",
    "impgal": "imp gal",
}


def prose(body: str) -> str | None:
    """The words that a template shows inside a sentence; None for templates that carry none.

    Args: body is what stands between the braces, brackets inside it already resolved.
    """
    name = body.partition("|")[0].strip().lower().replace("_", " ")
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
            named[match[1].lower()] = part[match.end() :].strip()
        else:
            positional.append(part.strip())
    # Positions may be named too: {{lang|fr|2=mot}}.
    for index in range(9):
        if str(index + 1) in named:
            positional[index : index + 1] = [named[str(index + 1)]]
    return positional, named


def _argument(index: int) -> Callable[[Arguments], str]:
    """Shows one positional argument; -1 is the last one."""

    def shown(arguments: Arguments) -> str:
        positional, named = arguments
        if "text" in named:
            return named["text"]
        return positional[index] if -len(positional) <= index < len(positional) else HOLE

    return shown


def _fixed(text: str) -> Callable[[Arguments], str]:
    return lambda arguments: text


def _after(prefix: str) -> Callable[[Arguments], str]:
    return lambda arguments: prefix + "-".join(arguments[0]) if arguments[0] else HOLE


def _joined(sign: str) -> Callable[[Arguments], str]:
    return lambda arguments: sign.join(arguments[0])


def _measure(arguments: Arguments) -> str:
    """`2|to|4|km|mi` -> `2 to 4 km`: the source's own figures, without the conversion."""
    words = arguments[0]
    end = 1
    while end + 1 < len(words) and words[end] in _RANGE:
        end += 2
    while end + 2 < len(words) and _goes_on(*words[end : end + 3]):
        end += 2
    return re.sub(" [-\u2013] ", "\u2013", " ".join(map(_unit, words[: end + 1])))


def _unit(code: str) -> str:
    """The sign of a unit: `km2` -> `km²`, `C` -> `°C`; what has none of its own, and any number, is its own."""
    return _UNITS.get(code) or re.sub(r"(?<=m)[23]\b", r"<sup>\g<0></sup>", code)


def _goes_on(unit: str, number: str, smaller: str) -> bool:
    """Whether `2|in` after `ft` is of the same measure."""
    shared = any(unit in units and smaller in units[units.index(unit) + 1 :] for units in _SHARED)
    return shared and number[:1].isdecimal()


def _fraction(arguments: Arguments) -> str:
    """`3|1|2` -> `3 1/2`, `1|2` -> `1/2`, `2` -> `1/2`; PLUS before those that may follow a number: 5{{frac|1|2}}."""
    words = arguments[0]
    if len(words) < 3:
        return PLUS + "/".join(words if len(words) == 2 else ["1", *words]) if words else HOLE
    return " ".join([*words[:-2], "/".join(words[-2:])])


def _value(arguments: Arguments) -> str:
    """`6.2|0.1|e=18|u=C` -> `6.2±0.1×10¹⁸ C`."""
    positional, named = arguments
    if not positional:
        return HOLE
    number, *errors = positional
    shown = number + "".join(error if error[:1] in "+-\u2212" else f"\u00b1{error}" for error in errors)
    unit = named.get("u") or named.get("ul") or ""
    per = named.get("up") or named.get("upl") or ""
    return f"{shown}{_power(named)} {unit}{'/' if per else ''}{per}".rstrip()


def _quantity(arguments: Arguments) -> str:
    """`5|m|2|s|-1` -> `5 m² s⁻¹`, `5|e=3|kg` -> `5×10³ kg`: French and Spanish."""
    positional, named = arguments
    shown = "".join(positional[:1]) + _power(named)
    for index, word in enumerate(positional[1:]):
        is_exponent = index and re.fullmatch("[+\u2212-]?[0-9]", word)
        shown += f"<sup>{word}</sup>" if is_exponent else f" {word}".rstrip()
    return shown


def _power(named: dict[str, str]) -> str:
    return f"\u00d710<sup>{named['e']}</sup>" if named.get("e") else ""


def _between(before: str, after: str) -> Callable[[Arguments], str]:
    """Shows the first argument between two strings."""
    return lambda arguments: before + arguments[0][0] + after if arguments[0] else HOLE


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
    **_table(_fixed(" "), "nbsp, spaces, space, esd"),
    **_table(_fixed(" \u2013 "), "snd, spnd, spaced ndash"),
    **_table(_fixed("\u2013"), "ndash"),
    **_table(_fixed("\u2014"), "mdash, mdashb, em dash"),
    **_table(_fixed("'"), "'"),
    **_table(_fixed("'s"), "'s"),
    **_table(_fixed(""), "-"),
    **_table(_fixed(PIPE), "!"),
    **_table(_fixed("&#61;"), "="),
    **_table(_fixed("Ier"), "ier"),
    **_table(_fixed("Ire"), "ire"),
    **_table(_fixed("1er"), "1er"),
    **_table(_fixed("1re"), "1re"),
    **_table(_fixed("er"), "er"),
    **_table(
        _argument(0),
        "nowrap, nobr, nobold, small, smaller, big, larger, sc, smallcaps, abbr, strong, em, sub, tooltip",
        "vanchor, angbr, visible anchor, sic, linktext, notatypo, not a typo, proper name, mvar",
        "quote, blockquote, cquote, quotation",
        "poem, verse, format price, currency, formatnum, eqm, nihongo, ill, interlanguage link, track gauge, railgauge",
        "zitat, latin, souligner, citation bloc, petit, cita, versalitas, ta, citazione, fmtn, citação, ilc, dtlink",
        "нп, нп2, нп3, нп4, нп5, iw, не переведено, не переведено 3, не переведено 5, цитата, 仮リンク, 読み仮名, le",
        "ilh, internal link helper",
    ),
    **_table(_argument(1), "lang, langx, script, rtl-lang, color, font color, resize, langue, en langue, tsl"),
    **_table(_argument(-1), "transl, transliteration"),
    **_table(_after("As of "), "as of"),
    **_table(_after("c. "), "circa, c., circa year"),
    **_table(_joined(""), "chem, chem2"),
    **_table(_between("<sup>", "</sup>"), "sup"),
    **_table(_fraction, "frac, sfrac, fraction"),
    **_table(_value, "val"),
    **_table(_quantity, "unité, unite, unidad"),
    **_table(_joined("\u2013"), "dash year"),
    **_table(_joined(" "), "число, nombre, tmp, date, date-"),
    **_table(_joined(" h "), "heure"),
    **_table(_measure, "convert, cvt"),
    **_table(_century, "s, s-, siècle"),
    **_table(_between("siglo ", ""), "siglo"),
    **_table(_between("século ", ""), "séc, século"),
    **_table(_between("née ", ""), "née"),
    **_table(_between("", " €"), "euro"),
    **_table(_between("\u2013 ", " \u2013"), "incise"),
    **_table(_between("« ", " »"), "citation, citation étrangère"),
    **_table(_between("\u201e", "\u201c"), '"'),
    **_table(_translated, "lien"),
    **{name: _between(f"بال{name}: ", "") for name in ("ألمانية", "إنجليزية", "فرنسية", "لاتينية", "إيطالية", "تركية")},
}
