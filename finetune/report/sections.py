"""What the report shows, section by section; which of them appear follows from the runs."""

from typing import NamedTuple

from finetune.report import analysis, attention, overview, plots, tables
from finetune.report.attention import Maps
from finetune.report.collect import Run, finished
from finetune.report.compare import comparisons
from finetune.report.labels import apart, grouped, method_key
from finetune.report.plots import Plot
from finetune.report.rows import Row
from finetune.report.tables import Table


class Section(NamedTuple):
    """A heading with tables and figures below it."""

    title: str
    text: str
    tables: list[Table]
    plots: list[Plot]


def sections(runs: list[Run], rows: list[Row], trained: list[Row], maps: list[Maps]) -> list[Section]:
    """Args: rows, of tuned_rows; trained, of pretrain_rows."""
    tuned = [row for row in rows if row.run.stage == "finetune"]
    groups = grouped(tuned, lambda row: (row.task, row.settings))
    tasks = [task for task, _ in groups]
    lettered = {task for task in tasks if tasks.count(task) > 1}
    found = [
        *_overview(tuned),
        *_elsewhere(runs, [row for row in rows if row.run.stage == "score"]),
        *_tests(rows, lettered),
        *[_task(same, tuned, f"task{index}") for index, same in enumerate(groups.values())],
        *_analysis(tuned, maps),
    ]
    return found + ([_pretraining(runs, trained)] if trained else [])


def _overview(tuned: list[Row]) -> list[Section]:
    """ASA's Tables 1 to 4."""
    if not tuned:
        return []
    common = [row for row in tuned if not overview.is_robust(row.task)]
    robust = [row for row in tuned if overview.is_robust(row.task)]
    parts = ((common, "Scores by task"), (robust, "Scores by task, robustness sets"))
    text = (
        "Main score on test in percent: mean ± sample standard deviation (number of seeds). Mean: over the row's tasks,"
        " where it has all of them. Each run's test score is that of the weights with the best dev score. A letter"
        " after a task: its settings, named below. A method without settings beside it: those that most of its runs on"
        " the task have."
    )
    found = [Section("Scores", text, [overview.scores(part, caption) for part, caption in parts if part], [])]
    if any(row.run.method in overview.CONTROLS for row in tuned):
        beside = [row for row in tuned if row.run.method.startswith(("vanilla", "asa", *overview.CONTROLS))]
        title, text = "Perturbed by chance", "Test scores as above: what random masks and noise reach beside ASA."
        found.append(Section(title, text, [overview.scores(beside, title)], []))
    if any(row.partner for row in tuned):
        title, text = (
            "Methods: gain and cost",
            "Gain over the vanilla run of the same model, task, settings and seed, in",
        )
        text += " points: mean ± sd (number of seeds). Costs: means of the ratios to those vanilla runs."
        found.append(Section(title, text, [overview.gains(tuned, title)], []))
    return found


def _elsewhere(runs: list[Run], scored: list[Row]) -> list[Section]:
    """Transfer, and the loss increase of FreeLB's Table 5."""
    text = "Models scored on tasks they were not trained on (task after training task), and by how much the loss can be"
    text += " raised by moving the word embeddings of an example within a ball; lower is sturdier."
    increase = overview.loss_increase(runs)
    shown = ([overview.scores(scored, "Transfer")] if scored else []) + ([increase] if increase else [])
    return [Section("Transfer and robustness", text, shown, [])] if shown else []


def _tests(rows: list[Row], lettered: set[str]) -> list[Section]:
    found = comparisons(rows)
    if not found:
        return []
    return [Section("Tests against vanilla", overview.how_tested(found), [overview.tests(found, lettered)], [])]


def _task(rows: list[Row], tuned: list[Row], name: str) -> Section:
    """One task under one set of settings: what may be compared. Args: tuned, the rows of all tasks."""
    masking = {one.row.method for one in analysis.masking(rows)}
    panel_of = {row.run.name: f"{row.model}, {row.method}" if len(masking) > 1 else row.model for row in rows}
    figures = [
        plots.scores(rows, f"{name}-scores"),
        plots.dev_curves(rows, f"{name}-dev"),
        analysis.masked_share([row.run for row in rows], panel_of, f"{name}-masked"),
    ]
    text = (
        "Mean ± sample standard deviation over the n seeds. vs vanilla: test score, the first column, minus that of the"
        " vanilla run of the same model and seed, in points."
    )
    title = f"Fine-tuning: {rows[0].task}"
    if others := [row.run for row in tuned if row.task == rows[0].task and row.settings != rows[0].settings]:
        title += f", settings {rows[0].settings}: {apart([rows[0].run, *others])}"
    return Section(title, text, [tables.results(rows)], [figure for figure in figures if figure])


def _analysis(tuned: list[Row], maps: list[Maps]) -> list[Section]:
    """ASA's Figures 1, 4b, 5 and 6."""
    shown, figures = [], []
    if masked := analysis.masking(tuned):
        shown.append(analysis.shares_by_layer(masked))
        figures.append(analysis.layers_and_tasks(masked, "layers"))
    if sweeps := analysis.swept(masked):
        shown.append(analysis.tau_table(sweeps))
        figures.append(analysis.tau_sweep(sweeps, "tau"))
    if maps:
        shown.append(attention.table(maps))
        figures += [attention.plot(found, f"maps{index}") for index, found in enumerate(maps)]
    text = "What the adversaries mask. Shares are of the pairs of real tokens; a method without masks is not listed."
    return [Section("What the adversaries do", text, shown, figures)] if shown else []


def _pretraining(runs: list[Run], trained: list[Row]) -> Section:
    done = sorted(finished(runs, "pretrain"), key=lambda run: (method_key(run.method), run.name))
    panel_of = dict(zip((run.name for run in done), plots.short_labels(done), strict=True))
    masked = analysis.masked_share(done, panel_of, "pretrain-masked")
    figures = [plots.pretraining_losses(done, "pretrain-loss"), *([masked] if masked else [])]
    text = "Held-out figures before the first step → after the last one, always of the clean model. Tokens/s: median."
    return Section("Pre-training", text, [tables.pretraining(trained)], figures)
