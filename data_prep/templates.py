"""The few templates that carry prose. All others (infoboxes, citations, navigation, warnings) are dropped.

Dropping these too would leave holes in sentences: "the river is {{convert|5|km}} long".
"""

from collections.abc import Callable

from mwparserfromhell.nodes import Template

Render = Callable[[Template], str]

_FIXED = {
    "nbsp": " ",
    "spaces": " ",
    "snd": " \u2013 ",
    "spnd": " \u2013 ",
    "spaced ndash": " \u2013 ",
    "ndash": "\u2013",
    "mdash": "\u2014",
    "mdashb": "\u2014",
    "'": "'",
    "'s": "'s",
    "-": "",
    "!": "|",
    "=": "=",
}
# Name -> which positional argument is the text; -1 is the last one.
_ARGUMENT = {
    **dict.fromkeys(("lang", "script", "rtl-lang", "tooltip", "color", "font color", "resize"), 2),
    **dict.fromkeys(("transl", "transliteration"), -1),
    **dict.fromkeys(("nowrap", "nobr", "nobold", "small", "smaller", "big", "larger", "sc", "smallcaps", "abbr"), 1),
    **dict.fromkeys(("vanchor", "visible anchor", "angbr", "val", "nihongo", "ill", "interlanguage link", "sic"), 1),
    **dict.fromkeys(("quote", "blockquote", "cquote", "quotation", "poem", "verse", "strong", "em", "sup", "sub"), 1),
    **dict.fromkeys(("format price", "currency", "linktext", "notatypo", "not a typo", "proper name", "mvar"), 1),
    **dict.fromkeys(("eqm", "formatnum"), 1),
}
_PREFIX = {"as of": "As of ", "circa": "c. ", "c.": "c. ", "circa year": "c. "}
# Between two numbers of {{convert|2|to|4|km}}.
_RANGE = {"to", "and", "or", "by", "x", "-", "\u2013", "+/-", "to(-)", "and(-)"}


def prose(template: Template, plain: Callable[[object], str]) -> str:
    """The words a template shows inside a sentence, its arguments rendered by `plain`; empty for all others."""
    name = str(template.name).strip().lower().replace("_", " ")
    arguments = [plain(item.value).strip() for item in template.params if not item.showkey]
    if name in _FIXED:
        return _FIXED[name]
    if name in ("convert", "cvt"):
        return _measure(arguments)
    if name in ("chem", "chem2"):
        return "".join(arguments)
    if name in ("frac", "sfrac", "fraction"):
        return "/".join(arguments)
    if name in _PREFIX:
        return _PREFIX[name] + "-".join(arguments) if arguments else ""
    if name.startswith("formatnum:"):
        return name.removeprefix("formatnum:").strip() if "{" not in name else ""
    index = 1 if name.startswith("lang-") else _ARGUMENT.get(name)
    return _pick(template, arguments, index, plain) if index else ""


def _pick(template: Template, arguments: list[str], index: int, plain: Callable[[object], str]) -> str:
    if template.has("text"):
        return plain(template.get("text").value).strip()
    if index < 0 and arguments:
        return arguments[index]
    return arguments[index - 1] if index and len(arguments) >= index else ""


def _measure(arguments: list[str]) -> str:
    """`2|to|4|km|mi` -> `2 to 4 km`: the source's own figures, without the conversion."""
    size = 4 if len(arguments) > 3 and arguments[1] in _RANGE else 2
    return " ".join(arguments[:size])
