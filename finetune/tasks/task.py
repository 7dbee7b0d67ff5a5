"""What a loaded task is: rows of text and labels, split by split."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal["classification", "regression", "token", "choice"]
Text = tuple[str, ...]
"""classification and regression: one segment or a pair of them. token: the words."""
Choices = tuple[Text, ...]
"""choice: what the encoder reads for each answer, one segment or a pair of them. Rows may differ in their number."""
Label = int | float | list[int]
"""classification: index into Task.labels; regression: the number; token: an index for each word; choice: index of the
right answer."""


class Split(NamedTuple):
    """Rows in file order. labels: None where the rows have none, as those of a test server."""

    ids: list[str]
    texts: list[Text] | list[Choices]
    labels: list[Label] | None

    def __len__(self) -> int:
        return len(self.ids)

    def picked(self, rows: Sequence[int]) -> "Split":
        """The rows at these places, in the order of the places."""
        texts = [self.texts[at] for at in rows]
        labels = None if self.labels is None else [self.labels[at] for at in rows]
        return Split([self.ids[at] for at in rows], texts, labels)  # type: ignore[arg-type]  # texts stay of one form


@dataclass(frozen=True)
class Task:
    """splits: train, dev (chooses the epoch), test (scored); submit (without labels) and further scored ones by name.

    labels: class names by index; empty for regression and choice. metrics: names of finetune.metrics.METRICS, the
    first of which chooses the epoch. sha256: of every byte of the task and of what is made of it.
    """

    name: str
    kind: Kind
    labels: list[str]
    metrics: tuple[str, ...]
    splits: dict[str, Split]
    sha256: str
    facts: dict[str, Any] = field(default_factory=dict)


def scored(splits: Iterable[str]) -> list[str]:
    """Of a task's splits those that are scored: all but what trains and what chooses."""
    return [name for name in splits if name not in ("train", "dev")]
