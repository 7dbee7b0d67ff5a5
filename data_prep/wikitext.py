"""Wikitext -> plain text. mwparserfromhell does the parsing; this file says what of the tree is prose.

Kept: paragraphs, list items, headings that have text below them, link texts, the templates of templates.py.
Dropped: other templates, tables, references, pictures, categories, formulas, code, comments, closing sections.
"""

import re

import mwparserfromhell
from mwparserfromhell import nodes

from data_prep.templates import prose

_DROPPED_TAG = re.compile(
    "ref|references|table|math|chem|ce|gallery|timeline|score|imagemap|hiero|syntaxhighlight|source|pre|style|script|"
    "templatestyles|noinclude|includeonly|mapframe|maplink|graph|categorytree|inputbox|hr"
)
_BLOCK_TAG = re.compile("p|div|blockquote|center|poem|li|dd|dt|ul|ol|dl")
_CLOSING_SECTION = re.compile(
    "see also|references|external links|further reading|notes|footnotes|citations|bibliography|sources|works cited|"
    "notes and references|references and notes|footnotes and references|gallery|related pages|other websites",
    re.IGNORECASE,
)
_DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:disambig(?:uation)?(?:[ -](?:cleanup|page))?|disamb|dab|hndis|geodis|hospitaldis|mathdab|schooldis|"
    r"surname-?dis|letter-number combination disambiguation|begriffsklärung|homonymie|desambiguación|desambiguação|"
    r"disambigua|doorverwijspagina|dp)\s*(?:\||\}\})|__DISAMBIG__",
    re.IGNORECASE,
)
_MEDIA_ENDING = re.compile(r"\.(?:jpe?g|png|svg|gif|tiff?|og[gvag]|webm|pdf|djvu|mp3|wav)\s*$", re.IGNORECASE)
_INTERLANGUAGE = re.compile(r"^[a-z]{2,3}(?:-[a-z-]+)?$|^simple$")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_REFERENCE = re.compile(r"<ref\b[^<>]*/>|<ref\b[^<>]*>(?:(?!<ref\b).)*?</ref\s*>", re.DOTALL | re.IGNORECASE)
_HEADING = "\x00"


def is_disambiguation(title: str, wikitext: str) -> bool:
    return title.casefold().endswith("(disambiguation)") or bool(_DISAMBIGUATION.search(wikitext))


def plain_text(wikitext: str, silent: frozenset[str]) -> str:
    """The prose of one page, paragraphs parted by an empty line.

    Args: silent holds the lower-case link prefixes that show no text (see dump.Page).
    Raises: mwparserfromhell.parser.ParserError or RecursionError for markup that cannot be parsed.
    """
    # A third of a dump is references; without them the parser, which takes nearly all the time, has less to do.
    wikitext = _REFERENCE.sub("", _COMMENT.sub("", wikitext.replace(_HEADING, "")))
    # Quote runs ('' and ''') are cheaper and safer removed as text than parsed: unbalanced ones are common.
    tree = mwparserfromhell.parse(wikitext, skip_style_tags=True)
    return tidy(_Renderer(silent).code(tree))


class _Renderer:
    def __init__(self, silent: frozenset[str]) -> None:
        self.silent = silent

    def code(self, tree: object) -> str:
        return "".join(self.node(node) for node in getattr(tree, "nodes", ()))

    def node(self, node: nodes.Node) -> str:
        match node:
            case nodes.Text():
                return node.value
            case nodes.Wikilink():
                return self.link(node)
            case nodes.Tag():
                return self.tag(node)
            case nodes.Template():
                return prose(node, self.code)
            case nodes.Heading():
                return f"\n\n{_HEADING}{node.level}{self.code(node.title).strip()}\n\n"
            case nodes.HTMLEntity():
                return _entity(node)
            case nodes.ExternalLink():
                return self.code(node.title)
        return ""

    def link(self, link: nodes.Wikilink) -> str:
        target = str(link.title).strip()
        prefix = target.partition(":")[0].strip().lower() if ":" in target else ""
        if prefix in self.silent or _MEDIA_ENDING.search(target):
            return ""
        text = self.code(link.text).strip() if link.text is not None else ""
        if text:
            return self.code(link.text)
        if _INTERLANGUAGE.match(prefix):
            return ""
        return self.code(link.title).lstrip(": ").partition("#")[0]

    def tag(self, tag: nodes.Tag) -> str:
        name = str(tag.tag).strip().lower()
        if _DROPPED_TAG.fullmatch(name):
            return ""
        if name == "br":
            return "\n"
        inside = self.code(tag.contents)
        return f"\n{inside}\n" if _BLOCK_TAG.fullmatch(name) and not tag.wiki_markup else inside


def _entity(entity: nodes.HTMLEntity) -> str:
    text = entity.normalize()
    # Control characters and lone surrogates (&#xD800;) are no text and could not be written as UTF-8.
    return text if text.isprintable() or text.isspace() else ""


_SUBSTITUTIONS = [
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        # What the parser leaves as text where the markup is broken.
        (r"<(ref|math|gallery|table)\b[^<>]*(?:/>|>.*?</\1\s*>)", re.I | re.S, ""),
        (
            r"</?(?:ref|references|math|gallery|table|tr|td|th|small|span|div|br|nowiki|sup|sub|center)\b[^<>]*>",
            re.I,
            "",
        ),
        (r"<!--.*?(?:-->|\Z)", re.S, ""),
        (r"^\s*(?:\{\||\|\}|\|-|\|\+|[|!]).*$", re.M, ""),
        (r"\[\[(?:[^\[\]|\n]*\|)?|\]\]|\{\{|\}\}|\{\||\|\}", 0, ""),
        (r"'{2,}", 0, ""),
        (r"={3,}", 0, ""),
        (r"__[A-Z_]+__", 0, ""),
        (r"\bhttps?://\S+", 0, ""),
        # List and indent signs at the start of a line.
        (r"^[ \t]*[*#:;]+[ \t]*", re.M, ""),
        # Spaces of every kind, and the holes that dropped templates leave.
        (r"[^\S\n]+", 0, " "),
        (r"[\u200b-\u200f\u2060\ufeff\u00ad]", 0, ""),
        (r"\(\s*(?:[,;:\u2013-]\s*|(?:or|and)\s+(?=\)))+", 0, "("),
        (r"(?:\s*[,;:])+\s*\)", 0, ")"),
        (r"(?:^|(?<=\W)|\s)(?:\(\s*\)|\[\s*\])", re.M, ""),
        (r"\( +", 0, "("),
        (r" +\)", 0, ")"),
        (r"(?<=\w) +(?=[,;.](?:\s|$))", re.M, ""),
        (r" *\n *", 0, "\n"),
        (r"^ ?[.,;:]+ +|^[^\w\n]+$", re.M, ""),
    )
]


def tidy(text: str) -> str:
    """Remove leftovers of broken markup, close holes, normalise space, drop empty and closing sections."""
    for pattern, replacement in _SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(_without_bare_headings(text.split("\n")))).strip()


def _without_bare_headings(lines: list[str]) -> list[str]:
    """Lines with headings unmarked; closing sections and headings with no text of their own or below them removed."""
    kept: list[str] = []
    pending: list[tuple[int, str]] = []
    closed_at = 0
    for line in lines:
        if line.startswith(_HEADING):
            level, title = int(line[1:2]), line[2:].strip()
            if closed_at and level > closed_at:
                continue
            closed_at = level if _CLOSING_SECTION.fullmatch(title) else 0
            pending = [*(item for item in pending if item[0] < level), (level, title)]
        elif not closed_at:
            if line.strip():
                kept += [part for _, title in pending for part in ("", title, "")]
                pending = []
            kept.append(line)
    return kept
