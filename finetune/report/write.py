"""Runs -> report.html, report.md, report.csv. The files are a pure function of the files below the runs folder."""

import csv
import io
import os
from pathlib import Path

import jinja2
import yaml

from finetune.config import ReportConfig
from finetune.report import attention, tables
from finetune.report.collect import COMPARED, STAGES, Run, collect, finished
from finetune.report.labels import grouped, letters, method_labels
from finetune.report.rows import Row, of, pretrain_rows, spread, tuned_rows
from finetune.report.sections import sections

GROUP = ("stage", "task", "model", "method", "settings")


def write(config: ReportConfig) -> None:
    """Write the three files and print the path of the page.

    Raises: RequestError when there is no run below config.runs.
    """
    runs = collect(config.runs)
    tuned, trained = tuned_rows(runs), pretrain_rows(runs)
    maps = [attention.load(path) for path in sorted(config.runs.rglob(f"*{attention.ENDING}"))]
    content = {
        "summary": _summary(runs, tuned, trained),
        "sections": sections(runs, tuned, trained, maps),
        "left_out": tables.left_out(runs),
        "every_run": tables.every_run(tuned),
        "settings": _settings(runs),
    }
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    config.out.mkdir(parents=True, exist_ok=True)
    _put(config.out / "report.csv", table_csv(tuned + trained))
    for name in ("report.md", "report.html"):
        _put(config.out / name, templates.get_template(f"{name}.j2").render(content))
    print(config.out / "report.html")


def _summary(runs: list[Run], tuned: list[Row], trained: list[Row]) -> list[str]:
    """What was run, one sentence per task, and one for pre-training."""
    lines = []
    for (stage, task), same in grouped(tuned, lambda row: (row.run.stage, row.task)).items():
        seeds = ", ".join(str(seed) for seed in sorted({row.run.seed for row in same} - {-1})) or "none"
        models, methods = (", ".join(dict.fromkeys(names)) for names in zip(*[row[2:4] for row in same], strict=True))
        what = "Fine-tuning on" if stage == "finetune" else "Scored on"
        lines.append(f"{what} {task}: {counted(len(same))}; models {models}; methods {methods}; seeds {seeds}.")
    if trained:
        parts = [f"{row.method} from {row.model}, {row.run.last_step:,} steps" for row in trained]
        lines.append(f"Continual pre-training: {counted(len(trained))} ({'; '.join(dict.fromkeys(parts))}).")
    if rest := len(tables.left_out(runs).rows):
        lines.append(f"Not finished, and in no average or figure: {rest}, listed below.")
    return lines


def counted(runs: int) -> str:
    return f"{runs} finished run{'s' if runs > 1 else ''}"


def table_csv(rows: list[Row]) -> str:
    """The whole of report.csv; scores, gains and shares are fractions, times seconds, memory bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*GROUP, "metric", "n", "mean", "sd"])
    for group, same in grouped(rows, lambda row: (row.run.stage, *row[1:5])).items():
        for key in dict.fromkeys(key for row in same for key in row.values):
            if (found := spread(of(same, key))).n:
                sd = "n/a" if found.n == 1 else found.sd
                writer.writerow([*group, key, found.n, found.mean, sd])
    return text.getvalue()


def _settings(runs: list[Run]) -> list[tuple[str, str]]:
    """Title and YAML: what each sweep was asked for, and every distinct configuration and environment."""
    done = finished(runs, *STAGES)
    letter, method = letters(done), method_labels(done)
    blocks: dict[tuple[str, str], int] = {}
    for run in done:
        called = f"{run.task}, {method[run.name]}, settings {letter[run.name]}"
        titles = {
            "request": f"Request, {run.stage}",
            "config": f"Settings: {called if run.stage in COMPARED else run.name}",
            "environment": f"Environment, {run.stage}",
        }
        for key, title in titles.items():
            if key in run.facts:
                block = title, yaml.safe_dump(run.facts[key], sort_keys=False)
                blocks[block] = blocks.get(block, 0) + 1
    return [(f"{title} (runs: {count})", text) for (title, text), count in sorted(blocks.items())]


def _put(path: Path, text: str) -> None:
    """The whole file or none of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
