"""Which rows are held out, drawn or repeated: pure functions of the rows, so the same for every run and machine."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any
from unicodedata import ucd_3_2_0

from asa.errors import RequestError
from finetune.config import FinetuneConfig
from finetune.tasks.task import Choices, Split, Text

MOST_HELD_OUT = 1000
_UNSEEN = {"Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"}  # classes of characters that are escaped


def arranged(found: dict[str, Split], added: Sequence[Split], config: FinetuneConfig) -> dict[str, Split]:
    """The splits as files hold them, and training rows to add -> train, dev (chooses), test (scored) and the others.

    Raises: RequestError where there are too few training rows to hold any out.
    """
    splits = dict(found)
    train = splits.pop("train", None)
    if train is None and added:
        train, added = _joined(added), ()
    dev, test = splits.pop("dev", None), splits.pop("test", None)
    if test is None:
        dev, test = None, dev
    if train is None:
        return {name: split for name, split in {"test": test, **splits}.items() if split is not None}
    if test is None:
        train, test = held_out(train, config.holdout)
    if config.paper_compat:
        dev = test
    if dev is None:
        train, dev = held_out(train, config.holdout)
    return {"train": thinned(_joined([train, *added]), config.train_rows), "dev": dev, "test": test, **splits}


def taken(files: Collection[str], config: FinetuneConfig) -> list[str]:
    """Which of dev and test `arranged` takes from training rows. Args: files, the splits that files hold."""
    own = sum(name in files for name in ("dev", "test"))
    return [] if own == 1 and config.paper_compat else ["dev", "test"][: 2 - own]


def _joined(splits: Sequence[Split]) -> Split:
    ids, texts, labels = [], [], []
    for split in splits:
        ids += split.ids
        texts += split.texts
        labels += split.labels or []
    return Split(ids, texts, labels)


def held_out(split: Split, share: float) -> tuple[Split, Split]:
    """The rows that stay, and those that are taken away: the `share` whose first segment hashes lowest, 1,000 at most.

    Rows with the same first segment stay together, unless so many have the same that not half the share can be held out
    so: with a question's other answer in training, a row's label is known. A second segment may stand on both sides.
    """
    count = max(1, min(MOST_HELD_OUT, round(share * len(split))))
    of_words = bool(split.labels) and isinstance(split.labels[0], list)  # two words are no two segments
    taken = _lowest_groups(split, count, _whole if of_words else _first_segment)
    if 2 * len(taken) < count:
        taken = _lowest_groups(split, count, _whole)
    if not taken or len(taken) == len(split):
        texts = len(set(split.texts))
        raise RequestError(
            f"{len(split)} training rows left ({texts} different), too few (or too alike) to hold {count}"
            " out; give --task.dev and --task.test, another --task.text, or a smaller --holdout"
        )
    return split.picked([at for at in range(len(split)) if at not in taken]), split.picked(sorted(taken))


def thinned(split: Split, most: int | None) -> Split:
    """`most` rows of it, in their order."""
    return split if most is None or most >= len(split) else split.picked(sorted(_lowest(split, "drawn", most)))


def repeated(split: Split, other: Split) -> int:
    """How many rows of a split have the text of a row of another."""
    known = set(other.texts)
    return sum(text in known for text in split.texts)


def subset(split: Split, values: list[str], value: str) -> Split:
    return split.picked([at for at, found in enumerate(values) if found == value])


def _lowest(split: Split, purpose: str, count: int) -> list[int]:
    return sorted(range(len(split)), key=lambda at: _rank(purpose, split.texts[at]))[:count]


def _lowest_groups(split: Split, count: int, key: Callable[[Text | Choices], Any]) -> set[int]:
    """Rows whose key hashes lowest, whole groups of equal ones, `count` in all or a few less."""
    groups: dict[Any, list[int]] = {}
    for at, text in enumerate(split.texts):
        groups.setdefault(key(text), []).append(at)
    taken: list[int] = []
    for first in sorted(groups, key=lambda first: _rank("held out", first)):
        if len(taken) + len(groups[first]) <= count:
            taken += groups[first]
    return set(taken)


def _whole(text: Text | Choices) -> Any:
    return text


def _first_segment(text: Text | Choices) -> Any:
    """What rows about one thing share: the first of two segments, of a row's answers too; a lone one is its own."""
    if text and not isinstance(text[0], str):
        return text[0][0] if len(text[0]) == 2 else text
    return text[0] if len(text) == 2 else text


def _rank(purpose: str, content: Any) -> bytes:
    return hashlib.blake2b(f"{purpose}\0{_literal(content)}".encode(), digest_size=8).digest()


def _literal(content: Any) -> str:
    """repr of a text, or of tuples of texts, but by one table of characters: repr goes by that of its Python."""
    if not isinstance(content, str):
        parts = ", ".join(map(_literal, content))
        return f"({parts},)" if len(content) == 1 else f"({parts})"
    if content.isascii():
        return repr(content)
    end = '"' if "'" in content and '"' not in content else "'"
    return end + "".join(f"\\{one}" if one == end else _shown(one) for one in content) + end


@lru_cache(4096)
def _shown(one: str) -> str:
    if one in "'\"" or not (one.isascii() or ucd_3_2_0.category(one) in _UNSEEN):
        return one
    return repr(one)[1:-1]
