"""Forms that only single published sets have, and CoNLL: file -> (line, columns)."""

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

# Between sentences of words alone; any other blank may be a word.
_BLANK = " \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85"


class WrongLine(Exception):
    """A line that is not of the format; its text begins with the line's number."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"{number}: {what}")


def parsed(text: str, number: int, shape: type = dict, hint: str = "") -> Any:
    """JSON of the shape asked for, in which keys may stand twice. Raises WrongLine with the line of the mistake."""
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except ValueError as error:
        line, what = number + getattr(error, "lineno", 1) - 1, str(error).partition(":")[0]
        hint = "; a JSON value a line is jsonl (--task.format jsonl)" if what == "Extra data" and line > number else ""
        raise WrongLine(line, f"no JSON ({what}){hint}") from None
    except RecursionError:
        raise WrongLine(number, "JSON that is nested too deeply") from None
    if not isinstance(value, shape):
        wanted = "an object" if shape is dict else "a list"
        raise WrongLine(number, f"JSON {text[:40]!r}, wanted: {wanted}{hint}")
    return value


class Twice(dict[str, Any]):
    """A JSON object in which the key `twice` stands twice; the last one counts."""

    twice: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        found = Twice(found)
        found.twice = next(name for name in names if names.count(name) > 1)
    return found


def once(value: Any, number: int, below: bool = True) -> Any:
    """The value. Raises WrongLine for an object in which, or (below) in whose parts, a key stands twice: of two labels
    one would train, and nobody would know which."""
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, Twice):
            raise WrongLine(number, f"key {part.twice!r} stands twice in {json.dumps(part, ensure_ascii=False):.80}")
        inner = part.values() if isinstance(part, dict) else part
        parts += [one for one in inner if isinstance(one, dict | list)] if below else []
    return value


def conll(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """A word a line, blank lines between sentences: columns words (the first on a line) and label (the last of several;
    none in a sentence of words alone).

    Before a sentence's first word, a line that begins with # is a comment unless it has as many fields as other lines.
    """
    words: list[str] = []
    labels: list[str] = []
    start = 0
    lines = list(file)
    usual = next((line for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))), "")
    blank = None if len(_split(usual, usual)) > 1 else _BLANK  # where words have labels, one alone is none
    for number, line in enumerate(lines, 1):
        fields = _split(line, line)
        if not words and line.startswith("#") and usual and len(_split(line, usual)) != len(_split(usual, usual)):
            continue
        if line.strip(blank) and not line.startswith("-DOCSTART-"):
            if words and (len(fields) > 1) != bool(labels):
                only = "no second column with the label" if labels else "a label, the words before it have none"
                raise WrongLine(number, f"{line.strip()!r} has {only}")
            start = start or number
            words.append(fields[0].strip(" \r\n"))
            labels += [fields[-1].strip()] if len(fields) > 1 else []
        elif words:
            yield start, _sentence(words, labels)
            words, labels, start = [], [], 0
    if words:
        yield start, _sentence(words, labels)


def _sentence(words: list[str], labels: list[str]) -> dict[str, Any]:
    return {"words": words} | ({"label": labels} if labels else {})


def _split(line: str, like: str) -> list[str]:
    """A line's fields with the separator of another. A word may hold any other blank, as U+00A0 or U+2028."""
    return line.split("\t") if "\t" in like else re.split("[ \t]+", line.strip(" \t\r\n"))


def dream(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """[turns, questions, id] per dialogue: columns dialogue, id, question, choice, answer, a row per question."""
    for number, item in enumerate(parsed(file.read(), 1, list), 1):
        try:
            turns, questions, name = once(item, number)
            found = [{"dialogue": " ".join(turns), "id": name, **question} for question in questions]
        except (TypeError, ValueError):
            raise WrongLine(number, "no [turns, questions, id] as DREAM has them") from None
        yield from ((number, row) for row in found)


def race(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """One of RACE's files, a JSON object: columns id, article, question, options, answer, a row per question."""
    item = once(parsed(file.read(), 1), 1)
    try:
        questions = zip(item["questions"], item["options"], item["answers"], strict=True)
        shared = {"id": item["id"], "article": item["article"]}
        found = [{**shared, "question": q, "options": o, "answer": a} for q, o, a in questions]
    except (KeyError, TypeError, ValueError):
        raise WrongLine(1, "no questions, options and answers as RACE has them") from None
    yield from enumerate(found, 1)


def six_lines(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """Six lines a row: columns context, label (the right ending's number), endings (the four that follow)."""
    lines = [line.rstrip("\r\n") for line in file]
    if len(lines) % 6:
        raise WrongLine(len(lines), f"the file ends inside a row: {len(lines)} lines are no multiple of 6")
    for at in range(0, len(lines), 6):
        yield at + 1, {"context": lines[at], "label": lines[at + 1], "endings": lines[at + 2 : at + 6]}
