"""Tables over many tasks, in the shape of the papers': scores, controls, methods with their cost, robustness, tests."""

import math

from finetune.report.collect import Run, finished
from finetune.report.compare import Comparison, holm
from finetune.report.examples import RESAMPLES
from finetune.report.labels import grouped, method_key, words
from finetune.report.rows import NAN, Row, of, spread
from finetune.report.tables import Table, mean_sd, number

# Tasks that a model is meant to fail on: ASA's Table 2, and sets of that kind it does not have.
ROBUST = ("anli", "paws", "hans", "advglue", "hellaswag")
CONTROLS = ("random_mask", "r_drop", "r3f")  # they perturb as well, but by chance
COSTS = (("slowdown", "Time per step / vanilla"), ("memory", "Peak memory / vanilla"))


def scores(rows: list[Row], caption: str) -> Table:
    """Rows model x method, columns tasks: `mean ± sd (n)` in percent; mean over the tasks for rows that have all."""
    return _across(rows, {row.run.name: row.score for row in rows}, caption, "")


def gains(rows: list[Row], caption: str) -> Table:
    """As scores, of the gains over vanilla in points, with what the methods cost as multiples of vanilla."""
    attacked = [row for row in rows if row.run.method != "vanilla"]
    table = _across(attacked, {row.run.name: row.values.get("gain", NAN) for row in attacked}, caption, "+")
    known = [(key, heading) for key, heading in COSTS if of(attacked, key)]
    groups = grouped(attacked, lambda row: (row.model, row.method))
    costs = {name: [number(spread(of(same, key)).mean, 2) for key, _ in known] for name, same in groups.items()}
    cells = [cell + costs[cell[0], cell[1]] for cell in table.rows]
    return Table(caption, table.columns + [heading for _, heading in known], cells, 2)


def _across(rows: list[Row], values: dict[str, float], caption: str, sign: str) -> Table:
    """Args: values, a fraction by the name of the run."""
    columns = task_columns(rows)
    cells = []
    ordered = sorted(rows, key=lambda row: (row.model, method_key(row.method)))
    for (model, method), same in grouped(ordered, lambda row: (row.model, row.method)).items():
        groups = grouped(same, lambda row: (row.task, row.settings))
        found = [[values[row.run.name] for row in groups.get(column, [])] for column in columns]
        texts = [f"{mean_sd(one, 100, 2, sign)} ({spread(one).n})" if spread(one).n else "-" for one in found]
        mean = [] if len(columns) == 1 else [_mean([spread(one).mean for one in found], sign)]
        cells.append([model, method, *texts, *mean])
    headings = [*columns.values(), *(["Mean"] if len(columns) > 1 else [])]
    return Table(caption, ["Model", "Method", *headings], cells, 2)


def _mean(means: list[float], sign: str) -> str:
    return "-" if any(map(math.isnan, means)) else number(100 * sum(means) / len(means), 2, sign)


def task_columns(rows: list[Row]) -> dict[tuple[str, str], str]:
    """(task, settings) -> a heading, with the letter where the rows have the task under several settings."""
    metrics = {(row.task, row.settings): words(row.metric) for row in rows}
    tasks = [task for task, _ in metrics]
    return {
        (task, letter): f"{task}{f' {letter}' if tasks.count(task) > 1 else ''} ({metric})"
        for (task, letter), metric in sorted(metrics.items())
    }


def is_robust(task: str) -> bool:
    return task.startswith(ROBUST)


def loss_increase(runs: list[Run]) -> Table | None:
    """FreeLB's Table 5: the largest increase of the loss within a ball, per model; None where it was not measured."""
    measured = finished(runs, "robustness")
    cells = []
    for run in sorted(measured, key=lambda run: (run.task, str(run.facts.get("reference")), run.name)):
        end = {key: value for key, value in (run.end or {}).items() if isinstance(value, int | float)}
        low, high = (number(end.get(key, NAN), 4) for key in ("q25", "q75"))
        rest = [number(end.get(key, NAN), 4) for key in ("mean", "sd", "clean_loss_median")]
        sizes = [number(end.get("n", NAN), 0), number(end.get("radius_median", NAN), 4)]
        names = [run.task, run.model, str(run.facts.get("reference", "n/a"))]
        cells.append([*names, *sizes, number(end.get("median", NAN), 4), f"{low} to {high}", *rest])
    figures = ["n", "Median radius", "Median increase", "Middle half", "Mean", "Sd", "Median loss without attack"]
    caption = "Largest increase of the loss within the ball, nats"
    return Table(caption, ["Task", "Model", "Radii from", *figures], cells, 3) if cells else None


def tests(found: list[Comparison], lettered: set[str]) -> Table:
    """One row per comparison with vanilla, p values as they are and corrected for the number of rows.

    Args: lettered, the tasks that are run under several settings.
    """
    seeds, examples = holm([one.p_seeds for one in found]), holm([one.p_examples for one in found])
    cells = []
    for one, p_seeds, p_examples in zip(found, seeds, examples, strict=True):
        task = f"{one.task} {one.settings}" if one.task in lettered else one.task
        interval = "n/a" if math.isnan(one.low) else f"{one.low * 100:+.2f} to {one.high * 100:+.2f}"
        gain = [str(len(one.gains)), mean_sd(one.gains, 100, 2, "+")]
        by_examples = [interval, p_value(one.p_examples), p_value(p_examples)]
        names = [task, one.model, one.method, words(one.metric)]
        cells.append([*names, *gain, p_value(one.p_seeds), p_value(p_seeds), *by_examples])
    figures = ["n", "Gain, points", "p over seeds", "Holm", "95 % over examples", "p over examples", "Holm"]
    return Table("Every method against vanilla", ["Task", "Model", "Method", "Metric", *figures], cells, 4)


def p_value(p: float) -> str:
    return "n/a" if math.isnan(p) else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def how_tested(found: list[Comparison]) -> str:
    """What the p values mean, how many there are, and how small they can get."""
    sizes = sorted({len(one.gains) for one in found})
    least = ", ".join(f"{2.0 ** (1 - n):.3g} with {n} seeds" for n in sizes if n > 1)
    return (
        f"{len(found)} comparisons. p over seeds: would runs with other seeds show the gain? Sign-flip permutation test"
        " of the mean gain, two-sided" + (f"; it cannot fall below {least}" if least else "; it needs two seeds") + "."
        " p over examples: would other test examples show the gain of these very runs? Paired bootstrap,"
        f" {RESAMPLES:,} resampled test sets; 95 %: its interval of the mean gain. Holm: the p value to its left,"
        " corrected for all rows that have one."
    )
