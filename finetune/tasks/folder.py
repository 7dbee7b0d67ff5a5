"""Read a task folder: task.json, one SPLIT.jsonl each (id, text, label) and the manifest that says it is complete."""

import json
from pathlib import Path

from asa import manifest
from asa.errors import RequestError
from finetune.metrics import USUAL
from finetune.tasks.task import Split, Task

SPLITS = ("train", "dev", "test")


def load(folder: Path, flag: str = "--task.folder") -> Task:
    """Read and verify a task folder, every byte hashed.

    Raises: RequestError where it is no task folder, of another kind than classification, or a row is wrong;
        WorkError where a file is damaged.
    """
    manifest.verify(folder, "task", flag)
    facts = _facts(folder, flag)
    splits = {name: _split(folder / f"{name}.jsonl", len(facts["labels"]), flag) for name in SPLITS}
    sha256 = manifest.file_sha256(folder / manifest.NAME)
    return Task(facts["name"], facts["kind"], facts["labels"], USUAL[facts["kind"]], splits, sha256)


def _facts(folder: Path, flag: str) -> dict:
    path = folder / "task.json"
    facts = json.loads(path.read_text()) if path.is_file() else {}
    missing = [key for key in ("name", "kind", "labels") if key not in facts]
    if missing:
        raise RequestError(f"{path} has no {missing[0]!r}; it must hold name, kind and labels, mend it or set {flag}")
    if facts["kind"] != "classification":
        raise RequestError(f"{path}: kind {facts['kind']!r}, allowed: 'classification'; give another task by {flag}")
    if len(facts["labels"]) < 2:
        raise RequestError(f"{path}: labels {facts['labels']!r}, allowed: two or more; mend it or set {flag}")
    return facts


def _split(path: Path, classes: int, flag: str) -> Split:
    if not path.is_file():
        raise RequestError(f"no file {path}; a task has {', '.join(f'{name}.jsonl' for name in SPLITS)}, set {flag}")
    ids, texts, labels = [], [], []
    with path.open() as file:
        for number, line in enumerate(file, 1):
            text, label = _row(line, f"{path}:{number}", classes, flag)
            ids.append(str(number))
            texts.append((text,))
            labels.append(label)
    if not labels:
        raise RequestError(f"{path} has no rows; fill it or set {flag}")
    return Split(ids, texts, labels)


def _row(line: str, where: str, classes: int, flag: str) -> tuple[str, int]:
    try:
        row = json.loads(line)
        text, label = row["text"], row["label"]
    except (ValueError, KeyError, TypeError):
        raise RequestError(f"{where}: no JSON object with text and label; mend it or set {flag}") from None
    if not isinstance(text, str):
        raise RequestError(f"{where}: text {text!r} is no string; mend it or set {flag}")
    if text != text.encode(errors="replace").decode():
        raise RequestError(f"{where}: text {text!r} holds half of a character; mend it or set {flag}")
    if type(label) is not int or not 0 <= label < classes:
        raise RequestError(f"{where}: label {label!r}, allowed: 0 <= label < {classes}; mend it or set {flag}")
    return text, label
