"""The nested brackets of wikitext, resolved in one pass: {{templates}}, [[links]], {| tables |}.

A stack of open brackets makes the time linear for any input. A bracket that is never closed is no markup: its text
stays where it is.
"""

import re
from collections import Counter
from collections.abc import Callable

from data_prep.languages import CODES

# Stands for a dropped piece until the gap around it is closed; XML cannot hold it, so no dump does.
HOLE = "\x01"
# A sign that is shown, beside which two of the same may be markup: ''Dune''{{'}}s.
APOSTROPHE = "\x02"
# What {{!}} shows: in a link it parts target and label, in the arguments of a template it parts nothing.
PIPE = "&#124;"
EQUALS = "&#61;"
# Unicode's invisible plus, before a fraction: a space where a number stands before it, else nothing.
PLUS = "\u2064"
NOTHING = HOLE + " \t\n"
# A comment, by now a HOLE, may stand before a table's brackets.
_TOKEN = re.compile(rf"(\{{\{{+|\}}\}}+|\[\[|\]\]|\n[ \t:*{HOLE}]*\{{\|[^\n]*|\n[ \t{HOLE}]*\|\}}(?!\}}))")
_MEDIA_ENDING = re.compile(r"\.(?:jpe?g|png|svg|gif|tiff?|og[gvag]|webm|pdf|djvu|mp3|wav)\s*$", re.IGNORECASE)
_TEMPLATE, _LINK, _TABLE = "{[|"

Prose = Callable[[str], str | None]


def resolve(text: str, silent: frozenset[str], prose: Prose) -> str:
    """`text` with every closed bracket replaced by what it shows, HOLE where that is nothing.

    Args: silent as in wikitext.plain_text; prose gives the words of a template from what stands in its braces, or None.
    """
    return _Stack(silent, prose).resolve(_TOKEN.split(text))


class _Stack:
    def __init__(self, silent: frozenset[str], prose: Prose) -> None:
        self.silent, self.prose = silent, prose
        self.kinds: list[str] = []
        self.bodies: list[list[str]] = [[]]
        self.open: Counter[str] = Counter()

    def resolve(self, pieces: list[str]) -> str:
        """Args: pieces are text and bracket by turns, text first and last."""
        bodies = self.bodies
        for index in range(0, len(pieces) - 1, 2):
            bodies[-1].append(pieces[index])
            bracket = pieces[index + 1]
            if bracket == "[[":
                self.push(_LINK)
            elif bracket == "]]":
                if pieces[index + 2].startswith("]") and self.in_address():
                    bodies[-1].append("]")
                    pieces[index + 2] = pieces[index + 2][1:]
                self.close(_LINK)
            elif bracket[0] == "{":
                for _ in range(len(bracket) // 2):
                    self.push(_TEMPLATE)
            elif bracket[0] == "}":
                for _ in range(len(bracket) // 2):
                    self.close(_TEMPLATE)
            elif bracket[-1] == "}" and bracket.lstrip(NOTHING) == "|}":
                self.close(_TABLE)
            else:
                self.push(_TABLE)
        bodies[-1].append(pieces[-1])
        self.give_up(0)
        return "".join(bodies[0])

    def push(self, kind: str) -> None:
        self.kinds.append(kind)
        self.bodies.append([])
        self.open[kind] += 1

    def close(self, kind: str) -> None:
        if not self.open[kind]:
            return
        depth = len(self.kinds) - 1
        while self.kinds[depth] != kind:
            depth -= 1
        self.give_up(depth + 1)
        body = "".join(self.bodies.pop())
        self.kinds.pop()
        self.open[kind] -= 1
        self.bodies[-1].append(self.shown(kind, body))

    def in_address(self) -> bool:
        """Whether the innermost bracket is a link whose text has an open [, as of an address: ]]] closes that first."""
        if not self.kinds or self.kinds[-1] != _LINK:
            return False
        with_one = (piece for piece in reversed(self.bodies[-1]) if "[" in piece or "]" in piece)
        last = next(with_one, "")
        return last.rfind("[") > last.rfind("]")

    def give_up(self, depth: int) -> None:
        """The brackets from `depth` on are never closed: their text joins what stands before them."""
        whole = self.bodies[depth]
        for kind, body in zip(self.kinds[depth:], self.bodies[depth + 1 :], strict=True):
            self.open[kind] -= 1
            if kind == _LINK and body and self.is_silent(body[0]):
                # A picture's file name and options are no prose; they end with the line.
                rest = "".join(body).partition("\n")
                body = [rest[1], rest[2]]
            whole.extend(body)
        del self.kinds[depth:], self.bodies[depth + 1 :]

    def shown(self, kind: str, body: str) -> str:
        if kind == _LINK:
            return self.link(body)
        if kind == _TABLE:
            return f"\n{HOLE}"
        shown = self.prose(body)
        return HOLE if shown is None else shown

    def link(self, body: str) -> str:
        # What it shows may stand among a template's arguments, which it neither parts nor names.
        shown = self.words(body.replace(PIPE, "|")).replace("|", PIPE)
        return shown.replace("=", EQUALS) if self.open[_TEMPLATE] else shown

    def words(self, body: str) -> str:
        target, _, label = body.partition("|")
        disabled = "|" in label and _is_file(target)  # a picture with its options
        if target.lstrip().startswith(":") and label.strip(NOTHING) and "\n\n" not in body and not disabled:
            return label  # [[:File:A.png|the map]] points to a picture and shows none
        if ":" not in target:
            if "\n\n" in body or _is_file(target):
                return body if "\n\n" in body else HOLE
            return label if label.strip(NOTHING) else _page(target)
        if self.is_silent(target) or _is_file(target):
            return HOLE
        if "\n\n" in body:
            return body
        if "://" in target:
            return body.partition(" ")[2]
        if label.strip(NOTHING):
            return label
        return HOLE if _is_interlanguage(target) else _page(target.lstrip(": "))

    def is_silent(self, target: str) -> bool:
        return target.partition(":")[0].replace("_", " ").strip().lower() in self.silent if ":" in target else False


def _is_file(target: str) -> bool:
    """Whether it ends as a picture's name does, and is more than that: .mp3 is an article."""
    ending = _MEDIA_ENDING.search(target)
    return ending is not None and bool(target[: ending.start()].rpartition(":")[2].strip())


def _page(target: str) -> str:
    """The name of a linked page, or of a section of this one."""
    page, _, section = target.partition("#")
    return page or section


def _is_interlanguage(target: str) -> bool:
    """Whether a link leads to the page in another language: as they are written, unlike titles such as "It: Part 2"."""
    code, _, title = target.partition(":")
    return code.strip() in CODES and not title.startswith(" ")
