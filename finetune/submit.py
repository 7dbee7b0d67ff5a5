"""The command `submit`: predictions of runs -> the .zip that the GLUE server takes."""

import io
import zipfile
from pathlib import Path
from typing import NamedTuple

from asa.errors import RequestError
from asa.places import atomic_write, check_file
from finetune.evaluation_config import SubmitConfig
from finetune.predictions import FOLDER, STAGES, Stored, load_predictions
from finetune.saved import finished
from finetune.tasks.spec import named

FLAG = "--runs"
BINARY = ("0", "1")
TWO_WAY = ("entailment", "not_entailment")
THREE_WAY = ("entailment", "neutral", "contradiction")


class Sheet(NamedTuple):
    """A file of the submission. rows: of the official test file. answers: what may stand there; none: a number of the
    scale from 0 to 5. 0 and 1 are the task's two classes in the order of its file."""

    task: str
    split: str
    name: str
    rows: int
    answers: tuple[str, ...]


SHEETS = (
    Sheet("cola", "submit", "CoLA.tsv", 1_063, BINARY),
    Sheet("sst2", "submit", "SST-2.tsv", 1_821, BINARY),
    Sheet("mrpc", "submit", "MRPC.tsv", 1_725, BINARY),
    Sheet("stsb", "submit", "STS-B.tsv", 1_379, ()),
    Sheet("qqp", "submit", "QQP.tsv", 390_965, BINARY),
    Sheet("mnli", "submit", "MNLI-m.tsv", 9_796, THREE_WAY),
    Sheet("mnli", "submit-mm", "MNLI-mm.tsv", 9_847, THREE_WAY),
    Sheet("qnli", "submit", "QNLI.tsv", 5_463, TWO_WAY),
    Sheet("rte", "submit", "RTE.tsv", 3_000, TWO_WAY),
    Sheet("wnli", "submit", "WNLI.tsv", 146, BINARY),
    Sheet("ax", "submit", "AX.tsv", 1_104, THREE_WAY),
)


def submit(config: SubmitConfig) -> None:
    """Write the .zip and print what is in it.

    Raises: RequestError for runs of other tasks, two of one task, or other rows than the server's, and where tasks are
        missing and `partial` is off; WorkError for damaged predictions, or where nothing can be written at `out`.
    """
    if config.out.suffix != ".zip":
        raise RequestError(f"out = {config.out}: allowed ending .zip; set --out")
    check_file(config.out, "--out")
    runs = _by_task(config.runs)
    sheets = {sheet.name: text(sheet, runs[sheet.task]) for sheet in SHEETS if sheet.task in runs}
    missing = [sheet.name for sheet in SHEETS if sheet.name not in sheets]
    for sheet in SHEETS:
        told = f"{sheet.rows} rows from {runs[sheet.task]}" if sheet.task in runs else "missing"
        print(f"{sheet.name:12s} {told}")
    if missing and not config.partial:
        raise RequestError(f"the server wants {', '.join(missing)} as well; add runs, or set --partial true")
    _write(config.out, sheets)
    print(f"written to {config.out}")


def _by_task(runs: tuple[Path, ...]) -> dict[str, Path]:
    known = dict.fromkeys(sheet.task for sheet in SHEETS)
    found: dict[str, Path] = {}
    for run in runs:
        start, _ = finished(run, FLAG)
        if (stage := start.get("stage")) not in STAGES:
            raise RequestError(f"{run} is of stage {stage}, allowed: {', '.join(STAGES)}; leave it out of {FLAG}")
        task = start.get("task")
        if task not in known:
            raise RequestError(f"{run} is of task {task}, GLUE has {', '.join(known)}; leave it out of {FLAG}")
        if task in found:
            raise RequestError(f"{found[task]} and {run} are both of {task}; give one of them, or their ensemble")
        found[task] = run
    return found


def text(sheet: Sheet, run: Path) -> str:
    """The lines of a file: a heading, then number and answer of each row in the order of the official file.

    Raises: RequestError where there are no predictions or not of all its rows, they are of another kind, or the classes
        are not its answers.
    """
    path = run / FOLDER / f"{sheet.split}.npz"
    if not path.is_file():
        raise RequestError(
            f"{run} has no {path.relative_to(run)}: its data had no file for {sheet.name}; make the run again with one"
            f" (--data), or leave it out of {FLAG}"
        )
    these = load_predictions(path)
    if (kind := these.predictions.kind) != (wanted := "classification" if sheet.answers else "regression"):
        raise RequestError(f"{run} is of kind {kind}, {sheet.name} takes {wanted}; leave it out of {FLAG}")
    if len(these.ids) != sheet.rows:
        raise RequestError(
            f"{run} predicts {len(these.ids)} rows, {sheet.name} has {sheet.rows}; give it the whole file"
        )
    lines = [f"{number}\t{answer}" for number, answer in enumerate(answers(sheet, these, run))]
    return "\n".join(["index\tprediction", *lines, ""])


def answers(sheet: Sheet, these: Stored, run: Path) -> list[str]:
    """What stands in the file, row by row. Raises RequestError for classes that the server does not know."""
    if not sheet.answers:
        # Within the labels' scale, beyond which the server refuses a number; what was beyond it counts as its end.
        return [f"{min(5.0, max(0.0, float(row[0]))):.5f}" for row in these.predictions.logits]
    written = _written(sheet, these.labels, run)
    return [written[int(label)] for label in these.predictions.labels]  # type: ignore[arg-type]  # an index


def _written(sheet: Sheet, labels: list[str], run: Path) -> list[str]:
    """What stands in the file for each class of a run, by its name: classes that come from rows are sorted, which is
    not the server's order."""
    official = named(sheet.task).labels if sheet.answers == BINARY else sheet.answers
    for names in (official, sheet.answers):
        if sorted(labels) == sorted(names):
            return [sheet.answers[names.index(label)] for label in labels]
    known = " or ".join(", ".join(names) for names in dict.fromkeys((official, sheet.answers)))
    raise RequestError(f"{run} has classes {', '.join(labels)}, {sheet.name} {known}; leave it out of {FLAG}")


def _write(path: Path, sheets: dict[str, str]) -> None:
    """The same sheets give the same bytes: no time of day goes in. Raises WorkError where it cannot be written."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sheets.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    with atomic_write(path, "give the same command again, or set another --out") as partial:
        partial.write_bytes(packed.getvalue())
