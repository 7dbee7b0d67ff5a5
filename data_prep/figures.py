"""Figures of wikitext -> what a reader sees of them: measures, values with errors and powers, fractions, formulas.

10<sup>9</sup> is no 109. Raised digits and signs are Unicode's superscripts; a fraction begins with PLUS, so that what
stands before it can be told apart from it.
"""

import html
import re
from collections.abc import Callable

from data_prep.brackets import HOLE, PLUS

# Positional arguments (the first one is at 0) and named ones.
Arguments = tuple[list[str], dict[str, str]]
MINUS = "\u2212"
# Between two numbers of {{convert|2|to|4|km}}.
_RANGE = {
    word: word for word in ("to", "and", "or", "by", "x", "-", "\u2013", "\u00d7", "\u00b1", "+", ",", "to about")
}
_RANGE |= {"to(-)": "to", "and(-)": "and", ", and": ", and", ", or": ", or", "to-": "to", "xx": "\u00d7", "*": "\u00d7"}
_RANGE |= {"+/-": "\u00b1", "&plusmn;": "\u00b1", "&times;": "\u00d7", "&ndash;": "\u2013", "&": "and"}
# The same in French and Spanish.
_AND = {*_RANGE, "\u00e0", "a", "et", "ou", "y", "o", "par", "por", "sur", "au", "contre", "X", "\u2014"}
# Units that share a measure, the larger ones first: {{convert|6|ft|2|in|m}}.
_SHARED = (("mi", "furlong", "ch", "yd", "ft", "in"), ("st", "lb", "oz"))
# The codes of units that are not written as they are shown.
_CODES = {"kmh": "km/h", "lbs": "lb", "USgal": "US gal", "impgal": "imp gal", "sqm": "m2", "sqkm": "km2"} | {
    "um": "\u00b5m",
    "deg": "\u00b0",
    "degC": "\u00b0C",
    "degF": "\u00b0F",
}
_DEGREES = re.compile(r"([CFR])(?:-change)?")
# Digits after other letters are no exponents: CO2, F1.
_EXPONENT = re.compile(
    r"(?<![A-Za-z])((?:da|[TGMkhdcm\u00b5np])?(?:m|s|g|K|J|W|Pa|Hz|mol|cd|sr|rad|eV|[lL])|h|min|yr|a)"
    rf"([-{MINUS}]?[1-9])\b(?!;)"
)
_POWER = re.compile(f"[+{MINUS}-][0-9]{{1,2}}|[2-9]")
_LONGEST = 40  # signs of a unit or a power; what is longer is text
_COUNTS = {"3": "thousand", "6": "million", "9": "billion", "12": "trillion"}

_SUP, _SUB = (rf"<{tag}\b[^<>]*>\s*(\d+)\s*</{tag}\s*>" for tag in ("sup", "sub"))
_SPLIT = re.compile(
    rf"(?<![A-Za-z]){_SUP}\s*(?:[/\u2044\u2215]|&frasl;|&#8260;|&#x2044;)\s*"
    rf"(?:{_SUB}|<(small|sup)\b[^<>]*>(\d+)</(?:small|sup)>|(\d+)\b)",
    re.IGNORECASE,
)
# Other tags may stand in it, and not many words.
_RAISED = re.compile(r"<sup\b[^<>]*>((?:[^<>]|<(?!/?su[bp]\b)[^<>]{0,60}>){1,60}?)</sup\s*>(?!\s*</sup)", re.IGNORECASE)
_LOWERED = re.compile(_SUB, re.IGNORECASE)
_BARE = re.compile(rf"<[^<>]*>|''+|[{HOLE}{PLUS}\s]")
_AFTER_NUMBER = re.compile(rf"(?<=\d)((?:['{HOLE}]|<[^<>]{{1,60}}>)*){PLUS}")
_SIGNS = dict.fromkeys("-\u2010\u2011\u2013", MINUS)
_ABOVE = str.maketrans(
    f"0123456789+{MINUS}", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207a\u207b"
)
_BELOW = str.maketrans("0123456789", "".join(map(chr, range(0x2080, 0x208A))))


def levelled(text: str) -> str:
    """The text with its raised and lowered figures on the line; to be called before tags are dropped."""
    if "<sup" in text or "<SUP" in text:
        text = _RAISED.sub(_superscript, _SPLIT.sub(lambda m: f"{PLUS}{m[1]}/{m[2] or m[4] or m[5]}", text))
    if "<sub" in text or "<SUB" in text:
        text = _LOWERED.sub(_subscript, text)
    return _AFTER_NUMBER.sub(r"\1 ", text).replace(PLUS, "") if PLUS in text else text


def _superscript(match: re.Match[str]) -> str:
    shown = _BARE.sub("", html.unescape(match[1])).translate(str.maketrans(_SIGNS))
    if re.fullmatch(rf"[0-9+{MINUS}]+", shown):
        return shown.translate(_ABOVE)
    if re.fullmatch(rf"{MINUS}?[0-9]+[.,/][0-9]+", shown) and _digit(match.string, match.start() - 1):
        return f"^({shown})"
    return match[0]


def _subscript(match: re.Match[str]) -> str:
    """H<sub>2</sub>O is H2O; between digits it would be one of them."""
    beside = _digit(match.string, match.start() - 1) or _digit(match.string, match.end())
    return match[1].translate(_BELOW) if beside else match[1]


def _digit(text: str, place: int) -> bool:
    return 0 <= place < len(text) and text[place].isdigit()


def unit(code: str) -> str:
    """The sign of a unit: `km2` -> `km²`, `sqmi` -> `sq mi`, `PD/km2` -> `inhabitants/km²`; a number is its own."""
    if not code or len(code) > _LONGEST or code.lstrip(f"+-{MINUS}{PLUS}.")[:1].isdecimal():
        return code
    count = re.match(r"e(3|6|9|12)(?=[A-Za-z])", code)
    code = code[count.end() :] if count else code
    sign = re.sub(r"\bPD/", "inhabitants/", _CODES.get(code, code))
    sign = re.sub(r"\b(sq|cu)(nmi|mi|yd|ft|in)\b", r"\1 \2", sign)
    sign = re.sub(r"\b(nmi|mi|yd|ft|in)([23])\b", lambda m: f"{'sq' if m[2] == '2' else 'cu'} {m[1]}", sign)
    sign = sign if " " in code else _EXPONENT.sub(r"\1<sup>\2</sup>", sign)
    return f"{_COUNTS[count[1]]} {sign}" if count else sign


def measure(arguments: Arguments) -> str:
    """`2|to|4|km|mi` -> `2 to 4 km`: the source's own figures, without the conversion."""
    words = arguments[0]
    end = _range(words)
    while end + 2 < len(words) and _goes_on(*words[end : end + 3]):
        end += 2
    return _dashed(" ".join(map(_sign, words[: end + 1])))


def _sign(word: str) -> str:
    """A number, what stands between two, or a unit of {{convert}}, where `C` is no coulomb."""
    return _DEGREES.sub("\u00b0\\1", word) if _DEGREES.fullmatch(word) else _RANGE.get(word) or unit(word)


def _range(words: list[str]) -> int:
    """How many words its numbers take, with what stands between them."""
    end = 1
    while end + 1 < len(words) and words[end] in _RANGE:
        end += 2
    return end


def _dashed(text: str) -> str:
    # A long one is text, perhaps of many templates in each other.
    return re.sub(" [-\u2013] ", "\u2013", text).replace(" ,", ",") if len(text) <= 5 * _LONGEST else text


def _goes_on(unit: str, number: str, smaller: str) -> bool:
    """Whether `2|in` after `ft` is of the same measure."""
    shared = any(unit in units and smaller in units[units.index(unit) + 1 :] for units in _SHARED)
    return shared and number.lstrip(PLUS)[:1].isdecimal()


def fraction(arguments: Arguments) -> str:
    """`3|1|2` -> `3 1/2`, `1|2` -> `1/2`, `2` -> `1/2`."""
    words = arguments[0]
    if len(words) < 3:
        return PLUS + "/".join(words if len(words) == 2 else ["1", *words]) if words else HOLE
    return " ".join([*words[:-2], "/".join(words[-2:])])


def value(arguments: Arguments) -> str:
    """{{val}}: `6.2|0.1|e=18|u=C` -> `(6.2±0.1)×10¹⁸ C`, `2|to|3|u=m2` -> `2 to 3 m²`."""
    words, named = arguments
    if not words:
        return f"10{_sup(named['e'])}{_units(named)}" if named.get("e") else HOLE
    end = _range(words)
    number = _dashed(" ".join(_RANGE.get(word, word) for word in words[:end]))
    if len(number) <= _LONGEST:
        number = re.sub(rf"(?<=\d)e([+{MINUS}-]?\d+)$", "\u00d710<sup>\\1</sup>", number)
    shown = _powered(number, _error(words[end : end + 2]), named.get("e"))
    return named.get("p", "") + shown + named.get("s", "") + _units(named) + named.get("end", "")


def _units(named: dict[str, str]) -> str:
    over, under = (unit(named.get(name) or named.get(f"{name}l") or "") for name in ("u", "up"))
    if not over and not under:
        return ""
    return ("" if over in ("\u00b0", "%") else " ") + over + ("/" if under else "") + under


def _error(errors: list[str]) -> str:
    """`0.1` -> `±0.1`, `(3)` -> `(3)`, `0.2` and `0.3` -> ` +0.2 −0.3`."""
    shown = [html.unescape(error).lstrip(f"+-{MINUS}\u00b1") for error in errors if 0 < len(error) <= _LONGEST]
    if len(shown) == 2 and not shown[0].startswith("("):
        return f" +{shown[0]} {MINUS}{shown[1]}"
    return "".join(error if error.startswith("(") else f"\u00b1{error}" for error in shown)


def _powered(number: str, error: str, power: str | None) -> str:
    if not power:
        return number + error
    whole = number + error if error[:1] in ("", "(") else f"({number}{error})"
    return f"{whole}\u00d710{_sup(power)}"


def _sup(text: str) -> str:
    return f"<sup>{text}</sup>" if len(text) <= _LONGEST else text


def quantity(arguments: Arguments) -> str:
    """{{unité}}: `5|m|2|s|-1` -> `5 m² s⁻¹`, `5|±=1|e=3|kg` -> `(5±1)×10³ kg`, `5|à|6|km` -> `5 à 6 km`."""
    given, named = arguments
    words = [word for word in given if not re.match(r"[±+]\s*=", word)]
    named |= {word[0]: word.partition("=")[2].strip() for word in given if re.match(r"[±+]\s*=", word)}
    errors = [named["+"], named["-"]] if "+" in named and "-" in named else [named.get("±", "")]
    number = "".join(words[:1]) + "".join(f" {name} {named[name]}" for name in ("à", "et", "ou") if name in named)
    shown = [_powered(_spelt(number), _error(errors), named.get("e"))]
    for place, word in enumerate(words[1:], 1):
        is_exponent = re.fullmatch(f"[+{MINUS}-][0-9]{{1,2}}", word) if place % 2 else _POWER.fullmatch(word)
        if is_exponent and place > 1 and words[place - 1] not in _AND and not words[place - 1][:1].isdecimal():
            shown.append(f"<sup>{word}</sup>")
        else:
            shown.append(f"{'' if word[:1] == '/' else ' '}{unit(word)}".rstrip())
    return "".join(shown)


def _spelt(number: str) -> str:
    """All of a quantity in one argument: `1.2 e5 m/s-2`."""
    if len(number) > _LONGEST:
        return number
    number = re.sub(rf" e([+{MINUS}-]?\d+)\b", "\u00d710<sup>\\1</sup>", number)
    return " ".join(map(unit, number.split(" ")))


def formula(arguments: Arguments) -> str:
    """`SO|4|2-` and `SO4(2-)` -> `SO4²⁻`."""
    words, charge = arguments[0], f"[0-9]*[+{MINUS}-]"
    # A bare sign in the place of a symbol joins two: CO|2|+|H|2|O.
    last = len(words) - 1
    shown = [
        f"<sup>{word}</sup>"
        if len(word) <= _LONGEST and re.fullmatch(charge, word) and (len(word) > 1 or place % 2 or place == last)
        else word
        for place, word in enumerate(words)
    ]
    joined = "".join(shown)
    return re.sub(rf"(?<=[\w\])])\(({charge})\)", r"<sup>\1</sup>", joined) if len(joined) <= 5 * _LONGEST else joined


def power_of_ten(before: str) -> Callable[[Arguments], str]:
    """`9` -> `×10⁹`; with nothing {{e}} is French: XIX{{e}}. What is too long for a power stays as it is, so that those
    in one another do not grow without end."""

    def shown(arguments: Arguments) -> str:
        power = "".join(arguments[0][:1])
        return "e" if not power else f"{before}10{_sup(power)}" if len(power) <= _LONGEST else power

    return shown


def raised(arguments: Arguments) -> str:
    return _sup("".join(arguments[0][:1]))


def lowered(arguments: Arguments) -> str:
    text = "".join(arguments[0][:1])
    return f"<sub>{text}</sub>" if len(text) <= _LONGEST else text
