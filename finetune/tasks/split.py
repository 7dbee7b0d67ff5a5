"""Which rows are held out, drawn or repeated: pure functions of the rows, so the same for every run and machine."""

import hashlib
from collections.abc import Sequence

from asa.errors import RequestError
from finetune.config import FinetuneConfig
from finetune.tasks.task import Split

MOST_HELD_OUT = 1000


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


def _joined(splits: Sequence[Split]) -> Split:
    ids, texts, labels = [], [], []
    for split in splits:
        ids += split.ids
        texts += split.texts
        labels += split.labels or []
    return Split(ids, texts, labels)


def held_out(split: Split, share: float) -> tuple[Split, Split]:
    """The rows that stay, and those that are taken away: the `share` whose content hashes lowest, 1,000 at most, one at
    least."""
    count = max(1, min(MOST_HELD_OUT, round(share * len(split))))
    if count >= len(split):
        raise RequestError(f"{len(split)} training rows, too few to hold {count} out; give --task.dev and --task.test")
    taken = set(_lowest(split, "held out", count))
    return _picked(split, [at for at in range(len(split)) if at not in taken]), _picked(split, sorted(taken))


def thinned(split: Split, most: int | None) -> Split:
    """`most` rows of it, in their order."""
    return split if most is None or most >= len(split) else _picked(split, sorted(_lowest(split, "drawn", most)))


def repeated(split: Split, train: Split) -> int:
    """How many rows of a split have the text of a training row."""
    known = set(train.texts)
    return sum(text in known for text in split.texts)


def subset(split: Split, values: list[str], value: str) -> Split:
    return _picked(split, [at for at, found in enumerate(values) if found == value])


def _lowest(split: Split, purpose: str, count: int) -> list[int]:
    def rank(at: int) -> bytes:
        return hashlib.blake2b(f"{purpose}\0{split.texts[at]!r}".encode(), digest_size=8).digest()

    return sorted(range(len(split)), key=rank)[:count]


def _picked(split: Split, rows: list[int]) -> Split:
    labels = None if split.labels is None else [split.labels[at] for at in rows]
    return Split([split.ids[at] for at in rows], [split.texts[at] for at in rows], labels)  # type: ignore[arg-type]
