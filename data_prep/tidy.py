"""Rendered wikitext -> clean lines: quote runs, the gaps that dropped pieces leave, headings, sections, leftovers."""

import re

from data_prep import languages
from data_prep.brackets import HOLE

_SWITCH = re.compile(r"__(\w{2,40}?)__")
_ITEMS = tuple("*#:;")
_RULE = re.compile("^-{4,} *")  # a line across the page, with or without text after it
_EVERY_SIGN = ("[[", "]]", "{{", "}}", "{|", "|}", "===", "<!--", "-->", "''", "<ref", "</ref")
_HALVES = re.compile(r"[\[\]{}|=<>']")
_PASSES = 3
SIGNS = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|={3,}|<!--|-->|'{2,}|</?ref\b(?:[^<>\n]*>| *)")
_LOOSE_STARTS = ".,;:-)\u2013\u3001\u3002\uff0c"
_LOOSE_START = re.compile(r"[.,;:)\u2013-]+ +|[\u3001\u3002\uff0c]+ *")
_LOOSE_STOP = re.compile(r"(?<=\w) (?=[,.](?: (?![,.])|$))")
_WORD = re.compile(r"\w")
_QUOTES = re.compile(r"'{2,}")
_HOLES = re.compile(f"{HOLE}[{HOLE} \t\u00a0]+")
_BLANK = " \t\u00a0"
_OPENING, _CLOSING = ("(", "[", "\uff08"), (")", "]", "\uff09")
_COMMAS = ",;:\u3001\uff0c\u060c\u061b"  # and the like, of which none stays before another
_SEPARATORS = _BLANK + _COMMAS + "/\u2013\uff1b\uff1a"
_STOPS = (*_COMMAS, ".", "\u3002", "\n")
# All that stands between two dropped pieces in brackets: ({{IPA|a}} or {{IPA|b}}).
_BETWEEN = {"or", "and", ",", ";", "/", "und", "oder", "et", "ou", "y", "o", "e", "\u0438", "\u0438\u043b\u0438"}


def close_holes(text: str) -> str:
    """The text without its marks of dropped pieces, the brackets, separators and spaces around them closed up."""
    first, *rest = _HOLES.sub(lambda run: HOLE + (" " if run[0].strip(HOLE) else ""), text).split(HOLE)
    done: list[str] = []
    left = first
    for right in rest:
        left, right = _closed_up(left, right)
        while not left and done:
            left, right = _closed_up(done.pop(), right)
        if right:
            done.append(left)
            left = right
    return "".join(done) + left


def _closed_up(left: str, right: str) -> tuple[str, str]:
    """What stands before and after a hole, joined without a gap."""
    before, after = left.rstrip(_BLANK), right.lstrip(_BLANK)
    if before.endswith(_OPENING):
        after = "" if after.strip() in _BETWEEN else after.lstrip(_SEPARATORS)
    if after.startswith(_CLOSING):
        before = before.rstrip(_SEPARATORS)
        if before.endswith(_OPENING):
            return before[:-1].rstrip(_BLANK), after[1:]
        return before, after
    if after.startswith(_STOPS):
        before = before.rstrip(_COMMAS) if after[0] != "\n" else before
        if before.endswith(".") and after[0] == "." and after[1:2] != ".":
            after = after[1:]
    if before.endswith(_OPENING) or not after or after.startswith(_STOPS):
        # A space that stood at the very end of a piece is still needed by what follows the next hole.
        return (before, after) if after or before.endswith(_OPENING) else (left, after)
    spaced = before != left or after != right
    return before, " " + after if spaced and before and not before.endswith("\n") else after


def prose_lines(text: str) -> list[str]:
    """Clean lines; closing sections and headings with no text of their own or below them removed."""
    kept: list[str] = []
    pending: list[tuple[int, str]] = []
    closed_at = 0
    for raw in text.split("\n"):
        line = _RULE.sub("", " ".join(raw.split()))
        if len(line) > 2 and line[0] == line[-1] == "=":
            level, title = _heading(line)
            if closed_at and level > closed_at:
                continue
            closed_at = level if title.casefold().rstrip(": ") in languages.CLOSING else 0
            pending = [*(item for item in pending if item[0] < level), (level, title)]
            continue
        is_item = line[:1] in _ITEMS
        line = _plain(line.lstrip("*#:; "))
        # "Literature" deep inside an article may be about literature: its paragraphs stay.
        if closed_at and (closed_at <= 2 or is_item):
            continue
        if line:
            for _, title in pending:
                kept += [*([] if kept[-1:] == [""] else [""]), title, ""] if title else []
            pending = []
        if line or kept[-1:] not in ([], [""]):
            kept.append(line)
    return kept


def _heading(line: str) -> tuple[int, str]:
    level = min(len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("=")))
    return level, _plain(line.strip("= "))


def _plain(line: str) -> str:
    """One line without what broken markup leaves; empty where no word stands in it."""
    if not _WORD.search(line) or _is_cell(line):
        return ""
    if line[0] in _LOOSE_STARTS:
        line = _LOOSE_START.sub("", line, count=1) if _LOOSE_START.match(line) else line
    for spaced, closed in ((" )", ")"), ("( ", "(")):
        line = line.replace(spaced, closed)
    if " ." in line or " ," in line:
        line = _LOOSE_STOP.sub("", line)
    if "__" in line:
        # __NOTOC__ in any script, but not __init__.
        line = _SWITCH.sub(lambda match: "" if match[1] == match[1].upper() else match[0], line)
        line = " ".join(line.split())
    return line


def _is_cell(line: str) -> bool:
    """A row or cell of a table whose beginning or end is missing."""
    return line[0] == "|" or (line[0] == "!" and ("!!" in line or "|" in line or line[1:2] == " "))


def unquoted(line: str) -> str:
    """Without '' and '''. Where both are odd in a line, one ''' is an apostrophe and a '', as MediaWiki has it."""
    runs = [(match.start(), len(match[0])) for match in _QUOTES.finditer(line)]
    bold = [start for start, length in runs if length in (3, 4)]
    odd = (len(bold) + sum(length > 4 for _, length in runs)) % 2 and sum(n == 2 or n > 4 for _, n in runs) % 2
    apostrophe = _likeliest_apostrophe(line, bold) if odd and bold else -1
    return _QUOTES.sub(lambda m: "'" if m.start() == apostrophe or len(m[0]) in (4, 6) else "", line)


def _likeliest_apostrophe(line: str, starts: list[int]) -> int:
    """After a word of one letter (l'''air), else after a longer one (dell'''arte), else the first."""
    after_word = [start for start in starts if line[max(0, start - 1) : start].strip()]
    after_letter = [start for start in after_word if start == 1 or not line[start - 2].strip()]
    return next(iter(after_letter or after_word or starts))


def without_signs(text: str) -> str:
    """Without what broken markup leaves; taking one sign out may join the halves of another."""
    for _ in range(_PASSES):
        # Looking for each sign is a hundred times faster than looking for all of them at once.
        if not any(sign in text for sign in _EVERY_SIGN):
            break
        text = SIGNS.sub("", text)
    else:
        text = "\n".join(_HALVES.sub("", line) if SIGNS.search(line) else line for line in text.split("\n"))
    return text.strip()
