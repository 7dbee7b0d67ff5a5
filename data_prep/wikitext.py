"""Wikitext -> plain text, in one pass over its brackets and one over its lines.

Kept: paragraphs, list items, headings that have text below them, link texts, the templates of templates.py.
Dropped: other templates, tables, references, pictures, categories, formulas, code, comments, closing sections.
What is dropped inside a sentence leaves a mark, so that the brackets, commas and spaces around it can be closed up.
"""

import html
import re

from data_prep import figures, languages, templates, tidy
from data_prep.brackets import APOSTROPHE, HOLE, NOTHING, resolve

_SKIPPED_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|score|imagemap|hiero|syntaxhighlight|source|pre|style|script|graph|"
    "templatestyles|includeonly|mapframe|maplink|categorytree|inputbox|table|section|indicator|templatedata"
)
# An opening tag, but for one that closes itself, ends the search for the closing one: unclosed ones would make it
# quadratic, and lose what follows.
_SKIPPED = re.compile(
    rf"<(?:!--.*?(?:-->|\Z)|(?P<tag>{_SKIPPED_TAGS})\b(?:[^<>]*/>|[^<>]*>(?:(?!<(?P=tag)\b(?![^<>]*/>)).)*?</(?P=tag)\s*>)"
    r"|(?P<nowiki>nowiki)\s*(?:/>|>(?P<literal>(?:(?!<nowiki\b).)*?)</nowiki\s*>))",
    re.DOTALL | re.IGNORECASE,
)
_BLOCKS = "p|div|blockquote|center|poem|li|dd|dt|ul|ol|dl|br|hr|table|tr|td|th|caption|h[1-6]"
_INLINE = (
    "b|i|u|s|em|strong|small|big|sub|sup|span|font|code|tt|kbd|var|samp|cite|abbr|q|ins|del|strike|bdi|bdo|dfn|mark|"
    "time|data|ruby|rb|rt|rp|rtc|wbr|onlyinclude|includeonly|noinclude|nowiki|tbody|thead|a|img|section|link|meta"
)
_TAG = re.compile(rf"</?(?:(?P<block>{_BLOCKS})|{_INLINE}|{_SKIPPED_TAGS})\b[^<>]*>", re.IGNORECASE)
# With attributes or nothing at all after the name: the `a<b` of a formula is no tag. What follows attributes stays. The
# outer repetition is not possessive: Python before 3.11.4 then takes what its last, failed round has read.
_BROKEN_TAG = re.compile(
    rf"</?(?:{_BLOCKS}|{_INLINE}|{_SKIPPED_TAGS})\b"
    r"(?:(?:[ \t]++[\w:-]++[ \t]*+=[ \t]*+(?:\"[^\"<>\n]*+\"|'[^'<>\n]*+'|[^\s<>]*+))+(?:[ \t]*+/)?|[ /]*(?=\n|\Z))",
    re.IGNORECASE,
)
# Possessive, and no bracket but a whole one in the label: an unclosed one is given up at once.
_EXTERNAL = re.compile(
    r"\[(?:(?:https?:|ftp:|news:|irc:)?//|mailto:)[^\s\]\[<>\"]*+\s*+((?:[^\[\]\n]|\[[^\[\]\n]*\])*+)\]",
    re.IGNORECASE,
)
# It ends where Chinese, Japanese or Korean goes on without a space, and before a sentence's own signs.
_NO_ADDRESS = rf"\s<>\"\])\u201d\u2019\u00bb\u3000-\u303f\uff00-\uffef{HOLE}&"
_IN_ADDRESS = rf"&(?!(?:nbsp|[lg]t|#0*(?:60|62|160));)|{HOLE}(?=[/=&%#?_]|\.[A-Za-z0-9])|\u2019(?=\w)"
_IN_BRACKETS = rf"\([^{_NO_ADDRESS}()\u3040-\u9fff\uac00-\ud7af]*\)"  # .../Title_(word), but not (see http://a/b)
_ADDRESS = re.compile(
    r"(?<![A-Za-z0-9])(?:https?|ftp)://"
    rf"(?:(?:{_IN_BRACKETS}|[^{_NO_ADDRESS}\u3040-\u9fff\uac00-\ud7af]|{_IN_ADDRESS})+"
    rf"|(?:{_IN_BRACKETS}|[^{_NO_ADDRESS}]|{_IN_ADDRESS})+)"
    r"(?<![.,:])(?:(?<!;)|(?<=&amp;)|(?<=&#\d\d\d;)|(?<=quot;)|(?<=quo;)|(?<=apos;)|(?<=&#\d\d;))",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,30});")
# Direction marks, soft hyphens and the like show nothing; the joiners U+200C and U+200D do in several scripts.
_INVISIBLE = re.compile(
    "[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\u00ad\ufffd\x00\x03-\x08\x0b-\x1f\x7f-\x84\x86-\x9f]"
)
_VARIANT = re.compile(r"-\{(?:([^{}|:\[\n]*+)\|)?([^{}]*)\}-")
_TEMPLATE_IN_VARIANT = re.compile(r"(?<=-\{)(?=\{\{(?!\{))|(?<=(?<!\})\}\})(?=\}-)")
_HIDING_FLAGS = frozenset("HTDN-+")  # such a piece declares words for others and shows none
_SHOWN_VARIANTS = frozenset(("zh", "zh-hans", "zh-hant", "zh-cn", "zh-tw"))
_IN_A_NAME = re.compile(r"[A-Za-z0-9)\]]")  # of a chemical: 2-{4-[bis]phenyl}-N
_CHINESE = re.compile(r"[\u3400-\u9fff]|\bzh(?:-\w+)?\s*:")
_HEADING = re.compile(r"^=[^\n]*", re.MULTILINE)
_BREAK = re.compile(r"<br\b[^<>]*>", re.IGNORECASE)
# An opening tag that a comment holds does not end the search for a closing one; what only shows a comment is none.
_COMMENT = re.compile(
    r"<(?P<shown>nowiki|pre|syntaxhighlight|source)\b[^<>]*>(?:(?!<(?P=shown)\b).)*?</(?P=shown)\s*>"
    r"|<!--[^-<]*+(?:(?:-(?!->)|<(?!!--))[^-<]*+)*-->",
    re.DOTALL | re.IGNORECASE,
)
_OPENING = re.compile(rf"<(?=(?:{_SKIPPED_TAGS})\b)", re.IGNORECASE)
_INCLUDE = re.compile(r"</?(?:only|no)include>", re.IGNORECASE)


def without_asides(wikitext: str) -> str:
    """Without comments, one that is never closed too, and without what is shown as it is written."""
    return _COMMENT.sub("", wikitext).partition("<!--")[0]


def plain_text(wikitext: str, silent: frozenset[str] = languages.SILENT) -> str:
    """The prose of one page, paragraphs parted by an empty line. Any text has one: broken markup is closed up.

    Args: silent are the lower-case link prefixes that show no text (see dump.silent_names).
    """
    text = "\n" + wikitext.replace(HOLE, "").replace(APOSTROPHE, "")
    if "<!--" in text:
        text = _COMMENT.sub(_harmless, text)
    text = _SKIPPED.sub(_skip, text)
    if "-{" in text:
        text = _TEMPLATE_IN_VARIANT.sub(HOLE, _VARIANT.sub(_variant, text))
    if "nclude>" in text:
        text = _INCLUDE.sub("", text)  # before the search for tables, which begin a line
    text = resolve(text, silent, templates.prose)
    if "-{" in text:
        text = _VARIANT.sub(_variant, text)  # in which a template stood
    if "//" in text or "mailto:" in text:
        text = _EXTERNAL.sub(_label, text)
        text = _ADDRESS.sub(HOLE, text) if "://" in text else text
    text = figures.levelled(text)
    if "<" in text:
        text = _HEADING.sub(_one_line, text)
        text = _BROKEN_TAG.sub("", _TAG.sub(_line_break, text))
    if "&" in text:
        text = _ENTITY.sub(_character, text)
    if not text.isascii():
        text = _INVISIBLE.sub("", text)
    # Quotes go first: ''{{dropped}}'' would become a run of four.
    text = "\n".join(tidy.unquoted(line) if "''" in line else line for line in text.split("\n"))
    lines = tidy.prose_lines(tidy.close_holes(text.replace(APOSTROPHE, "'")))
    return tidy.without_signs("\n".join(lines).strip())


def _harmless(match: re.Match[str]) -> str:
    """A reference ends at its first closing tag, in a comment too."""
    return match[0] if match["shown"] or "</" in match[0] else _OPENING.sub("", match[0])


def _skip(match: re.Match[str]) -> str:
    if match["nowiki"]:
        # Shown as it stands; what could be taken for markup later is made harmless.
        return tidy.SIGNS.sub("", match["literal"] or "").translate(_LITERAL)
    return HOLE


_LITERAL = {ord(sign): f"&#{ord(sign)};" for sign in "[]{}|*#:;='"}


def _variant(match: re.Match[str]) -> str:
    """-{zh-hans:A;zh-hant:B}- shows one script's form; -{H|...}- and the like only declare."""
    flags, body = {flag.strip() for flag in (match[1] or "").split(";")}, match[2]
    if body and _IN_A_NAME.match(match.string, match.start() - 1) and not _CHINESE.search(body):
        return match[0]
    variants = {flag for flag in flags if flag.startswith("zh")}
    if flags & _HIDING_FLAGS or (variants and not variants & _SHOWN_VARIANTS):
        return ""
    forms = [form.partition(":") for form in body.split(";") if ":" in form]
    named = {name.strip(): shown.strip() for name, _, shown in forms if name.strip().startswith(("zh", "sr"))}
    return next((named[name] for name in ("zh-hans", "zh-cn", "zh", *named) if name in named), body)


def _label(match: re.Match[str]) -> str:
    return match[1] or HOLE


def _line_break(match: re.Match[str]) -> str:
    return "\n" if match["block"] else ""


def _one_line(heading: re.Match[str]) -> str:
    return _BREAK.sub(" ", heading[0]) if heading[0].rstrip(NOTHING).endswith("=") else heading[0]


def _character(match: re.Match[str]) -> str:
    return html.unescape(match[0]).replace("'", APOSTROPHE)
