"""Runs -> report.html, report.md, report.csv. The files are a pure function of the metrics.jsonl files."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
import yaml

from finetune.config import ReportConfig
from finetune.report import plots, tables
from finetune.report.collect import STAGES, Run, collect, finished, lettered
from finetune.report.frames import finetune_frame, method_key, pretrain_frame, table_csv
from finetune.report.plots import Plot
from finetune.report.tables import Table


class Section(NamedTuple):
    """A heading with a table and figures below it."""

    title: str
    text: str
    table: Table
    plots: list[Plot]


def write(config: ReportConfig) -> None:
    """Write the three files and print the path of the page.

    Raises: RequestError when there is no run below config.runs.
    """
    runs = collect(config.runs)
    content = _content(runs)
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    config.out.mkdir(parents=True, exist_ok=True)
    _put(config.out / "report.csv", table_csv(runs))
    for name in ("report.md", "report.html"):
        _put(config.out / name, templates.get_template(f"{name}.j2").render(content))
    print(config.out / "report.html")


def _content(runs: list[Run]) -> dict[str, Any]:
    tuned, trained = finetune_frame(runs), pretrain_frame(runs)
    groups = tuned.groupby(["task", "settings"], sort=False)
    return {
        "summary": _summary(runs, tuned, trained),
        "tuning": [_tuning(runs, frame, f"task{index}") for index, (_, frame) in enumerate(groups)],
        "pretraining": _pretraining(runs, trained) if len(trained) else None,
        "left_out": tables.left_out(runs),
        "every_run": tables.every_run(tuned),
        "settings": _settings(runs),
    }


def _summary(runs: list[Run], tuned: pd.DataFrame, trained: pd.DataFrame) -> list[str]:
    """What was run, one sentence per stage."""
    lines = []
    for task, frame in tuned.groupby("task", sort=False):
        seeds = ", ".join(str(seed) for seed in sorted(set(frame["seed"])))
        models, methods = ", ".join(dict.fromkeys(frame["model"])), ", ".join(dict.fromkeys(frame["method"]))
        lines.append(
            f"Fine-tuning on {task}: {counted(len(frame))}; models {models}; methods {methods}; seeds {seeds}."
        )
    if len(trained):
        parts = [f"{row['method']} from {row['model']}, {row['steps']:,} steps" for row in trained.to_dict("records")]
        lines.append(f"Continual pre-training: {counted(len(trained))} ({'; '.join(dict.fromkeys(parts))}).")
    if rest := len(tables.left_out(runs).rows):
        lines.append(f"Not finished, and in no average or figure: {rest}, listed below.")
    return lines


def counted(runs: int) -> str:
    return f"{runs} finished run{'s' if runs > 1 else ''}"


def _tuning(runs: list[Run], frame: pd.DataFrame, name: str) -> Section:
    """One task under one set of settings: what may be compared."""
    names = set(frame["run"])
    members = [run for run in runs if run.name in names]
    figures = [
        plots.scores(frame, f"{name}-scores"),
        plots.dev_curves(members, f"{name}-dev"),
        plots.masked_share(members, f"{name}-masked"),
    ]
    text = (
        "Mean ± sample standard deviation over the n seeds. Each run's test score is that of the weights with the best "
        "dev accuracy. vs vanilla: test accuracy minus that of the vanilla run of the same model and seed, in points."
    )
    several = len(lettered(finished(runs, "finetune"))) > 1
    title = f"Fine-tuning: {frame['task'].iloc[0]}" + (f", settings {frame['settings'].iloc[0]}" if several else "")
    return Section(title, text, tables.results(frame), [figure for figure in figures if figure])


def _pretraining(runs: list[Run], trained: pd.DataFrame) -> Section:
    done = sorted(finished(runs, "pretrain"), key=lambda run: (method_key(run.method), run.name))
    figures = [plots.pretraining_losses(done, "pretrain-loss"), plots.masked_share(done, "pretrain-masked")]
    text = "Held-out figures before the first step → after the last one, always of the clean model. Tokens/s: median."
    return Section("Pre-training", text, tables.pretraining(trained), [figure for figure in figures if figure])


def _settings(runs: list[Run]) -> list[tuple[str, str]]:
    """Title and YAML of every distinct configuration and environment."""
    blocks: dict[tuple[str, str], int] = {}
    for stage in STAGES:
        done = finished(runs, stage)
        letters = lettered(done)
        for run in done:
            which = letters[run.settings] if stage == "finetune" else run.name
            for title, key in ((f"Settings {which}, {stage}", "config"), (f"Environment, {stage}", "environment")):
                block = title, yaml.safe_dump(run.facts.get(key, {}), sort_keys=False)
                blocks[block] = blocks.get(block, 0) + 1
    return [(f"{title} (runs: {count})", text) for (title, text), count in sorted(blocks.items())]


def _put(path: Path, text: str) -> None:
    """The whole file or none of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
