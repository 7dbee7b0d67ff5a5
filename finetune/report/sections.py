"""What the report shows, section by section; which of them appear follows from the runs."""

from typing import NamedTuple

from finetune.report import analysis, attention, overview, plots, tables, tested
from finetune.report.attention import Maps
from finetune.report.collect import Run, finished
from finetune.report.compare import Tested
from finetune.report.labels import grouped, method_key, words
from finetune.report.plots import Plot
from finetune.report.rows import Row
from finetune.report.tables import Table


class Section(NamedTuple):
    """A heading with tables and figures below it."""

    title: str
    text: str
    tables: list[Table]
    plots: list[Plot]


def sections(runs: list[Run], rows: list[Row], trained: list[Row], maps: list[Maps], tests: Tested) -> list[Section]:
    """Args: rows, of tuned_rows; trained, of pretrain_rows; tests, those of the rows."""
    tuned = [row for row in rows if row.run.stage == "finetune"]
    groups = grouped(tuned, lambda row: (row.task, row.settings))
    found = [
        *_overview(tuned),
        *_elsewhere(runs, [row for row in rows if row.run.stage == "score"]),
        *_tests(tests),
        *[_task(same, f"task{index}") for index, same in enumerate(groups.values())],
        *_analysis(tuned, maps),
    ]
    return found + [_pretraining(runs, same) for same in grouped(trained, lambda row: row.task).values()]


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
        " after a task: its settings. A method without settings beside it: those that most of its runs have."
    )
    found = [Section("Scores", text, [overview.scores(part, caption) for part, caption in parts if part], [])]
    names = {row.run.method for row in tuned}
    if names.intersection(overview.CONTROLS) and names.intersection(overview.ADVERSARIAL_SELF_ATTENTION):
        shown = {"vanilla", *overview.ADVERSARIAL_SELF_ATTENTION, *overview.CONTROLS}
        beside = [row for row in tuned if row.run.method in shown]
        title = "ASA beside chance"
        text = "Test scores as above, beside ASA: masks (random_mask), noise (r3f) or two passes of dropout (r_drop),"
        text += " all drawn by chance."
        found.append(Section(title, text, [overview.scores(beside, title)], []))
    if any(row.partner for row in tuned):
        title = "Methods: gain and cost"
        text = "Gain over the vanilla run of the same model, task, settings and seed, in points: mean ± sd (number of"
        text += " seeds). Costs: means of the ratios to those of the vanilla runs that were made on the same kind of"
        text += " device, as far as the records tell."
        found.append(Section(title, text, [overview.gains(tuned, title)], []))
    return found


def _elsewhere(runs: list[Run], scored: list[Row]) -> list[Section]:
    """Transfer, and the loss increase of FreeLB's Table 5."""
    text = "Models scored by finetune score, mostly on tasks they were not trained on (task after training task), and"
    text += " by how much the loss can be raised by moving the word embeddings of an example within a ball; lower is"
    text += " sturdier."
    increase, joined = tested.loss_increase(runs), tested.ensembles(runs)
    parts = grouped(scored, lambda row: (row.task, row.settings)).values()  # HANS' three heuristics, ANLI's rounds
    shown = [overview.scores(scored, "Transfer")] if scored else []
    shown += [tables.results(same) for same in parts if any(len(row.run.scores) > 1 for row in same)]
    shown += [increase] if increase else []
    found = [Section("Transfer and robustness", text, shown, [])] if shown else []
    text = "Scores of the averaged probabilities (or numbers) of several runs of one task."
    return found + ([Section("Ensembles", text, [joined], [])] if joined else [])


def _tests(found: Tested) -> list[Section]:
    """Two families, each corrected for its own number."""
    shown = []
    for family, against in ((found.methods, "vanilla"), (found.models, "other models")):
        if family:
            text = tested.how_tested(family)
            if against != "vanilla":
                text = f"The same method and seed from other weights. {text}"
            title = f"Tests against {against}"
            shown.append(Section(title, text, [tested.tests(family, title)], []))
    return shown


def _task(rows: list[Row], name: str) -> Section:
    """One task under one set of settings: what may be compared."""
    masking = {one.row.method for one in analysis.masking(rows)}
    panel_of = {row.run.name: f"{row.model}, {row.method}" if len(masking) > 1 else row.model for row in rows}
    figures = [
        plots.scores(rows, f"{name}-scores"),
        plots.dev_curves(rows, f"{name}-dev"),
        analysis.masked_share([row.run for row in rows], panel_of, f"{name}-masked"),
    ]
    text = (
        f"Mean ± sample standard deviation over the n seeds. vs vanilla: test {words(rows[0].metric)} minus that of the"
        " vanilla run of the same model and seed, in points. In brackets: the number of seeds, where it is not n."
    )
    title = f"Fine-tuning: {rows[0].task}"
    if rows[0].settings:
        title += f", settings {rows[0].settings}: {rows[0].difference}"
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
    """Of one objective: what a loss is of, and how large, is another thing for another one."""
    objective = trained[0].task
    done = [run for run in finished(runs, "pretrain") if run.task == objective]
    done.sort(key=lambda run: (method_key(run.method), run.name))
    name = "pretrain" if objective == "mlm" else f"pretrain-{objective}"
    panel_of = dict(zip((run.name for run in done), plots.short_labels(done), strict=True))
    masked = analysis.masked_share(done, panel_of, f"{name}-masked")
    figures = [plots.pretraining_losses(done, f"{name}-loss"), masked]
    text = "Held-out figures before the first step → after the last one, always of the clean model. Tokens/s: median."
    title = "Pre-training" if objective == "mlm" else "Pre-training by replaced-token detection"
    return Section(title, text, [tables.pretraining(trained)], [figure for figure in figures if figure])
