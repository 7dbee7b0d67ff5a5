"""Article leads with topics -> documents for pre-training and a labelled task: name the topic of a lead.

The split is a hash of the title, so it never moves; the dev and test articles stay out of all pre-training text.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from asa import manifest
from asa.errors import RequestError, WorkError
from data_prep.assets import ASSETS, TEXT_CREDIT
from data_prep.text import sound, text_key, title_key, write_jsonl

TASK = "wikipedia-topics"
NO_TOPIC = "Uncategorized"
SPLITS = ("train", "dev", "test")


class Lead(NamedTuple):
    """The first paragraph of an article and its topic."""

    title: str
    text: str
    topic: str


def load(path: Path) -> list[Lead]:
    """The leads in file order. Raises RequestError for a missing file, WorkError for other content than leads."""
    if not path.is_file():
        raise RequestError(f"no leads file {path}; give an existing one with --leads")
    try:
        entries = json.loads(path.read_bytes())
        leads = [_lead(entry) for entry in entries.values()]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        expected = "a JSON object of {title, extract, description, topic} objects"
        raise WorkError(f"{path} is not {expected} ({type(error).__name__}: {error}); fetch it again") from None
    if not leads:
        raise WorkError(f"{path} holds no leads; fetch it again")
    return leads


def _lead(entry: dict[str, str]) -> Lead:
    title, text, topic = (entry[key] for key in ("title", "extract", "topic"))
    for value in (title, text, topic):
        if not isinstance(value, str):
            raise TypeError(f"{value!r} for a string in the lead {title!r}")
    return Lead(sound(title), " ".join(sound(text).split()), sound(topic))


def share_of(salt: str, title: str) -> float:
    """A fixed pseudo-random number in [0, 1) for a title, independent for each salt."""
    digest = hashlib.sha256(f"{salt}:{title_key(title)}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_of(lead: Lead) -> str | None:
    """train, dev or test (about 80, 10, 10 %); None for a lead without topic or text, which is no part of the task."""
    if lead.topic in (NO_TOPIC, "") or not lead.text:
        return None
    share = share_of("split", lead.title)
    return "train" if share < 0.8 else "dev" if share < 0.9 else "test"


def tested(leads: list[Lead]) -> list[Lead]:
    """Those of the task's dev and test splits, which no training may see."""
    return [lead for lead in leads if split_of(lead) in ("dev", "test")]


def write_task(leads: list[Lead], source: dict[str, str], folder: Path) -> dict[str, int]:
    """Write SPLIT.jsonl (id, text, label), task.json and, last, the manifest. Returns the rows of each split. Of leads
    with one text, white space aside, the first alone is a row: another split's would have been seen in training.

    Raises: WorkError for leads that make no task: of fewer than two topics, or without any in a split.
    """
    firsts = dict[int, Lead]()
    for lead in filter(split_of, leads):
        firsts.setdefault(text_key(lead.text), lead)
    members = {split: [lead for lead in firsts.values() if split_of(lead) == split] for split in SPLITS}
    labels = sorted({lead.topic for inside in members.values() for lead in inside})
    if len(labels) < 2 or not all(members.values()):
        found = ", ".join(f"{split} {len(inside)}" for split, inside in members.items())
        raise WorkError(
            f"the leads make no task ({len(labels)} topics; {found}); give more of them, of two topics or more, or"
            " their text alone by --dumps"
        )
    folder.mkdir()
    counts = {}
    for split, inside in members.items():
        rows = ({"id": m.title, "text": m.text, "label": labels.index(m.topic)} for m in inside)
        counts[split] = write_jsonl(rows, folder / f"{split}.jsonl")
    task = {
        "name": TASK,
        "kind": "classification",
        "labels": labels,
        "counts": counts,
        "licence": ASSETS["leads"].licence,
        "attribution": TEXT_CREDIT,
    }
    (folder / "task.json").write_text(json.dumps(task, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    manifest.write(folder, "task", {**task, "source": source})
    return counts
