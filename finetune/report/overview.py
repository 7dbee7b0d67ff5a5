"""Tables over many tasks, in the shape of the papers': scores, controls, methods with their cost."""

import math
import re

from finetune.report.labels import by_task, grouped, method_key, words
from finetune.report.rows import NAN, Row, figures_of, spread
from finetune.report.tables import Table, caveats, mark, mean_sd, number, told

# Tasks that a model is meant to fail on: ASA's Table 2, and sets of that kind it does not have.
ROBUST = ("anli", "paws", "hans", "advglue", "hellaswag")
ADVERSARIAL_SELF_ATTENTION = ("asa", "asa_sparse", "asa_freelb")
CONTROLS = ("random_mask", "r_drop", "r3f")  # what they add to a step is drawn by chance
COSTS = (("slowdown", "Time per step / vanilla"), ("memory", "Peak memory / vanilla"))


def scores(rows: list[Row], caption: str) -> Table:
    """Rows model x method, columns tasks: `mean ± sd (n)` in percent; mean over the tasks for rows that have all."""
    return told(_across(rows, {row.run.name: row.overall for row in rows}, caption, ""))


def gains(rows: list[Row], caption: str) -> Table:
    """As scores, of the gains over vanilla in points, with what the methods cost as multiples of vanilla."""
    attacked = [row for row in rows if row.run.method != "vanilla"]
    found = {row.run.name: row.values.get("overall_gain", row.values.get("gain", NAN)) for row in attacked}
    table = _across(attacked, found, caption, "+")
    known = [(key, heading) for key, heading in COSTS if figures_of(attacked, key)]
    groups = grouped(attacked, lambda row: (row.model, row.method))
    costs = {name: [number(spread(figures_of(same, key)).mean, 2) for key, _ in known] for name, same in groups.items()}
    cells = [cell + costs[cell[0], cell[1]] for cell in table.rows]
    return table._replace(columns=table.columns + [heading for _, heading in known], rows=cells)


def _across(rows: list[Row], values: dict[str, float], caption: str, sign: str) -> Table:
    """Args: values, a fraction by the name of the run."""
    columns = task_columns(rows)
    scored = {(row.task, row.settings) for row in rows if not math.isnan(values[row.run.name])}
    averaged = len(scored) > 1 and not _several(rows)
    cells = []
    ordered = sorted(rows, key=lambda row: (row.model, method_key(row.method)))
    for (model, method), same in grouped(ordered, lambda row: (row.model, row.method)).items():
        groups = grouped(same, lambda row: (row.task, row.settings))
        found = {column: [values[row.run.name] for row in groups.get(column, [])] for column in columns}
        marks = {column: mark(groups.get(column, []), rows, values) for column in columns}
        texts = [
            f"{mean_sd(one, 100, 2, sign)} ({spread(one).n}{marks[column]})" if spread(one).n else "-"
            for column, one in found.items()
        ]
        means = [spread(one).mean for column, one in found.items() if column in scored]
        mean = [_mean(means, sign, max(marks.values()))] if averaged else []
        cells.append([model, method, *texts, *mean])
    headings = [*columns.values(), *(["Mean"] if averaged else [])]
    note = _notes(rows, values, "gain" if sign else "test score")
    return Table(caption, ["Model", "Method", *headings], cells, 2, note)


def _mean(means: list[float], sign: str, mark: str) -> str:
    return "-" if any(map(math.isnan, means)) else number(100 * sum(means) / len(means), 2, sign) + mark


def _several(rows: list[Row]) -> list[str]:
    """The tasks that the rows have under several settings."""
    tasks = [task for task, _ in task_columns(rows)]
    return sorted({task for task in tasks if tasks.count(task) > 1})


def _notes(rows: list[Row], values: dict[str, float], what: str) -> str:
    """What the headings, the labels and the gaps of a table over tasks stand for. Args: what, one of the values."""
    letters = {row.settings: row.difference for row in rows if row.settings}
    notes = [f"{letter}: {difference}." for letter, difference in sorted(letters.items())]
    if several := _several(rows):
        notes.append(f"No mean over tasks, since {', '.join(several)} would count once for each of its settings.")
    if any(row.in_two_files for row in rows):
        notes.append("mnli m/mm: the mean over its matched and its mismatched rows, as in the papers' tables.")
    if said := caveats(rows):
        notes.append(said)
    for label in by_task([row.run for row in rows], {row.run.name: row.method for row in rows}):
        notes.append(f"{label} has settings of its own for each task, named below; so has its mean.")
    for task, same in grouped(rows, lambda row: row.task).items():
        if all(math.isnan(values[row.run.name]) for row in same):
            notes.append(f"No run on {task} has a {what}.")
    return " ".join(notes)


def task_columns(rows: list[Row]) -> dict[tuple[str, str], str]:
    """(task, settings) -> a heading, with the letter where the task has several settings."""
    metrics = {(row.task, row.settings): words(row.metric) for row in rows}
    files = {(row.task, row.settings): " m/mm" if row.in_two_files else "" for row in rows}
    return {
        (task, letter): f"{task}{files[task, letter]}{f' {letter}' if letter else ''} ({metric})"
        for (task, letter), metric in sorted(metrics.items())
    }


def is_robust(task: str) -> bool:
    """Whether it is one of them, or a part of one as advglue-rte is."""
    return re.match(rf"(?:{'|'.join(ROBUST)})(?![^\W_])", task) is not None
