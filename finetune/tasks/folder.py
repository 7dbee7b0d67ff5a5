"""Read a task folder: task.json, one SPLIT.jsonl each (id, text, label) and the manifest that says it is complete."""

import json
import re
from pathlib import Path

from asa import manifest
from asa.errors import RequestError
from finetune.metrics import USUAL
from finetune.tasks.cells import half_character
from finetune.tasks.spec import NAME
from finetune.tasks.task import Split, Task

SPLITS = ("train", "dev", "test")
FLAG = "--task.folder"


def load(folder: Path) -> Task:
    """Read and verify a task folder, every byte hashed.

    Raises: RequestError where it is no task folder, of another kind than classification, or a row is wrong;
        WorkError where a file is damaged.
    """
    manifest.verify(folder, "task", FLAG)
    facts = _facts(folder)
    splits = {name: _split(folder / f"{name}.jsonl", len(facts["labels"])) for name in SPLITS}
    sha256 = manifest.file_sha256(folder / manifest.NAME)
    return Task(facts["name"], facts["kind"], facts["labels"], USUAL[facts["kind"]], splits, sha256)


def _facts(folder: Path) -> dict:
    path = folder / "task.json"
    try:
        facts = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise RequestError(f"{path} is no JSON ({error}); mend it or set {FLAG}") from None
    missing = [key for key in ("name", "kind", "labels") if not isinstance(facts, dict) or key not in facts]
    if missing:
        raise RequestError(f"{path} has no {missing[0]!r}; it must hold name, kind and labels, mend it or set {FLAG}")
    name, labels = facts["name"], facts["labels"]
    if not (isinstance(name, str) and re.fullmatch(NAME, name)):
        allowed = "up to 100 letters, digits, _, . and -, the first neither . nor -"
        raise RequestError(f"{path}: name {name!r:.60}, allowed: {allowed}; mend it or set {FLAG}")
    if facts["kind"] != "classification":
        raise RequestError(f"{path}: kind {facts['kind']!r}, allowed: 'classification'; give another task by {FLAG}")
    if not (isinstance(labels, list) and all(isinstance(one, str) for one in labels) and len(labels) >= 2):
        raise RequestError(f"{path}: labels {labels!r:.60}, allowed: two names or more; mend it or set {FLAG}")
    if not all(one.strip() and not half_character(one) for one in labels):
        allowed = "names that are not blank, of whole characters"
        raise RequestError(f"{path}: labels {labels!r:.60}, allowed: {allowed}; mend it or set {FLAG}")
    if len({one.strip() for one in labels}) < len(labels):
        raise RequestError(f"{path}: labels {labels!r:.60}, allowed: each once; mend it or set {FLAG}")
    return facts


def _split(path: Path, classes: int) -> Split:
    if not path.is_file():
        raise RequestError(f"no file {path}; a task has {', '.join(f'{name}.jsonl' for name in SPLITS)}, set {FLAG}")
    ids, texts, labels = [], [], []
    with path.open("rb") as file:
        for number, line in enumerate(file):
            text, label = _row(line, f"{path}:{number + 1}", classes)
            ids.append(str(number))
            texts.append((text,))
            labels.append(label)
    if not labels:
        raise RequestError(f"{path} has no rows; fill it or set {FLAG}")
    return Split(ids, texts, labels)


def _row(line: bytes, where: str, classes: int) -> tuple[str, int]:
    try:
        row = json.loads(line)
        text, label = row["text"], row["label"]
    except (ValueError, KeyError, TypeError):
        raise RequestError(f"{where}: no JSON object in UTF-8 with text and label; mend it or set {FLAG}") from None
    if not isinstance(text, str):
        raise RequestError(f"{where}: text {text!r} is no string; mend it or set {FLAG}")
    if half_character(text):
        raise RequestError(f"{where}: text {text!r} holds half of a character; mend it or set {FLAG}")
    if type(label) is not int or not 0 <= label < classes:
        raise RequestError(f"{where}: label {label!r}, allowed: 0 <= label < {classes}; mend it or set {FLAG}")
    return text, label
